// SPDX-License-Identifier: BSD-2-Clause
#include "control/plain/heap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lien/array.h>
#include <lien/locked.h>

struct piece {
	uint64_t id, offset, bytes, secret;
	int sync_memops;
	struct lien_heap_order *order; /* NULL: it is not parked */
	uint64_t turn;		       /* which of the frees in that order */
};

struct lien_heap_chunk {
	TAILQ_ENTRY(lien_heap_chunk) entry; /* of heap.shared */
	uint64_t unit;			    /* as of shared_bytes() */
	uint64_t id;
	struct lien_heap_range range;
	struct lien_heap_key key;
	uint64_t largest;     /* no place in it is larger, whoever asks */
	struct piece *pieces; /* by offset */
	unsigned count, room;
	unsigned parked; /* of the pieces */
	int ended;	 /* with its context */
};

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

static uint64_t whole(uint64_t bytes)
{
	return round_up(bytes, LIEN_HEAP_ALIGNMENT);
}

/* Returns the size of the chunks that take such blocks; 0: a chunk of its own. */
static uint64_t shared_bytes(const struct lien_heap_key *key, uint64_t bytes)
{
	if (bytes < (key->pool ? LIEN_HEAP_POOL_SMALL : LIEN_HEAP_SHARED))
		return LIEN_HEAP_SHARED;
	return key->pool ? LIEN_HEAP_POOL : 0;
}

#define BYTES_MAX (UINT64_MAX / 4)

uint64_t lien_heap_chunk_bytes(
	const struct lien_heap_key *key, uint64_t bytes, uint64_t granularity, int least)
{
	const uint64_t unit = shared_bytes(key, bytes);

	if (!bytes || bytes > BYTES_MAX || granularity > BYTES_MAX)
		return 0;
	bytes = round_up(bytes, unit && (!least || unit == LIEN_HEAP_SHARED) ? unit : 1);
	return round_up(bytes, granularity ? granularity : LIEN_HEAP_SHARED);
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
		.sync_memops = piece->sync_memops,
		.secret = piece->secret,
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
}

/* --- places ----------------------------------------------------------------------------------- */

struct place {
	struct lien_heap_chunk *chunk;
	unsigned at; /* before this piece, or in the place of parked ones from here on */
	uint64_t offset, bytes;
};

static uint64_t end_of(const struct piece *piece)
{
	return piece->offset + whole(piece->bytes);
}

static int is_reached(const struct piece *piece)
{
	return piece->order && piece->turn <= piece->order->reached;
}

/* Finds the smallest place of the chunk that is large enough, and notes the largest there is. */
static void look_for_place(struct lien_heap_chunk *chunk, uint64_t bytes,
	const struct lien_heap_order *order, struct place *best)
{
	uint64_t begin = 0, live = 0, largest = 0, end;
	const struct piece *piece;
	unsigned i, at = 0;

	for (i = 0; i <= chunk->count; i++) {
		piece = i < chunk->count ? &chunk->pieces[i] : NULL;
		if (piece && piece->order && (piece->order == order || is_reached(piece)))
			continue;
		end = piece ? piece->offset : chunk->range.bytes;
		if (end - begin >= bytes && (!best->chunk || end - begin < best->bytes))
			*best = (struct place){chunk, at, begin, end - begin};
		if (piece)
			begin = end_of(piece);
		at = i + 1;
		if (piece && piece->order)
			continue; /* somebody else's */
		if (end - live > largest)
			largest = end - live;
		live = begin;
	}
	chunk->largest = largest;
}

/* The place around this piece may have become the largest one. */
static void note_place(struct lien_heap_chunk *chunk, unsigned at)
{
	unsigned first = at, next = at;
	uint64_t begin, end;

	while (first && chunk->pieces[first - 1].order)
		first--;
	while (next < chunk->count && chunk->pieces[next].order)
		next++;
	begin = first ? end_of(&chunk->pieces[first - 1]) : 0;
	end = next < chunk->count ? chunk->pieces[next].offset : chunk->range.bytes;
	if (end - begin > chunk->largest)
		chunk->largest = end - begin;
}

static void remove_piece(struct lien_heap *heap, struct lien_heap_chunk *chunk, unsigned at)
{
	struct lien_heap_order *order = chunk->pieces[at].order;

	if (order) {
		heap->parked--;
		chunk->parked--;
		order->pieces--;
	}
	chunk->count--;
	memmove(&chunk->pieces[at], &chunk->pieces[at + 1],
		(chunk->count - at) * sizeof(*chunk->pieces));
}

/* Removes what is parked in the first bytes of the place. */
static void clear(struct lien_heap *heap, const struct place *place, uint64_t bytes)
{
	struct lien_heap_chunk *chunk = place->chunk;
	const uint64_t end = place->offset + bytes;
	struct piece *piece;

	while (place->at < chunk->count && chunk->pieces[place->at].offset < end) {
		piece = &chunk->pieces[place->at];
		if (end_of(piece) > end) {
			piece->bytes -= end - piece->offset;
			piece->offset = end;
			break;
		}
		remove_piece(heap, chunk, place->at);
	}
}

