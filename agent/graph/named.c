// SPDX-License-Identifier: BSD-2-Clause
#include "agent/graph/named.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/nearest.h"

int lien_groups_seen(struct lien_graph *graph, const struct lien_viewer *viewer, uint64_t **groups,
	unsigned *count)
{
	struct lien_process *process;
	struct lien_comm *comm;
	unsigned all = 0, room = 0;

	*groups = NULL;
	*count = 0;
	LIEN_FOREACH_PROCESS (process, graph) {
		if (!lien_viewer_sees(viewer, process))
			continue;
		RB_FOREACH (comm, lien_comm_tree, &process->comms) {
			if (lien_array_grow(groups, all, &room, sizeof(**groups))) {
				free(*groups);
				*groups = NULL;
				return -ENOMEM;
			}
			(*groups)[all++] = lien_comm_group(comm);
		}
	}
	*count = lien_array_unique(*groups, all, sizeof(**groups), lien_u64_cmp);
	return 0;
}

/* Compares the texts, which are the first members. */
static int gpu_cmp(const void *a, const void *b)
{
	return strcmp(a, b);
}

static bool same_ordinals(const struct lien_ordinals *a, const struct lien_ordinals *b)
{
	return a == b || (a && b && a->count == b->count &&
				 !memcmp(a->uuid, b->uuid, a->count * sizeof(a->uuid[0])));
}

int lien_gpus_seen(struct lien_graph *graph, const struct lien_viewer *viewer,
	struct lien_named_gpu **gpus, unsigned *count)
{
	const struct lien_ordinals *ordinals, *before = NULL;
	struct lien_process *process;
	unsigned all = 0, room = 0, i;
	int err;

	*gpus = NULL;
	err = lien_array_grow(gpus, 0, &room, sizeof(**gpus)); /* not NULL, even if there is none */
	for (process = lien_graph_first(graph); process && !err;
		process = lien_graph_next(process)) {
		ordinals = process->ordinals;
		/* Most processes have the same devices as the one before. */
		if (!ordinals || same_ordinals(ordinals, before) ||
			!lien_viewer_sees(viewer, process))
			continue;
		before = ordinals;
		for (i = 0; i < ordinals->count; i++) {
			err = lien_array_grow(gpus, all, &room, sizeof(**gpus));
			if (err)
				break;
			(*gpus)[all].uuid = ordinals->uuid[i];
			(*gpus)[all].chosen = false;
			lien_uuid_print(&ordinals->uuid[i], (*gpus)[all++].text);
		}
	}
	if (err) {
		free(*gpus);
		*gpus = NULL;
		all = 0;
	}
	*count = lien_array_unique(*gpus, all, sizeof(**gpus), gpu_cmp);
	return err;
}

unsigned lien_gpus_find(
	const struct lien_named_gpu *gpus, unsigned count, const char *text, unsigned *first)
{
	char after[LIEN_UUID_TEXT + 1]; /* greater than whatever begins with the text */

	snprintf(after, sizeof(after), "%.*s~", LIEN_UUID_TEXT - 1, text);
	*first = lien_array_at_least(gpus, count, sizeof(*gpus), text, gpu_cmp);
	return text[0] ? lien_array_at_least(gpus, count, sizeof(*gpus), after, gpu_cmp) - *first
		       : 0;
}

/* --- lists of what there is ------------------------------------------------------------------- */

#define LISTED 8 /* names in one line */

struct line {
	char *text;
	size_t size, length;
	unsigned names, more;
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line->text + line->length, line->size - line->length, format, args);
	va_end(args);
	line->length += n;
	if (line->length >= line->size)
		line->length = line->size - 1;
}

static bool list(struct line *line)
{
	if (line->names == LISTED) {
		line->more++;
		return false;
	}
	if (line->names++)
		add(line, ", ");
	return true;
}

static void end(struct line *line, const struct lien_nearest *nearest, const char *see)
{
	if (line->more)
		add(line, " and %u more", line->more);
	if (nearest && nearest->found)
		add(line, ": did you mean '%s'?", nearest->found);
	else
		add(line, " (see `%s`)", see);
}

void lien_known_processes(struct lien_graph *graph, const struct lien_viewer *viewer,
	const char *what, uint32_t pid, char *text, size_t size)
{
	struct line line = {.text = text, .size = size};
	struct lien_process *process;

	if (what)
		add(&line, "%s %u; ", what, pid);
	else
		add(&line,
			"process %u is not known to the agent: it does not run, has not used CUDA "
			"or is another user's; ",
			pid);
	LIEN_FOREACH_PROCESS (process, graph) {
		if (!process->cuda || !lien_viewer_sees(viewer, process))
			continue;
		if (!line.names)
			add(&line, "known are ");
		if (list(&line))
			add(&line, "%u (%s)", process->pid, process->command);
	}
	if (!line.names)
		add(&line, "no process is known");
	end(&line, NULL, "lien ps");
}

static bool is_memory(const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	return lien_allocation_held(allocation) && lien_allocation_on_device(allocation) &&
	       lien_viewer_sees_owner(viewer, allocation);
}

