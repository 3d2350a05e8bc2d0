/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reserved addresses and mappings, kept in two trees by address. A reservation is an inaccessible
 * anonymous mapping; a mapping lies over a part of it and is the allocation's file, inaccessible
 * until access is set. So a wild pointer faults, as it does on a GPU. A range that was freed is the
 * first to be given out to whoever reserves as much; when strict, its addresses stay inaccessible.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "softcuda.h"

RB_HEAD(soft_ranges, soft_range);
RB_HEAD(soft_mappings, soft_mapping);

static struct soft_ranges ranges = RB_INITIALIZER(&ranges);
static struct soft_mappings mappings = RB_INITIALIZER(&mappings);

static int compare_ranges(struct soft_range *a, struct soft_range *b)
{
	return a->base < b->base ? -1 : a->base > b->base;
}

static int compare_mappings(struct soft_mapping *a, struct soft_mapping *b)
{
	return a->base < b->base ? -1 : a->base > b->base;
}

static uint64_t last_buffer;

SOFT_TREE(soft_ranges, soft_range, node, compare_ranges)
SOFT_TREE(soft_mappings, soft_mapping, node, compare_mappings)

/* The last range that begins at or below the address. */
static struct soft_range *range_below(uintptr_t address)
{
	struct soft_range key = {.base = address};
	struct soft_range *at = RB_NFIND(soft_ranges, &ranges, &key);

	if (at && at->base == address)
		return at;
	return at ? RB_PREV(soft_ranges, &ranges, at) : RB_MAX(soft_ranges, &ranges);
}

struct soft_range *soft_range_find(uintptr_t address)
{
	struct soft_range *range = range_below(address);

	return range && address - range->base < range->size ? range : NULL;
}

struct soft_range *soft_range_overlapping(uintptr_t base, size_t size)
{
	struct soft_range key = {.base = base};
	struct soft_range *range = soft_range_find(base);

	if (range)
		return range;
	range = RB_NFIND(soft_ranges, &ranges, &key);
	return range && range->base - base < size ? range : NULL;
}

struct soft_mapping *soft_mapping_from(uintptr_t address)
{
	struct soft_mapping key = {.base = address};
	struct soft_mapping *at = RB_NFIND(soft_mappings, &mappings, &key);
	struct soft_mapping *below;

	if (at && at->base == address)
		return at;
	below = at ? RB_PREV(soft_mappings, &mappings, at) : RB_MAX(soft_mappings, &mappings);
	return below && address - below->base < below->size ? below : at;
}

struct soft_mapping *soft_mapping_find(uintptr_t address)
{
	struct soft_mapping *mapping = soft_mapping_from(address);

	return mapping && mapping->base <= address ? mapping : NULL;
}

struct soft_mapping *soft_mapping_next(struct soft_mapping *mapping)
{
	return RB_NEXT(soft_mappings, &mappings, mapping);
}

struct soft_range *soft_range_first(void)
{
	return RB_MIN(soft_ranges, &ranges);
}

struct soft_range *soft_range_next(struct soft_range *range)
{
	return RB_NEXT(soft_ranges, &ranges, range);
}

uint64_t soft_buffer_new(void)
{
	return ++last_buffer;
}

