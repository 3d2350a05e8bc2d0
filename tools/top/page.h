/* SPDX-License-Identifier: BSD-2-Clause */
/* Builds a page line by line. Shared by the files that make pages. */
#ifndef LIEN_TOOLS_TOP_PAGE_H
#define LIEN_TOOLS_TOP_PAGE_H

#include "tools/text/output.h"
#include "tools/top/top.h"

/* Takes ownership of text. Drops the line when out of memory. */
void lien_page_add(struct lien_page *page, enum lien_mark mark, char *text);
/* The same for text, which goes on in the next line where the screen is too narrow for it: below
 * the second of two columns, if it has them. */
void lien_page_wrap(struct lien_page *page, enum lien_mark mark, char *text);
void lien_page_say(struct lien_page *page, enum lien_mark mark, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Ends a table; its lines become the page's, the first one as a heading. */
void lien_page_add_table(struct lien_page *page, struct lien_table *table);

/* Makes the page of a process; as lien_page_make(). */
bool lien_page_make_process(struct lien_page *page, struct lien_top *top, uint64_t pid);

#endif
