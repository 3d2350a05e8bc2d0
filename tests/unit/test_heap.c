/* SPDX-License-Identifier: BSD-2-Clause */
/* control/plain/heap.c: random sequences against a list of what was given out, and how much memory
 * the chunks of typical jobs waste. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <control/plain/heap.h>

#define KIB	    1024ul
#define MIB	    (1024 * KIB)
#define GRANULARITY (2 * MIB)

/* --- chunks at addresses that nothing lies at ------------------------------------------------- */

static uint64_t next_base;
static uint64_t given, used; /* bytes of chunks, and of blocks */

static uint64_t address_for(uint64_t bytes)
{
	uint64_t base = next_base ? next_base : 1ul << 40;

	next_base = base + bytes + (rand() % 2) * GRANULARITY;
	return base;
}

static struct lien_heap_block take_in(struct lien_heap *heap, const struct lien_heap_key *key,
	uint64_t bytes, struct lien_heap_order *order)
{
	struct lien_heap_block block;
	struct lien_heap_range chunk;
	int err = lien_heap_take(heap, key, bytes, order, &block);

	if (err) {
		assert_int_equal(err, -ENOSPC);
		chunk.bytes = lien_heap_chunk_bytes(key, bytes, GRANULARITY, 0);
		assert_true(chunk.bytes >= bytes && chunk.bytes % GRANULARITY == 0);
		chunk.base = address_for(chunk.bytes);
		assert_int_equal(lien_heap_add(heap, key, chunk, bytes, &block), 0);
		given += chunk.bytes;
	}
	used += bytes;
	return block;
}

static struct lien_heap_block take(
	struct lien_heap *heap, const struct lien_heap_key *key, uint64_t bytes)
{
	return take_in(heap, key, bytes, NULL);
}

/* Returns the bytes of the chunk that went with it. */
static uint64_t give(struct lien_heap *heap, const struct lien_heap_block *block)
{
	struct lien_heap_range empty;

	assert_int_equal(lien_heap_give(heap, block, &empty), 0);
	given -= empty.bytes;
	used -= block->bytes;
	return empty.bytes;
}

static int start(void **state)
{
	(void)state;
	srand(7);
	next_base = given = used = 0;
	return 0;
}

/* --- cases ------------------------------------------------------------------------------------ */

#define LIVE 400

struct live {
	struct lien_heap_block block[LIVE];
	unsigned count;
};

static bool apart(const struct lien_heap_block *a, const struct lien_heap_block *b)
{
	return a->address + a->bytes <= b->address || b->address + b->bytes <= a->address;
}

static void check_new(const struct live *live, const struct lien_heap_block *block,
	const struct lien_heap_key *key, uint64_t bytes)
{
	unsigned i;

	assert_int_equal(block->bytes, bytes);
	assert_int_equal(block->address % LIEN_HEAP_ALIGNMENT, 0);
	assert_true(block->address >= block->chunk.base);
	assert_true(block->address + bytes <= block->chunk.base + block->chunk.bytes);
	assert_memory_equal(&block->key, key, sizeof(*key));
	for (i = 0; i < live->count; i++) {
		assert_true(apart(block, &live->block[i]));
		assert_int_not_equal(block->id, live->block[i].id);
		if (block->chunk.base == live->block[i].chunk.base)
			assert_memory_equal(key, &live->block[i].key, sizeof(*key));
	}
}

static void check_found(struct lien_heap *heap, const struct live *live)
{
	struct lien_heap_block found;
	const struct lien_heap_block *block;
	unsigned i;

	for (i = 0; i < live->count; i++) {
		block = &live->block[i];
		assert_true(lien_heap_find(heap, block->address, &found));
		assert_memory_equal(&found, block, sizeof(found));
		assert_true(lien_heap_find(heap, block->address + block->bytes - 1, &found));
		assert_int_equal(found.id, block->id);
		if (lien_heap_find(heap, block->address + block->bytes, &found))
			assert_int_not_equal(found.id, block->id);
	}
}

static uint64_t random_size(void)
{
	static const uint64_t up_to[] = {600, 4 * KIB, 300 * KIB, 2 * MIB, 40 * MIB};

	return 1 + (uint64_t)rand() % up_to[rand() % 5];
}

