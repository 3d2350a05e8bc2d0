// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/graph_svg.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/picture/several.h"
#include "tools/picture/sheet.h"
#include "tools/text/output.h"

#define LIBRARIES_SHOWN 12
#define GAP		26
#define TEAMS_SHOWN	16
#define NAMES_SHOWN	4 /* of a team's communicators */

/* Consecutive text and boxes, in lines of the sheet's width. For most fonts the widths are
 * overestimates, which would look uneven: hence a smaller margin and larger gaps. */
struct run {
	const struct lien_sheet *sheet;
	struct lien_font font;
	int left, x, y; /* beginning of lines; base line of the next item */
};

static struct run begin_run(
	const struct lien_sheet *sheet, int size, const char *color, int x, int y)
{
	return (struct run){sheet, {size, color, false, LIEN_START}, x, x, y};
}

static void put_item(struct run *run, const struct lien_look *look, const char *text)
{
	int width = lien_svg_width(&run->font, text) * 9 / 10 + (look ? 18 : 0);
	int right = run->sheet->width - LIEN_SHEET_MARGIN;

	if (run->x > run->left && run->x + width > right) {
		run->x = run->left;
		run->y += run->font.size + 8;
	}
	if (look)
		lien_svg_box(run->sheet->out, run->x, run->y - 10, 12, 11, look);
	lien_svg_text(run->sheet->out, run->x + (look ? 18 : 0), run->y, right - run->x, &run->font,
		"%s", text);
	run->x += width + GAP;
}

static void put_text(struct run *run, char *text)
{
	put_item(run, NULL, text);
	free(text);
}

struct totals {
	uint64_t bytes, shared, offloaded, other, dead, imports;
	unsigned processes, devices;
};

static void sum_parts(struct totals *totals, const struct lien_resident *resident)
{
	for (unsigned p = 0; p < resident->part_count; p++) {
		const struct lien_part *part = &resident->parts[p];

		if (part->kind == LIEN_PART_EXPORTED)
			totals->shared += part->bytes;
		else if (part->kind == LIEN_PART_OFFLOADED)
			totals->offloaded += part->bytes;
		else if (part->kind == LIEN_PART_OTHER)
			totals->other += part->bytes;
	}
}

static struct totals sum_all(const struct lien_sheet *sheet)
{
	const struct lien_residents *all = &sheet->residents;
	struct totals totals = {0};
	int device = -1;

	for (unsigned i = 0; i < all->count; i++) {
		const struct lien_resident *one = &all->residents[i];
		const struct lien_resident *shown = &all->residents[all->order[i]];

		sum_parts(&totals, one);
		totals.bytes += one->bytes;
		totals.dead += one->dead ? one->bytes : 0;
		totals.processes += one->process && (!i || one[-1].process != one->process);
		totals.devices += shown->device != device && shown->device < LIEN_DEVICE_NONE;
		device = shown->device;
	}
	for (unsigned i = 0; i < all->bundle_count; i++)
		totals.imports += all->bundles[i].allocations;
	return totals;
}

static int put_totals(const struct lien_sheet *sheet, int y)
{
	struct run run = begin_run(sheet, 14, LIEN_INK, LIEN_SHEET_MARGIN, y + 20);
	struct totals totals = sum_all(sheet);

	put_text(&run, lien_format("%" PRIu64 " %s on %u %s",
			       LIEN_PLURAL(totals.processes, "process", "processes"),
			       totals.devices, totals.devices == 1 ? "GPU" : "GPUs"));
	put_text(&run, lien_format("%s on %s", lien_bytes(totals.bytes).text,
			       totals.devices == 1 ? "the GPU" : "the GPUs"));
	if (totals.shared)
		put_text(&run, lien_format("%s of it exported", lien_bytes(totals.shared).text));
	if (totals.imports)
		put_text(&run, lien_format("%" PRIu64 " %s",
				       LIEN_PLURAL(totals.imports, "import", "imports")));
	if (totals.offloaded)
		put_text(&run, lien_format("%s offloaded", lien_bytes(totals.offloaded).text));
	if (totals.other)
		put_text(&run, lien_format("%s elsewhere", lien_bytes(totals.other).text));
	run.font.color = LIEN_RED;
	if (totals.dead)
		put_text(&run, lien_format("%s held by the dead", lien_bytes(totals.dead).text));
	return run.y + 6;
}

