/* SPDX-License-Identifier: BSD-2-Clause */
/* The output of --json: one document per command, a result or an error. */
#ifndef LIEN_TOOLS_JSON_TEXT_H
#define LIEN_TOOLS_JSON_TEXT_H

#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

enum lien_json {
	LIEN_JSON_NOT,
	LIEN_JSON_INDENTED,
	LIEN_JSON_LINE, /* one line per document */
};

/* Sets the format of this program's output: --json was given. */
void lien_json_use(enum lien_json format);

/* Was it given? */
bool lien_json_used(void);
/* More than one document follows: each is a line. */
void lien_json_lines(void);

/*
 * Prints a document in that format (indented, if none was set). Numbers have the fewest digits that
 * a reader needs: 0.085117, not 0.085116999999999998.
 */
void lien_print_json(FILE *out, const json_t *json);
/* Prints a document of a stream, on one line; an error may still follow. */
void lien_print_json_line(FILE *out, const json_t *json);
/* Returns the text of a document with such numbers, without a newline; the caller frees. `flags`
 * are jansson's. NULL: out of memory. */
char *lien_json_text(const json_t *json, size_t flags);

/* Keeps the text of an error for lien_json_end(), unless there is one already. */
void lien_json_error(const char *text);
/* To be called before the program ends: after an error and with --json, prints
 * {"error": "..."} if no result was printed. */
void lien_json_end(void);

#endif
