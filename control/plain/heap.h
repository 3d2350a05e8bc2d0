/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bookkeeping of the device memory that the control library hands out instead of the driver's plain
 * allocations (plain.h): chunks, which are one allocation of virtual memory each, and the blocks in
 * them, which are what the application was given. Calls nothing but malloc().
 *
 * A block of LIEN_HEAP_SHARED bytes or more has a chunk of its own. Smaller blocks share chunks of
 * LIEN_HEAP_SHARED bytes with others of the same key. The key contains who asked, and with which
 * tag, so that one library's memory never lies in a chunk with another's: a chunk is moved as a
 * whole.
 *
 * Not thread-safe.
 */
#ifndef LIEN_CONTROL_HEAP_H
#define LIEN_CONTROL_HEAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define LIEN_HEAP_SHARED    (2ul << 20)
#define LIEN_HEAP_ALIGNMENT 512ul

struct lien_heap_key {
	uint64_t context;
	int32_t device;
	uint32_t asker;
	uint32_t tag;
};

struct lien_heap_range {
	uint64_t base, bytes;
};

/* A copy of what the heap knows of a block. */
struct lien_heap_block {
	uint64_t id; /* never given to another block */
	uint64_t address, bytes;
	struct lien_heap_key key;
	uint64_t chunk_id;
	struct lien_heap_range chunk;
};

struct lien_heap_chunk;
LIST_HEAD(lien_heap_list, lien_heap_chunk);

struct lien_heap {
	struct lien_heap_chunk **chunks; /* by address */
	unsigned count, room;
	struct lien_heap_list shared; /* those that take further blocks */
	uint64_t last_id;
};

/* Returns the size of the chunk that a block of this size needs; 0: too large. */
uint64_t lien_heap_chunk_bytes(uint64_t bytes, uint64_t granularity);

/* Places a block in a chunk that the heap has. -ENOSPC: it needs a new one; -ENOMEM. */
int lien_heap_take(struct lien_heap *heap, const struct lien_heap_key *key, uint64_t bytes,
	struct lien_heap_block *block);
/* Adds a chunk, with a block at its beginning. -ENOMEM. */
int lien_heap_add(struct lien_heap *heap, const struct lien_heap_key *key,
	struct lien_heap_range chunk, uint64_t bytes, struct lien_heap_block *block);

/* Finds the block that contains the address, unless it is parked. Returns whether there is one. */
int lien_heap_find(const struct lien_heap *heap, uint64_t address, struct lien_heap_block *block);

/* Removes a block that lien_heap_find() found; -ENOENT: somebody else did. If it was the last one
 * of its chunk, *empty is that chunk, which the heap has forgotten; otherwise 0 bytes. */
int lien_heap_give(
	struct lien_heap *heap, const struct lien_heap_block *block, struct lien_heap_range *empty);
/* Marks a block as freed, whose place is not free yet: it is no longer found. -ENOENT: it is not
 * there, or marked already. */
int lien_heap_park(struct lien_heap *heap, const struct lien_heap_block *block);
/* Gives a parked block's place to a new block, of at most its size. -ENOENT: it is not there. */
int lien_heap_reuse(struct lien_heap *heap, const struct lien_heap_block *parked, uint64_t bytes,
	struct lien_heap_block *block);
/* Undoes lien_heap_give() of a block that was the last one of its chunk. -ENOMEM. */
int lien_heap_put_back(struct lien_heap *heap, const struct lien_heap_block *block);

/* Makes the chunks of a context those of `ended`, which is no context's: their blocks are no longer
 * found, and a new context may have the old one's number. */
void lien_heap_end(struct lien_heap *heap, uint64_t context, uint64_t ended);
/* Forgets a chunk of the context, with its blocks. Returns whether there was one. */
int lien_heap_drop(struct lien_heap *heap, uint64_t context, struct lien_heap_range *chunk);
/* Finds the first chunk at or above the address. Returns whether there is one. */
int lien_heap_next(const struct lien_heap *heap, uint64_t address, struct lien_heap_range *chunk,
	struct lien_heap_key *key);

#endif
