// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/output.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define GAP	 2 /* blanks between columns */
#define NARROW	 8 /* narrowest shortened column */
#define ELLIPSIS "..."

struct lien_table {
	const struct lien_column *columns;
	unsigned count;
	char **cells;
	size_t used, capacity;
};

static void *need(void *memory)
{
	if (!memory) {
		fputs("lien: out of memory\n", stderr);
		exit(1);
	}
	return memory;
}

char *lien_format_args(const char *format, va_list args)
{
	char *text;

	if (vasprintf(&text, format, args) < 0)
		need(NULL);
	for (char *c = text; *c; c++) {
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	}
	return text;
}

char *lien_format(const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = lien_format_args(format, args);
	va_end(args);
	return text;
}

char *lien_append(char *text, const char *separator, const char *format, ...)
{
	va_list args;
	char *part, *whole;

	va_start(args, format);
	part = lien_format_args(format, args);
	va_end(args);
	if (!text)
		return part;
	whole = lien_format("%s%s%s", text, separator, part);
	free(text);
	free(part);
	return whole;
}

/* Width on a terminal: UTF-8 characters, each counted as one column. */
static size_t width(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += (*text & 0xc0) != 0x80;
	return n;
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

struct lien_table *lien_table_new(const struct lien_column *columns, unsigned count)
{
	struct lien_table *table = need(calloc(1, sizeof(*table)));

	table->columns = columns;
	table->count = count;
	return table;
}

static void add_cell(struct lien_table *table, char *cell)
{
	if (table->used == table->capacity) {
		table->capacity = table->capacity ? 2 * table->capacity : 64;
		table->cells =
			need(reallocarray(table->cells, table->capacity, sizeof(*table->cells)));
	}
	table->cells[table->used++] = cell;
}

void lien_table_add(struct lien_table *table, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	add_cell(table, lien_format_args(format, args));
	va_end(args);
}

/* Shrinks the widest text column, one terminal column at a time, until everything fits. */
static void shorten(const struct lien_table *table, size_t *widths)
{
	size_t total = (table->count - 1) * GAP;

	for (unsigned i = 0; i < table->count; i++)
		total += widths[i];
	while (total > LIEN_COLUMNS) {
		unsigned widest = table->count;

		for (unsigned i = 0; i < table->count; i++) {
			if (table->columns[i].align != LIEN_RIGHT && widths[i] > NARROW &&
				(widest == table->count || widths[i] > widths[widest]))
				widest = i;
		}
		if (widest == table->count)
			return;
		widths[widest]--;
		total--;
	}
}

static void print_cell(
	FILE *out, const char *text, enum lien_align align, size_t columns, bool last)
{
	size_t have = width(text), keep = columns - strlen(ELLIPSIS);

	if (align == LIEN_RIGHT) {
		fprintf(out, "%*s%s", have < columns ? (int)(columns - have) : 0, "", text);
	} else if (have <= columns) {
		fprintf(out, "%s%*s", text, last ? 0 : (int)(columns - have), "");
	} else if (align == LIEN_LEFT_TAIL) {
		fprintf(out, "%s%s", ELLIPSIS, skip_characters(text, have - keep));
	} else {
		fprintf(out, "%.*s%s", (int)(skip_characters(text, keep) - text), text, ELLIPSIS);
	}
}

static void print_rows(const struct lien_table *table, const size_t *widths, FILE *out)
{
	for (unsigned i = 0; i < table->count; i++) {
		const struct lien_column *column = &table->columns[i];

		/* A path is cut at its beginning; its title never is. */
		print_cell(out, column->title, column->align ? LIEN_LEFT : LIEN_RIGHT, widths[i],
			i + 1 == table->count);
		fprintf(out, "%*s", i + 1 < table->count ? GAP : 0, "");
	}
	fputc('\n', out);
	for (size_t i = 0; i < table->used; i++) {
		unsigned column = i % table->count;
		bool last = column + 1 == table->count;

		print_cell(
			out, table->cells[i], table->columns[column].align, widths[column], last);
		fprintf(out, "%*s", last ? 0 : GAP, "");
		if (last)
			fputc('\n', out);
	}
}

void lien_table_end(struct lien_table *table, FILE *out)
{
	size_t *widths = need(calloc(table->count, sizeof(*widths)));

	while (table->used % table->count)
		lien_table_add(table, "%s", "");
	for (unsigned i = 0; i < table->count; i++)
		widths[i] = width(table->columns[i].title);
	for (size_t i = 0; i < table->used; i++) {
		size_t columns = width(table->cells[i]);

		if (columns > widths[i % table->count])
			widths[i % table->count] = columns;
	}
	shorten(table, widths);
	print_rows(table, widths, out);
	for (size_t i = 0; i < table->used; i++)
		free(table->cells[i]);
	free(table->cells);
	free(widths);
	free(table);
}

struct lien_text lien_size(uint64_t bytes)
{
	struct lien_text size;

	if (!bytes)
		snprintf(size.text, sizeof(size.text), "0");
	else if (bytes < 1ull << 20)
		snprintf(size.text, sizeof(size.text), "%.1f KiB", bytes / 1024.0);
	else if (bytes < 1ull << 30)
		snprintf(size.text, sizeof(size.text), "%.1f MiB", bytes / 1048576.0);
	else
		snprintf(size.text, sizeof(size.text), "%.1f GiB", bytes / 1073741824.0);
	return size;
}

struct lien_text lien_time(double ms)
{
	struct lien_text text;

	if (ms < 10)
		snprintf(text.text, sizeof(text.text), "%.2f ms", ms);
	else if (ms < 10000)
		snprintf(text.text, sizeof(text.text), "%.1f ms", ms);
	else
		snprintf(text.text, sizeof(text.text), "%.1f s", ms / 1000);
	return text;
}

void lien_print_wrapped(FILE *out, unsigned indent, const char *format, ...)
{
	size_t column = 0;
	char *text, *rest, *word;
	va_list args;

	va_start(args, format);
	text = rest = lien_format_args(format, args);
	va_end(args);
	/* Leading blanks are the first line's indentation. */
	for (; *rest == ' '; rest++, column++)
		fputc(' ', out);
	for (bool first = true; (word = strsep(&rest, " ")); first = false) {
		if (!first && column + 1 + width(word) > LIEN_COLUMNS) {
			fprintf(out, "\n%*s", indent, "");
			column = indent;
		} else if (!first) {
			fputc(' ', out);
			column++;
		}
		fputs(word, out);
		column += width(word);
	}
	fputc('\n', out);
	free(text);
}

uint64_t lien_get_number(const json_t *object, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(object, key));

	return value > 0 ? value : 0;
}

double lien_get_real(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

const char *lien_get_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

int lien_get_true(const json_t *object, const char *key)
{
	return json_is_true(json_object_get(object, key));
}

void lien_print_json(FILE *out, const json_t *json)
{
	json_dumpf(json, out, JSON_INDENT(2) | JSON_ENCODE_ANY);
	fputc('\n', out);
}
