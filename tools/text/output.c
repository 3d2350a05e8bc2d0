// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/output.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

static void print_wrapped(FILE *out, unsigned indent, size_t room, enum lien_color mark,
	const char *format, va_list args)
{
	char *text = lien_format_args(format, args), *rest = text, *word;
	size_t column = 0, blanks = 0;

	/* Leading blanks are the first line's indentation. */
	for (; *rest == ' '; rest++, column++)
		fputc(' ', out);
	for (bool first = true; (word = strsep(&rest, " ")); first = false) {
		blanks += !first;
		if (!*word)
			continue;
		if (column + blanks + lien_width(word) > room && column > indent) {
			fprintf(out, "\n%*s", indent, "");
			column = indent;
		} else {
			fprintf(out, "%*s", (int)blanks, "");
			column += blanks;
		}
		lien_paint(out, first ? mark : LIEN_COLOR_PLAIN, word);
		column += lien_width(word);
		blanks = 0;
	}
	fputc('\n', out);
	free(text);
}

void lien_print_wrapped(FILE *out, unsigned indent, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	print_wrapped(out, indent, lien_text_columns(out), LIEN_COLOR_PLAIN, format, args);
	va_end(args);
}

void lien_print_help(unsigned indent, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	print_wrapped(stdout, indent, lien_help_columns(stdout), LIEN_COLOR_PLAIN, format, args);
	va_end(args);
}

void lien_print_marked(FILE *out, unsigned indent, enum lien_color mark, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	print_wrapped(out, indent, lien_text_columns(out), mark, format, args);
	va_end(args);
}

void lien_print_line(FILE *out, unsigned indent, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	print_wrapped(out, indent, lien_table_columns(out), LIEN_COLOR_PLAIN, format, args);
	va_end(args);
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

const char *lien_owner_doubt(const json_t *entry)
{
	return lien_get_true(entry, "owner_inferred") ? " (probably)" : "";
}

char *lien_owner_text(const json_t *entry)
{
	return lien_format("%s%s", lien_get_text(entry, "owner"), lien_owner_doubt(entry));
}
