// SPDX-License-Identifier: BSD-2-Clause
/* Chooses what an offload moves so that each GPU has a number of bytes more. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/bytes.h"
#include "agent/plan/free.h"
#include "agent/plan/plan_internal.h"

struct gpu_key {
	const struct lien_uuid *uuid; /* NULL: not known, */
	unsigned ordinal;	      /* then by this */
};

static bool is_gpu(const void *rows, unsigned row, const void *key)
{
	const struct lien_freed *freed = (const struct lien_freed *)rows + row;
	const struct gpu_key *wanted = key;

	if (!wanted->uuid)
		return !freed->has_uuid && freed->ordinal == wanted->ordinal;
	return freed->has_uuid && lien_uuid_equal(&freed->uuid, wanted->uuid);
}

static uint64_t hash_of(const struct gpu_key *key)
{
	uint64_t hash = key->uuid ? 1 : lien_places_mix(0, key->ordinal);
	unsigned i;

	for (i = 0; key->uuid && i < sizeof(key->uuid->bytes); i++)
		hash = lien_places_mix(hash, key->uuid->bytes[i]);
	return hash;
}

/* Returns the row; -ENOMEM. */
static int row_of(struct lien_freeing *freeing, struct lien_plan *plan,
	const struct lien_selection *selection, struct gpu_key key)
{
	unsigned room = freeing->freed_room ? 2 * freeing->freed_room : 16;
	const struct lien_node_device *device;
	struct lien_freed *grown;
	int row;

	if (plan->freed_count == freeing->freed_room) {
		grown = realloc(plan->freed, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		plan->freed = grown;
		freeing->freed_room = room;
	}
	row = lien_places_find(&freeing->places, hash_of(&key), is_gpu, plan->freed, &key);
	if (row < 0 || (unsigned)row < plan->freed_count)
		return row;
	plan->freed[row] = (struct lien_freed){.index = -1, .ordinal = key.ordinal};
	plan->freed_count++;
	if (key.uuid) {
		device = lien_node_find(selection->node, key.uuid);
		plan->freed[row].has_uuid = true;
		plan->freed[row].uuid = *key.uuid;
		plan->freed[row].index = device ? (int)device->index : -1;
	}
	return row;
}

int lien_freeing_gpu(struct lien_freeing *freeing, struct lien_plan *plan,
	const struct lien_selection *selection, const struct lien_allocation *allocation)
{
	const struct lien_ordinals *ordinals =
		allocation->owner ? allocation->owner->ordinals : NULL;
	struct gpu_key key = {.ordinal = allocation->prop.location_id};
	int row;

	if (ordinals && key.ordinal < ordinals->count)
		key.uuid = &ordinals->uuid[key.ordinal];
	row = row_of(freeing, plan, selection, key);
	if (row >= 0 && !plan->freed[row].pid) {
		plan->freed[row].pid = allocation->owner_pid;
		plan->freed[row].ordinal = key.ordinal;
	}
	return row;
}

int lien_freeing_add(struct lien_freeing *freeing, unsigned gpu,
	const struct lien_allocation *allocation, uint64_t team, bool held)
{
	unsigned room = freeing->room ? 2 * freeing->room : 256;
	struct lien_freeable *grown;

	if (freeing->count == freeing->room) {
		grown = realloc(freeing->list, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		freeing->list = grown;
		freeing->room = room;
	}
	freeing->list[freeing->count++] =
		(struct lien_freeable){allocation, team, gpu, held, false};
	return 0;
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
	return mappings * LIEN_FREE_MAPPING_NS +
	       (lien_choice_discards(choice, allocation)
			       ? 0
			       : allocation->bytes / 1024 * LIEN_FREE_MIB_NS / 1024);
}

/* Those that are named have to be there, too. Without a UUID that is known, a process's own number
 * names them. */
static int add_named(struct lien_freeing *freeing, struct lien_plan *plan,
	const struct lien_selection *selection)
{
	const unsigned seen = plan->freed_count;
	unsigned i, ordinal;
	int err = 0;

	for (i = 0; i < selection->gpus_count && err >= 0; i++)
		err = row_of(
			freeing, plan, selection, (struct gpu_key){.uuid = &selection->gpus[i]});
	for (ordinal = 0; ordinal < LIEN_ORDINALS_MAX && err >= 0; ordinal++) {
		if (!(selection->ordinals >> ordinal & 1))
			continue;
		for (i = 0; i < seen && plan->freed[i].ordinal != ordinal; i++)
			;
		if (i == seen)
			err = row_of(
				freeing, plan, selection, (struct gpu_key){.ordinal = ordinal});
	}
	return err < 0 ? err : 0;
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

static void too_little(const struct lien_freeing *freeing, const struct lien_plan *plan,
	const struct lien_selection *selection, const struct lien_freed *freed, char *error,
	size_t size)
{
	char gpu[80], owner[100] = "", held[400] = "";

	name_gpu(freed, gpu);
	if (selection->owner)
		snprintf(owner, sizeof(owner),
			", or select more than the memory of %.40s (--owner all)",
			selection->owner);
	if (freeing->held_bytes)
		snprintf(held, sizeof(held), "; %s more cannot be moved: %s",
			lien_bytes(freeing->held_bytes).text, freeing->held);
	snprintf(error, size, "%s%s of %s can be freed, not %s: ask for less%s%s",
		freed->movable ? "only " : "nothing",
		freed->movable ? lien_bytes(freed->movable).text : "", gpu,
		lien_bytes(plan->free).text, owner, held);
}

static int team_cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Fills `items` with what can be moved, and returns their number. teams: room for all. */
static unsigned collect(const struct lien_freeing *freeing, const struct lien_choice *choice,
	struct lien_free_item *items, uint64_t *teams)
{
	unsigned i, count = 0, teams_count = 0;

	for (i = 0; i < freeing->count; i++)
		if (freeing->list[i].held)
			teams[teams_count++] = freeing->list[i].team;
	if (teams_count)
		qsort(teams, teams_count, sizeof(*teams), team_cmp);
	for (i = 0; i < freeing->count; i++) {
		const struct lien_freeable *one = &freeing->list[i];

		if (teams_count &&
			bsearch(&one->team, teams, teams_count, sizeof(*teams), team_cmp))
			continue;
		items[count++] = (struct lien_free_item){
			.whole = one->team ? one->team : one->allocation->id,
			.gpu = one->gpu,
			.bytes = one->allocation->bytes,
			.cost = cost_of(choice, one->allocation),
			.pid = one->allocation->owner_pid,
			.of = i};
	}
	return count;
}

static int choose(struct lien_freeing *freeing, struct lien_plan *plan,
	const struct lien_choice *choice, struct lien_free_item *items, struct lien_free_gpu *gpus,
	uint64_t *teams)
{
	const unsigned count = collect(freeing, choice, items, teams);
	unsigned i;
	int err;

	for (i = 0; i < plan->freed_count; i++)
		gpus[i].wanted = plan->free;
	err = lien_free_choose(items, count, gpus, plan->freed_count);
	for (i = 0; i < plan->freed_count; i++) {
		plan->freed[i].movable = gpus[i].movable;
		plan->freed[i].bytes = gpus[i].chosen;
	}
	for (i = 0; i < count; i++) {
		freeing->list[items[i].of].chosen = items[i].chosen;
		plan->freed[items[i].gpu].allocations += items[i].chosen;
	}
	return err;
}

int lien_freeing_choose(struct lien_freeing *freeing, struct lien_plan *plan,
	const struct lien_choice *choice, char *error, size_t error_size)
{
	const struct lien_selection *selection = choice->selection;
	struct lien_free_item *items;
	struct lien_free_gpu *gpus;
	uint64_t *teams;
	unsigned i;
	int err;

	plan->free = selection->free;
	err = add_named(freeing, plan, selection);
	items = calloc(freeing->count + 1, sizeof(*items));
	gpus = calloc(plan->freed_count + 1, sizeof(*gpus));
	teams = calloc(freeing->count + 1, sizeof(*teams));
	if (!err)
		err = items && gpus && teams ? choose(freeing, plan, choice, items, gpus, teams)
					     : -ENOMEM;
	free(items);
	free(gpus);
	free(teams);
	if (err == -ENOSPC) {
		for (i = 0; plan->freed[i].movable >= plan->free; i++)
			;
		too_little(freeing, plan, selection, &plan->freed[i], error, error_size);
		err = -EBUSY;
	} else if (!err && !plan->freed_count) {
		snprintf(error, error_size,
			"nothing can be freed: no memory that is selected can be moved off a GPU "
			"(see `lien mem`)");
		err = -EBUSY;
	}
	if (err == -EBUSY)
		plan->blame = (struct lien_blame){LIEN_CAUSE_TOO_LITTLE, 0, 0};
	return err;
}

void lien_freeing_end(struct lien_freeing *freeing)
{
	lien_places_free(&freeing->places);
	free(freeing->list);
}
