// SPDX-License-Identifier: BSD-2-Clause
/* `mem` by one aspect of the memory: counting. */
#include <stdlib.h>
#include <string.h>

#include "agent/views/mem_by.h"

static const char kind_device[] = "device", kind_imported[] = "imported";

struct grouping {
	const struct lien_viewer *viewer;
	enum lien_mem_by by;
	uint32_t pid; /* count only what it owns, or by rank: has; 0: all */
	struct lien_mem_rows rows;
	uint64_t arena;
};

/* --- counting --------------------------------------------------------------------------------- */

/* Counts mappings of other processes; by rank they belong to these processes. */
static bool count_imports(struct grouping *grouping, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	struct lien_mem_row *row;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		struct lien_process *process = holding->process;
		struct lien_mem_key key = {
			.id = {process->pid, process->start}, .kind = kind_imported};

		if (!LIST_FIRST(&holding->mappings) || process == allocation->owner ||
			!lien_viewer_sees(grouping->viewer, process) ||
			(grouping->pid && grouping->pid != process->pid))
			continue;
		if (!lien_allocation_on_device(allocation))
			key.kind = lien_kind_imported_host;
		row = lien_mem_row(&grouping->rows, &key, allocation);
		if (!row)
			return false;
		row->process = process;
		lien_mem_row_import(row, holding);
	}
	return true;
}

static bool count_owned(struct grouping *grouping, const struct lien_allocation *allocation)
{
	const char *kind = lien_host_kind(allocation);
	struct lien_mem_key key = lien_mem_key(grouping->by, allocation, kind ? kind : kind_device);
	const struct lien_holding *holding;
	struct lien_mem_row *row;

	if ((grouping->pid && grouping->pid != allocation->owner_pid) ||
		!lien_viewer_sees_owner(grouping->viewer, allocation))
		return true;
	row = lien_mem_row(&grouping->rows, &key, allocation);
	if (!row)
		return false;
	row->process = allocation->owner;
	lien_mem_row_own(row, allocation,
		!kind && !lien_plan_unmovable(allocation) &&
			!lien_plan_unreachable_then(allocation->owner));
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (grouping->by != LIEN_MEM_BY_RANK || holding->process == allocation->owner)
			row->mappings += holding->mapped;
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
	const struct lien_mem_row *x = a, *y = b;
	int order = strcmp(x->text, y->text);

	return order ? order : strcmp(x->key.kind, y->key.kind);
}

static int by_bytes(const void *a, const void *b)
{
	const struct lien_mem_row *x = a, *y = b;

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
	struct lien_mem_row *to = grouping->rows.row, *from;
	unsigned i;

	for (i = 1; i < grouping->rows.count; i++) {
		from = &grouping->rows.row[i];
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
	if (grouping->rows.count)
		grouping->rows.count = to - grouping->rows.row + 1;
}

static json_t *view_row(const struct grouping *grouping, const struct lien_mem_row *row)
{
	json_t *view = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "key", row->text, "kind",
		row->key.kind, "allocations", (json_int_t)row->allocations, "mappings",
		(json_int_t)row->mappings, "bytes", (json_int_t)row->bytes, "offload_frees",
		(json_int_t)row->frees, "offloaded_bytes", (json_int_t)row->offloaded);

	if (grouping->by == LIEN_MEM_BY_RANK)
		json_object_set_new(view, "pid", json_integer(row->key.id[0]));
	if (grouping->by == LIEN_MEM_BY_COMM)
		json_object_set_new(view, "inferred_bytes", json_integer(row->inferred));
	return view;
}

static json_t *view_rows(struct grouping *grouping, const char *name)
{
	uint64_t bytes = 0, frees = 0, host = 0;
	json_t *list = json_array();
	const struct lien_mem_row *row;
	unsigned i;

	for (i = 0; i < grouping->rows.count; i++) {
		row = &grouping->rows.row[i];
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

	for (i = 0; i < grouping.rows.count; i++) {
		grouping.rows.row[i].text = lien_mem_words(
			by, grouping.rows.row[i].sample, grouping.rows.row[i].process, node);
		done &= grouping.rows.row[i].text != NULL;
	}
	if (done && grouping.rows.count) {
		if (by == LIEN_MEM_BY_COMM || by == LIEN_MEM_BY_TAG) {
			qsort(grouping.rows.row, grouping.rows.count, sizeof(struct lien_mem_row),
				by_words);
			merge_alike(&grouping);
		}
		qsort(grouping.rows.row, grouping.rows.count, sizeof(struct lien_mem_row),
			by_bytes);
	}
	if (done)
		view = view_rows(&grouping, names[by]);
	lien_mem_rows_free(&grouping.rows);
	return view;
}
