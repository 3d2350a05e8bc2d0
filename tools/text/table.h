/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tables that fit the terminal: columns that matter less are dropped, then texts are shortened.
 * Control characters in cells are shown as '?'. When out of memory these functions end the program.
 */
#ifndef LIEN_TOOLS_TABLE_H
#define LIEN_TOOLS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "tools/text/terminal.h"

enum lien_align {
	LIEN_RIGHT,	/* numbers; never shortened */
	LIEN_LEFT,	/* shortened at its end when the table is too wide */
	LIEN_LEFT_TAIL, /* paths: shortened at their beginning */
};

struct lien_column {
	const char *title;
	enum lien_align align;
	unsigned drop; /* the larger, the sooner it is dropped; 0: never */
};

/*
 * Makes columns of these widths fit: sets those that are dropped to 0, and shortens texts. Columns
 * that are alike in .drop go together. What cannot be made to fit stays too wide.
 */
void lien_table_fit(
	const struct lien_column *columns, unsigned count, size_t *widths, size_t available);

struct lien_table;

struct lien_table *lien_table_new(const struct lien_column *columns, unsigned count);
/* Adds the next cell, row by row. */
void lien_table_add(struct lien_table *table, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Sets the color of the cell that was added last. */
void lien_table_paint(struct lien_table *table, enum lien_color color);
/* Frees a table that is not to be printed. */
void lien_table_free(struct lien_table *table);
/* Prints and frees the table, as wide as `out` allows. Fills an incomplete row with empty cells. */
void lien_table_end(struct lien_table *table, FILE *out);
/* The same, with so many columns available. */
void lien_table_end_in(struct lien_table *table, FILE *out, size_t available);

#endif
