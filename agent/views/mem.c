// SPDX-License-Identifier: BSD-2-Clause
#include <stdlib.h>
#include <string.h>

#include "agent/views/internal.h"
#include "agent/views/mem_rows.h"

/* An importer's ordinal for another process's device is not known. */
static void set_device(struct lien_mem_key *key, const struct lien_allocation *allocation)
{
	const struct lien_uuid *gpu;

	if (!lien_allocation_on_device(allocation))
		return;
	gpu = lien_allocation_gpu(allocation);
	key->identified = gpu != NULL;
	if (gpu)
		memcpy(key->id, gpu->bytes, sizeof(key->id));
	else if (key->pid == allocation->owner_pid)
		key->device = allocation->prop.location_id;
}

/* NULL: out of memory. May move the rows. */
static struct lien_mem_row *row_of(struct lien_mem_rows *rows, uint32_t pid,
	const struct lien_allocation *allocation, const char *kind)
{
	struct lien_mem_key key = {.pid = pid, .kind = kind, .device = -1};
	bool inferred;

	key.owner = lien_allocation_attributed(allocation, &inferred);
	key.inferred = inferred;
	key.tag = lien_allocation_tag(allocation);
	if (rows->by_device)
		set_device(&key, allocation);
	return lien_mem_row(rows, &key, allocation);
}

static int row_cmp(const void *a, const void *b)
{
	const struct lien_mem_key *x = &((const struct lien_mem_row *)a)->key;
	const struct lien_mem_key *y = &((const struct lien_mem_row *)b)->key;
	int order;

	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	order = strcmp(x->owner, y->owner);
	if (!order)
		order = strcmp(x->kind, y->kind);
	if (!order)
		order = (int)x->inferred - (int)y->inferred;
	if (!order)
		order = strcmp(x->tag ? x->tag : "", y->tag ? y->tag : "");
	if (!order)
		order = memcmp(x->id, y->id, sizeof(x->id));
	return order ? order : x->device - y->device;
}

static const char kind_local[] = "local", kind_exported[] = "exported",
		  kind_imported[] = "imported", kind_dead[] = "dead";

const char lien_kind_imported_host[] = "imported host";

const char *lien_host_kind(const struct lien_allocation *allocation)
{
	static const char pinned[] = "pinned host", registered[] = "registered host",
			  other[] = "host";

	switch (allocation->origin) {
	case LIEN_ORIGIN_HOST:
		return pinned;
	case LIEN_ORIGIN_REGISTERED:
		return registered;
	case LIEN_ORIGIN_MULTICAST:
		return NULL;
	default:
		return lien_allocation_on_device(allocation) ? NULL : other;
	}
}

bool lien_is_arena(const struct lien_allocation *allocation)
{
	return allocation->origin == LIEN_ORIGIN_REGISTERED &&
	       !strcmp(lien_allocation_library(allocation), LIEN_ARENA_LIBRARY);
}

static struct lien_mem_row *count_owned(
	struct lien_mem_rows *rows, const struct lien_allocation *allocation, const char *reason)
{
	const char *kind;
	struct lien_mem_row *row;

	kind = lien_host_kind(allocation);
	if (!kind)
		kind = !allocation->owner    ? kind_dead
		       : allocation->exports ? kind_exported
					     : kind_local;
	row = row_of(rows, allocation->owner_pid, allocation, kind);
	if (!row)
		return NULL;
	lien_mem_row_own(row, allocation, !reason);
	return row;
}

/* pid: only those of this process; 0: all. */
static int count_mappings(struct lien_mem_rows *rows, const struct lien_viewer *viewer,
	uint32_t pid, const struct lien_allocation *allocation, struct lien_mem_row *owned)
{
	unsigned owned_index = owned ? owned - rows->row : 0;
	const struct lien_holding *holding;
	struct lien_mem_row *row;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		if (owned && holding->process == allocation->owner) {
			rows->row[owned_index].mappings += holding->mapped;
			continue;
		}
		if (!LIST_FIRST(&holding->mappings) ||
			!lien_viewer_sees(viewer, holding->process) ||
			(pid && pid != holding->process->pid))
			continue;
		row = row_of(rows, holding->process->pid, allocation,
			lien_host_kind(allocation) ? lien_kind_imported_host : kind_imported);
		if (!row)
			return -1;
		lien_mem_row_import(row, holding);
	}
	return 0;
}