static void test_random_blocks_are_apart_and_found(void **state)
{
	static struct live live;
	struct lien_heap heap = {0};
	struct lien_heap_key key = {0};
	struct lien_heap_range range;
	struct lien_heap_block stale;
	uint64_t bytes, before;
	unsigned i, at;

	(void)state;
	live.count = 0;
	for (i = 0; i < 20000; i++) {
		if (live.count < LIVE && rand() % (live.count + 50) < 60) {
			key.context = rand() % 2;
			key.device = rand() % 2;
			key.asker = rand() % 2;
			key.tag = rand() % 2;
			bytes = random_size();
			live.block[live.count] = take(&heap, &key, bytes);
			check_new(&live, &live.block[live.count], &key, bytes);
			live.count++;
		} else if (live.count) {
			at = rand() % live.count;
			stale = live.block[at];
			before = given;
			if (give(&heap, &stale))
				assert_true(given < before);
			live.block[at] = live.block[--live.count];
			assert_int_equal(lien_heap_give(&heap, &stale, &range), -ENOENT);
		}
		if (i % 500 == 0)
			check_found(&heap, &live);
	}
	while (live.count)
		give(&heap, &live.block[--live.count]);
	assert_int_equal(given, 0);
	assert_int_equal(heap.count, 0);
	assert_false(lien_heap_next(&heap, 0, &range, &key));
}

static void test_a_chunk_is_empty_with_its_last_block(void **state)
{
	const struct lien_heap_key key = {1, 0, 2, 0, 0};
	struct lien_heap heap = {0};
	struct lien_heap_block a = take(&heap, &key, 1000), b = take(&heap, &key, 2000), found;

	(void)state;
	assert_int_equal(a.chunk.base, b.chunk.base);
	assert_int_equal(give(&heap, &a), 0);
	assert_false(lien_heap_find(&heap, a.address, &found));
	assert_int_equal(lien_heap_offer(&heap, &a, 4), -ENOENT);
	/* The first secret is the block's. */
	assert_int_equal(b.secret, 0);
	assert_int_equal(lien_heap_offer(&heap, &b, 5), 0);
	assert_int_equal(lien_heap_offer(&heap, &b, 6), 0);
	assert_int_equal(b.secret, 5);
	assert_int_equal(give(&heap, &b), LIEN_HEAP_SHARED);
	/* The driver would not let go of it. */
	assert_int_equal(lien_heap_put_back(&heap, &b), 0);
	assert_true(lien_heap_find(&heap, b.address + 1999, &found));
	assert_memory_equal(&found, &b, sizeof(b));
	given += LIEN_HEAP_SHARED;
	used += b.bytes;
	assert_int_equal(give(&heap, &b), LIEN_HEAP_SHARED);
}

static const struct lien_heap_key pooled = {.context = 8, .asker = 2, .pool = 1};

/* Returns how many chunks of the pool nobody had memory in. */
static unsigned trim(struct lien_heap *heap, uint64_t pool)
{
	struct lien_heap_range chunk;
	unsigned n;

	for (n = 0; lien_heap_trim(heap, pool, &chunk); n++)
		given -= chunk.bytes;
	return n;
}

static void drop_all(struct lien_heap *heap, uint64_t context)
{
	struct lien_heap_range range;

	while (lien_heap_drop(heap, context, &range))
		given -= range.bytes;
}

static void test_a_place_is_its_streams_until_that_has_come_to_the_free(void **state)
{
	struct lien_heap_order one = {0}, two = {0};
	struct lien_heap heap = {0};
	struct lien_heap_block a = take(&heap, &pooled, MIB), b, found;

	(void)state;
	assert_int_equal(lien_heap_park(&heap, &a, &one), 0);
	assert_int_equal(lien_heap_park(&heap, &a, &one), -ENOENT);
	assert_int_equal(lien_heap_give(&heap, &a, &found.chunk), -ENOENT);
	assert_false(lien_heap_find(&heap, a.address, &found));
	b = take_in(&heap, &pooled, MIB, &two);
	assert_true(apart(&a, &b));
	b = take_in(&heap, &pooled, MIB, &one);
	assert_int_equal(b.address, a.address);
	assert_int_not_equal(b.id, a.id);
	assert_int_equal(one.pieces, 0);
	assert_int_equal(lien_heap_park(&heap, &b, &one), 0);
	one.reached = 1;
	a = take_in(&heap, &pooled, MIB, &two);
	assert_true(apart(&a, &b));
	one.reached = 2;
	assert_int_equal(take_in(&heap, &pooled, MIB, &two).address, b.address);
	assert_int_equal(one.pieces, 0);
	drop_all(&heap, 8);
}

