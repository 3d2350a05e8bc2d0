// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/complain.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/text/output.h"

int lien_complain(const char *command, const char *format, ...)
{
	char *text = NULL, *line;
	va_list args;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	line = lien_format("%s: %s", command, text ? text : "out of memory");
	fprintf(stderr, "%s\n", line);
	free(line);
	free(text);
	return EXIT_FAILURE;
}
