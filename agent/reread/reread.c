// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/reread/reread_internal.h"

#define PASSES 5

int lien_reread_new(struct lien_reread **out)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

void lien_reread_free(struct lien_reread *reread)
{
	if (!reread)
		return;
	free(reread->wanted.range);
	free(reread->touched.range);
	free(reread->found.found);
	free(reread->plain.found);
	free(reread->open.difference);
	free(reread->certain.difference);
	free(reread);
}

int lien_reread_want(struct lien_reread *reread, uint64_t va, uint64_t bytes, uint32_t kind)
{
	return lien_ranges_add(&reread->wanted, va, bytes, kind);
}

/*
 * Returns how to ask the driver about it: LIEN_WIRE_AREA, LIEN_WIRE_PLAIN; 0: the driver says
 * nothing that can be compared (pools, host and managed memory, memory opened by legacy IPC,
 * multicast objects).
 */
static uint32_t kind_of(const struct lien_mapping *mapping)
{
	const struct lien_allocation *allocation = mapping->holding->allocation;

	if (!lien_allocation_by_address(allocation))
		return allocation->origin == LIEN_ORIGIN_MULTICAST ? 0 : LIEN_WIRE_AREA;
	return allocation->origin == LIEN_ORIGIN_ALLOC && !mapping->imported ? LIEN_WIRE_PLAIN : 0;
}

int lien_reread_want_known(struct lien_reread *reread, struct lien_process *process)
{
	struct lien_reservation *reservation;
	struct lien_mapping *mapping;
	int err = 0;

	SPLAY_FOREACH (reservation, lien_reservation_tree, &process->reservations)
		if (!err)
			err = lien_reread_want(
				reread, reservation->va, reservation->bytes, LIEN_WIRE_AREA);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (!err && kind_of(mapping))
			err = lien_reread_want(
				reread, mapping->va, mapping->bytes, kind_of(mapping));
	return err;
}

static bool is_touch(const struct lien_event *event, uint64_t *va, uint64_t *bytes)
{
	switch (event->type) {
	case LIEN_CALL_CU_MEM_MAP:
		*va = event->map.va;
		*bytes = event->map.bytes;
		return true;
	case LIEN_CALL_CU_MEM_UNMAP:
		*va = event->range.va;
		*bytes = event->range.bytes;
		return true;
	case LIEN_CALL_CU_MEM_SET_ACCESS:
		*va = event->access.va;
		*bytes = event->access.bytes;
		return true;
	case LIEN_CALL_CU_MEM_ALLOC:
		*va = event->alloc.va;
		*bytes = event->alloc.bytes;
		return true;
	case LIEN_CALL_CU_MEM_FREE:
		*va = event->range.va;
		*bytes = 1;
		return true;
	}
	return false;
}

int lien_reread_touched(struct lien_reread *reread, const struct lien_event *event)
{
	struct lien_ranges *touched = &reread->touched;
	const struct lien_wire_range *last;
	uint64_t va, bytes;
	unsigned i;

	if (!is_touch(event, &va, &bytes) || !bytes || va + bytes < va)
		return 0;
	/* A call has up to three records, and two calls make a buffer. */
	for (i = 1; i <= touched->count && i <= 4; i++) {
		last = &touched->range[touched->count - i];
		if (va >= last->va && va + bytes <= last->va + last->bytes)
			return 0;
	}
	return lien_ranges_add(touched, va, bytes, LIEN_WIRE_AREA);
}

int lien_reread_begin(struct lien_reread *reread, struct lien_process *process)
{
	struct lien_wire_range *range;
	struct lien_pending *pending;
	unsigned i;
	int err = 0;

	for (i = 0; i < reread->wanted.count; i++) {
		uint64_t end, step = LIEN_WIRE_STEP;

		range = &reread->wanted.range[i];
		if (range->kind != LIEN_WIRE_AREA)
			continue;
		end = (range->va + range->bytes + step - 1) & ~(step - 1);
		range->va &= ~(step - 1);
		range->bytes = end - range->va;
	}
	lien_ranges_merge(&reread->wanted);
	reread->found.count = 0;
	TAILQ_FOREACH (pending, &process->pending, next)
		if (!err && !(pending->event.flags & LIEN_EVENT_DOUBTFUL))
			err = lien_reread_touched(reread, &pending->event);
	return err;
}

const struct lien_wire_range *lien_reread_ranges(const struct lien_reread *reread, unsigned *count)
{
	*count = reread->wanted.count;
	return reread->wanted.range;
}

int lien_reread_found(
	struct lien_reread *reread, const struct lien_wire_found *found, unsigned count)
{
	unsigned i;
	int err = 0;

