// SPDX-License-Identifier: BSD-2-Clause
#include "agent/reread/reread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/graph/array.h"

#define PASSES 5

/* --- what to look at, what was touched, what was found ---------------------------------------- */

void lien_reread_clear(struct lien_reread *reread)
{
	free(reread->wanted.range);
	free(reread->touched.range);
	free(reread->found.found);
	free(reread->open.difference);
	free(reread->certain.difference);
	memset(reread, 0, sizeof(*reread));
}

/* Appends to a list of the reading. If memory is short, that is noted. */
#define ADD(reread, list, member, value)                                                           \
	do {                                                                                       \
		if (lien_array_grow(&(list)->member, (list)->count, &(list)->room,                 \
			    sizeof(*(list)->member)))                                              \
			(reread)->no_memory = true;                                                \
		else                                                                               \
			(list)->member[(list)->count++] = (value);                                 \
	} while (0)

static int range_cmp(const void *a, const void *b)
{
	const struct lien_wire_range *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return x->va < y->va ? -1 : x->va > y->va;
}

/* Sorts by kind and address, and joins areas that touch each other. */
static void merge(struct lien_ranges *ranges)
{
	struct lien_wire_range *range = ranges->range, *last = NULL;
	unsigned i, n = 0;

	if (ranges->count)
		qsort(range, ranges->count, sizeof(*range), range_cmp);
	for (i = 0; i < ranges->count; i++) {
		if (last && last->kind == range[i].kind &&
			(last->kind == LIEN_WIRE_AREA ? last->va + last->bytes >= range[i].va
						      : last->va == range[i].va)) {
			if (range[i].va + range[i].bytes > last->va + last->bytes)
				last->bytes = range[i].va + range[i].bytes - last->va;
			continue;
		}
		range[n] = range[i];
		last = &range[n++];
	}
	ranges->count = n;
}

/* Returns the last range of that kind that begins at or below va; in merged ones. */
static const struct lien_wire_range *range_below(
	const struct lien_ranges *ranges, uint64_t va, uint32_t kind)
{
	const struct lien_wire_range key = {.va = va, .kind = kind}, *range;
	unsigned at =
		lien_array_at_least(ranges->range, ranges->count, sizeof(key), &key, range_cmp);

	at += at < ranges->count && !range_cmp(&ranges->range[at], &key);
	range = at ? &ranges->range[at - 1] : NULL;
	return range && range->kind == kind ? range : NULL;
}

static bool ranges_have(const struct lien_ranges *ranges, uint64_t va, uint32_t kind)
{
	const struct lien_wire_range *range = range_below(ranges, va, kind);

	return range && va - range->va < range->bytes;
}

/* Does one have a byte of [va, va + bytes)? In merged ranges, the last that begins below the end
 * decides. */
static bool ranges_touch(const struct lien_ranges *ranges, uint64_t va, uint64_t bytes)
{
	const struct lien_wire_range *range =
		range_below(ranges, va + (bytes ? bytes : 1) - 1, LIEN_WIRE_AREA);

	return range && range->va + range->bytes > va;
}

static int found_cmp(const void *a, const void *b)
{
	const struct lien_wire_found *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return x->va < y->va ? -1 : x->va > y->va;
}

/* Sorts by kind and address, and drops duplicates: memory that reaches into two ranges is found
 * twice. */
static void sort_founds(struct lien_founds *founds)
{
	unsigned i, n = 0;

	if (founds->count)
		qsort(founds->found, founds->count, sizeof(founds->found[0]), found_cmp);
	for (i = 0; i < founds->count; i++)
		if (!n || found_cmp(&founds->found[n - 1], &founds->found[i]))
			founds->found[n++] = founds->found[i];
	founds->count = n;
}

/* NULL: nothing was found there. */
static const struct lien_wire_found *found_at(
	const struct lien_founds *founds, uint64_t va, uint32_t kind)
{
	const struct lien_wire_found key = {.va = va, .kind = kind};

	return founds->count ? bsearch(&key, founds->found, founds->count, sizeof(founds->found[0]),
				       found_cmp)
			     : NULL;
}

