/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The host arena: pinned memory that holds what was moved off the GPU. It grows when it must and is
 * kept for the next time, because pinning costs far more than copying (FACTS: 920 ms for 2.6 GiB).
 * Addressed by offsets from 0; a range may lie across chunks. Used by the control thread alone.
 */
#ifndef LIEN_CONTROL_ARENA_H
#define LIEN_CONTROL_ARENA_H

#include <stdint.h>

#include "control/driver.h"

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

/* Makes room for bytes more than are used. A context must be current. 0, -ENOMEM when the host has
 * no memory, or a CUresult of the pinning. */
int lien_arena_reserve(struct lien_arena *arena, const struct lien_driver *driver, uint64_t bytes);
/* Gives out bytes that were reserved; returns their offset. */
uint64_t lien_arena_take(struct lien_arena *arena, uint64_t bytes);
/* Memory at an offset; *length is cut to what follows it without a break. */
void *lien_arena_at(const struct lien_arena *arena, uint64_t offset, uint64_t *length);

#endif