	for (i = 0; i < count && !err; i++) {
		if (found[i].places > LIEN_WIRE_PLACES ||
			found[i].va + found[i].bytes < found[i].va)
			continue;
		if (found[i].kind != LIEN_WIRE_AREA ||
			found[i].prop_type == CU_MEM_ALLOCATION_TYPE_PINNED) {
			err = lien_founds_add(&reread->found, &found[i]);
			continue;
		}
		reread->objects = true;
		reread->own_objects |= !found[i].handle_types;
	}
	return err;
}

static unsigned graph_access(
	const struct lien_mapping *mapping, const struct lien_wire_place *place)
{
	const struct lien_access_set *set = lien_mapping_access(mapping);
	unsigned i;

	for (i = 0; set && i < set->count; i++)
		if (set->access[i].location_type == place->location_type &&
			set->access[i].location_id == place->location_id)
			return set->access[i].flags;
	return 0;
}

/* Compares the access of devices; the driver was not asked about other locations. */
static bool same_access(const struct lien_mapping *mapping, const struct lien_wire_found *found)
{
	const struct lien_access_set *set = lien_mapping_access(mapping);
	unsigned i, with = 0;

	if (found->places == LIEN_WIRE_PLACES)
		return true; /* there may be more than were reported */
	for (i = 0; i < found->places; i++)
		if (graph_access(mapping, &found->place[i]) != found->place[i].flags)
			return false;
	for (i = 0; set && i < set->count; i++)
		with += set->access[i].location_type == CU_MEM_LOCATION_TYPE_DEVICE &&
			set->access[i].flags;
	return with == found->places;
}

static bool same_prop(const struct lien_allocation *allocation, const struct lien_wire_found *found)
{
	const struct lien_prop *prop = &allocation->prop;

	/* Compression and the like may differ from the request; drivers may grant less. */
	return prop->type == found->prop_type && prop->handle_types == found->handle_types &&
	       prop->location_type == found->location_type &&
	       prop->location_id == found->location_id;
}

static bool same_handle(const struct lien_mapping *mapping, const struct lien_wire_found *found)
{
	struct lien_handle key = {.value = found->handle}, *handle;

	handle = SPLAY_FIND(lien_handle_tree, &mapping->holding->process->handles, &key);
	return handle && handle->holding == mapping->holding;
}

/* Returns only the gravest difference: repairing that repairs the others. 0: none. */
static enum lien_difference_kind differs(
	const struct lien_mapping *mapping, const struct lien_wire_found *found)
{
	const struct lien_allocation *allocation = mapping->holding->allocation;

	if (mapping->parked)
		return found ? LIEN_DIFFERENCE_MISSING : 0;
	if (!found || !found->bytes)
		return LIEN_DIFFERENCE_GONE;
	if (allocation->origin == LIEN_ORIGIN_ALLOC) {
		if (found->bytes < mapping->bytes) /* the driver may round up */
			return LIEN_DIFFERENCE_SIZE;
		return allocation->prop.location_id >= 0 &&
				       allocation->prop.location_id != found->location_id
			       ? LIEN_DIFFERENCE_PROPERTIES
			       : 0;
	}
	if (found->bytes != mapping->bytes)
		return LIEN_DIFFERENCE_SIZE;
	if (!same_handle(mapping, found))
		return LIEN_DIFFERENCE_HANDLE;
	/*
	 * An importer numbers the devices its own way, and does not know the properties of what it
	 * imports.
	 */
	if (allocation->origin == LIEN_ORIGIN_CREATE &&
		allocation->owner == mapping->holding->process && !same_prop(allocation, found))
		return LIEN_DIFFERENCE_PROPERTIES;
	return same_access(mapping, found) ? 0 : LIEN_DIFFERENCE_ACCESS;
}

static int differences_add(
	struct lien_differences *differences, const struct lien_difference *difference)
{
	unsigned room = differences->room ? differences->room * 2 : 16;
	struct lien_difference *grown;

	if (differences->count == differences->room) {
		grown = realloc(differences->difference, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		differences->difference = grown;
		differences->room = room;
	}
	differences->difference[differences->count++] = *difference;
	return 0;
}

/* Returns the bytes that the graph has there, or that were found. */
static uint64_t extent(const struct lien_difference *difference)
{
	return difference->bytes > difference->found.bytes ? difference->bytes
							   : difference->found.bytes;
}

static int difference_same(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct lien_difference));
}

/*
 * Adds the difference to the certain ones if the previous pass showed the same and nothing happened
 * since; else to the open ones.
 */
