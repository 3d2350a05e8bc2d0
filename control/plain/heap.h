/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bookkeeping of the device memory that the control library hands out instead of the driver's plain
 * allocations (plain.h): chunks, which are one allocation of virtual memory each, and the blocks in
 * them, which are what the application was given. Calls nothing but malloc().
 *
 * A block of LIEN_HEAP_SHARED bytes or more has a chunk of its own. Smaller blocks share chunks of
 * LIEN_HEAP_SHARED bytes with others of the same key. Blocks of a pool share larger chunks,
 * whatever their size, and a chunk without blocks stays until lien_heap_trim(). The key contains
 * who asked, and with which tag, so that one library's memory never lies in a chunk with another's:
 * a chunk is moved as a whole.
 *
 * A block that is freed in a stream is parked: its place is free for those who ask in that stream,
 * and for everybody once the stream has reached the free (struct lien_heap_order).
 *
 * Thread-safe: each function holds the heap's lock, but for lien_heap_park(), whose caller does. It
 * protects the orders, too.
 */
#ifndef LIEN_CONTROL_HEAP_H
#define LIEN_CONTROL_HEAP_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define LIEN_HEAP_SHARED (2ul << 20)
/* The chunks of a pool are multiples of this, as the driver's are (seen, 580.159), except for
 * blocks smaller than LIEN_HEAP_POOL_SMALL, to keep their number in a chunk low. */
#define LIEN_HEAP_POOL	     (32ul << 20)
#define LIEN_HEAP_POOL_SMALL (64ul << 10)
#define LIEN_HEAP_ALIGNMENT  512ul

struct lien_heap_key {
	uint64_t context; /* or the pool */
	int32_t device;
	uint32_t asker;
	uint32_t tag;
	uint32_t pool; /* 1: of a pool */
};

/* The frees of a stream. The caller keeps it while .pieces is not 0, and says how far the stream
 * has come by setting .reached. */
struct lien_heap_order {
	uint64_t freed;	  /* how many there have been */
	uint64_t reached; /* how many have been reached */
	uint64_t pieces;  /* parked pieces that refer to it */
};

struct lien_heap_range {
	uint64_t base, bytes;
};

/* A copy of what the heap knows of a block. */
struct lien_heap_block {
	uint64_t id; /* never given to another block */
	uint64_t address, bytes;
	uint64_t sync_memops; /* see lien_heap_set_sync_memops() */
	uint64_t secret;      /* see lien_heap_offer(); 0: none */
	struct lien_heap_key key;
	uint64_t chunk_id;
	struct lien_heap_range chunk;
};

struct lien_heap_chunk;
TAILQ_HEAD(lien_heap_list, lien_heap_chunk);

struct lien_heap {
	pthread_mutex_t lock;
	struct lien_heap_chunk **chunks; /* by address */
	unsigned count, room;
	struct lien_heap_list shared; /* those that take further blocks, the oldest first */
	uint64_t last_id;
	unsigned parked;  /* pieces */
	unsigned empty;	  /* chunks without any */
	unsigned trimmed; /* by lien_heap_trim(), and not freed yet; atomic */
};

/* Returns the size of the chunk that a block of this size needs; 0: too large. `least`: no larger
 * than it must be, because memory is short. */
uint64_t lien_heap_chunk_bytes(
	const struct lien_heap_key *key, uint64_t bytes, uint64_t granularity, int least);

/* Places a block in a chunk that the heap has, in the smallest place of the first chunk that has
 * one. Places that were freed in `order` count as free; NULL: none. -ENOSPC: it needs a new chunk;
 * -ENOMEM. */
int lien_heap_take(struct lien_heap *heap, const struct lien_heap_key *key, uint64_t bytes,
	struct lien_heap_order *order, struct lien_heap_block *block);
/* Adds a chunk, with a block at its beginning. -ENOMEM. */
int lien_heap_add(struct lien_heap *heap, const struct lien_heap_key *key,
	struct lien_heap_range chunk, uint64_t bytes, struct lien_heap_block *block);

/* Finds the block that contains the address, unless it is parked. Returns whether there is one. */
int lien_heap_find(struct lien_heap *heap, uint64_t address, struct lien_heap_block *block);

/* Notes what the application has set as the block's CU_POINTER_ATTRIBUTE_SYNC_MEMOPS; 0 at first.
 */
void lien_heap_set_sync_memops(
	struct lien_heap *heap, const struct lien_heap_block *block, int value);
/* Gives the block a secret, which others must show to get its memory, unless it has one; and fills
 * in the one that it has. -ENOENT: the block is gone. */
int lien_heap_offer(struct lien_heap *heap, struct lien_heap_block *block, uint64_t secret);

/* Removes a block that lien_heap_find() found; -ENOENT: somebody else did. If it was the last one
 * of a chunk that is not a pool's, *empty is that chunk, which the heap has forgotten; otherwise 0
 * bytes. */
int lien_heap_give(
	struct lien_heap *heap, const struct lien_heap_block *block, struct lien_heap_range *empty);
/* Parks a block, as one more free of `order`: it is no longer found. -ENOENT: it is not there, or
 * is parked already. */
int lien_heap_park(
	struct lien_heap *heap, const struct lien_heap_block *block, struct lien_heap_order *order);
/* Forgets a chunk of that pool (0: of no pool) whose blocks were all freed, with all of the frees
 * reached. Returns whether there was one; the caller frees it, and then subtracts it from
 * ->trimmed. */
int lien_heap_trim(struct lien_heap *heap, uint64_t pool, struct lien_heap_range *chunk);
/* Undoes lien_heap_give() of a block that was the last one of its chunk. -ENOMEM. */
int lien_heap_put_back(struct lien_heap *heap, const struct lien_heap_block *block);

/* Gives the chunks of a context, whose blocks are no longer found, another number, which it
 * returns: a new context may have the old one's. */
uint64_t lien_heap_end(struct lien_heap *heap, uint64_t context);
/* Forgets a chunk of the context, with its blocks. Returns whether there was one. */
int lien_heap_drop(struct lien_heap *heap, uint64_t context, struct lien_heap_range *chunk);
/* Finds the first chunk at or above the address. Returns whether there is one. */
int lien_heap_next(struct lien_heap *heap, uint64_t address, struct lien_heap_range *chunk,
	struct lien_heap_key *key);

#endif