static int name_cmp(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void remove_name(const char **names, unsigned *count, const char *name)
{
	const char **found = bsearch(&name, names, *count, sizeof(*names), name_cmp);

	if (found)
		memmove(found, found + 1, (names + --*count - found) * sizeof(*names));
}

const char *lien_known_missing(struct lien_graph *graph, const struct lien_viewer *viewer,
	const char **owners, unsigned count)
{
	struct lien_allocation *allocation = lien_graph_first_allocation(graph);
	bool inferred;

	for (count = lien_array_unique(owners, count, sizeof(*owners), name_cmp);
		count && allocation; allocation = lien_graph_next_allocation(allocation)) {
		if (!is_memory(viewer, allocation))
			continue;
		remove_name(owners, &count, lien_allocation_library(allocation));
		remove_name(owners, &count, lien_allocation_attributed(allocation, &inferred));
	}
	return count ? owners[0] : NULL;
}

/* Lists the different names that memory has. name_of: NULL: it has none. */
static void add_names(struct line *line, struct lien_nearest *nearest, struct lien_graph *graph,
	const struct lien_viewer *viewer,
	const char *(*name_of)(const struct lien_allocation *allocation), const char *before)
{
	struct lien_allocation *allocation;
	const char *names[LISTED], *name;
	unsigned i;

	LIEN_FOREACH_ALLOCATION (allocation, graph) {
		name = is_memory(viewer, allocation) ? name_of(allocation) : NULL;
		for (i = 0; name && i < line->names && strcmp(names[i], name); i++)
			;
		if (!name || i < line->names)
			continue;
		if (i == LISTED) {
			add(line, ", ...");
			return;
		}
		if (!i)
			add(line, "%s", before);
		lien_nearest_try(nearest, name);
		names[i] = name;
		list(line);
		add(line, "%s", name);
	}
}

static const char *owner_of(const struct lien_allocation *allocation)
{
	bool inferred;

	return lien_allocation_attributed(allocation, &inferred);
}

void lien_known_owners(struct lien_graph *graph, const struct lien_viewer *viewer,
	const char *owner, char *text, size_t size)
{
	struct line line = {.text = text, .size = size};
	struct lien_nearest nearest = {.word = owner};

	add(&line, "no GPU memory belongs to owner %.100s; ", owner);
	add_names(&line, &nearest, graph, viewer, owner_of, "there is memory of ");
	if (!line.names)
		add(&line, viewer && viewer->one_user ? "your processes have none of any owner"
						      : "there is none of any owner");
	end(&line, &nearest, "lien mem");
}

bool lien_known_any_tag(struct lien_graph *graph, const struct lien_viewer *viewer,
	const char *const *tags, unsigned count)
{
	struct lien_allocation *allocation;
	const char *tag, *last = NULL;
	unsigned i;

	LIEN_FOREACH_ALLOCATION (allocation, graph) {
		tag = lien_allocation_tag(allocation);
		if (!tag || tag == last || !is_memory(viewer, allocation))
			continue;
		for (i = 0; i < count; i++)
			if (!strcmp(tag, tags[i]))
				return true;
		last = tag; /* most memory has the tag of the memory before it */
	}
	return false;
}

void lien_known_tags(struct lien_graph *graph, const struct lien_viewer *viewer, const char *tag,
	char *text, size_t size)
{
	struct line line = {.text = text, .size = size};
	struct lien_nearest nearest = {.word = tag};

	add(&line, "no GPU memory has the tag %s; ", tag);
	add_names(&line, &nearest, graph, viewer, lien_allocation_tag,
		"there is memory with the tag ");
	if (!line.names)
		add(&line, viewer && viewer->one_user ? "your processes have none with a tag"
						      : "there is none with a tag");
	end(&line, &nearest, "lien mem --by tag");
}

void lien_known_groups(
	const uint64_t *groups, unsigned count, const char *name, char *text, size_t size)
{
	struct line line = {.text = text, .size = size};
	struct lien_nearest nearest = {};
	char group[17], meant[17] = "";
	unsigned begin = 0;

	add(&line, "no communicator has the group %.60s; ", name);
	add(&line, count ? "known are " : "none is known");
	for (unsigned i = 0; i < count; i++) {
		snprintf(group, sizeof(group), "%016" PRIx64, groups[i]);
		if (list(&line))
			add(&line, "%s", group);
		if (!strncmp(group, name, strlen(name)) && !begin++)
			strcpy(meant, group);
	}
	if (begin == 1)
		nearest.found = meant;
	end(&line, &nearest, "lien comms");
}

void lien_known_gpus(
	const struct lien_node *node, unsigned count, const char *name, char *text, size_t size)
{
	struct line line = {.text = text, .size = size};
	const bool indexed = node && node->count;

	add(&line, "there is no GPU %.60s", name);
	for (unsigned i = 0; i < (indexed ? node->count : count); i++) {
		if (!i)
			add(&line, "; known are ");
		if (list(&line))
			add(&line, "%d", indexed ? (int)node->devices[i].index : (int)i);
	}
	end(&line, NULL, "lien ps");
}
