// SPDX-License-Identifier: BSD-2-Clause
/* Draws a card per GPU, with a column for each process that has memory there. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/picture/several.h"
#include "tools/picture/sheet.h"
#include "tools/text/output.h"

#define COLUMNS	   8 /* side by side; further ones start a new row */
#define COLUMN_MIN 160
#define COLUMN_MAX 340
#define GAP	   8 /* between cards */
#define EDGE	   6 /* left and right of a card's columns */
#define HEAD	   28

#define COLUMN_EDGE   10
#define LINE	      16
#define COUNTS_FROM   210 /* narrower columns have no room for numbers of allocations */
#define PARTS_SHOWN   12
#define HOLDERS_SHOWN 6
#define CHIP_HEIGHT   17
#define ON_GPU	      "on the GPU"

struct column {
	const struct lien_sheet *sheet;
	const struct lien_resident *resident;
	FILE *out;
	int x, y, width; /* inside of its edge; y moves down */
};

static void put_title(struct column *column)
{
	const struct lien_resident *resident = column->resident;
	const char *command = lien_get_text(resident->process, "command");
	struct lien_font title = {15, resident->dead ? LIEN_RED : LIEN_INK, true, LIEN_START};
	const struct lien_font small = {11, LIEN_MUTED, false, LIEN_START};
	char *rank = lien_sheet_rank(column->sheet, resident), *pid;

	pid = resident->pid ? lien_sheet_pid(column->sheet, resident->pid) : lien_format("%s", "");
	if (!rank)
		rank = lien_format("%s", resident->dead	  ? "exited"
					 : !resident->pid ? "owner unknown"
					 : *command	  ? command
							  : "process");
	else if (*command)
		pid = lien_append(pid, " · ", "%s", command);
	lien_svg_text(column->out, column->x, column->y + 19, column->width, &title, "%s", rank);
	lien_svg_text(column->out, column->x, column->y + 35, column->width, &small, "%s", pid);
	column->y += 42;
	free(rank);
	free(pid);
}

/* Draws a small box with text; returns the x after it. */
static int put_chip(
	struct column *column, int x, const char *fill, const char *color, const char *text)
{
	const struct lien_font font = {11, color, false, LIEN_MIDDLE};
	int width = lien_svg_width(&font, text) + 8;

	if (x > column->x && x + width > column->x + column->width) {
		x = column->x;
		column->y += CHIP_HEIGHT + 2;
	}
	if (width > column->width)
		width = column->width;
	lien_svg_box(column->out, x, column->y, width, CHIP_HEIGHT,
		&(struct lien_look){fill, NULL, 4, false});
	lien_svg_text(column->out, x + width / 2, column->y + 12, width - 8, &font, "%s", text);
	return x + width + 4;
}

/* Marks unusual states. */
static void put_marks(struct column *column)
{
	const struct lien_resident *resident = column->resident;
	const json_t *complete = json_object_get(resident->process, "complete");
	const char *state = lien_get_text(resident->process, "state");
	int x = column->x;

	if (resident->dead)
		x = put_chip(column, x, "#fbe3e1", LIEN_RED, "held by the dead");
	if (*state && strcmp(state, "running"))
		x = put_chip(column, x, "#e7e9f7", "#3a3f87", state);
	if (json_is_false(complete))
		x = put_chip(column, x, "#fff0c9", LIEN_AMBER, "incomplete");
	if (x > column->x)
		column->y += CHIP_HEIGHT + 4;
}

static char *describe_ranks(const struct lien_communicator *communicator, uint64_t pid)
{
	uint64_t least = UINT64_MAX, most = 0, nranks = 0;

	for (unsigned m = 0; m < communicator->member_count; m++) {
		const struct lien_member *member = &communicator->members[m];

		if (member->pid != pid)
			continue;
		nranks = member->nranks;
		least = member->rank < least ? member->rank : least;
		most = member->rank > most ? member->rank : most;
	}
	if (least > most)
		return NULL;
	if (least == most)
		return lien_format("%" PRIu64 "/%" PRIu64, least, nranks);
	return lien_format("%" PRIu64 "-%" PRIu64 "/%" PRIu64, least, most, nranks);
}

static void put_teams(struct column *column)
{
	const struct lien_teams *teams = &column->sheet->teams;
	int x = column->x;

	for (unsigned c = 0; c < teams->count && !column->resident->dead; c++) {
		char *ranks, *team;

		if (teams->communicators[c].team != c)
			continue;
		ranks = describe_ranks(&teams->communicators[c], column->resident->pid);
		if (!ranks)
			continue;
		team = lien_sheet_team(column->sheet, c);
		team = lien_append(team, " ", "%s", ranks);
		x = put_chip(column, x, "#e3eaf1", LIEN_INK, team);
		free(team);
		free(ranks);
	}
	if (x > column->x)
		column->y += CHIP_HEIGHT + 4;
}

