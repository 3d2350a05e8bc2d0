// SPDX-License-Identifier: BSD-2-Clause
/* `mem` by one aspect of the memory: counting. */
#include <stdlib.h>
#include <string.h>

#include "agent/views/mem_by.h"

static const char kind_device[] = "device", kind_imported[] = "imported";

struct row {
	struct lien_mem_key key;
	const struct lien_allocation *sample; /* the first one */
	struct lien_process *process;	      /* by rank; NULL: it has ended */
	uint64_t allocations, mappings, bytes, frees, offloaded, inferred;
	char *text;
};

struct grouping {
	const struct lien_viewer *viewer;
	enum lien_mem_by by;
	uint32_t pid; /* count only what it owns, or by rank: has; 0: all */
	struct row *rows;
	unsigned count, room;
	uint64_t arena;
	uint32_t *slots; /* Hashed row + 1; 0: empty. Size: a power of two, twice the room. */
};

static uint64_t mix(uint64_t value)
{
	value ^= value >> 31;
	value *= 0x9e3779b97f4a7c15ull;
	return value ^ value >> 29;
}

static uint32_t *slot_of(const struct grouping *grouping, const struct lien_mem_key *key)
{
	uint64_t mask = 2 * grouping->room - 1;
	uint64_t i = mix(key->a ^ mix(key->b ^ mix((uintptr_t)key->kind))) & mask;
	const struct lien_mem_key *other;

	for (; grouping->slots[i]; i = (i + 1) & mask) {
		other = &grouping->rows[grouping->slots[i] - 1].key;
		if (other->a == key->a && other->b == key->b && other->kind == key->kind &&
			other->identified == key->identified)
			break;
	}
	return &grouping->slots[i];
}

static bool grow(struct grouping *grouping)
{
	unsigned room = grouping->room ? 2 * grouping->room : 64, i;
	struct row *rows = realloc(grouping->rows, room * sizeof(*rows));

	if (!rows)
		return false;
	grouping->rows = rows;
	free(grouping->slots);
	grouping->slots = calloc(2 * room, sizeof(*grouping->slots));
	if (!grouping->slots)
		return false;
	grouping->room = room;
	for (i = 0; i < grouping->count; i++)
		*slot_of(grouping, &rows[i].key) = i + 1;
	return true;
}

/* NULL: out of memory. */
static struct row *row_of(struct grouping *grouping, const struct lien_mem_key *key,
	const struct lien_allocation *sample, struct lien_process *process)
{
	uint32_t *slot;

	if (grouping->count == grouping->room && !grow(grouping))
		return NULL;
	slot = slot_of(grouping, key);
	if (!*slot) {
		grouping->rows[grouping->count] =
			(struct row){.key = *key, .sample = sample, .process = process};
		*slot = ++grouping->count;
	}
	return &grouping->rows[*slot - 1];
}

/* --- counting --------------------------------------------------------------------------------- */

/* Counts mappings of other processes; by rank they belong to these processes. */
static bool count_imports(struct grouping *grouping, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	const struct lien_mapping *first;
	struct row *row;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		struct lien_process *process = holding->process;
		struct lien_mem_key key = {process->pid, process->start, kind_imported, false};

		first = LIST_FIRST(&holding->mappings);
		if (!first || process == allocation->owner ||
			!lien_viewer_sees(grouping->viewer, process) ||
			(grouping->pid && grouping->pid != process->pid))
			continue;
		if (!lien_allocation_on_device(allocation))
			key.kind = lien_kind_imported_host;
		row = row_of(grouping, &key, allocation, process);
		if (!row)
			return false;
		row->mappings += holding->mapped;
		row->allocations++;
		if (first->parked)
			row->offloaded += first->bytes;
		else
			row->bytes += first->bytes;
	}
	return true;
}

static bool count_owned(struct grouping *grouping, const struct lien_allocation *allocation)
{
	const char *kind = lien_host_kind(allocation);
	struct lien_mem_key key = lien_mem_key(grouping->by, allocation, kind ? kind : kind_device);
	const struct lien_holding *holding;
	struct row *row;

	if ((grouping->pid && grouping->pid != allocation->owner_pid) ||
		!lien_viewer_sees_owner(grouping->viewer, allocation))
		return true;
	row = row_of(grouping, &key, allocation, allocation->owner);
	if (!row)
		return false;
	row->allocations++;
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (grouping->by != LIEN_MEM_BY_RANK || holding->process == allocation->owner)
			row->mappings += holding->mapped;
	if (lien_allocation_offloaded(allocation)) {
		row->offloaded += allocation->bytes;
		return true;
	}
	row->bytes += allocation->bytes;
	if (allocation->comm_inferred && allocation->comm)
		row->inferred += allocation->bytes;
	if (!kind && !lien_plan_unmovable(allocation) &&
		!lien_plan_unreachable_then(allocation->owner))
		row->frees += allocation->bytes;
	return true;
}

