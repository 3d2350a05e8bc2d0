// SPDX-License-Identifier: BSD-2-Clause
/* Interns names, sets of locations and sites, and keeps the tags that processes give to memory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

enum { NAME, ACCESS, SITE };

static int lien_interned_cmp(const struct lien_interned *a, const struct lien_interned *b)
{
	LIEN_ORDER(kind);
	LIEN_ORDER(bytes);
	return memcmp(a + 1, b + 1, a->bytes);
}

LIEN_TREE(lien_interned_tree, lien_interned, by_key, lien_interned_cmp)

/* Returns what the graph has with the same key. Frees the one that was made for this if it is not
 * that one. */
static void *intern(
	struct lien_graph *graph, struct lien_interned *made, unsigned kind, size_t bytes)
{
	struct lien_interned *known;

	made->kind = kind;
	made->bytes = bytes;
	known = RB_INSERT(lien_interned_tree, &graph->interned, made);
	if (!known)
		return made;
	free(made);
	return known;
}

void lien_copy_printable(char *to, const char *text, size_t room)
{
	for (; room > 1 && *text; room--, text++)
		*to++ = *text >= ' ' && *text <= '~' ? *text : '?';
	*to = '\0';
}

const struct lien_name *lien_graph_name(struct lien_graph *graph, const char *text, size_t max)
{
	size_t length = strnlen(text, max);
	struct lien_name *name = calloc(1, sizeof(*name) + length + 1);

	if (!name)
		return NULL;
	lien_copy_printable(name->text, text, length + 1);
	return intern(graph, &name->interned, NAME, length + 1);
}

static int place_cmp(const void *a, const void *b)
{
	const struct lien_access *x = a, *y = b;

	if (x->location_type != y->location_type)
		return x->location_type < y->location_type ? -1 : 1;
	return (x->location_id > y->location_id) - (x->location_id < y->location_id);
}

const struct lien_access_set *lien_graph_access(struct lien_graph *graph,
	const struct lien_access_set *base, const struct lien_access *over, unsigned n)
{
	unsigned base_count = base ? base->count : 0, i, j;
	struct lien_access_set *set;

	set = calloc(1, sizeof(*set) + (base_count + n) * sizeof(set->access[0]));
	if (!set)
		return NULL;
	for (i = 0; i < base_count; i++)
		set->access[set->count++] = base->access[i];
	for (i = 0; i < n; i++) {
		for (j = 0; j < set->count; j++)
			if (!place_cmp(&set->access[j], &over[i]))
				break;
		set->access[j] = over[i];
		if (j == set->count)
			set->count++;
	}
	qsort(set->access, set->count, sizeof(set->access[0]), place_cmp);
	return intern(graph, &set->interned, ACCESS,
		offsetof(struct lien_access_set, access) - sizeof(set->interned) +
			set->count * sizeof(set->access[0]));
}

static void name_caller(
	const struct lien_library_map *map, uint32_t outer, char name[LIEN_CALLER_SIZE])
{
	const char *file = map ? map->file->text : "unknown", *suffix;
	const char *folder = strrchr(file, '/'); /* files without a path may have such names */
	int length;

	if (folder)
		file = folder + 1;
	length = strlen(file);
	if (lien_event_library(outer) == LIEN_LIB_NCCL) {
		file = "nccl";
		length = strlen(file);
	} else if (!strncmp(file, "lib", 3)) {
		file += 3;
		suffix = strstr(file, ".so");
		length = suffix ? suffix - file : (int)strlen(file);
	}
	snprintf(name, LIEN_CALLER_SIZE, "%.*s", length, file);
}

void lien_process_caller(
	struct lien_process *process, const struct lien_event *event, char name[LIEN_CALLER_SIZE])
{
	name_caller(lien_process_library(process, event->caller), event->outer, name);
}

static const struct lien_site *site_in(struct lien_process *process,
	const struct lien_library_map *map, uint64_t caller, uint32_t outer)
{
	struct lien_site site = {.outer = outer, .offset = caller};
	char library[LIEN_CALLER_SIZE];

	name_caller(map, outer, library);
	site.library = lien_graph_name(process->graph, library, sizeof(library));
	if (map) {
		site.file = map->file;
		site.inode = map->inode;
		site.dev_major = map->dev_major;
		site.dev_minor = map->dev_minor;
		site.offset = caller - map->start + map->offset;
	}
	return lien_graph_intern_site(process->graph, process, &site);
}

