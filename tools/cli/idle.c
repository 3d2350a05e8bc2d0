// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/idle.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/complain.h"
#include "tools/text/output.h"

#define PIDS_SHOWN 8

/* Processes of which the same is to be said. */
struct group {
	char *text, *pids;
	unsigned count;
};

static char *owners_of(const json_t *entry)
{
	const json_t *owners = json_object_get(entry, "owners"), *owner;
	char *text = NULL;
	size_t i;

	json_array_foreach (owners, i, owner)
		text = lien_append(
			text, ", ", "%s", json_is_string(owner) ? json_string_value(owner) : "");
	return text ? text : lien_format("other owners");
}

/* Adds to the text. */
static char *not_selected(char *text, const json_t *entry)
{
	uint64_t others = lien_get_number(entry, "not_selected_bytes");
	uint64_t movable = lien_get_number(entry, "movable_bytes");
	char *owners = owners_of(entry);

	text = lien_append(text, "; ", "%s of %s not selected: ", lien_bytes(others).text, owners);
	free(owners);
	if (movable)
		return lien_append(text, "", "`lien offload --owner all` moves %s of it",
			movable == others ? "all" : lien_bytes(movable).text);
	return lien_append(
		text, "", "not movable either, as `lien offload --owner all --dry-run` says");
}

static char *text_of(const json_t *entry)
{
	uint64_t bytes = lien_get_number(entry, "bytes");
	uint64_t others = lien_get_number(entry, "not_selected_bytes");
	uint64_t offloaded = lien_get_number(entry, "offloaded_bytes");
	const char *reason = lien_get_text(entry, "reason");
	char *text = NULL;

	if (offloaded)
		text = lien_append(text, "; ", "%s offloaded already: `lien restore` puts it back",
			lien_bytes(offloaded).text);
	if (*reason)
		text = lien_append(text, "; ", "%s", reason);
	if (bytes > others)
		text = lien_append(text, "; ", "%s selected, and not movable (see below)",
			lien_bytes(bytes - others).text);
	if (others)
		text = not_selected(text, entry);
	return text ? text : lien_format("no memory of its own on the GPUs");
}

static bool is_in(const json_t *list, uint64_t pid)
{
	const json_t *entry;
	size_t i;

	json_array_foreach (list, i, entry)
		if (lien_get_number(entry, "pid") == pid)
			return true;
	return false;
}

static void add(struct group *groups, size_t *count, const json_t *entry, char *text)
{
	struct group *group;
	size_t i = 0;

	while (i < *count && strcmp(groups[i].text, text))
		i++;
	group = &groups[i];
	if (i < *count) {
		free(text);
	} else {
		group->text = text;
		++*count;
	}
	if (++group->count <= PIDS_SHOWN)
		group->pids = lien_append(group->pids, ", ", "%" PRIu64 " (%s)",
			lien_get_number(entry, "pid"), lien_get_text(entry, "command"));
}

static void print_groups(struct group *groups, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++) {
		if (groups[i].count > PIDS_SHOWN)
			groups[i].pids = lien_append(
				groups[i].pids, " ", "and %u more", groups[i].count - PIDS_SHOWN);
		lien_print_wrapped(stdout, 4,
			groups[i].count == 1 ? "  process %s: %s" : "  processes %s, each: %s",
			groups[i].pids, groups[i].text);
		free(groups[i].pids);
		free(groups[i].text);
	}
	free(groups);
}

/* In groups of the same words. Returns how many there are. NULL: no title. */
static size_t print_entries(
	const char *title, const json_t *result, char *(*words)(const json_t *entry))
{
	const json_t *idle = json_object_get(result, "idle"), *entry;
	struct group *groups = calloc(json_array_size(idle) + 1, sizeof(*groups));
	size_t i, count = 0;

	json_array_foreach (idle, i, entry)
		if (groups &&
			!is_in(json_object_get(result, "unknown"), lien_get_number(entry, "pid")))
			add(groups, &count, entry, words(entry));
	if (title && count)
		printf("\n%s\n", title);
	print_groups(groups, count);
	return count;
}

void lien_print_idle(const json_t *result)
{
	const json_t *idle = json_object_get(result, "idle");

	print_entries(NULL, result, text_of);
	if (json_is_array(idle) && !json_array_size(idle))
		lien_print_no_process(result, NULL);
	else
		lien_print_hidden(result);
}

static char *rest_of(const json_t *entry)
{
	return not_selected(NULL, entry);
}

bool lien_print_not_selected(const char *title, const json_t *result)
{
	return print_entries(title, result, rest_of);
}

void lien_print_hidden(const json_t *result)
{
	if (json_object_get(result, "only_user"))
		lien_print_wrapped(stdout, 2,
			"processes of other users are hidden: only root sees and moves them");
}

void lien_warn_hidden(const char *command, const json_t *result)
{
	if (json_object_get(result, "only_user"))
		lien_warn(command, "processes of other users are left out: only root sees them");
}

const char *lien_of_yours(const json_t *result)
{
	return json_object_get(result, "only_user") ? " of yours" : "";
}

void lien_print_no_process(const json_t *result, const char *from)
{
	if (from)
		printf("no process uses CUDA there, as far as the recording shows\n");
	else
		lien_print_wrapped(stdout, 2,
			"no process%s uses CUDA on this node, as far as the agent has seen",
			lien_of_yours(result));
	lien_print_hidden(result);
}