static int put_libraries(const struct lien_sheet *sheet, int y)
{
	struct run run = begin_run(sheet, 13, LIEN_INK, LIEN_SHEET_MARGIN, y + 18);
	const struct lien_residents *all = &sheet->residents;

	for (unsigned i = 0; i < all->library_count && i <= LIBRARIES_SHOWN; i++) {
		const struct lien_library *library = &all->libraries[i];
		struct lien_look look = {
			lien_sheet_shades(sheet, library->name).strong, NULL, 2, false};
		char *text;

		if (i == LIBRARIES_SHOWN) {
			put_text(&run, lien_format("and %u more", all->library_count - i));
			break;
		}
		text = lien_format("%.40s %s", library->name, lien_bytes(library->bytes).text);
		put_item(&run, &look, text);
		free(text);
	}
	return all->library_count ? run.y + 8 : y;
}

static int put_title(const struct lien_sheet *sheet, const char *where, const char *when)
{
	const struct lien_font title = {22, LIEN_INK, true, LIEN_START};
	const struct lien_font small = {12, LIEN_MUTED, false, LIEN_END};
	int right = sheet->width - LIEN_SHEET_MARGIN, room = lien_svg_width(&small, when) + 16;
	int y = LIEN_SHEET_MARGIN + 20;

	lien_svg_text(sheet->out, LIEN_SHEET_MARGIN, y, right - LIEN_SHEET_MARGIN - room, &title,
		"GPU memory %s", where);
	lien_svg_text(sheet->out, right, y, room, &small, "%s", when);
	y = put_totals(sheet, y + 6);
	return put_libraries(sheet, y) + 8;
}

/* Describes the number and size of the registrations of a team's communicators. */
static char *describe_registrations(const struct lien_sheet *sheet, unsigned team)
{
	uint64_t count = 0, bytes = 0;
	const json_t *one;
	size_t i;

	for (unsigned c = team; c < sheet->teams.count; c++) {
		const struct lien_communicator *communicator = &sheet->teams.communicators[c];

		if (communicator->team != team)
			continue;
		for (unsigned m = 0; m < communicator->member_count; m++) {
			json_array_foreach (communicator->members[m].registrations, i, one) {
				bytes += lien_get_number(one, "bytes");
				count++;
			}
		}
	}
	if (!count)
		return lien_format("no registrations");
	return lien_format("%" PRIu64 " %s, %s",
		LIEN_PLURAL(count, "registration", "registrations"), lien_bytes(bytes).text);
}

/* Lists their names, as many as are readable. */
static char *name_communicators(const struct lien_sheet *sheet, unsigned team, unsigned *count)
{
	char *names = NULL;

	*count = 0;
	for (unsigned c = team; c < sheet->teams.count; c++) {
		if (sheet->teams.communicators[c].team == team && (*count)++ < NAMES_SHOWN)
			names = lien_append(
				names, ", ", "%s", sheet->teams.communicators[c].members[0].group);
	}
	if (*count > NAMES_SHOWN)
		names = lien_append(names, ", ", "%u more", *count - NAMES_SHOWN);
	return names;
}

static int put_team(const struct lien_sheet *sheet, unsigned team, int y)
{
	const struct lien_font bold = {12, LIEN_INK, true, LIEN_MIDDLE};
	struct run run = begin_run(sheet, 12, LIEN_INK, LIEN_SHEET_MARGIN + 40, y + 13);
	const struct lien_communicator *first = &sheet->teams.communicators[team];
	char *letter = lien_sheet_team(sheet, team), *names;
	unsigned count;

	names = name_communicators(sheet, team, &count);
	lien_svg_box(sheet->out, LIEN_SHEET_MARGIN, y, 30, 18,
		&(struct lien_look){"#e3eaf1", NULL, 4, false});
	lien_svg_text(sheet->out, LIEN_SHEET_MARGIN + 15, y + 13, 28, &bold, "%s", letter);
	put_text(&run, lien_format("%u %s of %" PRIu64 " %s, %u here", count,
			       count == 1 ? "communicator" : "communicators",
			       LIEN_PLURAL(first->members[0].nranks, "rank", "ranks"),
			       first->member_count));
	put_text(&run, describe_registrations(sheet, team));
	put_text(&run, names);
	free(letter);
	return run.y + 10;
}

