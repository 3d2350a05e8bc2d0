// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/complain.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/text/json_text.h"
#include "tools/text/output.h"

int lien_complain(const char *command, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = lien_format_args(format, args);
	va_end(args);
	fprintf(stderr, "%s: %s\n", command, text);
	lien_json_error(text);
	free(text);
	return EXIT_FAILURE;
}

void lien_warn(const char *command, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = lien_format_args(format, args);
	va_end(args);
	fprintf(stderr, "%s: warning: %s\n", command, text);
	free(text);
}
