/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A record as people and programs read it: the call's name, its arguments under CUDA's names, its
 * result. A call that has no row in event_text.c is shown by its name alone.
 */
#ifndef LIEN_TOOLS_EVENT_TEXT_H
#define LIEN_TOOLS_EVENT_TEXT_H

#include <stdbool.h>

#include <jansson.h>
#include <lien/event.h>

struct lien_event_name {
	char text[48];
};

/* "cuMemCreate", "process", "exit"; the symbol without the "_v2" that cuda.h hides. "" for numbers
 * that are no event's. */
struct lien_event_name lien_event_name(unsigned type);

/* Whether the pattern (as the shell's) matches the name, or the symbol as exported. */
bool lien_event_is_named(unsigned type, const char *pattern);

/* The arguments in the call's order; sizes in bytes, addresses and handles as "0x...". NULL: out of
 * memory. */
json_t *lien_event_arguments(const struct lien_event *event);

/* "size=2 MiB, handle=0x1"; the caller frees. Ends the program without memory. */
char *lien_event_arguments_text(const struct lien_event *event);

/* "CUDA_ERROR_OUT_OF_MEMORY", "ncclInternalError"; NULL: success, or one that has no name here. */
const char *lien_event_result_name(const struct lien_event *event);

#endif
