// SPDX-License-Identifier: BSD-2-Clause
/* Chooses what an offload moves so that each GPU has a number of bytes more: in little time, with
 * few driver calls, and nothing that is not needed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/graph/bytes.h"
#include "agent/plan/plan_internal.h"

/*
 * What a move costs, there and back: about 0.17 ms for each mapping in each process, 0.04 ms for
 * each MiB (docs/measurements.md: 966 mappings, 2,604 MiB).
 */
#define MAPPING_NS 170000ull
#define MIB_NS	   40000ull

/* The bytes that items which move together free on one GPU. */
struct gain {
	unsigned gpu;
	unsigned first, count; /* of all these items */
	uint64_t bytes, cost;
	uint32_t pid;
	bool in;
};

static int item_cmp(const void *a, const void *b)
{
	const struct lien_free_item *x = a, *y = b;

	if (x->whole != y->whole)
		return x->whole < y->whole ? -1 : 1;
	return (x->gpu > y->gpu) - (x->gpu < y->gpu);
}

/* By GPU; there, by cost for each byte, then the large ones first. */
static int gain_cmp(const void *a, const void *b)
{
	const struct gain *x = a, *y = b;
	unsigned __int128 costs_x = (unsigned __int128)x->cost * y->bytes;
	unsigned __int128 costs_y = (unsigned __int128)y->cost * x->bytes;

	if (x->gpu != y->gpu)
		return x->gpu < y->gpu ? -1 : 1;
	if (costs_x != costs_y)
		return costs_x < costs_y ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	return (x->first > y->first) - (x->first < y->first);
}

/* Fills the list, which has room for all items, and returns the number of gains. */
static unsigned collect(const struct lien_free_item *items, unsigned count, struct gain *gains,
	struct lien_freed *gpus)
{
	unsigned first, end, i, n = 0, of_whole;
	uint64_t cost;
	bool held;

	for (first = 0; first < count; first = end) {
		held = false;
		for (end = first; end < count && items[end].whole == items[first].whole; end++)
			held |= items[end].held;
		if (held)
			continue;
		cost = 0;
		of_whole = n;
		for (i = first; i < end; i++) {
			if (i == first || items[i].gpu != items[i - 1].gpu)
				gains[n++] = (struct gain){.gpu = items[i].gpu,
					.first = first,
					.count = end - first,
					.pid = items[i].pid};
			gains[n - 1].bytes += items[i].bytes;
			gpus[items[i].gpu].movable += items[i].bytes;
			cost += items[i].cost;
		}
		while (of_whole < n)
			gains[of_whole++].cost = cost;
	}
	return n;
}

static void take(struct lien_free_item *items, const struct gain *gain, struct lien_freed *gpus)
{
	unsigned i;

	for (i = gain->first; i < gain->first + gain->count; i++) {
		items[i].chosen = true;
		gpus[items[i].gpu].bytes += items[i].bytes;
		gpus[items[i].gpu].allocations++;
	}
}

/* Takes enough of the gains of one GPU. */
static void choose(struct lien_free_item *items, struct gain *gains, unsigned count,
	uint64_t wanted, struct lien_freed *gpus)
{
	uint64_t sum = 0, cost = 0, least = UINT64_MAX, need;
	unsigned i, last = count;

	if (gpus[gains[0].gpu].bytes >= wanted)
		return;
	need = wanted - gpus[gains[0].gpu].bytes;
	for (i = 0; i < count; i++) {
		if (items[gains[i].first].chosen)
			continue;
		if (gains[i].bytes < need - sum) {
			gains[i].in = true;
			sum += gains[i].bytes;
			cost += gains[i].cost;
		} else if (cost + gains[i].cost < least) { /* with it, it is enough */
			least = cost + gains[i].cost;
			last = i;
		}
	}
	/* What came before may be too much with the last one. */
	for (sum = gains[last].bytes, i = 0; i < last; i++)
		sum += gains[i].in ? gains[i].bytes : 0;
	for (i = last; i-- > 0;)
		if (gains[i].in && sum - gains[i].bytes >= need) {
			gains[i].in = false;
			sum -= gains[i].bytes;
		}
	for (i = 0; i <= last; i++)
		if (gains[i].in || i == last)
			take(items, &gains[i], gpus);
}

