// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <lien/clock.h>

void lien_log(int level, const char *format, ...)
{
	va_list args;

	if (!isatty(STDERR_FILENO))
		fprintf(stderr, "<%d>", level);
	fputs("lien agent: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

uint64_t lien_now_ns(void)
{
	return lien_clock_ns();
}
