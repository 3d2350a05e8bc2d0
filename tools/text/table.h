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

#include <jansson.h>

#include "tools/text/terminal.h"

/* What a column's cells are. */
enum lien_cell {
	LIEN_NUMBER, /* or the size of an array; on the right, never shortened */
	LIEN_BYTES,  /* "4.0 MiB", "-4.0 MiB" */
	LIEN_TEXT,   /* on the left; shortened at its end when the table is too wide */
	LIEN_PATH,   /* shortened at its beginning */
};

enum lien_total {
	LIEN_TOTAL_NONE,
	LIEN_TOTAL_LABEL, /* the column that says "total" */
	LIEN_TOTAL_SUM,
};

struct lien_column {
	const char *title;
	enum lien_cell kind;
	unsigned drop;			  /* the larger, the sooner it is dropped; 0: never */
	const char *member;		  /* of a row's JSON */
	char *(*text)(const json_t *row); /* makes the cell instead; the table frees it */
	enum lien_color (*color)(const json_t *row);
	const char *unknown; /* for a number that is null or missing; NULL: "-" */
	enum lien_total total;
	bool optional; /* left out if no row has the member */
	bool hidden;
};

/* An array of columns as arguments. */
#define LIEN_COLUMNS(columns) (columns), sizeof(columns) / sizeof((columns)[0])

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
/* Adds a row. Members that it lacks are those of the object that it is a part of, or NULL. */
void lien_table_row(struct lien_table *table, const json_t *row, const json_t *whole);
/* Adds a row with the totals of rows. */
void lien_table_total(struct lien_table *table, const json_t *rows);
/* Frees a table that is not to be printed. */
void lien_table_free(struct lien_table *table);
/* Prints and frees the table, as wide as `out` allows. Fills an incomplete row with empty cells. */
void lien_table_end(struct lien_table *table, FILE *out);
/* The same, with so many columns available. */
void lien_table_end_in(struct lien_table *table, FILE *out, size_t available);
/* Prints a table of these rows on stdout. */
void lien_table_print(const struct lien_column *columns, unsigned count, const json_t *rows);

#endif
