// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/complain.h"

#include <stdio.h>
#include <stdlib.h>

#include "tools/text/json_text.h"
#include "tools/text/output.h"

int lien_complain_args(const char *command, const char *format, va_list args)
{
	char *text = lien_format_args(format, args);

	fprintf(stderr, "%s: %s\n", command, text);
	lien_json_error(text);
	free(text);
	return EXIT_FAILURE;
}

int lien_complain(const char *command, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	lien_complain_args(command, format, args);
	va_end(args);
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
