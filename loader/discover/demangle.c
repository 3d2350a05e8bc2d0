// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <string.h>

#include <libiberty/demangle.h>
#include "loader/discover/symbols.h"

/* A mangled name can be written so that it expands without end; such names are truncated. */
#define DEMANGLED_MAX 480

struct demangled {
	char text[DEMANGLED_MAX + 1];
	size_t length;
	jmp_buf full;
};

static void take(const char *text, size_t length, void *opaque)
{
	struct demangled *demangled = opaque;
	size_t room = DEMANGLED_MAX - demangled->length;

	memcpy(demangled->text + demangled->length, text, length < room ? length : room);
	demangled->length += length < room ? length : room;
	/* libiberty has nothing on the heap at this point, so longjmp() leaks nothing. */
	if (length > room)
		longjmp(demangled->full, 1);
}

char *lien_symbols_demangle(const char *name)
{
	struct demangled demangled;

	demangled.length = 0;
	if (strncmp(name, "_Z", 2))
		return strdup(name);
	if (!setjmp(demangled.full) && !cplus_demangle_v3_callback(name, 0, take, &demangled))
		return strdup(name);
	demangled.text[demangled.length] = '\0';
	return strdup(demangled.text);
}
