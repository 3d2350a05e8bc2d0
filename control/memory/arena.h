/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The host arena: pinned memory for data that was moved off the GPU. It grows on demand, or earlier
 * when the agent asks, and is kept until the agent asks for it back, because pinning costs far more
 * than copying (measured: 920 ms for 2.6 GiB). Addressed by offsets from 0; a range may span
 * chunks. Used by the control thread alone.
 */
#ifndef LIEN_CONTROL_ARENA_H
#define LIEN_CONTROL_ARENA_H

#include <stdint.h>

#include "control/driver/driver.h"

struct lien_arena_chunk {
	char *memory;
	uint64_t bytes;
};

struct lien_arena {
	struct lien_arena_chunk *chunks;
	unsigned count;
	uint64_t bytes; /* pinned */
	uint64_t used;	/* allocated; all offsets below it are in use */
};

/* Adds a chunk of at most `bytes`, on the host's NUMA node nearest to the device if that is known
 * and has memory. A context must be current. Returns 0, -ENOMEM when the host has no memory, or a
 * CUresult of the pinning. */
int lien_arena_grow(struct lien_arena *arena, const struct lien_driver *driver, CUdevice device,
	uint64_t bytes);
/* Makes room for that many bytes beyond the used ones, or adds nothing. */
int lien_arena_reserve(struct lien_arena *arena, const struct lien_driver *driver, CUdevice device,
	uint64_t bytes);
/* Gives back the chunks behind the used part. Returns 0, or a CUresult; chunks that cannot be given
 * back are kept. A context must be current. */
int lien_arena_release(struct lien_arena *arena, const struct lien_driver *driver);
/* Allocates reserved bytes; returns their offset. */
static inline uint64_t lien_arena_take(struct lien_arena *arena, uint64_t bytes)
{
	arena->used += bytes;
	return arena->used - bytes;
}

/* Returns the memory at an offset; reduces *length to the contiguous part. */
void *lien_arena_at(const struct lien_arena *arena, uint64_t offset, uint64_t *length);

#endif
