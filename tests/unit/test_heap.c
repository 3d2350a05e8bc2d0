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

static struct lien_heap_block take(
	struct lien_heap *heap, const struct lien_heap_key *key, uint64_t bytes)
{
	struct lien_heap_block block;
	struct lien_heap_range chunk;
	int err = lien_heap_take(heap, key, bytes, &block);

	if (err) {
		assert_int_equal(err, -ENOSPC);
		chunk.bytes = lien_heap_chunk_bytes(bytes, GRANULARITY);
		assert_true(chunk.bytes >= bytes && chunk.bytes % GRANULARITY == 0);
		chunk.base = address_for(chunk.bytes);
		assert_int_equal(lien_heap_add(heap, key, chunk, bytes, &block), 0);
		given += chunk.bytes;
	}
	used += bytes;
	return block;
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

static void check_found(const struct lien_heap *heap, const struct live *live)
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
	struct lien_heap_key key = {0}; /* with its padding: it is compared byte by byte */
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
	const struct lien_heap_key key = {1, 0, 2, 0};
	struct lien_heap heap = {0};
	struct lien_heap_block a = take(&heap, &key, 1000), b = take(&heap, &key, 2000), found;

	(void)state;
	assert_int_equal(a.chunk.base, b.chunk.base);
	assert_int_equal(give(&heap, &a), 0);
	assert_false(lien_heap_find(&heap, a.address, &found));
	assert_int_equal(give(&heap, &b), LIEN_HEAP_SHARED);
	/* The driver would not let go of it. */
	assert_int_equal(lien_heap_put_back(&heap, &b), 0);
	assert_true(lien_heap_find(&heap, b.address + 1999, &found));
	assert_memory_equal(&found, &b, sizeof(b));
	given += LIEN_HEAP_SHARED;
	used += b.bytes;
	assert_int_equal(give(&heap, &b), LIEN_HEAP_SHARED);
}

static void test_a_parked_block_keeps_its_place(void **state)
{
	const struct lien_heap_key key = {1, 0, 2, 0};
	struct lien_heap heap = {0};
	struct lien_heap_block a = take(&heap, &key, 4000), b, c, found;

	(void)state;
	assert_int_equal(lien_heap_reuse(&heap, &a, 4000, &found), -ENOENT);
	assert_int_equal(lien_heap_park(&heap, &a), 0);
	assert_int_equal(lien_heap_park(&heap, &a), -ENOENT);
	assert_false(lien_heap_find(&heap, a.address, &found));
	b = take(&heap, &key, 4000);
	assert_true(apart(&a, &b));
	assert_int_equal(lien_heap_reuse(&heap, &a, 4001, &found), -ENOENT);
	assert_int_equal(lien_heap_reuse(&heap, &a, 1000, &c), 0);
	assert_int_equal(c.address, a.address);
	assert_int_not_equal(c.id, a.id);
	assert_true(lien_heap_find(&heap, c.address + 999, &found));
	assert_memory_equal(&found, &c, sizeof(c));
	assert_false(lien_heap_find(&heap, c.address + 1000, &found));
	used -= 3000;
	assert_int_equal(give(&heap, &c), 0);
	assert_int_equal(give(&heap, &b), LIEN_HEAP_SHARED);
}

static void test_who_asked_and_each_tag_have_chunks_of_their_own(void **state)
{
	const struct lien_heap_key keys[] = {
		{1, 0, 2, 0}, {1, 0, 3, 0}, {1, 1, 2, 0}, {1, 0, 2, 1}, {2, 0, 2, 0}};
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
	const struct lien_heap_key one = {1, 0, 2, 0}, two = {2, 0, 2, 0};
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

static void test_sizes_that_no_memory_has(void **state)
{
	(void)state;
	assert_int_equal(lien_heap_chunk_bytes(0, GRANULARITY), 0);
	assert_int_equal(lien_heap_chunk_bytes(UINT64_MAX, GRANULARITY), 0);
	assert_int_equal(lien_heap_chunk_bytes(1, GRANULARITY), 2 * MIB);
	assert_int_equal(lien_heap_chunk_bytes(2 * MIB + 1, GRANULARITY), 4 * MIB);
}

/* --- how much is wasted ----------------------------------------------------------------------- */

struct sizes {
	unsigned count;
	uint64_t bytes;
};

static void check_waste(const struct sizes *sizes, unsigned n)
{
	const struct lien_heap_key key = {1, 0, 2, 0};
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
		cmocka_unit_test_setup(test_a_parked_block_keeps_its_place, start),
		cmocka_unit_test_setup(test_who_asked_and_each_tag_have_chunks_of_their_own, start),
		cmocka_unit_test_setup(test_a_context_is_dropped_with_all_its_chunks, start),
		cmocka_unit_test_setup(test_sizes_that_no_memory_has, start),
		cmocka_unit_test_setup(test_little_of_a_job_is_wasted, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