static int put_teams(const struct lien_sheet *sheet, int y)
{
	const struct lien_font font = {12, LIEN_MUTED, false, LIEN_START};
	unsigned shown = 0, left = 0;

	if (!sheet->teams.count)
		return y;
	y = lien_sheet_heading(sheet, y, "Communicators",
		"those of the same ranks share a letter; A 0/8 is rank 0 of 8");
	for (unsigned c = 0; c < sheet->teams.count; c++) {
		if (sheet->teams.communicators[c].team != c)
			continue;
		if (shown++ < TEAMS_SHOWN)
			y = put_team(sheet, c, y);
		else
			left++;
	}
	if (left)
		lien_svg_text(sheet->out, LIEN_SHEET_MARGIN, y + 13, sheet->width, &font,
			"and %u sets of ranks more", left);
	return left ? y + 23 : y;
}

static int put_key(const struct lien_sheet *sheet, int y)
{
	static const struct {
		struct lien_look look;
		const char *text;
	} items[] = {
		{{"#d5d9de", NULL, 0, false}, "local: never exported"},
		{{"#6b727c", NULL, 0, false}, "exported to or held by other processes"},
		{{"#ffffff", "#6b727c", 0, true},
			"dashed, arrows too: offloaded or otherwise off the GPU"},
		{{"#ffffff", LIEN_MUTED, 0, false}, "imported: another's, counted there"},
		{{LIEN_RED, NULL, 0, false}, "owner has exited, importers keep its memory"},
	};
	struct run run = begin_run(sheet, 12, LIEN_MUTED, LIEN_SHEET_MARGIN, y + 34);

	lien_svg_line(sheet->out, LIEN_SHEET_MARGIN, y + 14, sheet->width - LIEN_SHEET_MARGIN,
		y + 14, 10, &(struct lien_look){NULL, LIEN_FAINT, 0, false});
	for (unsigned i = 0; i < sizeof(items) / sizeof(*items); i++)
		put_item(&run, &items[i].look, items[i].text);
	return run.y + LIEN_SHEET_MARGIN;
}

/* Returns the height, or -ENOMEM. */
static int draw(struct lien_sheet *sheet, const char *where, const char *when)
{
	int y;

	lien_cards_arrange(sheet);
	y = put_title(sheet, where, when);
	y = lien_cards_draw(sheet, y);
	y = lien_lanes_draw(sheet, y);
	if (y < 0)
		return -ENOMEM;
	return put_key(sheet, put_teams(sheet, y));
}

static int draw_document(struct lien_sheet *sheet, const char *where, const char *when, FILE *out)
{
	char *body = NULL;
	size_t size;
	int height, err;

	sheet->centers = calloc(sheet->residents.count + 1, sizeof(*sheet->centers));
	if (!sheet->centers)
		return -ENOMEM;
	sheet->out = open_memstream(&body, &size);
	if (!sheet->out)
		return -ENOMEM;
	height = draw(sheet, where, when);
	err = ferror(sheet->out) || height < 0 ? -ENOMEM : 0;
	if (fclose(sheet->out))
		err = -ENOMEM;
	if (!err)
		lien_svg_document(out, sheet->width, height, body);
	free(body);
	return err;
}

int lien_graph_svg(const json_t *reply, const char *where, const char *when, FILE *out)
{
	json_t *united = lien_several_unite(reply);
	struct lien_sheet sheet = {.nodes = json_object_get(united, "nodes")};
	int err = united ? lien_residents_make(united, &sheet.residents) : -ENOMEM;

	if (!err)
		err = lien_teams_make(united, &sheet.teams);
	if (!err)
		err = draw_document(&sheet, where, when, out);
	free(sheet.centers);
	lien_teams_free(&sheet.teams);
	lien_residents_free(&sheet.residents);
	json_decref(united);
	return err;
}