/* What a stream has freed side by side is one place, and only what is needed of it is taken. */
static void test_places_are_joined_and_parted(void **state)
{
	struct lien_heap_order one = {0}, two = {0};
	struct lien_heap heap = {0};
	struct lien_heap_block block[8], large;
	unsigned i;

	(void)state;
	for (i = 0; i < 8; i++)
		block[i] = take(&heap, &pooled, 4 * MIB);
	for (i = 2; i < 5; i++)
		assert_int_equal(lien_heap_park(&heap, &block[i], &one), 0);
	assert_int_equal(lien_heap_take(&heap, &pooled, 6 * MIB, &two, &large), -ENOSPC);
	assert_int_equal(lien_heap_take(&heap, &pooled, 13 * MIB, &one, &large), -ENOSPC);
	assert_int_equal(lien_heap_take(&heap, &pooled, 6 * MIB, &one, &large), 0);
	assert_int_equal(large.address, block[2].address);
	assert_int_equal(one.pieces, 2);
	assert_int_equal(lien_heap_take(&heap, &pooled, 4 * MIB, &two, &large), -ENOSPC);
	assert_int_equal(lien_heap_take(&heap, &pooled, 6 * MIB, &one, &large), 0);
	assert_int_equal(large.address, block[3].address + 2 * MIB);
	assert_int_equal(one.pieces, 0);
	drop_all(&heap, 8);
}

static void test_a_pools_chunk_stays_until_it_is_trimmed(void **state)
{
	struct lien_heap_order order = {0};
	struct lien_heap heap = {0};
	struct lien_heap_block a = take(&heap, &pooled, MIB), b = take(&heap, &pooled, 40 * MIB),
			       small = take(&heap, &pooled, 1000);
	const struct lien_heap_key plain = {.context = 3};
	struct lien_heap_block own = take(&heap, &plain, 4 * MIB);

	(void)state;
	assert_int_equal(a.chunk.bytes, LIEN_HEAP_POOL);
	assert_int_equal(b.chunk.bytes, 2 * LIEN_HEAP_POOL);
	assert_int_equal(small.chunk.bytes, LIEN_HEAP_SHARED);
	assert_int_equal(give(&heap, &a), 0);
	assert_int_equal(trim(&heap, 9), 0);
	assert_int_equal(trim(&heap, 8), 1);
	assert_int_equal(lien_heap_park(&heap, &b, &order), 0);
	assert_int_equal(lien_heap_park(&heap, &own, &order), 0);
	assert_int_equal(trim(&heap, 8) + trim(&heap, 0), 0);
	order.reached = 1;
	assert_int_equal(trim(&heap, 0), 0);
	assert_int_equal(trim(&heap, 8), 1);
	order.reached = 2;
	assert_int_equal(trim(&heap, 8), 0);
	assert_int_equal(trim(&heap, 0), 1);
	assert_int_equal(order.pieces, 0);
	give(&heap, &small);
	assert_int_equal(trim(&heap, 8), 1);
	assert_int_equal(heap.count + heap.parked + heap.empty, 0);
	assert_int_equal(given, 0);
}

#define ORDERS 3
#define PARKED 4000

