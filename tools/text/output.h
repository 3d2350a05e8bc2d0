/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Output for humans: paragraphs, sizes, times. Text of other processes (names, paths) cannot move
 * the cursor: control characters are shown as '?'. When out of memory these functions end the
 * program.
 */
#ifndef LIEN_TOOLS_OUTPUT_H
#define LIEN_TOOLS_OUTPUT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "agent/graph/bytes.h"
#include "tools/text/json_text.h"
#include "tools/text/table.h"
#include "tools/text/terminal.h"

struct lien_text {
	char text[24];
};

/* "0.42 ms", "108.4 ms", "12.3 s" */
struct lien_text lien_time(double ms);

/* Prints one paragraph, broken at blanks on terminals; all lines but the first are indented. */
void lien_print_wrapped(FILE *out, unsigned indent, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same for help, which is broken in files and pipes, too. */
void lien_print_help(unsigned indent, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Prints a line of a list: broken only where a terminal would break it. */
void lien_print_line(FILE *out, unsigned indent, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Prints a paragraph with the first word in a color. */
void lien_print_marked(FILE *out, unsigned indent, enum lien_color mark, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* "1 process", "2 processes" */
#define LIEN_PLURAL(n, one, many) (uint64_t)(n), (n) == 1 ? (one) : (many)

/* Like asprintf(), but never fails; the caller frees. */
char *lien_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *lien_format_args(const char *format, va_list args) __attribute__((format(printf, 1, 0)));
/* Appends to a string from lien_format(), or to NULL, with a separator between the parts. */
char *lien_append(char *text, const char *separator, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Return members of a reply's object; 0, false or "" if missing or of another type. */
uint64_t lien_get_number(const json_t *object, const char *key);
double lien_get_real(const json_t *object, const char *key);
const char *lien_get_text(const json_t *object, const char *key);
int lien_get_true(const json_t *object, const char *key);
/* Returns what to print behind the "owner" of an entry: " (probably)", or "". */
const char *lien_owner_doubt(const json_t *entry);
/* Returns both; the caller frees. */
char *lien_owner_text(const json_t *entry);

#endif