static struct lien_look part_look(const struct column *column, const struct lien_part *part)
{
	struct lien_shades shades = lien_sheet_shades(column->sheet, part->library);

	switch (part->kind) {
	case LIEN_PART_LOCAL:
		return (struct lien_look){shades.light, NULL, 0, false};
	case LIEN_PART_EXPORTED:
		return (struct lien_look){shades.strong, NULL, 0, false};
	default:
		return (struct lien_look){"#ffffff", shades.strong, 0, true};
	}
}

static const char *part_name(const struct lien_part *part)
{
	switch (part->kind) {
	case LIEN_PART_LOCAL:
		return "local";
	case LIEN_PART_EXPORTED:
		return "exported";
	case LIEN_PART_OFFLOADED:
		return "offloaded";
	default:
		return *part->state ? part->state : "elsewhere";
	}
}

/* The bar of the resident with most memory is as wide as the column. */
static void put_bar(struct column *column)
{
	const struct lien_residents *all = &column->sheet->residents;
	const struct lien_resident *resident = column->resident;
	uint64_t most = 1;
	double before = 0;
	int x = 0, end;

	for (unsigned i = 0; i < all->count; i++)
		most = all->residents[i].all > most ? all->residents[i].all : most;
	lien_svg_box(column->out, column->x, column->y, column->width, 12,
		&(struct lien_look){"#eceff3", NULL, 2, false});
	for (unsigned i = 0; i < resident->part_count; i++, x = end) {
		const struct lien_part *part = &resident->parts[i];
		struct lien_look look = part_look(column, part);
		int line = look.stroke ? 1 : 0; /* half of it is outside of the box */

		before += part->bytes;
		end = (int)(before / most * column->width + 0.5);
		if (end - x > 4 * line)
			lien_svg_box(column->out, column->x + x, column->y, end - x - line,
				12 - line, &look);
	}
	column->y += 20;
}

static void put_total(struct column *column)
{
	const struct lien_font number = {17, LIEN_INK, true, LIEN_START};
	const struct lien_font unit = {11, LIEN_MUTED, false, LIEN_END};
	bool on_gpu = column->resident->device < LIEN_DEVICE_NONE;
	struct lien_bytes_text bytes = lien_bytes(column->resident->bytes);

	lien_svg_text(
		column->out, column->x, column->y + 15, column->width, &number, "%s", bytes.text);
	if (on_gpu &&
		lien_svg_width(&number, bytes.text) + lien_svg_width(&unit, ON_GPU) < column->width)
		lien_svg_text(column->out, column->x + column->width, column->y + 15, column->width,
			&unit, ON_GPU);
	column->y += 23;
	put_bar(column);
}

/* A long name gets a line of its own. */
static void put_row(struct column *column, const char *name, uint64_t allocations, uint64_t bytes)
{
	const struct lien_font label = {11, LIEN_INK, false, LIEN_START};
	const struct lien_font number = {11, LIEN_INK, false, LIEN_END};
	const struct lien_font count = {11, LIEN_MUTED, false, LIEN_END};
	int right = column->x + column->width, room = column->width - 15;
	struct lien_bytes_text size = lien_bytes(bytes);

	lien_svg_text(column->out, column->x + 15, column->y + 11, room, &label, "%s", name);
	if (lien_svg_width(&label, name) + lien_svg_width(&number, size.text) > room)
		column->y += LINE - 2;
	if (allocations && column->width >= COUNTS_FROM)
		lien_svg_text(column->out, right - 72, column->y + 11, 60, &count, "%" PRIu64,
			allocations);
	lien_svg_text(column->out, right, column->y + 11, room, &number, "%s", size.text);
	column->y += LINE;
}

static void put_parts(struct column *column)
{
	const struct lien_resident *resident = column->resident;
	const char *library = NULL;
	uint64_t rest = 0;

	for (unsigned i = 0; i < resident->part_count; i++) {
		const struct lien_part *part = &resident->parts[i];
		struct lien_look look = part_look(column, part);
		struct lien_font font = {12, lien_sheet_shades(column->sheet, part->library).strong,
			true, LIEN_START};
		char *name;

		if (i >= PARTS_SHOWN) {
			rest += part->bytes;
			continue;
		}
		if (!library || strcmp(library, part->library)) {
			library = part->library;
			lien_svg_text(column->out, column->x, column->y + 11, column->width, &font,
				"%s", library);
			column->y += LINE;
		}
		name = lien_format("%s%s%s", part_name(part), *part->tag ? " · " : "", part->tag);
		lien_svg_open(column->out, "%s, %s: %" PRIu64 " %s, %" PRIu64 " bytes",
			part->library, name,
			LIEN_PLURAL(part->allocations, "allocation", "allocations"), part->bytes);
		lien_svg_box(column->out, column->x, column->y + 2, 10, 10, &look);
		put_row(column, name, part->allocations, part->bytes);
		lien_svg_close(column->out);
		free(name);
	}
	if (rest)
		put_row(column, "more", 0, rest);
}

