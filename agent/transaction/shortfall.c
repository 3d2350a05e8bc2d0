// SPDX-License-Identifier: BSD-2-Clause
#include "agent/transaction/shortfall.h"

/* The driver takes up to so much for itself meanwhile, in each process (seen, 580.159). */
#define OWN_BYTES (2ull << 20)

struct group {
	const struct lien_uuid *gpu; /* NULL: of one process */
	struct lien_shortfall sum;
	int64_t freed; /* what the last one to drop its memory found free, and was not before */
};

static const struct lien_uuid *gpu_of(
	struct lien_graph *graph, const struct lien_plan_process *part)
{
	const struct lien_process *process = lien_graph_process(graph, part->pid);
	int64_t ordinal = -1;
	unsigned i;

	for (i = 0; i < part->items_count; i++) {
		if (!(part->items[i].flags & LIEN_WIRE_OWNED))
			continue;
		if (ordinal >= 0 && ordinal != part->items[i].location_id)
			return NULL;
		ordinal = part->items[i].location_id;
	}
	return process && process->ordinals && ordinal >= 0 && ordinal < process->ordinals->count
		       ? &process->ordinals->uuid[ordinal]
		       : NULL;
}

static struct group *group_of(struct group *groups, unsigned *count, const struct lien_uuid *gpu)
{
	unsigned i;

	for (i = 0; gpu && i < *count; i++)
		if (groups[i].gpu && lien_uuid_equal(groups[i].gpu, gpu))
			return &groups[i];
	if (*count == LIEN_SHORTFALLS)
		return NULL;
	groups[*count] = (struct group){.gpu = gpu};
	return &groups[(*count)++];
}

/* All memory is saved before any is dropped: each process found the same free before. */
void lien_shortfalls_find(struct lien_shortfalls *found, struct lien_graph *graph,
	const struct lien_plan *plan, const struct lien_transaction_result *result)
{
	const struct lien_transaction_process *process;
	struct group groups[LIEN_SHORTFALLS], *group;
	const struct lien_plan_process *part;
	unsigned i, count = 0;

	for (i = 0; i < result->processes_count; i++) {
		process = &result->processes[i];
		part = lien_plan_part(plan, process->pid);
		if (!part || !(process->bytes + process->discarded))
			continue;
		group = group_of(groups, &count, gpu_of(graph, part));
		if (!group)
			break;
		if (!group->sum.processes++)
			group->sum.pid = process->pid;
		group->sum.dropped += process->bytes + process->discarded;
		if (process->freed_bytes > group->freed)
			group->freed = process->freed_bytes;
	}
	found->count = 0;
	for (i = 0; i < count; i++) {
		if (groups[i].freed + OWN_BYTES * groups[i].sum.processes >= groups[i].sum.dropped)
			continue;
		found->row[found->count] = groups[i].sum;
		found->row[found->count++].missing = groups[i].sum.dropped - groups[i].freed;
	}
}
