// SPDX-License-Identifier: BSD-2-Clause
#include <stdlib.h>
#include <string.h>

#include "agent/views.h"

/* Rows of `mem`: few, so they are searched one by one, the last one first. */
struct row {
	uint32_t pid;
	const char *owner, *kind;
	uint64_t allocations, mappings, bytes, frees, offloaded;
};

struct rows {
	struct row *row;
	unsigned count, last;
};

static struct row *row_of(struct rows *rows, uint32_t pid, const char *owner, const char *kind)
{
	struct row *row;
	unsigned i;

	for (i = 0; i < rows->count; i++) {
		row = &rows->row[(rows->last + i) % rows->count];
		if (row->pid == pid && row->kind == kind && row->owner == owner) {
			rows->last = row - rows->row;
			return row;
		}
	}
	row = realloc(rows->row, (rows->count + 1) * sizeof(*row));
	if (!row)
		return NULL;
	rows->row = row;
	row = &rows->row[rows->last = rows->count++];
	*row = (struct row){.pid = pid, .owner = owner, .kind = kind};
	return row;
}

static int row_cmp(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	int order;

	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	order = strcmp(x->owner, y->owner);
	return order ? order : strcmp(x->kind, y->kind);
}

static const char kind_local[] = "local", kind_exported[] = "exported",
		  kind_imported[] = "imported", kind_dead[] = "dead";

static struct row *count_owned(
	struct rows *rows, const struct lien_allocation *allocation, const char *reason)
{
	struct row *row;

	row = row_of(rows, allocation->owner_pid, lien_allocation_library(allocation),
		!allocation->owner    ? kind_dead
		: allocation->exports ? kind_exported
				      : kind_local);
	if (!row)
		return NULL;
	row->allocations++;
	if (lien_allocation_offloaded(allocation)) {
		row->offloaded += allocation->bytes;
		return row;
	}
	row->bytes += allocation->bytes;
	if (!reason)
		row->frees += allocation->bytes;
	return row;
}

static int count_mappings(
	struct rows *rows, const struct lien_allocation *allocation, struct row *owned)
{
	unsigned owned_index = owned ? owned - rows->row : 0;
	const struct lien_mapping *mapping, *earlier;
	struct row *row;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		if (owned && mapping->process == allocation->owner) {
			rows->row[owned_index].mappings++;
			continue;
		}
		row = row_of(rows, mapping->process->pid, lien_allocation_library(allocation),
			kind_imported);
		if (!row)
			return -1;
		row->mappings++;
		LIST_FOREACH (earlier, &allocation->mappings, of_allocation)
			if (earlier == mapping || earlier->process == mapping->process)
				break;
		if (earlier != mapping)
			continue;
		row->allocations++;
		if (mapping->parked)
			row->offloaded += mapping->bytes;
		else
			row->bytes += mapping->bytes;
	}
	return 0;
}

/* Memory whose owner has exited, by owner: its importers keep it. */
json_t *lien_view_dead(struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	json_t *list = json_array();
	struct rows rows = {0};
	unsigned i;

	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation))
		if (!allocation->owner && allocation->owner_pid &&
			lien_allocation_held(allocation) && lien_allocation_on_device(allocation))
			count_owned(&rows, allocation, "its owner has exited");
	if (rows.count)
		qsort(rows.row, rows.count, sizeof(rows.row[0]), row_cmp);
	for (i = 0; i < rows.count; i++)
		json_array_append_new(
			list, json_pack("{s:I, s:s, s:I, s:I}", "pid", (json_int_t)rows.row[i].pid,
				      "owner", rows.row[i].owner, "allocations",
				      (json_int_t)rows.row[i].allocations, "bytes",
				      (json_int_t)rows.row[i].bytes));
	free(rows.row);
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
		lefts->left[lefts->count++] =
			(struct lien_left){.pid = allocation->owner_pid, .reason = reason};
	lefts->left[i].allocations++;
	lefts->left[i].bytes += allocation->bytes;
}

json_t *lien_view_mem(struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	uint64_t bytes = 0, frees = 0;
	struct lefts lefts = {0};
	struct rows rows = {0};
	json_t *list;
	unsigned i;

	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		const char *reason = NULL;
		struct row *row = NULL;

		if (!lien_allocation_held(allocation) || !lien_allocation_on_device(allocation))
			continue;
		if (!lien_allocation_offloaded(allocation)) {
			reason = lien_plan_unmovable(allocation);
			if (!reason)
				reason = lien_plan_unreachable(allocation->owner);
			if (reason)
				count_left(&lefts, allocation, reason);
			else
				frees += allocation->bytes;
			bytes += allocation->bytes;
		}
		if (allocation->owner_pid && !(row = count_owned(&rows, allocation, reason)))
			goto nomem;
		if (count_mappings(&rows, allocation, row))
			goto nomem;
	}
	if (rows.count)
		qsort(rows.row, rows.count, sizeof(rows.row[0]), row_cmp);
	list = json_array();
	for (i = 0; i < rows.count; i++) {
		const struct row *row = &rows.row[i];

		json_array_append_new(
			list, json_pack("{s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "pid",
				      (json_int_t)row->pid, "owner", row->owner, "kind", row->kind,
				      "allocations", (json_int_t)row->allocations, "mappings",
				      (json_int_t)row->mappings, "bytes", (json_int_t)row->bytes,
				      "offload_frees", (json_int_t)row->frees, "offloaded_bytes",
				      (json_int_t)row->offloaded));
	}
	free(rows.row);
	return json_pack("{s:o, s:I, s:I, s:o}", "rows", list, "bytes", (json_int_t)bytes,
		"offload_frees", (json_int_t)frees, "left",
		lien_view_left(lefts.left, lefts.count));
nomem:
	free(rows.row);
	return NULL;
}