static void put_imports(struct column *column)
{
	const struct lien_resident *resident = column->resident;
	struct lien_look look = {"#ffffff", LIEN_MUTED, 0, false};

	if (!resident->owners)
		return;
	column->y += 4;
	lien_svg_line(column->out, column->x, column->y, column->x + column->width, column->y, 10,
		&(struct lien_look){NULL, LIEN_FAINT, 0, false});
	column->y += 5;
	lien_svg_open(column->out, "imported from %u %s", resident->owners,
		resident->owners == 1 ? "other" : "others");
	if (resident->imported || !resident->away) {
		lien_svg_box(column->out, column->x, column->y + 2, 10, 10, &look);
		put_row(column, "imported", 0, resident->imported);
	}
	look.dashed = true;
	if (resident->away) {
		lien_svg_box(column->out, column->x, column->y + 2, 10, 10, &look);
		put_row(column, "imported, offloaded", 0, resident->away);
	}
	lien_svg_close(column->out);
}

/* Names the holders that keep the memory of an exited process. */
static void put_holders(struct column *column)
{
	const struct lien_residents *all = &column->sheet->residents;
	const struct lien_font font = {11, LIEN_RED, false, LIEN_START};
	unsigned number = column->resident - all->residents, count = 0;
	int x = column->x;

	if (!column->resident->dead)
		return;
	lien_svg_text(column->out, x, column->y + 12, column->width, &font, "kept by");
	column->y += LINE + 2;
	for (unsigned i = 0; i < all->bundle_count; i++) {
		const struct lien_bundle *bundle = &all->bundles[i];
		char *text;

		if (bundle->owner != number || count++ >= HOLDERS_SHOWN)
			continue;
		text = lien_format("%" PRIu64, lien_several_pid(column->sheet->nodes,
						       all->residents[bundle->importer].pid));
		x = put_chip(column, x, "#fbe3e1", LIEN_RED, text);
		free(text);
	}
	if (count > HOLDERS_SHOWN) {
		char *text = lien_format("and %u more", count - HOLDERS_SHOWN);

		put_chip(column, x, "#fbe3e1", LIEN_RED, text);
		free(text);
	}
	column->y += CHIP_HEIGHT + 4;
}

static struct column begin(const struct lien_sheet *sheet, const struct lien_resident *resident,
	FILE *out, int x, int y)
{
	struct column column = {
		sheet, resident, out, x + COLUMN_EDGE, y, sheet->column - 2 * COLUMN_EDGE};

	put_title(&column);
	put_marks(&column);
	put_teams(&column);
	return column;
}

/* Returns the height of the part that identifies the resident; the rest begins at the same height
 * in all columns. */
static int column_top(const struct lien_sheet *sheet, const struct lien_resident *resident)
{
	return begin(sheet, resident, NULL, 0, 0).y;
}

/* Draws one process on one GPU: its identity, and its memory by library. Returns its height. */
static int draw_column(
	const struct lien_sheet *sheet, const struct lien_resident *resident, int x, int y)
{
	struct column column = begin(sheet, resident, sheet->out, x, y);

	column.y = y + sheet->top;
	if (resident->part_count || resident->process)
		put_total(&column);
	put_parts(&column);
	put_imports(&column);
	put_holders(&column);
	return column.y + 8 - y;
}

static const struct lien_resident *resident_at(const struct lien_sheet *sheet, unsigned place)
{
	return &sheet->residents.residents[sheet->residents.order[place]];
}

/* Cards and rows are ranges in the order: these return the end of the range. */
static unsigned card_end(const struct lien_sheet *sheet, unsigned first)
{
	unsigned end = first;

	while (end < sheet->residents.count &&
		resident_at(sheet, end)->device == resident_at(sheet, first)->device)
		end++;
	return end;
}

static unsigned row_end(const struct lien_sheet *sheet, unsigned first)
{
	unsigned end = card_end(sheet, first);

	while (end < sheet->residents.count && card_end(sheet, end) - first <= COLUMNS)
		end = card_end(sheet, end);
	return end;
}

static unsigned count_cards(const struct lien_sheet *sheet, unsigned first, unsigned end)
{
	unsigned count = 0;

	for (; first < end; first = card_end(sheet, first))
		count++;
	return count;
}

static int smaller(int a, int b)
{
	return a < b ? a : b;
}

