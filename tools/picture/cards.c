// SPDX-License-Identifier: BSD-2-Clause
/* Draws a card per GPU, with a column for each process that has memory there. */
#include <inttypes.h>
#include <stdlib.h>

#include "tools/picture/resident_column.h"
#include "tools/picture/sheet.h"
#include "tools/text/output.h"

#define COLUMNS	   8 /* side by side; further ones start a new row */
#define COLUMN_MIN 160
#define COLUMN_MAX 340
#define GAP	   8 /* between cards */
#define EDGE	   6 /* left and right of a card's columns */
#define HEAD	   28

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
		sheet->top = larger(sheet->top, lien_resident_top(sheet, resident_at(sheet, i)));
}

static int column_height(const struct lien_sheet *sheet, unsigned first, unsigned end)
{
	struct lien_sheet measured = *sheet;
	int height = 0;

	measured.out = NULL;
	for (; first < end; first++)
		height = larger(
			height, lien_resident_column(&measured, resident_at(sheet, first), 0, 0));
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
			lien_size(bytes).text);
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
			lien_resident_column(sheet, resident_at(sheet, i), left, y);
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