const struct lien_site *lien_process_site(
	struct lien_process *process, const struct lien_event *event)
{
	return site_in(
		process, lien_process_library(process, event->caller), event->caller, event->outer);
}

void lien_process_found_library(struct lien_process *process, const struct lien_library_map *map)
{
	struct lien_allocation *allocation;
	const struct lien_site *site;

	LIST_FOREACH (allocation, &process->owned, of_owner) {
		site = allocation->site;
		if (!site || site->inode || site->offset < map->start || site->offset >= map->end)
			continue;
		site = site_in(process, map, site->offset, site->outer);
		if (site)
			allocation->site = site;
	}
}

const struct lien_site *lien_graph_intern_site(
	struct lien_graph *graph, struct lien_process *process, const struct lien_site *like)
{
	struct lien_site *site, *made = like->library ? malloc(sizeof(*made)) : NULL;

	if (!made)
		return NULL;
	*made = *like;
	site = intern(graph, &made->interned, SITE,
		offsetof(struct lien_site, outer) + sizeof(made->outer) - sizeof(made->interned));
	if (site == made && graph->on_site)
		graph->on_site(graph->on_site_context, process, site);
	return site;
}

void lien_graph_on_site(struct lien_graph *graph,
	void (*fn)(void *context, struct lien_process *, const struct lien_site *), void *context)
{
	graph->on_site = fn;
	graph->on_site_context = context;
}

int lien_graph_name_site(
	struct lien_graph *graph, const struct lien_site *site, const char *symbol, uint64_t into)
{
	struct lien_site *own = (struct lien_site *)site; /* lent out as const */
	const struct lien_name *name = lien_graph_name(graph, symbol, strlen(symbol));

	if (!name)
		return -ENOMEM;
	own->symbol = name;
	own->into = into;
	return 0;
}

/* --- tags: one is known as long as memory has it -----------------------------------------------
 */

static int lien_tag_cmp(const struct lien_tag *a, const struct lien_tag *b)
{
	LIEN_ORDER(uid);
	return strcmp(a->text, b->text);
}

LIEN_TREE(lien_tag_tree, lien_tag, by_text, lien_tag_cmp)

/* Has the user as many tags as are kept? */
static bool user_full(struct lien_graph *graph, uint32_t uid)
{
	const struct lien_tag first = {.uid = uid};
	struct lien_tag *tag = RB_NFIND(lien_tag_tree, &graph->tags, (struct lien_tag *)&first);
	unsigned count = 0;

	for (; tag && tag->uid == uid && count < LIEN_TAGS_MAX;
		tag = RB_NEXT(lien_tag_tree, &graph->tags, tag))
		count++;
	return count == LIEN_TAGS_MAX;
}

int lien_allocation_set_tag(struct lien_graph *graph, struct lien_allocation *allocation,
	uint32_t uid, const char text[LIEN_TAG_BYTES])
{
	struct lien_tag key = {.uid = uid}, *tag;

	allocation->tag_unknown = true;
	if (!lien_tag_valid(text))
		return 0;
	strcpy(key.text, text);
	tag = RB_FIND(lien_tag_tree, &graph->tags, &key);
	if (!tag) {
		if (user_full(graph, uid))
			return 0;
		tag = malloc(sizeof(*tag));
		if (!tag)
			return -ENOMEM;
		*tag = key;
		RB_INSERT(lien_tag_tree, &graph->tags, tag);
	}
	tag->allocations++;
	allocation->tag = tag;
	allocation->tag_unknown = false;
	return 0;
}

void lien_allocation_drop_tag(struct lien_graph *graph, struct lien_allocation *allocation)
{
	struct lien_tag *tag = allocation->tag;

	allocation->tag = NULL;
	if (!tag || --tag->allocations)
		return;
	RB_REMOVE(lien_tag_tree, &graph->tags, tag);
	free(tag);
}

bool lien_allocation_tag_known(const struct lien_allocation *allocation)
{
	return allocation->tag || !(allocation->tag_unknown || allocation->found ||
					  allocation->origin == LIEN_ORIGIN_IMPORT);
}

/* --- all -------------------------------------------------------------------------------------- */

void lien_graph_free_interned(struct lien_graph *graph)
{
	struct lien_interned *interned, *next;

	RB_FOREACH_SAFE (interned, lien_interned_tree, &graph->interned, next) {
		RB_REMOVE(lien_interned_tree, &graph->interned, interned);
		free(interned);
	}
}