/* Whoever gets a place gets no other stream's that has not come to the free. */
static void test_random_frees_in_streams(void **state)
{
	static struct live live;
	static struct lien_heap_block parked[ORDERS][PARKED];
	struct lien_heap_order order[ORDERS] = {0}, *in;
	struct lien_heap heap = {0};
	struct lien_heap_block block;
	unsigned i, j, at;
	uint64_t turn, bytes;

	(void)state;
	live.count = 0;
	for (i = 0; i < 3000; i++) {
		in = &order[rand() % ORDERS];
		if (live.count < LIVE && rand() % (live.count + 50) < 60) {
			bytes = random_size();
			block = take_in(&heap, &pooled, bytes, in);
			check_new(&live, &block, &pooled, bytes);
			for (j = 0; j < ORDERS; j++)
				for (turn = order[j].reached;
					&order[j] != in && turn < order[j].freed; turn++)
					assert_true(parked[j][turn].id == 0 ||
						    apart(&block, &parked[j][turn]));
			for (turn = in->reached; turn < in->freed; turn++)
				if (!apart(&block, &parked[in - order][turn]))
					parked[in - order][turn].id = 0; /* some of it is taken */
			live.block[live.count++] = block;
		} else if (live.count) {
			at = rand() % live.count;
			assert_int_equal(lien_heap_park(&heap, &live.block[at], in), 0);
			parked[in - order][in->freed - 1] = live.block[at];
			live.block[at] = live.block[--live.count];
		}
		if (rand() % 4 == 0 && in->reached < in->freed)
			in->reached += 1 + rand() % (in->freed - in->reached);
		if (rand() % 100 == 0)
			trim(&heap, 8);
		if (i % 500 == 0)
			check_found(&heap, &live);
	}
	while (live.count)
		give(&heap, &live.block[--live.count]);
	for (j = 0; j < ORDERS; j++)
		order[j].reached = order[j].freed;
	trim(&heap, 8);
	for (j = 0; j < ORDERS; j++)
		assert_int_equal(order[j].pieces, 0);
	assert_int_equal(heap.count + heap.parked + heap.empty, 0);
	assert_int_equal(given, 0);
}

static void test_who_asked_and_each_tag_have_chunks_of_their_own(void **state)
{
	const struct lien_heap_key keys[] = {{1, 0, 2, 0, 0}, {1, 0, 3, 0, 0}, {1, 1, 2, 0, 0},
		{1, 0, 2, 1, 0}, {2, 0, 2, 0, 0}};
	struct lien_heap heap = {0};
	struct lien_heap_block block[5];
	unsigned i, j;

	(void)state;
	for (i = 0; i < 5; i++) {
		block[i] = take(&heap, &keys[i], 512);
		for (j = 0; j < i; j++)
			assert_int_not_equal(block[i].chunk.base, block[j].chunk.base);
	}
	for (i = 0; i < 5; i++)
		give(&heap, &block[i]);
}

static void test_a_context_is_dropped_with_all_its_chunks(void **state)
{
	const struct lien_heap_key one = {1, 0, 2, 0, 0}, two = {2, 0, 2, 0, 0};
	struct lien_heap heap = {0};
	struct lien_heap_block kept, found;
	struct lien_heap_range range;
	struct lien_heap_key key;
	unsigned n = 0;

	(void)state;
	take(&heap, &one, 100);
	kept = take(&heap, &two, 4 * MIB);
	take(&heap, &one, 30 * MIB);
	while (lien_heap_drop(&heap, 1, &range))
		n++;
	assert_int_equal(n, 2);
	assert_true(lien_heap_find(&heap, kept.address, &found));
	assert_true(lien_heap_next(&heap, 0, &range, &key));
	assert_int_equal(range.base, kept.address);
	assert_false(lien_heap_next(&heap, range.base + range.bytes, &range, &key));
	give(&heap, &kept);
}

/* A new context may have its number, and none of its memory. */
static void test_a_context_that_has_ended(void **state)
{
	const struct lien_heap_key key = {1, 0, 2, 0, 0};
	struct lien_heap_order order = {0};
	struct lien_heap heap = {0};
	struct lien_heap_block old = take(&heap, &key, 100), parked = take(&heap, &key, 4 * MIB),
			       new, found;
	uint64_t ended;

	(void)state;
	assert_int_equal(lien_heap_park(&heap, &parked, &order), 0);
	ended = lien_heap_end(&heap, 1);
	assert_int_not_equal(ended, lien_heap_end(&heap, 7));
	assert_false(lien_heap_find(&heap, old.address, &found));
	assert_int_equal(lien_heap_give(&heap, &old, &found.chunk), -ENOENT);
	assert_int_equal(lien_heap_park(&heap, &old, &order), -ENOENT);
	new = take(&heap, &key, 100);
	assert_int_not_equal(new.chunk.base, old.chunk.base);
	drop_all(&heap, ended);
	assert_int_equal(order.pieces, 0);
	assert_true(lien_heap_find(&heap, new.address, &found));
	give(&heap, &new);
	assert_int_equal(heap.count + heap.parked, 0);
}

