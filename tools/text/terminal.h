/* SPDX-License-Identifier: BSD-2-Clause */
/* How wide and how colorful the output may be. */
#ifndef LIEN_TOOLS_TERMINAL_H
#define LIEN_TOOLS_TERMINAL_H

#include <stddef.h>
#include <stdio.h>

enum lien_color {
	LIEN_COLOR_PLAIN,
	LIEN_COLOR_BOLD,
	LIEN_COLOR_GREEN,
	LIEN_COLOR_YELLOW,
	LIEN_COLOR_RED,
	LIEN_COLOR_CYAN,
};

/* --wide was given: tables have all their columns. */
void lien_output_wide(void);
/* Returns the columns that a table may take: the terminal's, else $COLUMNS; (size_t)-1: any number,
 * for output that goes elsewhere, or with --wide. */
size_t lien_table_columns(FILE *out);
/* Returns the columns for paragraphs: at most 100, as longer lines are hard to read; (size_t)-1 for
 * output that goes elsewhere, where grep wants whole lines. */
size_t lien_text_columns(FILE *out);
/* The same for help, which is broken elsewhere, too. */
size_t lien_help_columns(FILE *out);

/* Prints the text in a color, on a terminal that has colors; NO_COLOR (no-color.org) and TERM=dumb
 * turn them off. */
void lien_paint(FILE *out, enum lien_color color, const char *text);
/* Returns the number of the text's UTF-8 characters, each counted as one column. */
size_t lien_width(const char *text);

#endif
