// SPDX-License-Identifier: BSD-2-Clause
#include "control/plain/heap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct piece {
	uint64_t id, offset, bytes;
	int parked;
};

struct lien_heap_chunk {
	LIST_ENTRY(lien_heap_chunk) entry; /* of heap.shared */
	int shared;
	uint64_t id;
	struct lien_heap_range range;
	struct lien_heap_key key;
	uint64_t used;	      /* bytes, rounded up to the alignment */
	struct piece *pieces; /* by offset */
	unsigned count, room;
};

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

static uint64_t whole(uint64_t bytes)
{
	return round_up(bytes, LIEN_HEAP_ALIGNMENT);
}

uint64_t lien_heap_chunk_bytes(uint64_t bytes, uint64_t granularity)
{
	if (!bytes || bytes > UINT64_MAX / 4 || granularity > UINT64_MAX / 4)
		return 0;
	if (bytes < LIEN_HEAP_SHARED)
		bytes = LIEN_HEAP_SHARED;
	return round_up(bytes, granularity ? granularity : LIEN_HEAP_SHARED);
}

static int same_key(const struct lien_heap_key *a, const struct lien_heap_key *b)
{
	return a->context == b->context && a->device == b->device && a->asker == b->asker &&
	       a->tag == b->tag;
}

/* Makes room for one more element. */
static int grow(void **array, unsigned count, unsigned *room, size_t size)
{
	unsigned wanted = *room ? *room * 2 : 4;
	void *larger;

	if (count < *room)
		return 0;
	larger = realloc(*array, wanted * size);
	if (!larger)
		return -ENOMEM;
	*array = larger;
	*room = wanted;
	return 0;
}