static int note(struct lien_reread *reread, const struct lien_differences *before,
	struct lien_differences *open, const struct lien_difference *difference)
{
	if (lien_ranges_touch(&reread->touched, difference->va, extent(difference)))
		return 0; /* asked about again */
	if (before->count && bsearch(difference, before->difference, before->count,
				     sizeof(*difference), difference_same))
		return differences_add(&reread->certain, difference);
	return differences_add(open, difference);
}

static int compare(struct lien_reread *reread, struct lien_process *process,
	const struct lien_differences *before, struct lien_differences *open)
{
	const struct lien_wire_found *found;
	struct lien_difference difference;
	struct lien_mapping *mapping;
	uint32_t kind;
	unsigned i;
	int err = 0;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		kind = kind_of(mapping);
		if (!kind || !lien_ranges_have(&reread->wanted, mapping->va, kind))
			continue;
		memset(&difference, 0, sizeof(difference));
		found = lien_founds_at(&reread->found, mapping->va, kind);
		difference.kind = differs(mapping, found);
		difference.va = mapping->va;
		difference.bytes = mapping->bytes;
		difference.found.kind = kind;
		if (found)
			difference.found = *found;
		if (difference.kind && !err)
			err = note(reread, before, open, &difference);
	}
	for (i = 0; i < reread->found.count && !err; i++) {
		found = &reread->found.found[i];
		mapping = lien_process_mapping(process, found->va);
		if (!found->bytes || (mapping && mapping->va == found->va))
			continue;
		memset(&difference, 0, sizeof(difference));
		difference.kind = LIEN_DIFFERENCE_MISSING;
		difference.va = found->va;
		difference.bytes = found->bytes;
		difference.found = *found;
		err = note(reread, before, open, &difference);
	}
	return err;
}

/* A certain difference that was touched afterwards no longer holds. */
static void forget_touched(struct lien_reread *reread)
{
	const struct lien_difference *difference;
	unsigned i, n = 0;

	for (i = 0; i < reread->certain.count; i++) {
		difference = &reread->certain.difference[i];
		if (!lien_ranges_touch(&reread->touched, difference->va, extent(difference)))
			reread->certain.difference[n++] = *difference;
	}
	reread->certain.count = n;
}

/* Keeps what the driver said of plain memory for lien_reread_learn(). */
static int keep_plain(struct lien_reread *reread)
{
	unsigned i;
	int err = 0;

	for (i = 0; i < reread->found.count && !err; i++)
		if (reread->found.found[i].kind == LIEN_WIRE_PLAIN)
			err = lien_founds_add(&reread->plain, &reread->found.found[i]);
	return err;
}

/* The next pass covers what is open and what was touched. */
static int want_again(struct lien_reread *reread)
{
	const struct lien_difference *difference;
	unsigned i;
	int err = 0;

	reread->wanted.count = 0;
	for (i = 0; i < reread->open.count && !err; i++) {
		difference = &reread->open.difference[i];
		err = lien_reread_want(
			reread, difference->va, extent(difference), difference->found.kind);
	}
	for (i = 0; i < reread->touched.count && !err; i++)
		err = lien_reread_want(reread, reread->touched.range[i].va,
			reread->touched.range[i].bytes, LIEN_WIRE_AREA);
	return err;
}

int lien_reread_end(struct lien_reread *reread, struct lien_process *process)
{
	struct lien_differences before = reread->open, open = {0};
	int err;

	lien_founds_sort(&reread->found);
	lien_ranges_merge(&reread->touched);
	if (!reread->passes++)
		reread->mappings = reread->found.count;
	forget_touched(reread);
	if (before.count)
		qsort(before.difference, before.count, sizeof(before.difference[0]),
			difference_same);
	err = compare(reread, process, &before, &open);
	free(before.difference);
	reread->open = open;
	if (!err && reread->passes == 1)
		err = keep_plain(reread);
	if (!err)
		err = want_again(reread);
	reread->touched.count = 0;
	if (err)
		return err;
	return reread->wanted.count && reread->passes < PASSES;
}

static int difference_cmp(const void *a, const void *b)
{
	const struct lien_difference *x = a, *y = b;

	return x->va < y->va ? -1 : x->va > y->va;
}

const struct lien_difference *lien_reread_differences(
	const struct lien_reread *reread, unsigned *count)
{
	*count = reread->certain.count;
	if (*count)
		qsort(reread->certain.difference, *count, sizeof(struct lien_difference),
			difference_cmp);
	return reread->certain.difference;
}

unsigned lien_reread_unstable(const struct lien_reread *reread)
{
	return reread->open.count;
}

bool lien_reread_objects(const struct lien_reread *reread)
{
	return reread->objects;
}

bool lien_reread_own_objects(const struct lien_reread *reread)
{
	return reread->own_objects;
}

unsigned lien_reread_mappings(const struct lien_reread *reread)
{
	return reread->mappings;
}