/* Lists memory whose owner has exited, by owner: its importers keep it alive. */
json_t *lien_view_dead(struct lien_graph *graph, const struct lien_viewer *viewer)
{
	struct lien_allocation *allocation;
	json_t *list = json_array();
	struct lien_mem_rows rows = {0};
	unsigned i;

	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation))
		if (!allocation->owner && allocation->owner_pid &&
			lien_allocation_held(allocation) && lien_allocation_on_device(allocation) &&
			lien_viewer_sees_owner(viewer, allocation))
			count_owned(&rows, allocation, "its owner has exited");
	if (rows.count)
		qsort(rows.row, rows.count, sizeof(rows.row[0]), row_cmp);
	for (i = 0; i < rows.count; i++)
		json_array_append_new(list,
			json_pack("{s:I, s:s, s:I, s:I}", "pid", (json_int_t)rows.row[i].key.pid,
				"owner", rows.row[i].key.owner, "allocations",
				(json_int_t)rows.row[i].allocations, "bytes",
				(json_int_t)rows.row[i].bytes));
	lien_mem_rows_free(&rows);
	return list;
}

struct lefts {
	struct lien_left left[64];
	unsigned count;
};

static void count_left(
	struct lefts *lefts, const struct lien_allocation *allocation, const char *reason)
{
	unsigned i;

	for (i = 0; i < lefts->count; i++)
		if (lefts->left[i].pid == allocation->owner_pid && lefts->left[i].reason == reason)
			break;
	if (i == sizeof(lefts->left) / sizeof(lefts->left[0]))
		return;
	if (i == lefts->count)
		lefts->left[lefts->count++] = (struct lien_left){.pid = allocation->owner_pid,
			.reason = reason,
			.address = lien_plan_address(allocation)};
	lefts->left[i].allocations++;
	lefts->left[i].bytes += allocation->bytes;
}

/* What `mem` says beside its rows. */
struct sums {
	uint64_t bytes, frees, host, arena;
	struct lefts lefts;
};

/* Counts the memory that one process owns or imports, or that of all when pid is 0. */
static int count(struct lien_mem_rows *rows, struct sums *sums, struct lien_graph *graph,
	const struct lien_viewer *viewer, uint32_t pid)
{
	struct lien_allocation *allocation;

	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		const char *reason = NULL;
		struct lien_mem_row *row = NULL;

		if (!lien_allocation_held(allocation) ||
			allocation->origin == LIEN_ORIGIN_MULTICAST)
			continue;
		if (!lien_viewer_sees_owner(viewer, allocation) ||
			(pid && pid != allocation->owner_pid)) {
			if (count_mappings(rows, viewer, pid, allocation, NULL))
				return -1;
			continue;
		}
		if (lien_is_arena(allocation)) {
			sums->arena += allocation->bytes;
			continue;
		}
		if (!lien_allocation_on_device(allocation)) {
			reason = "host memory";
			sums->host += allocation->bytes;
		} else if (!lien_allocation_offloaded(allocation)) {
			reason = lien_plan_unmovable(allocation);
			if (!reason)
				reason = lien_plan_unreachable_then(allocation->owner);
			if (reason)
				count_left(&sums->lefts, allocation, reason);
			else
				sums->frees += allocation->bytes;
			sums->bytes += allocation->bytes;
		}
		if (allocation->owner_pid && !(row = count_owned(rows, allocation, reason)))
			return -1;
		if (count_mappings(rows, viewer, pid, allocation, row))
			return -1;
	}
	if (rows->count)
		qsort(rows->row, rows->count, sizeof(rows->row[0]), row_cmp);
	return 0;
}

json_t *lien_view_unread(struct lien_graph *graph, const struct lien_viewer *viewer, uint32_t pid)
{
	struct lien_process *process;
	json_t *list = json_array();

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (lien_plan_unread(process) && lien_viewer_sees(viewer, process) &&
			(!pid || pid == process->pid))
			json_array_append_new(list, json_integer(process->pid));
	return list;
}

