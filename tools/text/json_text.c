// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS	     15	  /* as many as survive the way from decimal to double and back */
#define MILLISECONDS 1e12 /* from here on: times since 1970, which have 16 digits */
#define NUMBER_MAX   32

static struct {
	enum lien_json format;
	bool printed, lines;
	char *error;
} output;

void lien_json_use(enum lien_json format)
{
	output.format = format;
}

bool lien_json_used(void)
{
	return output.format;
}

void lien_json_lines(void)
{
	if (output.format)
		output.format = LIEN_JSON_LINE;
	output.lines = true;
}

/* Writes a real number so that it stays one: "1.0", not "1". Returns the length. */
static size_t write_real(char *at, double value)
{
	char text[NUMBER_MAX];

	if (fabs(value) >= MILLISECONDS && fabs(value) < 1e15)
		snprintf(text, sizeof(text), "%.3f", value);
	else
		snprintf(text, sizeof(text), "%.*g", DIGITS, value);
	if (!strpbrk(text, ".e"))
		strcat(text, ".0");
	return strlen(strcpy(at, text));
}

/* Returns the length of the string, including its quotes, that begins here. */
static size_t string_length(const char *text)
{
	size_t n = 1;

	while (text[n] && text[n] != '"')
		n += text[n] == '\\' && text[n + 1] ? 2 : 1;
	return n + !!text[n];
}

/* Copies a number of `n` characters, a real one in fewer digits. Returns the new length, at most
 * n: `to` may be `from`. */
static size_t copy_number(char *to, const char *from, size_t n)
{
	char number[NUMBER_MAX] = "", shorter[NUMBER_MAX];
	size_t length = n;

	if (n < sizeof(number)) {
		memcpy(number, from, n);
		if (strpbrk(number, ".eE"))
			length = write_real(shorter, strtod(number, NULL));
	}
	if (length < n)
		memcpy(to, shorter, length);
	else
		memmove(to, from, n);
	return length < n ? length : n;
}

/* Writes the real numbers of JSON text anew: jansson gives them 17 digits. */
static void shorten_reals(char *text)
{
	char *from = text, *to = text;
	size_t n, written;

	for (; *from; from += n, to += written) {
		n = *from == '"' ? string_length(from) : strspn(from, "-+.eE0123456789");
		if (*from == '"' || !n) {
			n = n ? n : 1;
			memmove(to, from, n);
			written = n;
		} else {
			written = copy_number(to, from, n);
		}
	}
	*to = '\0';
}

char *lien_json_text(const json_t *json, size_t flags)
{
	char *text = json_dumps(json, flags | JSON_ENCODE_ANY);

	if (text)
		shorten_reals(text);
	return text;
}

static void print(FILE *out, const json_t *json, size_t flags)
{
	char *text = lien_json_text(json, flags);

	if (!text) {
		fputs("lien: out of memory\n", stderr);
		exit(EXIT_FAILURE);
	}
	fprintf(out, "%s\n", text);
	free(text);
}

void lien_print_json(FILE *out, const json_t *json)
{
	print(out, json, output.format == LIEN_JSON_LINE ? JSON_COMPACT : JSON_INDENT(2));
	output.printed = !output.lines; /* after lines an error may follow */
}

void lien_print_json_line(FILE *out, const json_t *json)
{
	print(out, json, JSON_COMPACT);
}

void lien_json_error(const char *text)
{
	if (output.format && !output.error)
		output.error = strdup(text);
}

void lien_json_end(void)
{
	json_t *error;

	if (!output.error || output.printed)
		return;
	error = json_pack("{s:s}", "error", output.error);
	if (!error) /* not UTF-8: a path that the user gave */
		error = json_pack("{s:s}", "error", "the message, on stderr, is not UTF-8");
	lien_print_json(stdout, error);
	json_decref(error);
	free(output.error);
	output.error = NULL;
}
