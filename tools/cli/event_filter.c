// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/event_filter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/calls.h>

#include "agent/graph/event_check.h"
#include "loader/discover/libraries.h"
#include "tools/cli/event_text.h"
#include "tools/text/complain.h"
#include "agent/graph/nearest.h"
#include "tools/text/output.h"

/* Is it the library that was called, or the one that called? */
static bool is_library(const char *name, unsigned type, const char *caller)
{
	int library = lien_event_library(type);

	return !strcmp(name, caller) || (library && !strcmp(name, lien_library_name(library)));
}

/* A process's maps are noise: only --call library shows them. */
bool lien_calls_have(const struct lien_names *calls, unsigned type)
{
	unsigned i;

	for (i = 0; i < calls->count; i++)
		if (lien_event_is_named(type, calls->name[i]))
			return true;
	return !calls->count && type != LIEN_EVENT_LIBRARY;
}

bool lien_libraries_have(const struct lien_libraries *libraries, unsigned type, const char *caller)
{
	unsigned i;

	for (i = 0; i < libraries->names.count; i++)
		if (is_library(libraries->names.name[i], type, caller))
			return true;
	return !libraries->names.count;
}

void lien_libraries_note(struct lien_libraries *libraries, unsigned type, const char *caller)
{
	unsigned i;

	for (i = 0; i < libraries->names.count; i++)
		libraries->found[i] |= is_library(libraries->names.name[i], type, caller);
	for (i = 0; i < libraries->callers_count && strcmp(libraries->callers[i], caller) != 0; i++)
		;
	if (i == libraries->callers_count && i < LIEN_CALLERS_LISTED)
		snprintf(libraries->callers[libraries->callers_count++], LIEN_CALLER_SIZE, "%s",
			caller);
}

static bool is_traced(const char *name)
{
	unsigned library = 1;

	while (library < LIEN_LIB_COUNT && strcmp(name, lien_library_name(library)) != 0)
		library++;
	return library < LIEN_LIB_COUNT;
}

int lien_libraries_check(const struct lien_usage *usage, const struct lien_libraries *libraries)
{
	char *list = NULL;
	unsigned i;

	for (i = 0; i < libraries->names.count &&
		    (libraries->found[i] || is_traced(libraries->names.name[i]));
		i++)
		;
	if (i == libraries->names.count)
		return LIEN_EXIT_OK;
	for (unsigned j = 0; j < libraries->callers_count; j++)
		list = lien_append(list, ", ", "%s", libraries->callers[j]);
	lien_complain(usage->command,
		"no call in the recording belongs to a library %s, or was made by it; %s%s",
		libraries->names.name[i], list ? "calls are made by " : "there are no calls",
		list ? list : "");
	free(list);
	return LIEN_EXIT_USAGE;
}

static bool is_call_named(const char *pattern)
{
	unsigned type;

	for (type = 0; type < LIEN_CALL_MAX; type++)
		if (lien_event_is_named(type, pattern))
			return true;
	return false;
}

bool lien_calls_check(const struct lien_usage *usage, const struct lien_names *calls)
{
	static struct lien_event_name names[LIEN_CALL_MAX]; /* outlive the search */
	struct lien_nearest nearest = {};
	unsigned i, type;

	for (i = 0; i < calls->count && is_call_named(calls->name[i]); i++)
		;
	if (i == calls->count)
		return true;
	nearest.word = calls->name[i];
	for (type = 0; type < LIEN_CALL_MAX; type++) {
		names[type] = lien_event_name(type);
		lien_nearest_try(&nearest, names[type].text);
	}
	lien_word_error(usage, &nearest, "", "no event is called '%s'", calls->name[i]);
	return false;
}

void lien_libraries_warn(const struct lien_usage *usage, const struct lien_libraries *libraries)
{
	struct lien_nearest nearest;
	unsigned i, library;

	for (i = 0; i < libraries->names.count; i++) {
		nearest = (struct lien_nearest){.word = libraries->names.name[i]};
		for (library = 1; library < LIEN_LIB_COUNT; library++)
			lien_nearest_try(&nearest, lien_library_name(library));
		if (nearest.found && nearest.edits)
			lien_warn(usage->command, "--library '%s': did you mean '%s'?",
				libraries->names.name[i], nearest.found);
	}
}
