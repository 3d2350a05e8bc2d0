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
	bool *any; /* has a row the column's member? */
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

static bool is_number(enum lien_cell kind)
{
	return kind == LIEN_NUMBER || kind == LIEN_BYTES;
}

static size_t at_least(const struct lien_column *column, size_t width, size_t text)
{
	return is_number(column->kind) || width < text ? width : text;
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
			if (!is_number(columns[i].kind) && widths[i] > NARROW &&
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
	table->any = need(calloc(count, sizeof(*table->any)));
	return table;
}

static void add(struct lien_table *table, char *text, enum lien_color color)
{
	if (table->used == table->capacity) {
		table->capacity = table->capacity ? 2 * table->capacity : 64;
		table->cells =
			need(reallocarray(table->cells, table->capacity, sizeof(*table->cells)));
	}
	table->cells[table->used++] = (struct cell){text, color};
}

void lien_table_add(struct lien_table *table, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	add(table, lien_format_args(format, args), LIEN_COLOR_PLAIN);
	va_end(args);
}

static char *number_text(const struct lien_column *column, json_int_t value)
{
	if (column->kind == LIEN_BYTES)
		return lien_format("%s%s", value < 0 ? "-" : "", lien_bytes(llabs(value)).text);
	return lien_format("%" JSON_INTEGER_FORMAT, value > 0 ? value : 0);
}

static char *cell_text(const struct lien_column *column, const json_t *row, const json_t *value)
{
	if (column->text)
		return column->text(row);
	if (!is_number(column->kind))
		return lien_format("%s", json_is_string(value) ? json_string_value(value) : "");
	if (json_is_array(value))
		return lien_format("%zu", json_array_size(value));
	if (json_is_real(value))
		return lien_format("%.1f", json_real_value(value));
	if (!json_is_integer(value))
		return lien_format("%s", column->unknown ? column->unknown : "-");
	return number_text(column, json_integer_value(value));
}

void lien_table_row(struct lien_table *table, const json_t *row, const json_t *whole)
{
	for (unsigned i = 0; i < table->count; i++) {
		const struct lien_column *column = &table->columns[i];
		const json_t *value = json_object_get(row, column->member);

		if (!value)
			value = json_object_get(whole, column->member);
		table->any[i] |= json_is_string(value) ? json_string_length(value) > 0
						       : value && !json_is_null(value);
		add(table, cell_text(column, row, value),
			column->color ? column->color(row) : LIEN_COLOR_PLAIN);
	}
}

static char *total_text(const struct lien_column *column, const json_t *rows)
{
	json_int_t sum = 0;
	const json_t *row;
	size_t i;

	if (column->total != LIEN_TOTAL_SUM)
		return lien_format("%s", column->total == LIEN_TOTAL_LABEL ? "total" : "");
	json_array_foreach (rows, i, row)
		sum += lien_get_number(row, column->member);
	return number_text(column, sum);
}

void lien_table_total(struct lien_table *table, const json_t *rows)
{
	for (unsigned i = 0; i < table->count; i++)
		add(table, total_text(&table->columns[i], rows), LIEN_COLOR_BOLD);
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
	FILE *out, const struct cell *cell, enum lien_cell kind, size_t columns, bool last)
{
	size_t have = lien_width(cell->text), keep = columns - strlen(ELLIPSIS);
	char *cut = NULL;

	if (is_number(kind)) {
		fprintf(out, "%*s", have < columns ? (int)(columns - have) : 0, "");
	} else if (have > columns && kind == LIEN_PATH) {
		cut = lien_format("%s%s", ELLIPSIS, skip_characters(cell->text, have - keep));
	} else if (have > columns) {
		cut = lien_format("%.*s%s", (int)(skip_characters(cell->text, keep) - cell->text),
			cell->text, ELLIPSIS);
	}
	lien_paint(out, cell->color, cut ? cut : cell->text);
	if (!is_number(kind) && have < columns && !last)
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
		enum lien_cell kind = table->columns[i].kind;

		if (!widths[i])
			continue;
		/* A path is cut at its beginning; its title never is. */
		print_cell(out, &cells[i], titles && kind == LIEN_PATH ? LIEN_TEXT : kind,
			widths[i], i + 1 == last);
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
	free(table->any);
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
	for (unsigned i = 0; i < table->count; i++)
		if (table->columns[i].hidden || (table->columns[i].optional && !table->any[i]))
			widths[i] = 0;
	lien_table_fit(table->columns, table->count, widths, available);
	print_rows(table, widths, out);
	free(widths);
	lien_table_free(table);
}

void lien_table_end(struct lien_table *table, FILE *out)
{
	lien_table_end_in(table, out, lien_table_columns(out));
}

void lien_table_print(const struct lien_column *columns, unsigned count, const json_t *rows)
{
	struct lien_table *table = lien_table_new(columns, count);
	const json_t *row;
	size_t i;

	json_array_foreach (rows, i, row)
		lien_table_row(table, row, NULL);
	lien_table_end(table, stdout);
}