static void test_sizes_that_no_memory_has(void **state)
{
	const struct lien_heap_key key = {.context = 1};
	struct lien_heap heap = {0};
	struct lien_heap_block block = take(&heap, &pooled, MIB), other;

	assert_int_equal(lien_heap_take(&heap, &pooled, UINT64_MAX, NULL, &other), -ENOSPC);
	give(&heap, &block);
	trim(&heap, 8);
	(void)state;
	assert_int_equal(lien_heap_chunk_bytes(&key, 0, GRANULARITY, 0), 0);
	assert_int_equal(lien_heap_chunk_bytes(&key, UINT64_MAX, GRANULARITY, 0), 0);
	assert_int_equal(lien_heap_chunk_bytes(&key, 1, GRANULARITY, 0), 2 * MIB);
	assert_int_equal(lien_heap_chunk_bytes(&key, 2 * MIB + 1, GRANULARITY, 0), 4 * MIB);
	assert_int_equal(lien_heap_chunk_bytes(&pooled, 33 * MIB, GRANULARITY, 0), 64 * MIB);
	assert_int_equal(lien_heap_chunk_bytes(&pooled, 33 * MIB, GRANULARITY, 1), 34 * MIB);
}

/* --- how much is wasted ----------------------------------------------------------------------- */

struct sizes {
	unsigned count;
	uint64_t bytes;
};

static void check_waste(const struct sizes *sizes, unsigned n)
{
	const struct lien_heap_key key = {1, 0, 2, 0, 0};
	struct lien_heap heap = {0};
	struct lien_heap_range range;
	unsigned i, j;

	for (i = 0; i < n; i++)
		for (j = 0; j < sizes[i].count; j++)
			take(&heap, &key, sizes[i].bytes);
	print_message("%lu of %lu bytes wasted\n", given - used, given);
	assert_true((given - used) * 20 <= given);
	while (lien_heap_drop(&heap, 1, &range))
		;
	given = used = 0;
}

#define WASTE(...)                                                                                 \
	check_waste((const struct sizes[]){__VA_ARGS__},                                           \
		sizeof((const struct sizes[]){__VA_ARGS__}) / sizeof(struct sizes))

static void test_little_of_a_job_is_wasted(void **state)
{
	(void)state;
	/* PyTorch: segments of 2 and 20 MiB, and whole multiples of 2 MiB. */
	WASTE({60, 2 * MIB}, {120, 20 * MIB}, {10, 506 * MIB}, {4, 1030 * MIB});
	/* NCCL without cuMem, two ranks, per communicator: flags and connections of some KiB, and
	 * the buffers of its channels. */
	WASTE({98, 4 * KIB}, {24, 1 * MIB + 4 * KIB}, {24, 10 * MIB - 512}, {32, 10 * MIB - 512},
		{2, 70 * KIB});
	/* cuBLAS: small ones, and workspaces of 32 MiB. */
	WASTE({4, 512}, {2, 1 * MIB}, {2, 32 * MIB});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_random_blocks_are_apart_and_found, start),
		cmocka_unit_test_setup(test_a_chunk_is_empty_with_its_last_block, start),
		cmocka_unit_test_setup(
			test_a_place_is_its_streams_until_that_has_come_to_the_free, start),
		cmocka_unit_test_setup(test_places_are_joined_and_parted, start),
		cmocka_unit_test_setup(test_a_pools_chunk_stays_until_it_is_trimmed, start),
		cmocka_unit_test_setup(test_random_frees_in_streams, start),
		cmocka_unit_test_setup(test_who_asked_and_each_tag_have_chunks_of_their_own, start),
		cmocka_unit_test_setup(test_a_context_is_dropped_with_all_its_chunks, start),
		cmocka_unit_test_setup(test_a_context_that_has_ended, start),
		cmocka_unit_test_setup(test_sizes_that_no_memory_has, start),
		cmocka_unit_test_setup(test_little_of_a_job_is_wasted, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