static int larger(int a, int b)
{
	return a > b ? a : b;
}

static int frame_width(unsigned cards)
{
	return cards * (2 * EDGE + GAP) - GAP;
}

void lien_cards_arrange(struct lien_sheet *sheet)
{
	unsigned count = sheet->residents.count, end;
	int most = count > COLUMNS ? LIEN_SHEET_WIDE : LIEN_SHEET_NARROW;

	if (count > COLUMNS) {
		free(sheet->centers);
		sheet->centers = NULL;
	}
	sheet->width = most;
	sheet->column = COLUMN_MAX;
	for (unsigned first = 0; first < count; first = end) {
		int room, columns;

		end = row_end(sheet, first);
		columns = smaller(end - first, COLUMNS);
		room = most - 2 * LIEN_SHEET_MARGIN - frame_width(count_cards(sheet, first, end));
		sheet->column = smaller(sheet->column, larger(room / columns, COLUMN_MIN));
	}
	for (unsigned first = 0; first < count; first = end) {
		end = row_end(sheet, first);
		sheet->width = larger(sheet->width,
			2 * LIEN_SHEET_MARGIN + smaller(end - first, COLUMNS) * sheet->column +
				frame_width(count_cards(sheet, first, end)));
	}
	sheet->top = 0;
	for (unsigned i = 0; i < count; i++)
		sheet->top = larger(sheet->top, column_top(sheet, resident_at(sheet, i)));
}

static int column_height(const struct lien_sheet *sheet, unsigned first, unsigned end)
{
	struct lien_sheet measured = *sheet;
	int height = 0;

	measured.out = NULL;
	for (; first < end; first++)
		height = larger(height, draw_column(&measured, resident_at(sheet, first), 0, 0));
	return height;
}

static void draw_head(
	const struct lien_sheet *sheet, int x, int y, int width, unsigned first, unsigned end)
{
	const struct lien_font title = {14, LIEN_INK, true, LIEN_START};
	const struct lien_font total = {12, LIEN_MUTED, false, LIEN_END};
	char *name = lien_sheet_device(sheet, resident_at(sheet, first)->device);
	uint64_t bytes = 0;

	for (unsigned i = first; i < end; i++)
		bytes += resident_at(sheet, i)->bytes;
	lien_svg_text(sheet->out, x + 14, y + 19, width - 28, &title, "%s", name);
	if (end - first > 1 && bytes)
		lien_svg_text(sheet->out, x + width - 14, y + 19, width / 2, &total, "%s in all",
			lien_bytes(bytes).text);
	free(name);
}

/* Returns the height that it needs; it is drawn as high as the others of its row. */
static int draw_card(
	const struct lien_sheet *sheet, int x, int y, int height, unsigned first, unsigned end)
{
	int width = smaller(end - first, COLUMNS) * sheet->column + 2 * EDGE, top = y;

	lien_svg_box(sheet->out, x, y, width, height,
		&(struct lien_look){"#f6f8fa", LIEN_FAINT, 8, false});
	draw_head(sheet, x, y, width, first, end);
	y += HEAD;
	for (unsigned row = first; row < end; row += COLUMNS) {
		unsigned stop = row + COLUMNS < end ? row + COLUMNS : end;
		int tall = column_height(sheet, row, stop), rest = height - HEAD - EDGE - 2;

		if (tall < rest && end - first <= COLUMNS)
			tall = rest;

		for (unsigned i = row; i < stop; i++) {
			int left = x + EDGE + (int)(i - row) * sheet->column;

			lien_svg_box(sheet->out, left + 2, y, sheet->column - 4, tall,
				&(struct lien_look){"#ffffff", NULL, 6, false});
			draw_column(sheet, resident_at(sheet, i), left, y);
			if (sheet->centers)
				sheet->centers[sheet->residents.order[i]] =
					left + sheet->column / 2;
		}
		y += tall + EDGE + 2;
	}
	return y - top;
}

int lien_cards_draw(struct lien_sheet *sheet, int y)
{
	struct lien_sheet measured = *sheet;
	unsigned end;

	measured.out = NULL;
	for (unsigned first = 0; first < sheet->residents.count; first = end) {
		int x = LIEN_SHEET_MARGIN, height = 0;

		end = row_end(sheet, first);
		for (unsigned i = first; i < end; i = card_end(sheet, i))
			height = larger(
				height, draw_card(&measured, 0, 0, 0, i, card_end(sheet, i)));
		for (unsigned i = first; i < end; i = card_end(sheet, i)) {
			unsigned columns = card_end(sheet, i) - i;

			draw_card(sheet, x, y, height, i, i + columns);
			x += smaller(columns, COLUMNS) * sheet->column + 2 * EDGE + GAP;
		}
		y += height + GAP;
	}
	return y;
}
