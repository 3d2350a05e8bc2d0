// SPDX-License-Identifier: BSD-2-Clause
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/top/page.h"

void lien_page_add(struct lien_page *page, enum lien_mark mark, char *text)
{
	struct lien_page_line *lines = page->lines;

	if (page->count == page->capacity) {
		page->capacity = page->capacity ? 2 * page->capacity : 64;
		lines = reallocarray(lines, page->capacity, sizeof(*lines));
		if (!lines) {
			page->capacity = page->count;
			free(text);
			return;
		}
		page->lines = lines;
	}
	page->lines[page->count++] = (struct lien_page_line){text, mark};
}

/* Where the second of two columns begins, or 2. */
static unsigned second_column(const char *text, unsigned width)
{
	const char *gap = strstr(text, "  ");
	size_t at = gap && gap > text ? gap - text + strspn(gap, " ") : 0;

	return at && at < width / 2 ? at : 2;
}

/* Returns how much of the text fits: up to a blank, or all that there is room for. */
static size_t fitting(const char *text, size_t room)
{
	size_t end = room;

	if (strlen(text) <= room)
		return strlen(text);
	while (end && text[end] != ' ')
		end--;
	return end ? end : room;
}

void lien_page_wrap(struct lien_page *page, enum lien_mark mark, char *text)
{
	const unsigned width = page->width ? page->width : UINT_MAX;
	const unsigned second = second_column(text, width);
	unsigned indent = 0;
	const char *rest = text;
	size_t length;

	do {
		length = fitting(rest, width > indent ? width - indent : width);
		lien_page_add(
			page, mark, lien_format("%*s%.*s", (int)indent, "", (int)length, rest));
		rest += length + strspn(rest + length, " ");
		indent = second;
	} while (*rest);
	free(text);
}

void lien_page_say(struct lien_page *page, enum lien_mark mark, const char *format, ...)
{
	char *text = NULL;
	va_list args;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	if (text)
		lien_page_wrap(page, mark, text);
}

void lien_page_add_table(struct lien_page *page, struct lien_table *table)
{
	enum lien_mark mark = LIEN_MARK_HEADING;
	char *text = NULL, *rest, *line;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return;
	lien_table_end_in(table, out, page->width);
	fclose(out);
	for (rest = text; rest && (line = strsep(&rest, "\n")) && (*line || rest);) {
		lien_page_say(page, mark, "%s", line);
		mark = LIEN_MARK_NONE;
	}
	free(text);
}

void lien_page_clear(struct lien_page *page)
{
	unsigned i;

	for (i = 0; i < page->count; i++)
		free(page->lines[i].text);
	free(page->lines);
	*page = (struct lien_page){};
}
