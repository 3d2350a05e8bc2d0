// SPDX-License-Identifier: BSD-2-Clause
/* The lists of a re-read: what to look at, what was touched, what was found. */
#include <errno.h>
#include <stdlib.h>

#include "agent/reread/reread_internal.h"

int lien_ranges_add(struct lien_ranges *ranges, uint64_t va, uint64_t bytes, uint32_t kind)
{
	struct lien_wire_range *grown;
	unsigned room = ranges->room ? ranges->room * 2 : 64;

	if (ranges->count == ranges->room) {
		grown = realloc(ranges->range, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		ranges->range = grown;
		ranges->room = room;
	}
	ranges->range[ranges->count++] =
		(struct lien_wire_range){.va = va, .bytes = bytes, .kind = kind};
	return 0;
}

static int range_cmp(const void *a, const void *b)
{
	const struct lien_wire_range *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return x->va < y->va ? -1 : x->va > y->va;
}

void lien_ranges_merge(struct lien_ranges *ranges)
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

/* Returns the last range of that kind that begins at or below va. */
static const struct lien_wire_range *range_below(
	const struct lien_ranges *ranges, uint64_t va, uint32_t kind)
{
	const struct lien_wire_range key = {.va = va, .kind = kind}, *range;
	unsigned low = 0, high = ranges->count, mid;

	while (low < high) {
		mid = low + (high - low) / 2;
		if (range_cmp(&ranges->range[mid], &key) <= 0)
			low = mid + 1;
		else
			high = mid;
	}
	range = low ? &ranges->range[low - 1] : NULL;
	return range && range->kind == kind ? range : NULL;
}

bool lien_ranges_have(const struct lien_ranges *ranges, uint64_t va, uint32_t kind)
{
	const struct lien_wire_range *range = range_below(ranges, va, kind);

	return range && va - range->va < range->bytes;
}

/* Does one have a byte of [va, va + bytes)? In merged ranges, the last that begins below the end
 * decides. */
bool lien_ranges_touch(const struct lien_ranges *ranges, uint64_t va, uint64_t bytes)
{
	const struct lien_wire_range *range =
		range_below(ranges, va + (bytes ? bytes : 1) - 1, LIEN_WIRE_AREA);

	return range && range->va + range->bytes > va;
}

int lien_founds_add(struct lien_founds *founds, const struct lien_wire_found *found)
{
	unsigned room = founds->room ? founds->room * 2 : 64;
	struct lien_wire_found *grown;

	if (founds->count == founds->room) {
		grown = realloc(founds->found, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		founds->found = grown;
		founds->room = room;
	}
	founds->found[founds->count++] = *found;
	return 0;
}

static int found_cmp(const void *a, const void *b)
{
	const struct lien_wire_found *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return x->va < y->va ? -1 : x->va > y->va;
}

void lien_founds_sort(struct lien_founds *founds)
{
	unsigned i, n = 0;

	if (founds->count)
		qsort(founds->found, founds->count, sizeof(founds->found[0]), found_cmp);
	for (i = 0; i < founds->count; i++)
		if (!n || found_cmp(&founds->found[n - 1], &founds->found[i]))
			founds->found[n++] = founds->found[i];
	founds->count = n;
}

const struct lien_wire_found *lien_founds_at(
	const struct lien_founds *founds, uint64_t va, uint32_t kind)
{
	const struct lien_wire_found key = {.va = va, .kind = kind};

	return founds->count ? bsearch(&key, founds->found, founds->count, sizeof(founds->found[0]),
				       found_cmp)
			     : NULL;
}