/* Returns the index of the first chunk that ends above the address. */
static unsigned chunk_at(const struct lien_heap *heap, uint64_t address)
{
	unsigned low = 0, high = heap->count, middle;

	while (low < high) {
		middle = low + (high - low) / 2;
		if (heap->chunks[middle]->range.base + heap->chunks[middle]->range.bytes > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static struct lien_heap_chunk *chunk_of(const struct lien_heap *heap, uint64_t address)
{
	unsigned at = chunk_at(heap, address);

	return at < heap->count && heap->chunks[at]->range.base <= address ? heap->chunks[at]
									   : NULL;
}

/* Returns the index of the first piece that ends above the offset. */
static unsigned piece_at(const struct lien_heap_chunk *chunk, uint64_t offset)
{
	unsigned low = 0, high = chunk->count, middle;

	while (low < high) {
		middle = low + (high - low) / 2;
		if (chunk->pieces[middle].offset + chunk->pieces[middle].bytes > offset)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static void describe(const struct lien_heap_chunk *chunk, const struct piece *piece,
	struct lien_heap_block *block)
{
	*block = (struct lien_heap_block){
		.id = piece->id,
		.address = chunk->range.base + piece->offset,
		.bytes = piece->bytes,
		.key = chunk->key,
		.chunk_id = chunk->id,
		.chunk = chunk->range,
	};
}

/* The chunk has room for the piece. */
static void insert(struct lien_heap_chunk *chunk, unsigned at, struct piece piece)
{
	memmove(&chunk->pieces[at + 1], &chunk->pieces[at],
		(chunk->count - at) * sizeof(*chunk->pieces));
	chunk->pieces[at] = piece;
	chunk->count++;
	chunk->used += whole(piece.bytes);
}

/* --- new blocks ------------------------------------------------------------------------------- */

struct gap {
	struct lien_heap_chunk *chunk;
	unsigned at; /* before this piece */
	uint64_t offset, bytes;
};

/* Finds the smallest gap of the chunk that is large enough and smaller than *best. */
static void look_for_gap(struct lien_heap_chunk *chunk, uint64_t bytes, struct gap *best)
{
	uint64_t begin = 0, end;
	unsigned i;

	for (i = 0; i <= chunk->count; i++) {
		end = i < chunk->count ? chunk->pieces[i].offset : chunk->range.bytes;
		if (end - begin >= bytes && (!best->chunk || end - begin < best->bytes))
			*best = (struct gap){chunk, i, begin, end - begin};
		if (i < chunk->count)
			begin = chunk->pieces[i].offset + whole(chunk->pieces[i].bytes);
	}
}

int lien_heap_take(struct lien_heap *heap, const struct lien_heap_key *key, uint64_t bytes,
	struct lien_heap_block *block)
{
	struct lien_heap_chunk *chunk;
	struct gap best = {0};

	if (bytes >= LIEN_HEAP_SHARED)
		return -ENOSPC;
	LIST_FOREACH (chunk, &heap->shared, entry)
		if (chunk->range.bytes - chunk->used >= whole(bytes) && same_key(&chunk->key, key))
			look_for_gap(chunk, whole(bytes), &best);
	if (!best.chunk)
		return -ENOSPC;
	chunk = best.chunk;
	if (grow((void **)&chunk->pieces, chunk->count, &chunk->room, sizeof(*chunk->pieces)))
		return -ENOMEM;
	insert(chunk, best.at, (struct piece){++heap->last_id, best.offset, bytes, 0});
	describe(chunk, &chunk->pieces[best.at], block);
	return 0;
}

/* Adds a chunk with one piece. */
static struct lien_heap_chunk *add(struct lien_heap *heap, const struct lien_heap_key *key,
	struct lien_heap_range range, uint64_t id, struct piece piece)
{
	struct lien_heap_chunk *chunk = calloc(1, sizeof(*chunk));
	unsigned at;

	if (!chunk || grow((void **)&heap->chunks, heap->count, &heap->room, sizeof(chunk)) ||
		grow((void **)&chunk->pieces, 0, &chunk->room, sizeof(*chunk->pieces))) {
		free(chunk);
		return NULL;
	}
	chunk->id = id;
	chunk->range = range;
	chunk->key = *key;
	chunk->shared = piece.bytes < LIEN_HEAP_SHARED;
	insert(chunk, 0, piece);
	at = chunk_at(heap, range.base);
	memmove(&heap->chunks[at + 1], &heap->chunks[at], (heap->count - at) * sizeof(chunk));
	heap->chunks[at] = chunk;
	heap->count++;
	if (chunk->shared)
		LIST_INSERT_HEAD(&heap->shared, chunk, entry);
	return chunk;
}

int lien_heap_add(struct lien_heap *heap, const struct lien_heap_key *key,
	struct lien_heap_range range, uint64_t bytes, struct lien_heap_block *block)
{
	struct lien_heap_chunk *chunk = add(heap, key, range, heap->last_id + 1,
		(struct piece){.id = heap->last_id + 2, .bytes = bytes});

	if (!chunk)
		return -ENOMEM;
	heap->last_id += 2;
	describe(chunk, &chunk->pieces[0], block);
	return 0;
}

/* --- the end of blocks ------------------------------------------------------------------------ */

static void forget(struct lien_heap *heap, struct lien_heap_chunk *chunk)
{
	unsigned at = chunk_at(heap, chunk->range.base);

	memmove(&heap->chunks[at], &heap->chunks[at + 1],
		(heap->count - at - 1) * sizeof(*heap->chunks));
	heap->count--;
	if (chunk->shared)
		LIST_REMOVE(chunk, entry);
	free(chunk->pieces);
	free(chunk);
	if (!heap->count) {
		free(heap->chunks);
		heap->chunks = NULL;
		heap->room = 0;
	}
}

int lien_heap_find(const struct lien_heap *heap, uint64_t address, struct lien_heap_block *block)
{
	const struct lien_heap_chunk *chunk = chunk_of(heap, address);
	unsigned at;

	if (!chunk)
		return 0;
	at = piece_at(chunk, address - chunk->range.base);
	if (at == chunk->count || chunk->pieces[at].offset > address - chunk->range.base ||
		chunk->pieces[at].parked)
		return 0;
	describe(chunk, &chunk->pieces[at], block);
	return 1;
}

/* Finds a block's piece; NULL: it is gone. */
static struct piece *piece_of(
	struct lien_heap *heap, const struct lien_heap_block *block, struct lien_heap_chunk **chunk)
{
	unsigned at;

	*chunk = chunk_of(heap, block->address);
	if (!*chunk || (*chunk)->id != block->chunk_id)
		return NULL;
	at = piece_at(*chunk, block->address - (*chunk)->range.base);
	return at < (*chunk)->count && (*chunk)->pieces[at].id == block->id ? &(*chunk)->pieces[at]
									    : NULL;
}

int lien_heap_park(struct lien_heap *heap, const struct lien_heap_block *block)
{
	struct lien_heap_chunk *chunk;
	struct piece *piece = piece_of(heap, block, &chunk);

	if (!piece || piece->parked)
		return -ENOENT;
	piece->parked = 1;
	return 0;
}

int lien_heap_reuse(struct lien_heap *heap, const struct lien_heap_block *parked, uint64_t bytes,
	struct lien_heap_block *block)
{
	struct lien_heap_chunk *chunk;
	struct piece *piece = piece_of(heap, parked, &chunk);

	if (!piece || !piece->parked || bytes > piece->bytes)
		return -ENOENT;
	chunk->used -= whole(piece->bytes) - whole(bytes);
	piece->id = ++heap->last_id;
	piece->bytes = bytes;
	piece->parked = 0;
	describe(chunk, piece, block);
	return 0;
}

int lien_heap_give(
	struct lien_heap *heap, const struct lien_heap_block *block, struct lien_heap_range *empty)
{
	struct lien_heap_chunk *chunk;
	struct piece *piece = piece_of(heap, block, &chunk);
	unsigned at;

	if (!piece)
		return -ENOENT;
	at = piece - chunk->pieces;
	chunk->used -= whole(chunk->pieces[at].bytes);
	chunk->count--;
	memmove(&chunk->pieces[at], &chunk->pieces[at + 1],
		(chunk->count - at) * sizeof(*chunk->pieces));
	*empty = (struct lien_heap_range){0};
	if (!chunk->count) {
		*empty = chunk->range;
		forget(heap, chunk);
	}
	return 0;
}

int lien_heap_put_back(struct lien_heap *heap, const struct lien_heap_block *block)
{
	struct piece piece = {block->id, block->address - block->chunk.base, block->bytes, 0};

	return add(heap, &block->key, block->chunk, block->chunk_id, piece) ? 0 : -ENOMEM;
}

void lien_heap_end(struct lien_heap *heap, uint64_t context, uint64_t ended)
{
	unsigned i, j;

	for (i = 0; i < heap->count; i++) {
		if (heap->chunks[i]->key.context != context)
			continue;
		heap->chunks[i]->key.context = ended;
		for (j = 0; j < heap->chunks[i]->count; j++)
			heap->chunks[i]->pieces[j].parked = 1;
	}
}

int lien_heap_drop(struct lien_heap *heap, uint64_t context, struct lien_heap_range *range)
{
	unsigned i;

	for (i = 0; i < heap->count; i++)
		if (heap->chunks[i]->key.context == context) {
			*range = heap->chunks[i]->range;
			forget(heap, heap->chunks[i]);
			return 1;
		}
	return 0;
}

int lien_heap_next(const struct lien_heap *heap, uint64_t address, struct lien_heap_range *range,
	struct lien_heap_key *key)
{
	unsigned at = chunk_at(heap, address);

	if (at == heap->count)
		return 0;
	*range = heap->chunks[at]->range;
	*key = heap->chunks[at]->key;
	return 1;
}
