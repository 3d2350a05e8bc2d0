// SPDX-License-Identifier: BSD-2-Clause
/* Selects the memory of an offload. Both sides may be long: a client names up to thousands of
 * processes and addresses, and a job makes any number of allocations. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/pids.h"
#include "agent/offload/plan_internal.h"

static int owner_cmp(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int allocation_cmp(const void *a, const void *b)
{
	uint64_t x = (*(const struct lien_allocation *const *)a)->id;
	uint64_t y = (*(const struct lien_allocation *const *)b)->id;

	return (x > y) - (x < y);
}

static int open_cmp(const void *a, const void *b)
{
	const struct lien_chosen_open *x = a, *y = b;

	if (x->allocation->id != y->allocation->id)
		return x->allocation->id < y->allocation->id ? -1 : 1;
	return (x->pid > y->pid) - (x->pid < y->pid);
}

const struct lien_allocation *lien_choice_named(
	struct lien_graph *graph, const struct lien_discard *discard)
{
	struct lien_process *process = lien_graph_process(graph, discard->pid);
	const struct lien_mapping *mapping =
		process ? lien_process_mapping(process, discard->address) : NULL;
	const struct lien_allocation *allocation = mapping ? mapping->holding->allocation : NULL;

	return allocation && allocation->owner == process ? allocation : NULL;
}

static void add_discards(struct lien_choice *choice, struct lien_graph *graph)
{
	const struct lien_selection *selection = choice->selection;
	const struct lien_allocation *allocation;
	unsigned i;

	for (i = 0; i < selection->discard_count; i++) {
		if (selection->discard[i].owner) {
			choice->discarded_owners[choice->owners_count++] =
				selection->discard[i].owner;
			continue;
		}
		allocation = lien_choice_named(graph, &selection->discard[i]);
		if (allocation)
			choice->discarded[choice->discarded_count++] = allocation;
	}
	qsort(choice->discarded_owners, choice->owners_count, sizeof(char *), owner_cmp);
	qsort(choice->discarded, choice->discarded_count, sizeof(void *), allocation_cmp);
}

static void add_open(struct lien_choice *choice, struct lien_graph *graph)
{
	const struct lien_probe_open_file *file = choice->selection->open;
	const struct lien_share *share;
	unsigned i;

	for (i = 0; i < choice->selection->open_count; i++) {
		share = lien_share_find(graph, file[i].share);
		if (share)
			choice->open[choice->open_count++] =
				(struct lien_chosen_open){share->allocation, file[i].pid};
	}
	qsort(choice->open, choice->open_count, sizeof(*choice->open), open_cmp);
}

int lien_choice_make(struct lien_choice *choice, struct lien_graph *graph,
	const struct lien_selection *selection)
{
	*choice = (struct lien_choice){.selection = selection,
		.pids = lien_pids_sorted(selection->pids, selection->pids_count),
		.discarded_owners = calloc(selection->discard_count + 1, sizeof(char *)),
		.discarded = calloc(selection->discard_count + 1, sizeof(void *)),
		.open = calloc(selection->open_count + 1, sizeof(*choice->open))};
	if (!choice->pids || !choice->discarded_owners || !choice->discarded || !choice->open) {
		lien_choice_clear(choice);
		return -ENOMEM;
	}
	add_discards(choice, graph);
	add_open(choice, graph);
	return 0;
}

void lien_choice_clear(struct lien_choice *choice)
{
	free(choice->pids);
	free(choice->discarded_owners);
	free(choice->discarded);
	free(choice->open);
}

bool lien_choice_has_pid(const struct lien_choice *choice, uint32_t pid)
{
	unsigned count = choice->selection->pids_count;

	return !count || lien_pids_find(choice->pids, count, pid);
}

bool lien_choice_discards(
	const struct lien_choice *choice, const struct lien_allocation *allocation)
{
	const char *owner = lien_allocation_library(allocation);

	return bsearch(&owner, choice->discarded_owners, choice->owners_count, sizeof(owner),
		       owner_cmp) ||
	       bsearch(&allocation, choice->discarded, choice->discarded_count, sizeof(allocation),
		       allocation_cmp);
}

bool lien_choice_has(
	const struct lien_choice *choice, const struct lien_allocation *allocation, bool any_owner)
{
	const char *owner = any_owner ? NULL : choice->selection->owner;

	if (!lien_allocation_held(allocation) || !lien_allocation_on_device(allocation) ||
		lien_allocation_offloaded(allocation) ||
		!lien_viewer_sees_owner(&choice->selection->viewer, allocation))
		return false;
	if (owner && strcmp(owner, lien_allocation_library(allocation)) &&
		!lien_choice_discards(choice, allocation))
		return false;
	return lien_choice_has_pid(choice, allocation->owner_pid);
}

static const char still_open[] =
	"an exported descriptor of it is still open, which keeps the old memory: close it once it "
	"is imported";

const char *lien_choice_open(const struct lien_choice *choice,
	const struct lien_allocation *allocation, uint32_t *holder)
{
	unsigned low = 0, high = choice->open_count, mid;

	while (low < high) {
		mid = low + (high - low) / 2;
		if (choice->open[mid].allocation->id < allocation->id)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == choice->open_count || choice->open[low].allocation != allocation)
		return NULL;
	*holder = choice->open[low].pid;
	return still_open;
}

const char *lien_plan_open(struct lien_graph *graph, const struct lien_allocation *allocation,
	const struct lien_probe_open_file *open, unsigned count)
{
	const struct lien_share *share;
	unsigned i;

	for (i = 0; i < count; i++) {
		share = lien_share_find(graph, open[i].share);
		if (share && share->allocation == allocation)
			return still_open;
	}
	return NULL;
}