json_t *lien_view_mem(struct lien_graph *graph, const struct lien_viewer *viewer, uint32_t pid)
{
	struct sums sums = {0};
	struct lien_mem_rows rows = {0};
	json_t *list;
	unsigned i;

	if (count(&rows, &sums, graph, viewer, pid)) {
		lien_mem_rows_free(&rows);
		return NULL;
	}
	list = json_array();
	for (i = 0; i < rows.count; i++) {
		const struct lien_mem_row *row = &rows.row[i];

		json_array_append_new(list,
			json_pack("{s:I, s:s, s:b, s:s, s:s?, s:I, s:I, s:I, s:I, s:I}", "pid",
				(json_int_t)row->key.pid, "owner", row->key.owner, "owner_inferred",
				row->key.inferred, "kind", row->key.kind, "tag", row->key.tag,
				"allocations", (json_int_t)row->allocations, "mappings",
				(json_int_t)row->mappings, "bytes", (json_int_t)row->bytes,
				"offload_frees", (json_int_t)row->frees, "offloaded_bytes",
				(json_int_t)row->offloaded));
	}
	lien_mem_rows_free(&rows);
	return json_pack("{s:o, s:I, s:I, s:I, s:I, s:o}", "rows", list, "bytes",
		(json_int_t)sums.bytes, "offload_frees", (json_int_t)sums.frees, "host_bytes",
		(json_int_t)sums.host, "arena_bytes", (json_int_t)sums.arena, "left",
		lien_view_left(sums.lefts.left, sums.lefts.count));
}

static json_t *view_gpu(const struct lien_mem_row *row, const struct lien_node *node)
{
	const struct lien_uuid *gpu = lien_allocation_gpu(row->sample);
	const struct lien_node_device *device;
	char text[LIEN_UUID_TEXT];

	if (!row->key.identified)
		return json_null();
	device = node ? lien_node_find(node, gpu) : NULL;
	lien_uuid_print(device ? &device->uuid : gpu, text);
	return json_string(text);
}

static json_t *view_measured(
	struct lien_graph *graph, const struct lien_mem_row *row, const struct lien_node *node)
{
	/* an exited owner's pid may be another process's by now */
	const struct lien_process *process =
		row->key.kind == kind_dead ? NULL : lien_graph_process(graph, row->key.pid);

	return json_pack("{s:I, s:s?, s:o, s:o, s:s, s:b, s:s, s:s?, s:I, s:I}", "pid",
		(json_int_t)row->key.pid, "command", process ? process->command : NULL, "gpu",
		view_gpu(row, node), "device",
		row->key.device < 0 ? json_null() : json_integer(row->key.device), "owner",
		row->key.owner, "owner_inferred", row->key.inferred, "kind", row->key.kind, "tag",
		row->key.tag, "bytes", (json_int_t)row->bytes, "offloaded_bytes",
		(json_int_t)row->offloaded);
}

json_t *lien_view_mem_devices(
	struct lien_graph *graph, const struct lien_viewer *viewer, const struct lien_node *node)
{
	struct lien_mem_rows rows = {.by_device = true};
	struct sums sums = {0};
	json_t *list = NULL;
	unsigned i;

	if (!count(&rows, &sums, graph, viewer, 0)) {
		list = json_array();
		for (i = 0; i < rows.count; i++)
			json_array_append_new(list, view_measured(graph, &rows.row[i], node));
	}
	lien_mem_rows_free(&rows);
	return list;
}

/* Returns the entry of a GPU in a list; adds it if necessary. */
static json_t *entry_of(json_t *list, json_t *gpu)
{
	json_t *entry;
	size_t i;

	json_array_foreach (list, i, entry)
		if (json_equal(json_object_get(entry, "gpu"), gpu))
			return entry;
	entry = json_pack("{s:O, s:i, s:i}", "gpu", gpu, "bytes", 0, "offloaded_bytes", 0);
	json_array_append_new(list, entry);
	return entry;
}

static void add(json_t *entry, const char *name, uint64_t bytes)
{
	json_object_set_new(entry, name,
		json_integer(json_integer_value(json_object_get(entry, name)) + bytes));
}

json_t *lien_view_mem_node(struct lien_graph *graph, const struct lien_node *node)
{
	struct lien_mem_rows rows = {.by_device = true};
	struct sums sums = {0};
	json_t *list = NULL, *gpu, *entry;
	unsigned i;

	if (!count(&rows, &sums, graph, NULL, 0)) {
		list = json_array();
		for (i = 0; i < rows.count; i++) {
			const struct lien_mem_row *row = &rows.row[i];

			if (row->key.kind != kind_local && row->key.kind != kind_exported &&
				row->key.kind != kind_dead)
				continue;
			gpu = view_gpu(row, node);
			entry = entry_of(list, gpu);
			json_decref(gpu);
			add(entry, "bytes", row->bytes);
			add(entry, "offloaded_bytes", row->offloaded);
		}
	}
	lien_mem_rows_free(&rows);
	return list;
}
