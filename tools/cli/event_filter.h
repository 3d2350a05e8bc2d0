/* SPDX-License-Identifier: BSD-2-Clause */
/* --call and --library of `lien events`. */
#ifndef LIEN_TOOLS_EVENT_FILTER_H
#define LIEN_TOOLS_EVENT_FILTER_H

#include <stdbool.h>

#include "agent/graph/graph.h"
#include "tools/cli/options.h"

#define LIEN_CALLERS_LISTED 16

struct lien_libraries {
	struct lien_names names;
	bool found[LIEN_NAMES_MAX]; /* parallel to the names */
	char callers[LIEN_CALLERS_LISTED][LIEN_CALLER_SIZE];
	unsigned callers_count;
};

/* Does each name or pattern match an event? Prints an error for one that does not. */
bool lien_calls_check(const struct lien_usage *usage, const struct lien_names *calls);
/* Is an event of this type to be shown? */
bool lien_calls_have(const struct lien_names *calls, unsigned type);

/* Is a call to be shown: was one of the libraries called, or did one make the call? */
bool lien_libraries_have(const struct lien_libraries *libraries, unsigned type, const char *caller);
/* Notes a call of a recording, shown or not, for the check. */
void lien_libraries_note(struct lien_libraries *libraries, unsigned type, const char *caller);
/* Does each name belong to a library that is traced, or was a call of it noted? Prints an error for
 * one for which that is not true, with the libraries that made calls; returns the exit code. */
int lien_libraries_check(const struct lien_usage *usage, const struct lien_libraries *libraries);
/* Warns of names that are nearly one of CUDA's or NCCL's: calls of that library may never come. */
void lien_libraries_warn(const struct lien_usage *usage, const struct lien_libraries *libraries);

#endif
