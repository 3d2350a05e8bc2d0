// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/sheet.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/picture/several.h"
#include "tools/text/output.h"

int lien_sheet_heading(const struct lien_sheet *sheet, int y, const char *title, const char *note)
{
	const struct lien_font font = {16, LIEN_INK, true, LIEN_START};
	const struct lien_font small = {12, LIEN_MUTED, false, LIEN_START};
	int after = LIEN_SHEET_MARGIN + lien_svg_width(&font, title) + 14;

	y += 32;
	lien_svg_text(sheet->out, LIEN_SHEET_MARGIN, y, sheet->width, &font, "%s", title);
	lien_svg_text(
		sheet->out, after, y, sheet->width - LIEN_SHEET_MARGIN - after, &small, "%s", note);
	return y + 12;
}

struct lien_shades lien_sheet_shades(const struct lien_sheet *sheet, const char *library)
{
	static const struct lien_shades nccl = {"#c8640a", "#f6cfa6"},
					unknown = {"#6b727c", "#d5d9de"};
	static const struct lien_shades others[] = {{"#2a69ad", "#b9d3ee"}, {"#2f7d46", "#bce0c6"},
		{"#7a4fb3", "#dacbf0"}, {"#147f80", "#b3e0df"}, {"#86652f", "#e4d4b5"},
		{"#b03f74", "#f1c6da"}};
	unsigned number = 0;

	if (!strcmp(library, "nccl"))
		return nccl;
	if (!strcmp(library, "unknown"))
		return unknown;
	for (unsigned i = 0; i < sheet->residents.library_count; i++) {
		const char *name = sheet->residents.libraries[i].name;

		if (!strcmp(name, library))
			break;
		number += strcmp(name, "nccl") && strcmp(name, "unknown");
	}
	return others[number % (sizeof(others) / sizeof(*others))];
}

/* Returns a process's rank in the largest of its communicators. */
char *lien_sheet_rank(const struct lien_sheet *sheet, const struct lien_resident *resident)
{
	const struct lien_member *best = NULL;
	uint64_t least = UINT64_MAX, most = 0;

	for (unsigned c = 0; c < sheet->teams.count && !resident->dead; c++) {
		const struct lien_communicator *communicator = &sheet->teams.communicators[c];

		for (unsigned m = 0; m < communicator->member_count; m++) {
			const struct lien_member *member = &communicator->members[m];

			if (member->pid != resident->pid || (best && best->nranks > member->nranks))
				continue;
			if (best && !strcmp(best->group, member->group)) {
				least = member->rank < least ? member->rank : least;
				most = member->rank > most ? member->rank : most;
			} else if (!best || best->nranks < member->nranks) {
				best = member;
				least = most = member->rank;
			}
		}
	}
	if (!best)
		return NULL;
	if (least == most)
		return lien_format("rank %" PRIu64, least);
	return lien_format("ranks %" PRIu64 "-%" PRIu64, least, most);
}

char *lien_sheet_team(const struct lien_sheet *sheet, unsigned team)
{
	unsigned number = 0;

	for (unsigned c = 0; c < team; c++)
		number += sheet->teams.communicators[c].team == c;
	if (number < 26)
		return lien_format("%c", 'A' + number);
	return lien_format("%c%u", 'A' + number % 26, number / 26 + 1);
}

/* Behind the node's name, if there are several. */
static char *on_node(const char *node, char *text)
{
	char *whole = *node ? lien_format("%s · %s", node, text) : NULL;

	if (whole)
		free(text);
	return whole ? whole : text;
}

char *lien_sheet_device(const struct lien_sheet *sheet, int device)
{
	if (device == LIEN_DEVICE_NONE)
		return lien_format("owns no memory");
	if (device == LIEN_DEVICE_UNKNOWN)
		return lien_format("GPU unknown");
	return on_node(lien_several_node_of_device(sheet->nodes, device),
		lien_format("GPU %" PRId64, lien_several_device(sheet->nodes, device)));
}

char *lien_sheet_pid(const struct lien_sheet *sheet, uint64_t pid)
{
	return on_node(lien_several_node_of_pid(sheet->nodes, pid),
		lien_format("pid %" PRIu64, lien_several_pid(sheet->nodes, pid)));
}
