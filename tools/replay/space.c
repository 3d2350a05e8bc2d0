// SPDX-License-Identifier: BSD-2-Clause
#include <stdlib.h>

#include <lien/cuda_abi.h>
#include "tools/replay/space.h"

/* libbsd's tree.h uses it and leaves it undefined. */
#ifndef __unused
#define __unused __attribute__((__unused__))
#endif

static int compare_ranges(const struct lien_replay_range *a, const struct lien_replay_range *b)
{
	return (a->va > b->va) - (a->va < b->va);
}

static int compare_mappings(
	const struct lien_replay_mapping *a, const struct lien_replay_mapping *b)
{
	return (a->va > b->va) - (a->va < b->va);
}

RB_GENERATE_STATIC(lien_replay_range_tree, lien_replay_range, tree, compare_ranges)
RB_GENERATE_STATIC(lien_replay_mapping_tree, lien_replay_mapping, tree, compare_mappings)

void lien_replay_space_init(struct lien_replay_space *space)
{
	RB_INIT(&space->range_tree);
	RB_INIT(&space->mapping_tree);
	TAILQ_INIT(&space->ranges);
	TAILQ_INIT(&space->mappings);
}

void lien_replay_space_clear(struct lien_replay_space *space)
{
	while (!TAILQ_EMPTY(&space->mappings))
		lien_replay_space_unmap(space, TAILQ_FIRST(&space->mappings));
	while (!TAILQ_EMPTY(&space->ranges))
		lien_replay_space_unreserve(space, TAILQ_FIRST(&space->ranges));
}

struct lien_replay_range *lien_replay_space_reserve(struct lien_replay_space *space, uint64_t va,
	uint64_t bytes, uint64_t actual, uint32_t flags)
{
	struct lien_replay_range *range = calloc(1, sizeof(*range));

	if (!range)
		return NULL;
	range->va = va;
	range->bytes = bytes;
	range->actual = actual;
	range->flags = flags;
	RB_INSERT(lien_replay_range_tree, &space->range_tree, range);
	TAILQ_INSERT_TAIL(&space->ranges, range, order);
	return range;
}

struct lien_replay_mapping *lien_replay_space_map(struct lien_replay_space *space, uint64_t va,
	uint64_t bytes, uint64_t allocation, uint32_t flags)
{
	struct lien_replay_mapping *mapping = calloc(1, sizeof(*mapping));

	if (!mapping)
		return NULL;
	mapping->va = va;
	mapping->bytes = bytes;
	mapping->allocation = allocation;
	mapping->flags = flags;
	RB_INSERT(lien_replay_mapping_tree, &space->mapping_tree, mapping);
	TAILQ_INSERT_TAIL(&space->mappings, mapping, order);
	return mapping;
}

void lien_replay_space_unreserve(struct lien_replay_space *space, struct lien_replay_range *range)
{
	RB_REMOVE(lien_replay_range_tree, &space->range_tree, range);
	TAILQ_REMOVE(&space->ranges, range, order);
	free(range);
}

void lien_replay_space_unmap(struct lien_replay_space *space, struct lien_replay_mapping *mapping)
{
	RB_REMOVE(lien_replay_mapping_tree, &space->mapping_tree, mapping);
	TAILQ_REMOVE(&space->mappings, mapping, order);
	free(mapping);
}

struct lien_replay_range *lien_replay_space_range(
	struct lien_replay_space *space, uint64_t va, uint64_t bytes)
{
	struct lien_replay_range key = {.va = va}, *above, *below;

	above = RB_NFIND(lien_replay_range_tree, &space->range_tree, &key);
	below = above ? RB_PREV(lien_replay_range_tree, &space->range_tree, above)
		      : RB_MAX(lien_replay_range_tree, &space->range_tree);
	if (below && va - below->va < below->bytes)
		return below;
	return above && above->va - va < bytes ? above : NULL;
}

struct lien_replay_mapping *lien_replay_space_mapping(
	struct lien_replay_space *space, uint64_t va, uint64_t bytes)
{
	struct lien_replay_mapping key = {.va = va}, *above, *below;

	above = RB_NFIND(lien_replay_mapping_tree, &space->mapping_tree, &key);
	below = above ? RB_PREV(lien_replay_mapping_tree, &space->mapping_tree, above)
		      : RB_MAX(lien_replay_mapping_tree, &space->mapping_tree);
	if (below && va - below->va < below->bytes)
		return below;
	return above && above->va - va < bytes ? above : NULL;
}

struct lien_replay_mapping *lien_replay_space_above(struct lien_replay_mapping *mapping)
{
	return lien_replay_mapping_tree_RB_NEXT(mapping);
}

uint64_t lien_replay_space_actual(struct lien_replay_space *space, uint64_t va)
{
	struct lien_replay_range *range = lien_replay_space_range(space, va, 1);

	return range ? range->actual + (va - range->va) : 0;
}

static void set(uint64_t *mask, uint64_t bit, bool on)
{
	*mask = on ? *mask | bit : *mask & ~bit;
}

void lien_replay_mapping_access(struct lien_replay_mapping *mapping, const struct lien_event *ev)
{
	const struct lien_access *access;
	bool r, w;
	uint32_t i;

	for (i = 0; i < ev->access.count; i++) {
		access = &ev->access.access[i];
		r = access->flags & CU_MEM_ACCESS_FLAGS_PROT_READ;
		w = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		if (access->location_type != CU_MEM_LOCATION_TYPE_DEVICE) {
			mapping->host_readable = r;
			mapping->host_writable = w;
		} else if (access->location_id < 64) {
			set(&mapping->readable, 1ull << access->location_id, r);
			set(&mapping->writable, 1ull << access->location_id, w);
		}
	}
}

bool lien_replay_mapping_readable(const struct lien_replay_mapping *mapping)
{
	return mapping->linear || mapping->readable || mapping->host_readable;
}

bool lien_replay_mapping_writable(const struct lien_replay_mapping *mapping)
{
	return mapping->linear || mapping->writable || mapping->host_writable;
}