/* --- new blocks ------------------------------------------------------------------------------- */

int lien_heap_take(struct lien_heap *heap, const struct lien_heap_key *key, uint64_t bytes,
	struct lien_heap_order *order, struct lien_heap_block *block)
{
	const uint64_t unit = shared_bytes(key, bytes);
	struct lien_heap_chunk *chunk;
	struct place best = {0};

	if (bytes > BYTES_MAX)
		return -ENOSPC;
	LIEN_LOCKED(&heap->lock);
	TAILQ_FOREACH (chunk, &heap->shared, entry) {
		if (chunk->unit == unit && chunk->largest >= whole(bytes) &&
			!memcmp(&chunk->key, key, sizeof(*key)))
			look_for_place(chunk, whole(bytes), order, &best);
		if (best.chunk && key->pool)
			break;
	}
	chunk = best.chunk;
	if (!chunk)
		return -ENOSPC;
	if (lien_array_grow(&chunk->pieces, chunk->count, &chunk->room, sizeof(*chunk->pieces)))
		return -ENOMEM;
	heap->empty -= !chunk->count;
	clear(heap, &best, whole(bytes));
	insert(chunk, best.at,
		(struct piece){.id = ++heap->last_id, .offset = best.offset, .bytes = bytes});
	describe(chunk, &chunk->pieces[best.at], block);
	return 0;
}

/* Adds a chunk with one piece. */
static struct lien_heap_chunk *add(struct lien_heap *heap, const struct lien_heap_key *key,
	struct lien_heap_range range, uint64_t id, struct piece piece)
{
	struct lien_heap_chunk *chunk = calloc(1, sizeof(*chunk));
	unsigned at;

	if (!chunk || lien_array_grow(&heap->chunks, heap->count, &heap->room, sizeof(chunk)) ||
		lien_array_grow(&chunk->pieces, 0, &chunk->room, sizeof(*chunk->pieces))) {
		free(chunk);
		return NULL;
	}
	chunk->id = id;
	chunk->range = range;
	chunk->key = *key;
	chunk->unit = shared_bytes(key, piece.bytes);
	chunk->largest = range.bytes;
	insert(chunk, 0, piece);
	at = chunk_at(heap, range.base);
	memmove(&heap->chunks[at + 1], &heap->chunks[at], (heap->count - at) * sizeof(chunk));
	heap->chunks[at] = chunk;
	heap->count++;
	if (chunk->unit) {
		if (!heap->shared.tqh_last)
			TAILQ_INIT(&heap->shared);
		TAILQ_INSERT_TAIL(&heap->shared, chunk, entry);
	}
	return chunk;
}

int lien_heap_add(struct lien_heap *heap, const struct lien_heap_key *key,
	struct lien_heap_range range, uint64_t bytes, struct lien_heap_block *block)
{
	struct lien_heap_chunk *chunk;

	LIEN_LOCKED(&heap->lock);
	chunk = add(heap, key, range, heap->last_id + 1,
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

	heap->empty -= !chunk->count;
	while (chunk->count)
		remove_piece(heap, chunk, chunk->count - 1);
	memmove(&heap->chunks[at], &heap->chunks[at + 1],
		(heap->count - at - 1) * sizeof(*heap->chunks));
	heap->count--;
	if (chunk->unit)
		TAILQ_REMOVE(&heap->shared, chunk, entry);
	free(chunk->pieces);
	free(chunk);
	if (!heap->count) {
		free(heap->chunks);
		heap->chunks = NULL;
		heap->room = 0;
	}
}

/* Finds the piece that contains the address; NULL: there is none, or it is parked. */
static struct piece *piece_around(
	const struct lien_heap *heap, uint64_t address, struct lien_heap_chunk **chunk)
{
	unsigned at = chunk_at(heap, address);
	uint64_t offset;

	*chunk = at < heap->count ? heap->chunks[at] : NULL;
	if (!*chunk || (*chunk)->range.base > address || (*chunk)->ended)
		return NULL;
	offset = address - (*chunk)->range.base;
	at = piece_at(*chunk, offset);
	if (at == (*chunk)->count || (*chunk)->pieces[at].offset > offset ||
		(*chunk)->pieces[at].order)
		return NULL;
	return &(*chunk)->pieces[at];
}

int lien_heap_find(struct lien_heap *heap, uint64_t address, struct lien_heap_block *block)
{
	struct lien_heap_chunk *chunk;
	const struct piece *piece;

	if (!__atomic_load_n(&heap->count, __ATOMIC_RELAXED))
		return 0;
	LIEN_LOCKED(&heap->lock);
	piece = piece_around(heap, address, &chunk);
	if (piece)
		describe(chunk, piece, block);
	return piece != NULL;
}

/* Finds a block's piece; NULL: it is gone, or parked. */
static struct piece *piece_of(const struct lien_heap *heap, const struct lien_heap_block *block,
	struct lien_heap_chunk **chunk)
{
	struct piece *piece = piece_around(heap, block->address, chunk);