static bool count_all(struct grouping *grouping, struct lien_graph *graph)
{
	struct lien_allocation *allocation;

	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		if (!lien_allocation_held(allocation) ||
			allocation->origin == LIEN_ORIGIN_MULTICAST)
			continue;
		if (lien_is_arena(allocation)) {
			if ((!grouping->pid || grouping->pid == allocation->owner_pid) &&
				lien_viewer_sees_owner(grouping->viewer, allocation))
				grouping->arena += allocation->bytes;
			continue;
		}
		if (!count_owned(grouping, allocation) ||
			(grouping->by == LIEN_MEM_BY_RANK && !count_imports(grouping, allocation)))
			return false;
	}
	return true;
}

/* --- the answer ------------------------------------------------------------------------------- */

static int by_words(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	int order = strcmp(x->text, y->text);

	return order ? order : strcmp(x->key.kind, y->key.kind);
}

static int by_bytes(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	if (x->offloaded != y->offloaded)
		return x->offloaded > y->offloaded ? -1 : 1;
	return by_words(a, b);
}

/* Destroyed communicators have no name of their own, and users may have equal tags. Expects rows
 * sorted by words. */
static void merge_alike(struct grouping *grouping)
{
	struct row *to = grouping->rows, *from;
	unsigned i;

	for (i = 1; i < grouping->count; i++) {
		from = &grouping->rows[i];
		if (by_words(to, from)) {
			*++to = *from;
			continue;
		}
		to->allocations += from->allocations;
		to->mappings += from->mappings;
		to->bytes += from->bytes;
		to->frees += from->frees;
		to->offloaded += from->offloaded;
		to->inferred += from->inferred;
		free(from->text);
	}
	if (grouping->count)
		grouping->count = to - grouping->rows + 1;
}

static json_t *view_row(const struct grouping *grouping, const struct row *row)
{
	json_t *view = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "key", row->text, "kind",
		row->key.kind, "allocations", (json_int_t)row->allocations, "mappings",
		(json_int_t)row->mappings, "bytes", (json_int_t)row->bytes, "offload_frees",
		(json_int_t)row->frees, "offloaded_bytes", (json_int_t)row->offloaded);

	if (grouping->by == LIEN_MEM_BY_RANK)
		json_object_set_new(view, "pid", json_integer(row->key.a));
	if (grouping->by == LIEN_MEM_BY_COMM)
		json_object_set_new(view, "inferred_bytes", json_integer(row->inferred));
	return view;
}

static json_t *view_rows(struct grouping *grouping, const char *name)
{
	uint64_t bytes = 0, frees = 0, host = 0;
	json_t *list = json_array();
	const struct row *row;
	unsigned i;

	for (i = 0; i < grouping->count; i++) {
		row = &grouping->rows[i];
		if (row->key.kind == kind_device)
			bytes += row->bytes;
		else if (row->key.kind != kind_imported && row->key.kind != lien_kind_imported_host)
			host += row->bytes;
		frees += row->frees;
		json_array_append_new(list, view_row(grouping, row));
	}
	return json_pack("{s:s, s:o, s:I, s:I, s:I, s:I}", "by", name, "rows", list, "bytes",
		(json_int_t)bytes, "offload_frees", (json_int_t)frees, "host_bytes",
		(json_int_t)host, "arena_bytes", (json_int_t)grouping->arena);
}

static const char *const names[] = {
	[LIEN_MEM_BY_OWNER] = "owner",
	[LIEN_MEM_BY_RANK] = "rank",
	[LIEN_MEM_BY_COMM] = "comm",
	[LIEN_MEM_BY_DEVICE] = "device",
	[LIEN_MEM_BY_CALLSITE] = "callsite",
	[LIEN_MEM_BY_TAG] = "tag",
};

int lien_mem_by_parse(const char *name, enum lien_mem_by *by)
{
	unsigned i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i])) {
			*by = i;
			return 0;
		}
	return -1;
}

json_t *lien_view_mem_by(struct lien_graph *graph, const struct lien_viewer *viewer,
	enum lien_mem_by by, uint32_t pid, const struct lien_node *node)
{
	struct grouping grouping = {.viewer = viewer, .by = by, .pid = pid};
	bool done = count_all(&grouping, graph);
	json_t *view = NULL;
	unsigned i;

	for (i = 0; i < grouping.count; i++) {
		grouping.rows[i].text =
			lien_mem_words(by, grouping.rows[i].sample, grouping.rows[i].process, node);
		done &= grouping.rows[i].text != NULL;
	}
	if (done && grouping.count) {
		if (by == LIEN_MEM_BY_COMM || by == LIEN_MEM_BY_TAG) {
			qsort(grouping.rows, grouping.count, sizeof(struct row), by_words);
			merge_alike(&grouping);
		}
		qsort(grouping.rows, grouping.count, sizeof(struct row), by_bytes);
	}
	if (done)
		view = view_rows(&grouping, names[by]);
	for (i = 0; i < grouping.count; i++)
		free(grouping.rows[i].text);
	free(grouping.rows);
	free(grouping.slots);
	return view;
}