static void *reserve(void *hint, size_t size, int flags)
{
	return mmap(
		hint, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

/* mmap() aligns to pages only: take more than is needed and give the ends back. */
static uintptr_t reserve_aligned(size_t size, size_t alignment)
{
	uintptr_t base, aligned, end;

	base = (uintptr_t)reserve(NULL, size, 0);
	if (base == (uintptr_t)MAP_FAILED)
		return 0;
	if (!(base & (alignment - 1)))
		return base;
	munmap((void *)base, size);
	if (size + alignment < size)
		return 0;
	base = (uintptr_t)reserve(NULL, size + alignment, 0);
	if (base == (uintptr_t)MAP_FAILED)
		return 0;
	end = base + size + alignment;
	aligned = (base + alignment - 1) & ~(alignment - 1);
	if (aligned > base)
		munmap((void *)base, aligned - base);
	munmap((void *)(aligned + size), end - aligned - size);
	return aligned;
}

/* 0: something else is there. */
static uintptr_t reserve_at(uintptr_t address, size_t size)
{
	uintptr_t base = (uintptr_t)reserve((void *)address, size, MAP_FIXED_NOREPLACE);

	if (base == address)
		return base;
	/* Kernels older than 4.17 take the flag for a mere hint. */
	if (base != (uintptr_t)MAP_FAILED)
		munmap((void *)base, size);
	return 0;
}

/* The last ones, the latest at the end. */
static struct {
	uintptr_t base;
	size_t size;
} freed[256];
static unsigned freed_count;

static void freed_drop(unsigned i)
{
	memmove(&freed[i], &freed[i + 1], (--freed_count - i) * sizeof(freed[0]));
}

static void freed_add(const struct soft_range *range)
{
	if (freed_count == sizeof(freed) / sizeof(freed[0]))
		freed_drop(0);
	freed[freed_count].base = range->base;
	freed[freed_count++].size = range->size;
}

/* Of that size; 0: there is none. */
static uintptr_t reserve_freed(size_t size, size_t alignment)
{
	uintptr_t base;
	unsigned i;

	for (i = freed_count; i-- > 0;) {
		if (freed[i].size != size || freed[i].base & (alignment - 1))
			continue;
		base = reserve_at(freed[i].base, size);
		freed_drop(i);
		if (base)
			return base;
	}
	return 0;
}

CUresult soft_range_reserve(
	struct soft_range **made, size_t size, size_t alignment, uintptr_t hint, bool internal)
{
	struct soft_range *range = calloc(1, sizeof(*range));

	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (alignment < SOFT_GRANULARITY)
		alignment = SOFT_GRANULARITY;
	if (hint && !(hint & (alignment - 1)))
		range->base = reserve_at(hint, size);
	if (!range->base)
		range->base = reserve_freed(size, alignment);
	if (!range->base)
		range->base = reserve_aligned(size, alignment);
	if (!range->base) {
		free(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->size = size;
	range->internal = internal;
	RB_INSERT(soft_ranges, &ranges, range);
	*made = range;
	return CUDA_SUCCESS;
}

CUresult soft_range_release(struct soft_range *range)
{
	/* When strict it stays reserved, without an owner. */
	if (!soft.config.strict) {
		if (munmap((void *)range->base, range->size))
			return soft_result(errno);
		freed_add(range);
	}
	RB_REMOVE(soft_ranges, &ranges, range);
	free(range);
	return CUDA_SUCCESS;
}

CUresult soft_mapping_create(struct soft_mapping **made, struct soft_range *range, uintptr_t base,
	size_t size, struct soft_allocation *allocation)
{
	struct soft_mapping *mapping = calloc(1, sizeof(*mapping));
	void *at;

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	at = mmap((void *)base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0);
	if (at == MAP_FAILED) {
		free(mapping);
		return errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
	}
	/* A forked child cannot use CUDA; it must not hold the memory either. */
	madvise(at, size, MADV_DONTFORK);
	mapping->base = base;
	mapping->size = size;
	mapping->bytes = size;
	mapping->allocation = allocation;
	mapping->range = range;
	mapping->buffer = soft_buffer_new();
	allocation->mappings++;
	range->mappings++;
	RB_INSERT(soft_mappings, &mappings, mapping);
	*made = mapping;
	return CUDA_SUCCESS;
}

/* One call for all of them, so that it fails (out of VMAs) with nothing changed. */
CUresult soft_mapping_remove(struct soft_mapping *first, struct soft_mapping *end)
{
	struct soft_mapping *mapping, *next;
	uintptr_t stop = first->base;

	for (mapping = first; mapping != end; mapping = soft_mapping_next(mapping))
		stop = mapping->base + mapping->size;
	if (reserve((void *)first->base, stop - first->base, MAP_FIXED) == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (mapping = first; mapping != end; mapping = next) {
		next = soft_mapping_next(mapping);
		RB_REMOVE(soft_mappings, &mappings, mapping);
		mapping->range->mappings--;
		mapping->allocation->mappings--;
		soft_allocation_put(mapping->allocation);
		free(mapping);
	}
	return CUDA_SUCCESS;
}

bool soft_mapping_span(
	uintptr_t base, size_t size, struct soft_mapping **first, struct soft_mapping **end)
{
	struct soft_mapping *mapping = soft_mapping_find(base);
	uintptr_t at = base;

	if (!size || base + size < base)
		return false;
	*first = mapping;
	while (mapping && mapping->base == at && mapping->size <= base + size - at) {
		at += mapping->size;
		mapping = soft_mapping_next(mapping);
		if (at == base + size) {
			*end = mapping;
			return true;
		}
	}
	return false;
}

/* The CPU stands in for all devices: it may do what any of them may. */
int soft_mapping_prot(const struct soft_mapping *mapping)
{
	int flags = 0;

	for (int i = 0; i <= SOFT_MAX_DEVICES; i++)
		flags |= mapping->access[i];
	return (flags & 1 ? PROT_READ : 0) | (flags & 2 ? PROT_WRITE : 0);
}
