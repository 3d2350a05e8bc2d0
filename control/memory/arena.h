/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The host arena: pinned memory that holds what was moved off the GPU. It grows when it must, or
 * ahead of that when the agent asks for it, and is kept until the agent asks for it back, because
 * pinning costs far more than copying (FACTS: 920 ms for 2.6 GiB). Addressed by offsets from 0; a
 * range may lie across chunks. Used by the control thread alone.
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
	uint64_t used;	/* given out; offsets below it are in use */
};

/* Adds a chunk of at most `bytes`, on a NUMA node of the host if it has some (-1: any). A context
 * must be current. 0, -ENOMEM when the host has no memory, or a CUresult of the pinning. */
int lien_arena_grow(
	struct lien_arena *arena, const struct lien_driver *driver, int node, uint64_t bytes);
/* Makes room for bytes more than are used, or adds nothing. */
int lien_arena_reserve(
	struct lien_arena *arena, const struct lien_driver *driver, int node, uint64_t bytes);
/* Gives back the chunks that lie behind all that is used. 0, or a CUresult; what could not be given
 * back is kept. A context must be current. */
int lien_arena_release(struct lien_arena *arena, const struct lien_driver *driver);
/* Gives out bytes that were reserved; returns their offset. */
uint64_t lien_arena_take(struct lien_arena *arena, uint64_t bytes);
/* Memory at an offset; *length is cut to what follows it without a break. */
void *lien_arena_at(const struct lien_arena *arena, uint64_t offset, uint64_t *length);

#endif
