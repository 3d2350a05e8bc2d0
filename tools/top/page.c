// SPDX-License-Identifier: BSD-2-Clause
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

void lien_page_say(struct lien_page *page, enum lien_mark mark, const char *format, ...)
{
	char *text = NULL;
	va_list args;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	if (text)
		lien_page_add(page, mark, text);
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
