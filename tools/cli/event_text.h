/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A record as text and JSON: the call's name, its arguments under CUDA's names, its result. A call
 * without a row in event_text.c is shown by its name alone.
 */
#ifndef LIEN_TOOLS_EVENT_TEXT_H
#define LIEN_TOOLS_EVENT_TEXT_H

#include <stdbool.h>

#include <jansson.h>
#include <lien/event.h>

struct lien_event_name {
	char text[48];
};

/* "cuMemCreate", "process", "exit"; the symbol without the "_v2" that cuda.h hides. "" for unknown
 * numbers. */
struct lien_event_name lien_event_name(unsigned type);

/* Returns true if the shell pattern matches the name, or the exported symbol. */
bool lien_event_is_named(unsigned type, const char *pattern);

/* Returns the arguments in the call's order; sizes in bytes, addresses and handles as "0x...".
 * NULL: out of memory. */
json_t *lien_event_arguments(const struct lien_event *event);

/* "size=2 MiB, handle=0x1"; the caller frees. Ends the program when out of memory. */
char *lien_event_arguments_text(const struct lien_event *event);

/* "CUDA_ERROR_OUT_OF_MEMORY", "ncclInternalError"; NULL: success, or a result without a name
 * here. */
const char *lien_event_result_name(const struct lien_event *event);

/* The table behind this, for readers of records in other languages: calls `each` for every argument
 * of the type, with where it is in struct lien_event and how its bytes are shown. */
void lien_event_fields(unsigned type,
	void (*each)(
		void *context, const char *name, const char *kind, unsigned offset, unsigned size),
	void *context);

#endif