int lien_free_choose(struct lien_free_item *items, unsigned count, uint64_t wanted,
	struct lien_freed *gpus, unsigned gpus_count)
{
	struct gain *gains = calloc(count + 1, sizeof(*gains));
	unsigned i, from, gains_count;

	if (!gains)
		return -ENOMEM;
	for (i = 0; i < gpus_count; i++)
		gpus[i].movable = gpus[i].bytes = gpus[i].allocations = 0;
	for (i = 0; i < count; i++)
		items[i].chosen = false;
	if (count)
		qsort(items, count, sizeof(*items), item_cmp);
	gains_count = collect(items, count, gains, gpus);
	for (i = 0; i < gpus_count; i++)
		if (gpus[i].movable < wanted) {
			free(gains);
			return -ENOSPC;
		}
	qsort(gains, gains_count, sizeof(*gains), gain_cmp);
	for (i = from = 0; i < gains_count; i++)
		if (i + 1 == gains_count || gains[i + 1].gpu != gains[i].gpu) {
			choose(items, &gains[from], i + 1 - from, wanted, gpus);
			from = i + 1;
		}
	free(gains);
	return 0;
}

/* --- the plan's memory and GPUs --------------------------------------------------------------- */

struct gpu_key {
	const struct lien_uuid *uuid; /* NULL: not known, */
	unsigned ordinal;	      /* then by this */
};

static bool is_gpu(const void *row, const void *key)
{
	const struct lien_freed *freed = row;
	const struct gpu_key *wanted = key;

	if (!wanted->uuid)
		return !freed->has_uuid && freed->ordinal == wanted->ordinal;
	return freed->has_uuid && lien_uuid_equal(&freed->uuid, wanted->uuid);
}

static uint64_t hash_of(const struct gpu_key *key)
{
	uint64_t hash = key->uuid ? 1 : lien_rows_mix(0, key->ordinal);
	unsigned i;

	for (i = 0; key->uuid && i < sizeof(key->uuid->bytes); i++)
		hash = lien_rows_mix(hash, key->uuid->bytes[i]);
	return hash;
}

/* NULL: out of memory. */
static struct lien_freed *row_of(struct planner *planner, struct gpu_key key)
{
	struct lien_plan *plan = planner->plan;
	const unsigned known = plan->freed_count;
	const struct lien_node_device *device;
	struct lien_freed *freed = lien_rows_find(&planner->freed, hash_of(&key), is_gpu, &key,
		&plan->freed, &plan->freed_count, sizeof(*freed));

	if (!freed || plan->freed_count == known)
		return freed;
	*freed = (struct lien_freed){.index = -1, .ordinal = key.ordinal};
	if (key.uuid) {
		device = lien_node_find(planner->selection->node, key.uuid);
		freed->has_uuid = true;
		freed->uuid = *key.uuid;
		freed->index = device ? (int)device->index : -1;
	}
	return freed;
}

/* Returns the row of the GPU that it could be moved from; -ENOMEM. */
static int gpu_row(struct planner *planner, const struct lien_allocation *allocation)
{
	const struct gpu_key key = {.ordinal = allocation->prop.location_id,
		.uuid = lien_ordinals_uuid(
			allocation->owner->ordinals, allocation->prop.location_id)};
	struct lien_freed *freed = row_of(planner, key);

	if (!freed)
		return -ENOMEM;
	if (!freed->pid) {
		freed->pid = allocation->owner_pid;
		freed->ordinal = key.ordinal;
	}
	return freed - planner->plan->freed;
}

/* A mapping in a process is unmapped and mapped again, a handle alone by a scratch mapping. */
static uint64_t cost_of(const struct lien_choice *choice, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	const struct lien_binding *binding;
	uint64_t mappings = 0;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		mappings += holding->mapped ? holding->mapped : 1;
	LIST_FOREACH (binding, &allocation->bindings, of_memory)
		mappings++;
	return mappings * MAPPING_NS + (lien_choice_discards(choice, allocation)
						       ? 0
						       : allocation->bytes / 1024 * MIB_NS / 1024);
}

