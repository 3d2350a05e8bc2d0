// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/table.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

#define GAP	 2  /* blanks between columns */
#define ROOMY	 32 /* texts keep so much while there are columns to drop */
#define NARROW	 8  /* and so much in any case */
#define ELLIPSIS "..."

struct cell {
	char *text;
	enum lien_color color;
};

struct lien_table {
	const struct lien_column *columns;
	unsigned count;
	struct cell *cells;
	size_t used, capacity;
};

static void *need(void *memory)
{
	if (!memory) {
		fputs("lien: out of memory\n", stderr);
		exit(EXIT_FAILURE);
	}
	return memory;
}

static size_t at_least(const struct lien_column *column, size_t width, size_t text)
{
	return column->align == LIEN_RIGHT || width < text ? width : text;
}

/* Returns the table's width when texts are shortened to `text`. */
static size_t width_with(
	const struct lien_column *columns, unsigned count, const size_t *widths, size_t text)
{
	size_t total = 0;

	for (unsigned i = 0; i < count; i++)
		if (widths[i])
			total += GAP + at_least(&columns[i], widths[i], text);
	return total > GAP ? total - GAP : 0;
}

/* Drops the columns that matter least. Returns false: none can be dropped. */
static bool drop_some(const struct lien_column *columns, unsigned count, size_t *widths)
{
	unsigned most = 0, i;

	for (i = 0; i < count; i++)
		if (widths[i] && columns[i].drop > most)
			most = columns[i].drop;
	for (i = 0; most && i < count; i++)
		if (columns[i].drop == most)
			widths[i] = 0;
	return most;
}

void lien_table_fit(
	const struct lien_column *columns, unsigned count, size_t *widths, size_t available)
{
	while (width_with(columns, count, widths, ROOMY) > available)
		if (!drop_some(columns, count, widths))
			break;
	/* Shorten the widest text, one terminal column at a time. */
	while (width_with(columns, count, widths, SIZE_MAX) > available) {
		unsigned widest = count;

		for (unsigned i = 0; i < count; i++)
			if (columns[i].align != LIEN_RIGHT && widths[i] > NARROW &&
				(widest == count || widths[i] > widths[widest]))
				widest = i;
		if (widest == count)
			return;
		widths[widest]--;
	}
}

struct lien_table *lien_table_new(const struct lien_column *columns, unsigned count)
{
	struct lien_table *table = need(calloc(1, sizeof(*table)));

	table->columns = columns;
	table->count = count;
	return table;
}

void lien_table_add(struct lien_table *table, const char *format, ...)
{
	va_list args;

	if (table->used == table->capacity) {
		table->capacity = table->capacity ? 2 * table->capacity : 64;
		table->cells =
			need(reallocarray(table->cells, table->capacity, sizeof(*table->cells)));
	}
	va_start(args, format);
	table->cells[table->used++] =
		(struct cell){lien_format_args(format, args), LIEN_COLOR_PLAIN};
	va_end(args);
}

void lien_table_paint(struct lien_table *table, enum lien_color color)
{
	table->cells[table->used - 1].color = color;
}

static const char *skip_characters(const char *text, size_t count)
{
	while (*text && (count || (*text & 0xc0) == 0x80)) {
		if ((*text & 0xc0) != 0x80) {
			if (!count)
				break;
			count--;
		}
		text++;
	}
	return text;
}

static void print_cell(
	FILE *out, const struct cell *cell, enum lien_align align, size_t columns, bool last)
{
	size_t have = lien_width(cell->text), keep = columns - strlen(ELLIPSIS);
	char *cut = NULL;

	if (align == LIEN_RIGHT) {
		fprintf(out, "%*s", have < columns ? (int)(columns - have) : 0, "");
	} else if (have > columns && align == LIEN_LEFT_TAIL) {
		cut = lien_format("%s%s", ELLIPSIS, skip_characters(cell->text, have - keep));
	} else if (have > columns) {
		cut = lien_format("%.*s%s", (int)(skip_characters(cell->text, keep) - cell->text),
			cell->text, ELLIPSIS);
	}
	lien_paint(out, cell->color, cut ? cut : cell->text);
	if (align != LIEN_RIGHT && have < columns && !last)
		fprintf(out, "%*s", (int)(columns - have), "");
	free(cut);
}

static void print_row(const struct lien_table *table, const struct cell *cells,
	const size_t *widths, bool titles, FILE *out)
{
	unsigned i, last = table->count;

	while (last && (!widths[last - 1] || !*cells[last - 1].text))
		last--;
	for (i = 0; i < last; i++) {
		enum lien_align align = table->columns[i].align;

		if (!widths[i])
			continue;
		/* A path is cut at its beginning; its title never is. */
		print_cell(out, &cells[i], titles && align ? LIEN_LEFT : align, widths[i],
			i + 1 == last);
		fprintf(out, "%*s", i + 1 < last ? GAP : 0, "");
	}
	fputc('\n', out);
}

static void print_rows(const struct lien_table *table, const size_t *widths, FILE *out)
{
	struct cell *titles = need(calloc(table->count, sizeof(*titles)));

	for (unsigned i = 0; i < table->count; i++)
		titles[i] = (struct cell){(char *)table->columns[i].title, LIEN_COLOR_BOLD};
	print_row(table, titles, widths, true, out);
	for (size_t i = 0; i < table->used; i += table->count)
		print_row(table, &table->cells[i], widths, false, out);
	free(titles);
}

void lien_table_free(struct lien_table *table)
{
	for (size_t i = 0; i < table->used; i++)
		free(table->cells[i].text);
	free(table->cells);
	free(table);
}

void lien_table_end_in(struct lien_table *table, FILE *out, size_t available)
{
	size_t *widths = need(calloc(table->count, sizeof(*widths)));

	while (table->used % table->count)
		lien_table_add(table, "%s", "");
	for (unsigned i = 0; i < table->count; i++)
		widths[i] = lien_width(table->columns[i].title);
	for (size_t i = 0; i < table->used; i++) {
		size_t columns = lien_width(table->cells[i].text);

		if (columns > widths[i % table->count])
			widths[i % table->count] = columns;
	}
	lien_table_fit(table->columns, table->count, widths, available);
	print_rows(table, widths, out);
	free(widths);
	lien_table_free(table);
}

void lien_table_end(struct lien_table *table, FILE *out)
{
	lien_table_end_in(table, out, lien_table_columns(out));
}
