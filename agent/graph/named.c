// SPDX-License-Identifier: BSD-2-Clause
#include "agent/graph/named.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int group_cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

void lien_groups_sort(uint64_t *groups, unsigned count)
{
	if (count)
		qsort(groups, count, sizeof(*groups), group_cmp);
}

bool lien_groups_find(const uint64_t *sorted, unsigned count, uint64_t group)
{
	return count && bsearch(&group, sorted, count, sizeof(group), group_cmp);
}

/* Fills the list, if there is one; returns how many there are. */
static unsigned each_group(
	struct lien_graph *graph, const struct lien_viewer *viewer, uint64_t *groups)
{
	struct lien_process *process;
	struct lien_comm *comm;
	unsigned count = 0;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process)) {
		if (!lien_viewer_sees(viewer, process))
			continue;
		RB_FOREACH (comm, lien_comm_tree, &process->comms) {
			if (groups)
				groups[count] = lien_comm_group(comm);
			count++;
		}
	}
	return count;
}

int lien_groups_seen(struct lien_graph *graph, const struct lien_viewer *viewer, uint64_t **groups,
	unsigned *count)
{
	unsigned all = each_group(graph, viewer, NULL), i;

	*count = 0;
	*groups = calloc(all + 1, sizeof(**groups));
	if (!*groups)
		return -ENOMEM;
	each_group(graph, viewer, *groups);
	lien_groups_sort(*groups, all);
	for (i = 0; i < all; i++)
		if (!*count || (*groups)[*count - 1] != (*groups)[i])
			(*groups)[(*count)++] = (*groups)[i];
	return 0;
}

static int gpu_cmp(const void *a, const void *b)
{
	return strcmp(
		((const struct lien_named_gpu *)a)->text, ((const struct lien_named_gpu *)b)->text);
}

static bool same_ordinals(const struct lien_ordinals *a, const struct lien_ordinals *b)
{
	return a == b || (a && b && a->count == b->count &&
				 !memcmp(a->uuid, b->uuid, a->count * sizeof(a->uuid[0])));
}

/* Like each_group(). Most processes have the same devices as the one before. */
static unsigned each_gpu(
	struct lien_graph *graph, const struct lien_viewer *viewer, struct lien_named_gpu *gpus)
{
	const struct lien_ordinals *ordinals, *before = NULL;
	struct lien_process *process;
	unsigned count = 0, i;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process)) {
		ordinals = process->ordinals;
		if (!ordinals || same_ordinals(ordinals, before) ||
			!lien_viewer_sees(viewer, process))
			continue;
		before = ordinals;
		for (i = 0; gpus && i < ordinals->count; i++) {
			gpus[count + i].uuid = ordinals->uuid[i];
			lien_uuid_print(&ordinals->uuid[i], gpus[count + i].text);
		}
		count += ordinals->count;
	}
	return count;
}

int lien_gpus_seen(struct lien_graph *graph, const struct lien_viewer *viewer,
	struct lien_named_gpu **gpus, unsigned *count)
{
	unsigned all = each_gpu(graph, viewer, NULL), i;

	*count = 0;
	*gpus = calloc(all + 1, sizeof(**gpus));
	if (!*gpus)
		return -ENOMEM;
	each_gpu(graph, viewer, *gpus);
	if (all)
		qsort(*gpus, all, sizeof(**gpus), gpu_cmp);
	for (i = 0; i < all; i++)
		if (!*count || strcmp((*gpus)[*count - 1].text, (*gpus)[i].text))
			(*gpus)[(*count)++] = (*gpus)[i];
	return 0;
}

/* Returns the first whose beginning is not less than the text, or with `after`, greater. */
static unsigned bound(
	const struct lien_named_gpu *gpus, unsigned count, const char *text, bool after)
{
	const size_t length = strlen(text);
	unsigned low = 0, high = count, middle;
	int order;

	while (low < high) {
		middle = low + (high - low) / 2;
		order = strncmp(gpus[middle].text, text, length);
		if (order < 0 || (after && !order))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

unsigned lien_gpus_find(
	const struct lien_named_gpu *gpus, unsigned count, const char *text, unsigned *first)
{
	*first = bound(gpus, count, text, false);
	return text[0] ? bound(gpus, count, text, true) - *first : 0;
}

static int uuid_cmp(const void *a, const void *b)
{
	const struct lien_uuid *x = a, *y = b;

	return memcmp(x->bytes, y->bytes, sizeof(x->bytes));
}

void lien_uuids_sort(struct lien_uuid *uuids, unsigned count)
{
	if (count)
		qsort(uuids, count, sizeof(*uuids), uuid_cmp);
}

bool lien_uuids_find(const struct lien_uuid *sorted, unsigned count, const struct lien_uuid *uuid)
{
	return count && bsearch(uuid, sorted, count, sizeof(*uuid), uuid_cmp);
}