int lien_freeing_add(
	struct planner *planner, const struct lien_allocation *allocation, uint64_t team, bool held)
{
	const int gpu = gpu_row(planner, allocation);

	if (gpu < 0 || lien_array_grow(&planner->items, planner->items_count, &planner->items_room,
			       sizeof(*planner->items)))
		return -ENOMEM;
	planner->items[planner->items_count++] = (struct lien_free_item){.of = allocation,
		.whole = team ? team : allocation->id,
		.gpu = gpu,
		.bytes = allocation->bytes,
		.cost = cost_of(&planner->choice, allocation),
		.pid = allocation->owner_pid,
		.held = held};
	return 0;
}

/* Those that are named have to be there, too. Without a UUID that is known, a process's own number
 * names them. */
static int add_named(struct planner *planner)
{
	const struct lien_selection *selection = planner->selection;
	const unsigned seen = planner->plan->freed_count;
	unsigned i, ordinal;

	for (i = 0; i < selection->gpus_count; i++)
		if (!row_of(planner, (struct gpu_key){.uuid = &selection->gpus[i]}))
			return -ENOMEM;
	for (ordinal = 0; ordinal < LIEN_ORDINALS_MAX; ordinal++) {
		if (!(selection->ordinals >> ordinal & 1))
			continue;
		for (i = 0; i < seen && planner->plan->freed[i].ordinal != ordinal; i++)
			;
		if (i == seen && !row_of(planner, (struct gpu_key){.ordinal = ordinal}))
			return -ENOMEM;
	}
	return 0;
}

static void name_gpu(const struct lien_freed *freed, char text[80])
{
	char uuid[LIEN_UUID_TEXT];

	if (freed->index >= 0) {
		snprintf(text, 80, "GPU %d", freed->index);
	} else if (freed->pid) {
		snprintf(text, 80, "device %u of process %u", freed->ordinal, freed->pid);
	} else if (freed->has_uuid) {
		lien_uuid_print(&freed->uuid, uuid);
		snprintf(text, 80, "%s", uuid);
	} else {
		snprintf(text, 80, "device %u", freed->ordinal);
	}
}

static void too_little(struct planner *planner, const struct lien_freed *freed)
{
	const char *selected = planner->selection->owner;
	char gpu[80], owner[100] = "", held[400] = "";

	name_gpu(freed, gpu);
	if (selected)
		snprintf(owner, sizeof(owner),
			", or select more than the memory of %.40s (--owner all)", selected);
	if (planner->held_bytes)
		snprintf(held, sizeof(held), "; %s more cannot be moved: %s",
			lien_bytes(planner->held_bytes).text, planner->held);
	snprintf(planner->error, planner->error_size,
		"%s%s of %s can be freed, not %s: ask for less%s%s",
		freed->movable ? "only " : "nothing",
		freed->movable ? lien_bytes(freed->movable).text : "", gpu,
		lien_bytes(planner->plan->free).text, owner, held);
}

int lien_freeing_choose(struct planner *planner)
{
	struct lien_plan *plan = planner->plan;
	unsigned i;
	int err = add_named(planner);

	plan->free = planner->selection->free;
	if (!err)
		err = lien_free_choose(planner->items, planner->items_count, plan->free,
			plan->freed, plan->freed_count);
	if (err == -ENOSPC) {
		for (i = 0; plan->freed[i].movable >= plan->free; i++)
			;
		too_little(planner, &plan->freed[i]);
	} else if (!err && !plan->freed_count) {
		snprintf(planner->error, planner->error_size,
			"nothing can be freed: no memory that is selected can be moved off a GPU "
			"(see `lien mem`)");
	} else {
		return err;
	}
	plan->blame = (struct lien_blame){LIEN_CAUSE_TOO_LITTLE, 0, 0};
	return -EBUSY;
}