	return piece && piece->id == block->id ? piece : NULL;
}

void lien_heap_set_sync_memops(
	struct lien_heap *heap, const struct lien_heap_block *block, int value)
{
	struct lien_heap_chunk *chunk;
	struct piece *piece;

	LIEN_LOCKED(&heap->lock);
	piece = piece_of(heap, block, &chunk);
	if (piece)
		piece->sync_memops = value;
}

int lien_heap_offer(struct lien_heap *heap, struct lien_heap_block *block, uint64_t secret)
{
	struct lien_heap_chunk *chunk;
	struct piece *piece;

	LIEN_LOCKED(&heap->lock);
	piece = piece_of(heap, block, &chunk);
	if (!piece)
		return -ENOENT;
	if (!piece->secret)
		piece->secret = secret;
	block->secret = piece->secret;
	return 0;
}

int lien_heap_park(
	struct lien_heap *heap, const struct lien_heap_block *block, struct lien_heap_order *order)
{
	struct lien_heap_chunk *chunk;
	struct piece *piece = piece_of(heap, block, &chunk);

	if (!piece)
		return -ENOENT;
	piece->order = order;
	piece->turn = ++order->freed;
	order->pieces++;
	heap->parked++;
	chunk->parked++;
	note_place(chunk, piece - chunk->pieces);
	return 0;
}

int lien_heap_give(
	struct lien_heap *heap, const struct lien_heap_block *block, struct lien_heap_range *empty)
{
	struct lien_heap_chunk *chunk;
	struct piece *piece;

	*empty = (struct lien_heap_range){0};
	LIEN_LOCKED(&heap->lock);
	piece = piece_of(heap, block, &chunk);
	if (!piece)
		return -ENOENT;
	remove_piece(heap, chunk, piece - chunk->pieces);
	note_place(chunk, piece - chunk->pieces);
	heap->empty += !chunk->count;
	if (!chunk->count && !chunk->key.pool) {
		*empty = chunk->range;
		forget(heap, chunk);
	}
	return 0;
}

/* Removes what is parked and has been reached. */
static void settle(struct lien_heap *heap, struct lien_heap_chunk *chunk)
{
	unsigned i = 0;

	if (!chunk->parked)
		return;
	while (i < chunk->count)
		if (is_reached(&chunk->pieces[i]))
			remove_piece(heap, chunk, i);
		else
			i++;
	heap->empty += !chunk->count;
}

int lien_heap_trim(struct lien_heap *heap, uint64_t pool, struct lien_heap_range *range)
{
	struct lien_heap_chunk *chunk;
	unsigned i;

	LIEN_LOCKED(&heap->lock);
	for (i = 0; i < heap->count && (heap->parked || heap->empty); i++) {
		chunk = heap->chunks[i];
		if (pool ? chunk->key.context != pool : chunk->key.pool)
			continue;
		settle(heap, chunk);
		if (chunk->count)
			continue;
		*range = chunk->range;
		forget(heap, chunk);
		__atomic_fetch_add(&heap->trimmed, 1, __ATOMIC_RELAXED);
		return 1;
	}
	return 0;
}

int lien_heap_put_back(struct lien_heap *heap, const struct lien_heap_block *block)
{
	struct piece piece = {.id = block->id,
		.offset = block->address - block->chunk.base,
		.bytes = block->bytes,
		.sync_memops = block->sync_memops,
		.secret = block->secret};

	LIEN_LOCKED(&heap->lock);
	return add(heap, &block->key, block->chunk, block->chunk_id, piece) ? 0 : -ENOMEM;
}

uint64_t lien_heap_end(struct lien_heap *heap, uint64_t context)
{
	uint64_t ended;
	unsigned i;

	LIEN_LOCKED(&heap->lock);
	ended = ++heap->last_id << 1 | 1; /* odd: no address of a context or a pool */
	for (i = 0; i < heap->count; i++)
		if (heap->chunks[i]->key.context == context) {
			heap->chunks[i]->key.context = ended;
			heap->chunks[i]->ended = 1;
		}
	return ended;
}

int lien_heap_drop(struct lien_heap *heap, uint64_t context, struct lien_heap_range *range)
{
	unsigned i;

	LIEN_LOCKED(&heap->lock);
	for (i = 0; i < heap->count; i++)
		if (heap->chunks[i]->key.context == context) {
			*range = heap->chunks[i]->range;
			forget(heap, heap->chunks[i]);
			return 1;
		}
	return 0;
}

int lien_heap_next(struct lien_heap *heap, uint64_t address, struct lien_heap_range *range,
	struct lien_heap_key *key)
{
	unsigned at;

	LIEN_LOCKED(&heap->lock);
	at = chunk_at(heap, address);
	if (at == heap->count)
		return 0;
	*range = heap->chunks[at]->range;
	*key = heap->chunks[at]->key;
	return 1;
}
