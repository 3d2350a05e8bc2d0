// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/terminal.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define USUAL	  80
#define LEAST	  20
#define PARAGRAPH 100

static bool wide;

void lien_output_wide(void)
{
	wide = true;
}

/* Returns the width of the terminal, or what COLUMNS says; 0: neither is known. */
static size_t columns_of(FILE *out)
{
	const char *variable = getenv("COLUMNS");
	unsigned long columns = variable ? strtoul(variable, NULL, 10) : 0;
	bool terminal = isatty(fileno(out));
	struct winsize size;

	if (terminal && !ioctl(fileno(out), TIOCGWINSZ, &size) && size.ws_col)
		columns = size.ws_col;
	else if (terminal && !columns)
		columns = USUAL;
	return columns && columns < LEAST ? LEAST : columns;
}

size_t lien_table_columns(FILE *out)
{
	size_t columns = columns_of(out);

	return wide || !columns ? SIZE_MAX : columns;
}

size_t lien_text_columns(FILE *out)
{
	size_t columns = columns_of(out);

	return !columns ? SIZE_MAX : columns < PARAGRAPH ? columns : PARAGRAPH;
}

size_t lien_help_columns(FILE *out)
{
	size_t columns = lien_text_columns(out);

	return columns < PARAGRAPH ? columns : PARAGRAPH;
}

static bool has_colors(FILE *out)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(fileno(out)) && !(no && *no) && term && *term && strcmp(term, "dumb") != 0;
}

void lien_paint(FILE *out, enum lien_color color, const char *text)
{
	static const char *const codes[] = {
		[LIEN_COLOR_BOLD] = "1",
		[LIEN_COLOR_GREEN] = "32",
		[LIEN_COLOR_YELLOW] = "33",
		[LIEN_COLOR_RED] = "31",
		[LIEN_COLOR_CYAN] = "36",
	};

	if (color && *text && has_colors(out))
		fprintf(out, "\033[%sm%s\033[0m", codes[color], text);
	else
		fputs(text, out);
}

size_t lien_width(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += (*text & 0xc0) != 0x80;
	return n;
}