/* --- a pass ----------------------------------------------------------------------------------- */

void lien_reread_want(struct lien_reread *reread, uint64_t va, uint64_t bytes, uint32_t kind)
{
	const struct lien_wire_range range = {.va = va, .bytes = bytes, .kind = kind};

	ADD(reread, &reread->wanted, range, range);
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

void lien_reread_want_known(struct lien_reread *reread, struct lien_process *process)
{
	struct lien_reservation *reservation;
	struct lien_mapping *mapping;

	SPLAY_FOREACH (reservation, lien_reservation_tree, &process->reservations)
		lien_reread_want(reread, reservation->va, reservation->bytes, LIEN_WIRE_AREA);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (kind_of(mapping))
			lien_reread_want(reread, mapping->va, mapping->bytes, kind_of(mapping));
}

void lien_reread_touched(struct lien_reread *reread, const struct lien_event *event)
{
	const uint64_t va = event->range.va; /* the bodies of all these calls begin with a range */
	struct lien_ranges *touched = &reread->touched;
	struct lien_wire_range range = {.va = va, .kind = LIEN_WIRE_AREA};
	const struct lien_wire_range *last;
	uint64_t bytes;
	unsigned i;

	switch (event->type) {
	case LIEN_CALL_CU_MEM_MAP:
	case LIEN_CALL_CU_MEM_UNMAP:
	case LIEN_CALL_CU_MEM_SET_ACCESS:
	case LIEN_CALL_CU_MEM_ALLOC:
		bytes = event->range.bytes;
		break;
	case LIEN_CALL_CU_MEM_FREE:
		bytes = 1;
		break;
	default:
		return;
	}
	if (!bytes || va + bytes < va)
		return;
	range.bytes = bytes;
	/* A call has up to three records, and two calls make a buffer. */
	for (i = 1; i <= touched->count && i <= 4; i++) {
		last = &touched->range[touched->count - i];
		if (va >= last->va && va + bytes <= last->va + last->bytes)
			return;
	}
	ADD(reread, touched, range, range);
}

void lien_reread_begin(struct lien_reread *reread, struct lien_process *process)
{
	const uint64_t step = LIEN_WIRE_STEP;
	struct lien_wire_range *range;
	struct lien_pending *pending;
	uint64_t end;
	unsigned i;

	for (i = 0; i < reread->wanted.count; i++) {
		range = &reread->wanted.range[i];
		if (range->kind != LIEN_WIRE_AREA)
			continue;
		end = (range->va + range->bytes + step - 1) & ~(step - 1);
		range->va &= ~(step - 1);
		range->bytes = end - range->va;
	}
	merge(&reread->wanted);
	reread->found.count = 0;
	TAILQ_FOREACH (pending, &process->pending, next)
		if (!(pending->event.flags & LIEN_EVENT_DOUBTFUL))
			lien_reread_touched(reread, &pending->event);
}

void lien_reread_found(
	struct lien_reread *reread, const struct lien_wire_found *found, unsigned count)
{
	unsigned i;

	for (i = 0; i < count; i++) {
		if (found[i].places > LIEN_WIRE_PLACES ||
			found[i].va + found[i].bytes < found[i].va)
			continue;
		if (found[i].kind != LIEN_WIRE_AREA ||
			found[i].prop_type == CU_MEM_ALLOCATION_TYPE_PINNED) {
			ADD(reread, &reread->found, found, found[i]);
			continue;
		}
		reread->objects = true;
		reread->own_objects |= !found[i].handle_types;
	}
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
	const struct lien_handle *handle =
		lien_handle_find(mapping->holding->process, found->handle);

	return handle && handle->holding == mapping->holding;
}

/* Returns only the gravest difference: repairing that repairs the others. 0: none. */
static enum lien_difference_kind differs(
	const struct lien_mapping *mapping, const struct lien_wire_found *found)
{
	const struct lien_allocation *allocation = mapping->holding->allocation;

	if (mapping->parked)
		return found->bytes ? LIEN_DIFFERENCE_MISSING : 0;
	if (!found->bytes)
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
 * Adds a difference to the certain ones if the previous pass showed the same and nothing happened
 * since; else to the open ones.
 */
static void note(struct lien_reread *reread, const struct lien_differences *before,
	enum lien_difference_kind kind, uint64_t va, uint64_t bytes,
	const struct lien_wire_found *found)
{
	struct lien_difference difference;

	memset(&difference, 0, sizeof(difference)); /* they are compared by their bytes */
	difference.va = va;
	difference.bytes = bytes;
	difference.kind = kind;
	difference.found = *found;
	if (!kind || ranges_touch(&reread->touched, va, extent(&difference)))
		return; /* asked about again */
	if (before->count && bsearch(&difference, before->difference, before->count,
				     sizeof(difference), difference_same))
		ADD(reread, &reread->certain, difference, difference);
	else
		ADD(reread, &reread->open, difference, difference);
}

static void compare(struct lien_reread *reread, struct lien_process *process,
	const struct lien_differences *before)
{
	struct lien_wire_found none = {0};
	const struct lien_wire_found *found;
	struct lien_mapping *mapping;
	unsigned i;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		none.kind = kind_of(mapping);
		if (!none.kind || !ranges_have(&reread->wanted, mapping->va, none.kind))
			continue;
		found = found_at(&reread->found, mapping->va, none.kind);
		found = found ? found : &none;
		note(reread, before, differs(mapping, found), mapping->va, mapping->bytes, found);
	}
	for (i = 0; i < reread->found.count; i++) {
		found = &reread->found.found[i];
		mapping = lien_process_mapping(process, found->va);
		if (found->bytes && !(mapping && mapping->va == found->va))
			note(reread, before, LIEN_DIFFERENCE_MISSING, found->va, found->bytes,
				found);
	}
}

/* A certain difference that was touched afterwards no longer holds. */
static void forget_touched(struct lien_reread *reread)
{
	const struct lien_difference *difference;
	unsigned i, n = 0;

	for (i = 0; i < reread->certain.count; i++) {
		difference = &reread->certain.difference[i];
		if (!ranges_touch(&reread->touched, difference->va, extent(difference)))
			reread->certain.difference[n++] = *difference;
	}
	reread->certain.count = n;
}

/* The next pass covers what is open and what was touched. */
static void want_again(struct lien_reread *reread)
{
	const struct lien_difference *difference = reread->open.difference;
	const struct lien_wire_range *range = reread->touched.range;
	unsigned i;

	reread->wanted.count = 0;
	for (i = 0; i < reread->open.count; i++, difference++)
		lien_reread_want(
			reread, difference->va, extent(difference), difference->found.kind);
	for (i = 0; i < reread->touched.count; i++, range++)
		lien_reread_want(reread, range->va, range->bytes, LIEN_WIRE_AREA);
	reread->touched.count = 0;
}

int lien_reread_end(struct lien_reread *reread, struct lien_process *process)
{
	struct lien_differences before = reread->open, *certain = &reread->certain;

	reread->open = (struct lien_differences){0};
	sort_founds(&reread->found);
	merge(&reread->touched);
	forget_touched(reread);
	if (before.count)
		qsort(before.difference, before.count, sizeof(before.difference[0]),
			difference_same);
	compare(reread, process, &before);
	free(before.difference);
	if (!reread->passes++)
		reread->mappings = reread->found.count;
	want_again(reread);
	if (reread->no_memory)
		return -ENOMEM;
	if (reread->wanted.count && reread->passes < PASSES)
		return 1;
	if (certain->count)
		qsort(certain->difference, certain->count, sizeof(certain->difference[0]),
			lien_u64_cmp);
	return 0;
}
