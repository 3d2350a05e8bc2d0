// SPDX-License-Identifier: BSD-2-Clause
/*
 * Memory without handles, memory by names of 64 bytes, pools, contexts, multicast objects, dma-buf
 * descriptors: what each call does, in which order records may come, and that a dump tells all of
 * it.
 */
#include "canonical.h"

static void alloc_by(unsigned call, uint32_t pid, uint64_t va, uint64_t context)
{
	TELL(call, pid, .alloc = {.va = va, .bytes = PIECE, .context = context, .device = 0});
}

static void free_by(unsigned call, uint32_t pid, uint64_t va)
{
	RELEASE(call, pid, .range = {.va = va});
}

static void key_call(unsigned call, uint32_t pid, uint64_t va, uint8_t key)
{
	struct lien_event ev = EVENT(call, pid, .key = {.va = va});

	memset(ev.key.key, key, LIEN_KEY_BYTES);
	apply(&ev);
}

static void ipc_get(uint32_t pid, uint64_t va, uint8_t key)
{
	key_call(LIEN_CALL_CU_IPC_GET, pid, va, key);
}

static void ipc_open(uint32_t pid, uint64_t va, uint8_t key)
{
	key_call(LIEN_CALL_CU_IPC_OPEN, pid, va, key);
}

static void ipc_close(uint32_t pid, uint64_t va)
{
	free_by(LIEN_CALL_CU_IPC_CLOSE, pid, va);
}

static void multicast(unsigned call, uint32_t pid, uint64_t handle, int32_t device)
{
	TELL(call, pid, .multicast = {.handle = handle, .bytes = 4 * PIECE, .device = device});
}

static void bind(uint32_t pid, uint64_t object, uint64_t offset, uint64_t memory)
{
	TELL(LIEN_CALL_CU_MULTICAST_BIND, pid,
		.multicast = {
			.handle = object, .offset = offset, .bytes = PIECE, .memory = memory});
}

static void unbind(uint32_t pid, uint64_t object, int32_t device, uint64_t offset, uint64_t bytes)
{
	TELL(LIEN_CALL_CU_MULTICAST_UNBIND, pid,
		.multicast = {
			.handle = object, .offset = offset, .bytes = bytes, .device = device});
}

static unsigned bindings_of(const struct lien_allocation *allocation)
{
	struct lien_binding_tree *bound = (struct lien_binding_tree *)&allocation->bound;
	struct lien_binding *binding;
	unsigned n = 0;

	if (allocation->origin == LIEN_ORIGIN_MULTICAST)
		RB_FOREACH (binding, lien_binding_tree, bound)
			n++;
	else
		LIST_FOREACH (binding, &allocation->bindings, of_memory)
			n++;
	return n;
}

static bool odd(void)
{
	bool was = lien_graph_stats(graph)->odd;
	struct lien_process *process;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		process->incomplete &= ~LIEN_INCOMPLETE_ODD;
	((struct lien_graph_stats *)lien_graph_stats(graph))->odd = 0;
	return was;
}

/* --- allocated and freed ---------------------------------------------------------------------- */

static const struct {
	unsigned call, free;
	enum lien_origin origin;
	bool on_device;
} ways[] = {
	{LIEN_CALL_CU_MEM_ALLOC, LIEN_CALL_CU_MEM_FREE, LIEN_ORIGIN_ALLOC, true},
	{LIEN_CALL_CU_MEM_ALLOC, LIEN_CALL_CU_MEM_FREE_ASYNC, LIEN_ORIGIN_ALLOC, true},
	{LIEN_CALL_CU_MEM_ALLOC_PITCH, LIEN_CALL_CU_MEM_FREE, LIEN_ORIGIN_PITCH, true},
	{LIEN_CALL_CU_MEM_ALLOC_MANAGED, LIEN_CALL_CU_MEM_FREE, LIEN_ORIGIN_MANAGED, true},
	{LIEN_CALL_CU_MEM_ALLOC_ASYNC, LIEN_CALL_CU_MEM_FREE_ASYNC, LIEN_ORIGIN_POOL, true},
	{LIEN_CALL_CU_MEM_ALLOC_ASYNC_PTSZ, LIEN_CALL_CU_MEM_FREE_ASYNC_PTSZ, LIEN_ORIGIN_POOL,
		true},
	{LIEN_CALL_CU_MEM_ALLOC_FROM_POOL, LIEN_CALL_CU_MEM_FREE, LIEN_ORIGIN_POOL, true},
	{LIEN_CALL_CU_MEM_ALLOC_FROM_POOL_PTSZ, LIEN_CALL_CU_MEM_FREE_ASYNC, LIEN_ORIGIN_POOL,
		true},
	{LIEN_CALL_CU_HOST_ALLOC, LIEN_CALL_CU_FREE_HOST, LIEN_ORIGIN_HOST, false},
	{LIEN_CALL_CU_ALLOC_HOST, LIEN_CALL_CU_FREE_HOST, LIEN_ORIGIN_HOST, false},
	{LIEN_CALL_CU_HOST_REGISTER, LIEN_CALL_CU_HOST_UNREGISTER, LIEN_ORIGIN_REGISTERED, false},
};

static void test_alloc_and_free(void **state)
{
	const struct lien_allocation *allocation;

	(void)state;
	started(1);
	for (unsigned i = 0; i < COUNT(ways); i++) {
		alloc_by(ways[i].call, 1, VA, 0);
		allocation = allocation_at(1, VA + PIECE - 1);
		assert_non_null(allocation);
		assert_int_equal(allocation->origin, ways[i].origin);
		assert_int_equal(allocation->bytes, PIECE);
		assert_int_equal(lien_allocation_on_device(allocation), ways[i].on_device);
		assert_true(lien_allocation_by_address(allocation));
		assert_round_trip();
		free_by(ways[i].free, 1, VA);
		assert_counts(1, 0, 0);
		assert_nothing_odd();
	}
}

static void test_wrong_frees(void **state)
{
	static const unsigned frees[] = {LIEN_CALL_CU_MEM_FREE, LIEN_CALL_CU_FREE_HOST,
		LIEN_CALL_CU_HOST_UNREGISTER, LIEN_CALL_CU_IPC_CLOSE};

	(void)state;
	started(1);
	for (unsigned i = 0; i < COUNT(ways); i++)
		for (unsigned f = 0; f < COUNT(frees); f++) {
			bool device_free = ways[i].free != LIEN_CALL_CU_FREE_HOST &&
					   ways[i].free != LIEN_CALL_CU_HOST_UNREGISTER;

			if (frees[f] == ways[i].free || (device_free && !f))
				continue;
			alloc_by(ways[i].call, 1, VA, 0);
			free_by(frees[f], 1, VA);
			assert_true(odd());
			assert_counts(1, 1, 1);
			free_by(ways[i].free, 1, VA + 8); /* not where it starts */
			assert_true(odd());
			assert_counts(1, 1, 1);
			free_by(ways[i].free, 1, VA);
			assert_false(odd());
		}
	free_by(LIEN_CALL_CU_MEM_FREE, 1, 0); /* legal */
	assert_false(odd());
	free_by(LIEN_CALL_CU_MEM_FREE, 1, VA); /* twice */
	assert_true(odd());
	buffer(1, 10, VA, PIECE);
	free_by(LIEN_CALL_CU_MEM_FREE, 1, VA); /* it has a handle */
	assert_true(odd());
	assert_counts(1, 1, 1);
	export(1, 10, 5);
	started(2);
	imported_buffer(2, 20, 5, VA, PIECE);
	free_by(LIEN_CALL_CU_MEM_FREE, 2, VA);
	assert_true(odd());
	assert_counts(2, 1, 2);
}

/* Each way to free, entered by one thread; the address is given out again before it has returned.
 */
static void test_free_returns_late(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	for (unsigned i = 0; i < COUNT(ways); i++)
		for (unsigned again = 0; again < COUNT(ways); again++) {
			started(1);
			alloc_by(ways[i].call, 1, VA, 0);
			ev = EVENT(ways[i].free, 1, .range = {.va = VA});
			entry = entry_of(ev);
			apply(&entry);
			assert_counts(1, 1, 1);
			assert_round_trip();
			alloc_by(ways[again].call, 1, VA, 0);
			assert_int_equal(allocation_at(1, VA)->origin, ways[again].origin);
			apply(&ev);
			assert_counts(1, 1, 1);
			assert_nothing_odd();
			ended(1);
		}
}

static void test_free_fails(void **state)
{
	(void)state;
	started(1);
	for (unsigned i = 0; i < COUNT(ways); i++) {
		alloc_by(ways[i].call, 1, VA, 0);
		tell.result = CUDA_ERROR_INVALID_VALUE;
		free_by(ways[i].free, 1, VA);
		alloc_by(ways[i].call, 1, VA + 9 * PIECE, 0);
		tell.result = 0;
		assert_counts(1, 1, 1);
		free_by(ways[i].free, 1, VA);
	}
	assert_nothing_odd();
}

static void test_alloc_of_nothing(void **state)
{
	(void)state;
	started(1);
	TELL(LIEN_CALL_CU_HOST_ALLOC, 1, .alloc = {.va = 0, .bytes = 0});
	TELL(LIEN_CALL_CU_HOST_ALLOC, 1, .alloc = {.va = VA, .bytes = 0});
	assert_counts(1, 0, 0);
	assert_nothing_odd();
}

/* Forged: ranges that are empty or go round, again and again at one address. */
static void test_ranges_that_wrap(void **state)
{
	static const uint64_t bytes[] = {0, ~0ull, 1ull << 63, PIECE};
	const uint64_t at = ~0ull - PIECE / 2;

	(void)state;
	started(1);
	create(1, 10, PIECE);
	ipc_get(1, VA, 1);
	for (unsigned i = 0; i < COUNT(bytes); i++)
		for (unsigned n = 0; n < 3; n++) {
			map(1, at, bytes[i], 10);
			TELL(LIEN_CALL_CU_MEM_ALLOC, 1, .alloc = {.va = at, .bytes = bytes[i]});
			set_access(1, at, bytes[i], 0, 3);
			TELL(LIEN_CALL_CU_RANGE_HANDLE, 1, .range_handle = {at, bytes[i], 1, 3});
			unmap(1, at, bytes[i]);
		}
	assert_int_equal(lien_graph_stats(graph)->mappings, 0);
	assert_true(odd());
}

/* --- contexts --------------------------------------------------------------------------------- */

static void context_by(unsigned call, uint32_t pid, uint64_t context)
{
	TELL(call, pid, .context = {.context = context, .device = 0});
}

static struct lien_event destroy(uint32_t pid, uint64_t context)
{
	return EVENT(LIEN_CALL_CU_CONTEXT_DESTROY, pid, .context = {.context = context});
}

static void test_context_takes_its_memory(void **state)
{
	(void)state;
	started(1);
	context_by(LIEN_CALL_CU_CONTEXT_PRIMARY, 1, 0x10);
	context_by(LIEN_CALL_CU_CONTEXT_CREATE, 1, 0x20);
	context_by(LIEN_CALL_CU_CONTEXT_CREATE_V4, 1, 0x30);
	for (unsigned i = 0; i < 4; i++) /* i == 0: not known in which */
		for (unsigned w = 0; w < COUNT(ways); w++)
			alloc_by(ways[w].call, 1, VA + (i * COUNT(ways) + w) * PIECE, i * 0x10);
	buffer(1, 10, VA + 100 * PIECE, PIECE);
	assert_counts(1, 4 * COUNT(ways) + 1, 4 * COUNT(ways) + 1);
	assert_round_trip();
	tell_release(destroy(1, 0x20));
	for (unsigned w = 0; w < COUNT(ways); w++) {
		bool pool = ways[w].origin == LIEN_ORIGIN_POOL;

		assert_non_null(mapping_at(1, VA + (COUNT(ways) + w) * PIECE));
		assert_int_equal(!mapping_at(1, VA + (2 * COUNT(ways) + w) * PIECE), !pool);
		assert_non_null(mapping_at(1, VA + (3 * COUNT(ways) + w) * PIECE));
	}
	assert_nothing_odd();
	assert_round_trip();
	tell_release(destroy(1, 0x20));
	assert_true(odd());
	context_by(LIEN_CALL_CU_CONTEXT_PRIMARY, 1, 0x10); /* the same once more */
	assert_non_null(mapping_at(1, VA + COUNT(ways) * PIECE));
	assert_int_not_equal(allocation_at(1, VA + COUNT(ways) * PIECE)->context, 0);
	assert_false(odd());
}

/* What others have opened outlives the context. */
static void test_context_of_opened_memory(void **state)
{
	(void)state;
	started(1);
	started(2);
	context_by(LIEN_CALL_CU_CONTEXT_CREATE, 1, 0x20);
	context_by(LIEN_CALL_CU_CONTEXT_CREATE, 2, 0x20);
	alloc_by(LIEN_CALL_CU_MEM_ALLOC, 1, VA, 0x20);
	ipc_get(1, VA, 1);
	ipc_open(2, VA + PIECE, 1);
	tell_release(destroy(2, 0x20));
	assert_counts(2, 1, 2);
	tell_release(destroy(1, 0x20));
	assert_counts(2, 1, 1);
	assert_round_trip();
	ipc_close(2, VA + PIECE);
	assert_counts(2, 0, 0);
	assert_nothing_odd();
}

/* Freed, and then the context destroyed; the free returns last. */
static void test_free_returns_after_context(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	started(1);
	context_by(LIEN_CALL_CU_CONTEXT_CREATE, 1, 0x20);
	alloc_by(LIEN_CALL_CU_HOST_ALLOC, 1, VA, 0x20);
	ev = EVENT(LIEN_CALL_CU_FREE_HOST, 1, .range = {.va = VA});
	entry = entry_of(ev);
	apply(&entry);
	tell_release(destroy(1, 0x20));
	assert_counts(1, 0, 0);
	apply(&ev);
	assert_nothing_odd();
}

static void test_context_address_again(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	started(1);
	context_by(LIEN_CALL_CU_CONTEXT_CREATE, 1, 0x20);
	alloc_by(LIEN_CALL_CU_MEM_ALLOC, 1, VA, 0x20);
	ev = destroy(1, 0x20);
	entry = entry_of(ev);
	apply(&entry);
	context_by(LIEN_CALL_CU_CONTEXT_CREATE, 1, 0x20);
	assert_counts(1, 0, 0);
	alloc_by(LIEN_CALL_CU_MEM_ALLOC, 1, VA + PIECE, 0x20);
	apply(&ev); /* late: it is the old one's */
	assert_counts(1, 1, 1);
	assert_non_null(RB_ROOT(&process(1)->contexts));
	/* An address of the context's memory comes back before the destruction has returned. */
	ev = destroy(1, 0x20);
	entry = entry_of(ev);
	apply(&entry);
	alloc_by(LIEN_CALL_CU_MEM_ALLOC, 1, VA + PIECE, 0);
	apply(&ev);
	assert_counts(1, 1, 1);
	assert_null(RB_ROOT(&process(1)->contexts));
	assert_nothing_odd();
	/* The destruction was missed. */
	context_by(LIEN_CALL_CU_CONTEXT_CREATE, 1, 0x20);
	alloc_by(LIEN_CALL_CU_MEM_ALLOC, 1, VA, 0x20);
	context_by(LIEN_CALL_CU_CONTEXT_CREATE, 1, 0x20);
	assert_counts(1, 1, 1);
}

/* --- legacy IPC ------------------------------------------------------------------------------- */

static void test_ipc(void **state)
{
	struct lien_allocation *allocation;

	(void)state;
	for (unsigned pid = 1; pid <= 3; pid++)
		started(pid);
	alloc(1, VA, PIECE);
	ipc_get(1, VA, 1);
	ipc_get(1, VA, 1);
	allocation = allocation_at(1, VA);
	assert_int_equal(allocation->exports, 1); /* it has one name, however often asked */
	ipc_open(2, VA + PIECE, 1);
	ipc_open(2, VA + PIECE, 1);
	ipc_open(3, VA, 1);
	assert_ptr_equal(allocation_at(2, VA + PIECE), allocation);
	assert_int_equal(mapping_at(2, VA + PIECE)->opens, 2);
	assert_true(mapping_at(2, VA + PIECE)->imported);
	assert_counts(3, 1, 3);
	assert_round_trip();
	ipc_close(2, VA + PIECE);
	assert_counts(3, 1, 3);
	ipc_close(2, VA + PIECE);
	assert_counts(3, 1, 2);
	assert_nothing_odd();
	ipc_close(2, VA + PIECE);
	assert_true(odd());
	ipc_close(1, VA); /* not opened, its own */
	assert_true(odd());
	free_alloc(1, VA); /* the owner first */
	assert_counts(3, 1, 1);
	assert_ptr_equal(allocation_at(3, VA), allocation);
	assert_ptr_equal(allocation->owner, process(1));
	assert_round_trip();
	ended(1);
	assert_null(allocation->owner);
	assert_int_equal(allocation->owner_pid, 1);
	assert_round_trip();
	ipc_close(3, VA);
	assert_counts(2, 0, 0);
	assert_false(odd());
}

/* A name that was asked for keeps nothing: what is freed is gone, and its name means nothing. */
static void test_ipc_name_keeps_nothing(void **state)
{
	(void)state;
	started(1);
	started(2);
	for (unsigned i = 0; i < 3; i++) {
		alloc(1, VA, PIECE);
		ipc_get(1, VA, i);
		free_alloc(1, VA);
		assert_counts(2, 0, 0);
	}
	assert_nothing_odd();
	ipc_open(2, VA, 1); /* it was opened before, and is told late */
	assert_counts(2, 1, 1);
	assert_nothing_odd();
}

/* The driver gives the same bytes to other memory, while the old one is still open somewhere. */
static void test_ipc_key_again(void **state)
{
	struct lien_allocation *old, *new;

	(void)state;
	for (unsigned pid = 1; pid <= 3; pid++)
		started(pid);
	alloc(1, VA, PIECE);
	ipc_get(1, VA, 1);
	ipc_open(2, VA, 1);
	old = allocation_at(1, VA);
	free_alloc(1, VA);
	alloc(1, VA, 2 * PIECE);
	ipc_get(1, VA, 1);
	ipc_open(3, VA, 1);
	new = allocation_at(1, VA);
	assert_ptr_not_equal(old, new);
	assert_ptr_equal(allocation_at(2, VA), old);
	assert_ptr_equal(allocation_at(3, VA), new);
	assert_int_equal(mapping_at(3, VA)->bytes, 2 * PIECE);
	assert_int_equal(old->exports, 1);
	assert_int_equal(new->exports, 1);
	assert_round_trip();
	ipc_open(2, VA + 9 * PIECE, 1); /* the new one, beside the old one */
	assert_ptr_equal(allocation_at(2, VA + 9 * PIECE), new);
	assert_round_trip();
	ipc_close(2, VA);
	assert_counts(3, 1, 3);
	assert_nothing_odd();
}

/* To memory that is older than the one that had it. */
static void test_ipc_key_to_older(void **state)
{
	(void)state;
	started(1);
	started(2);
	alloc(1, VA, PIECE);
	alloc(1, VA + PIECE, PIECE);
	ipc_get(1, VA + PIECE, 1);
	ipc_open(2, VA, 1);
	free_alloc(1, VA + PIECE);
	ipc_get(1, VA, 1);
	assert_round_trip();
	ipc_open(2, VA + PIECE, 1);
	assert_ptr_equal(allocation_at(2, VA + PIECE), allocation_at(1, VA));
	assert_ptr_not_equal(allocation_at(2, VA), allocation_at(1, VA));
	assert_nothing_odd();
}

static void test_ipc_of_the_unknown(void **state)
{
	(void)state;
	started(2);
	ipc_open(2, VA, 77);
	ipc_open(2, VA, 77);
	assert_counts(1, 1, 1);
	assert_int_equal(mapping_at(2, VA)->opens, 2);
	assert_int_equal(lien_graph_stats(graph)->unmatched_imports, 1);
	assert_true(process(2)->incomplete & LIEN_INCOMPLETE_SHARE);
	assert_round_trip();
	ipc_close(2, VA);
	ipc_close(2, VA);
	assert_counts(1, 0, 0);
	assert_false(odd());
	started(1);
	buffer(1, 10, VA, PIECE);
	ipc_get(1, VA, 3); /* the driver has no such name for memory with handles */
	assert_true(odd());
	ipc_get(1, VA + 90 * PIECE, 3);
	assert_true(odd());
}

/* Closed by one thread; the other opens the same name, or another one at that address. */
static void test_ipc_close_returns_late(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	for (unsigned other = 0; other < 2; other++) {
		started(1);
		started(2);
		alloc(1, VA, PIECE);
		alloc(1, VA + PIECE, PIECE);
		ipc_get(1, VA, 1);
		ipc_get(1, VA + PIECE, 2);
		ipc_open(2, VA, 1);
		ev = EVENT(LIEN_CALL_CU_IPC_CLOSE, 2, .range = {.va = VA});
		entry = entry_of(ev);
		apply(&entry);
		ipc_open(2, VA, 1 + other);
		assert_ptr_equal(allocation_at(2, VA), allocation_at(1, VA + other * PIECE));
		assert_round_trip();
		apply(&ev);
		assert_int_equal(mapping_at(2, VA)->opens, 1);
		assert_nothing_odd();
		ended(1);
		assert_counts(1, 1, 1);
		ended(2);
		assert_counts(0, 0, 0);
	}
}

/* The memory is held by the very address that is being closed and opened again. */
static void test_last_opening_again(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	started(1);
	started(2);
	alloc_by(LIEN_CALL_CU_MEM_ALLOC_ASYNC, 1, VA, 0);
	key_call(LIEN_CALL_CU_POOL_EXPORT_POINTER, 1, VA, 1);
	key_call(LIEN_CALL_CU_POOL_IMPORT_POINTER, 2, VA, 1);
	ended(1);
	assert_counts(1, 1, 1);
	ev = EVENT(LIEN_CALL_CU_MEM_FREE_ASYNC, 2, .range = {.va = VA});
	entry = entry_of(ev);
	apply(&entry);
	key_call(LIEN_CALL_CU_POOL_IMPORT_POINTER, 2, VA, 1);
	assert_counts(1, 1, 1);
	apply(&ev);
	assert_counts(1, 1, 1);
	assert_int_equal(allocation_at(2, VA)->owner_pid, 1);
	assert_nothing_odd();
}

/* --- pools ------------------------------------------------------------------------------------ */

static const struct lien_pool *pool_at(uint32_t pid, uint64_t value)
{
	struct lien_pool key = {.value = value};

	return RB_FIND(lien_pool_tree, &process(pid)->pools, &key);
}

static void pool_create(uint32_t pid, uint64_t pool, int32_t device)
{
	TELL(LIEN_CALL_CU_POOL_CREATE, pid, .pool = {.pool = pool, .device = device});
}

static void test_pools(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	started(1);
	started(2);
	pool_create(1, 0x50, 3);
	TELL(LIEN_CALL_CU_POOL_EXPORT, 1,
		.pool = {.pool = 0x50, .share = 8, .handle_type = 1, .fd = 4});
	TELL(LIEN_CALL_CU_POOL_IMPORT, 2,
		.pool = {.pool = 0x60, .share = 8, .handle_type = 1, .fd = 5});
	assert_int_equal(pool_at(1, 0x50)->device, 3);
	assert_int_equal(pool_at(1, 0x50)->share, 8);
	assert_true(pool_at(2, 0x60)->imported);
	assert_int_equal(pool_at(2, 0x60)->share, 8);
	assert_int_equal(pool_at(2, 0x60)->device, -1);
	assert_round_trip();

	TELL(LIEN_CALL_CU_MEM_ALLOC_FROM_POOL, 1, .alloc = {VA, PIECE, .pool = 0x50, .device = 3});
	key_call(LIEN_CALL_CU_POOL_EXPORT_POINTER, 1, VA, 9);
	key_call(LIEN_CALL_CU_POOL_IMPORT_POINTER, 2, VA, 9);
	assert_ptr_equal(allocation_at(2, VA), allocation_at(1, VA));
	assert_counts(2, 1, 2);
	assert_round_trip();
	/* The pool goes; what was allocated from it stays. */
	ev = EVENT(LIEN_CALL_CU_POOL_DESTROY, 1, .pool = {.pool = 0x50});
	entry = entry_of(ev);
	apply(&entry);
	pool_create(1, 0x50, 1);
	apply(&ev);
	assert_int_equal(pool_at(1, 0x50)->device, 1);
	assert_counts(2, 1, 2);
	free_by(LIEN_CALL_CU_MEM_FREE_ASYNC, 2, VA);
	free_by(LIEN_CALL_CU_MEM_FREE, 1, VA);
	assert_counts(2, 0, 0);
	RELEASE(LIEN_CALL_CU_POOL_DESTROY, 1, .pool = {.pool = 0x50});
	assert_null(pool_at(1, 0x50));
	assert_nothing_odd();
	RELEASE(LIEN_CALL_CU_POOL_DESTROY, 1, .pool = {.pool = 0x50});
	assert_true(odd());
	TELL(LIEN_CALL_CU_POOL_EXPORT, 1, .pool = {.pool = 0x50, .share = 9});
	assert_true(odd());
}

/* --- fabric ----------------------------------------------------------------------------------- */

static void fabric(unsigned call, uint32_t pid, uint64_t handle, uint8_t key)
{
	struct lien_event ev = EVENT(call, pid,
		.share = {.handle = handle, .handle_type = CU_MEM_HANDLE_TYPE_FABRIC, .fd = -1});

	memset(ev.share.key, key, LIEN_KEY_BYTES);
	apply(&ev);
}

static void test_fabric(void **state)
{
	(void)state;
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	fabric(LIEN_CALL_CU_MEM_EXPORT, 1, 10, 4);
	fabric(LIEN_CALL_CU_MEM_EXPORT, 1, 10, 4);
	assert_int_equal(allocation_at(1, VA)->exports, 1);
	assert_round_trip();
	fabric(LIEN_CALL_CU_MEM_IMPORT, 2, 20, 4);
	map_rw(2, VA, PIECE, 20);
	release(2, 20);
	assert_ptr_equal(allocation_at(2, VA), allocation_at(1, VA));
	assert_round_trip();
	unmap(1, VA, PIECE);
	release(1, 10);
	assert_counts(2, 1, 1);
	assert_round_trip();
	unmap(2, VA, PIECE);
	assert_counts(2, 0, 0);
	assert_nothing_odd();
	fabric(LIEN_CALL_CU_MEM_IMPORT, 2, 21, 4); /* told late */
	assert_counts(2, 1, 0);
	assert_nothing_odd();
}

/* The last handle to the memory is being released while it is imported anew, under its value. */
static void test_last_handle_again(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	started(1);
	started(2);
	create(1, 10, PIECE);
	export(1, 10, 5);
	import(2, 20, 5);
	release(1, 10);
	for (unsigned i = 0; i < 2; i++) {
		ev = EVENT(LIEN_CALL_CU_MEM_RELEASE, 2, .release = {20});
		entry = entry_of(ev);
		apply(&entry);
		import(2, 20, 5); /* the descriptor is still open */
		assert_counts(2, 1, 0);
		assert_int_equal(references_of(2, 20), 1);
		apply(&ev);
		assert_int_equal(references_of(2, 20), 1);
		assert_nothing_odd();
		if (!i)
			ended(1);
		if (!i)
			started(1);
	}
	release(2, 20);
	assert_counts(2, 0, 0);
}

/* --- multicast -------------------------------------------------------------------------------- */

static struct lien_allocation *allocation_of(uint32_t pid, uint64_t handle)
{
	return handle_of(pid, handle) ? handle_of(pid, handle)->holding->allocation : NULL;
}

/* An object of two processes with one device each, a piece of memory of both bound. */
static void multicast_of_two(void)
{
	static unsigned share = 4; /* numbers are never used again */

	share++;
	started(1);
	started(2);
	multicast(LIEN_CALL_CU_MULTICAST_CREATE, 1, 50, 2);
	export(1, 50, share);
	import(2, 60, share);
	multicast(LIEN_CALL_CU_MULTICAST_DEVICE, 1, 50, 0);
	multicast(LIEN_CALL_CU_MULTICAST_DEVICE, 2, 60, 3);
	create_on(1, 10, PIECE, device_prop(0));
	create_on(2, 20, PIECE, device_prop(3));
	bind(1, 50, 0, 10);
	bind(2, 60, 0, 20);
	map_rw(1, VA, 4 * PIECE, 50);
	map_rw(2, VA, 4 * PIECE, 60);
}

static void test_multicast(void **state)
{
	struct lien_allocation *object;

	(void)state;
	multicast_of_two();
	object = allocation_of(1, 50);
	assert_int_equal(object->origin, LIEN_ORIGIN_MULTICAST);
	assert_int_equal(object->devices, 0x9);
	assert_int_equal(bindings_of(object), 2);
	assert_int_equal(bindings_of(allocation_of(1, 10)), 1);
	assert_ptr_equal(allocation_of(2, 60), object);
	assert_false(lien_allocation_on_device(object));
	assert_counts(2, 3, 2);
	assert_round_trip();
	/* The handles go; the bindings hold. */
	release(1, 10);
	release(2, 20);
	assert_counts(2, 3, 2);
	assert_round_trip();
	unbind(1, 50, 3, 0, PIECE); /* of the other's device, at the same place */
	assert_int_equal(bindings_of(object), 1);
	assert_counts(2, 2, 2);
	assert_round_trip();
	assert_nothing_odd();
	unbind(1, 50, 0, PIECE, PIECE); /* nothing there */
	assert_true(odd());
	bind(1, 50, 0, 99); /* no such memory */
	assert_true(odd());
	bind(1, 50, 0, 50); /* itself */
	assert_true(odd());
	bind(1, 49, 0, 50); /* no such object */
	assert_true(odd());
	create(1, 11, PIECE);
	bind(1, 11, 0, 10); /* no object */
	assert_true(odd());
	multicast(LIEN_CALL_CU_MULTICAST_DEVICE, 1, 50, 64);
	multicast(LIEN_CALL_CU_MULTICAST_DEVICE, 1, 50, -1);
	assert_int_equal(object->devices, 0x9);
}

static void test_object_goes_with_bindings(void **state)
{
	(void)state;
	multicast_of_two();
	release(1, 10);
	unmap(1, VA, 4 * PIECE);
	release(1, 50);
	assert_counts(2, 3, 1); /* the other process holds the object */
	assert_round_trip();
	release(2, 60);
	assert_counts(2, 3, 1);
	assert_round_trip();
	unmap(2, VA, 4 * PIECE);
	assert_counts(2, 1, 0); /* what the second one has a handle to */
	assert_int_equal(bindings_of(allocation_of(2, 20)), 0);
	assert_nothing_odd();
}

/* The owner of the object dies, or that of memory which the binding alone holds, or both. */
static void test_multicast_and_death(void **state)
{
	(void)state;
	for (unsigned who = 1; who <= 2; who++) {
		multicast_of_two();
		release(1, 10);
		release(2, 20);
		ended(who);
		assert_counts(1, 3, 1);
		assert_round_trip();
		ended(3 - who);
		assert_counts(0, 0, 0);
		assert_nothing_odd();
	}
}

/* Whoever binds needs no handle to the object afterwards, nor has the memory to be its own. */
static void test_bound_by_others(void **state)
{
	(void)state;
	started(1);
	started(2);
	started(3);
	multicast(LIEN_CALL_CU_MULTICAST_CREATE, 1, 50, 2);
	export(1, 50, 5);
	import(2, 60, 5);
	create(2, 20, PIECE);
	export(2, 20, 6);
	import(3, 30, 6);
	import(3, 70, 5);
	bind(3, 70, 0, 30);
	bind(2, 60, 2 * PIECE, 20);
	release(3, 70);
	release(2, 60);
	release(2, 20);
	assert_int_equal(bindings_of(allocation_of(1, 50)), 2);
	assert_counts(3, 2, 0);
	assert_round_trip();
	release(3, 30);
	assert_counts(3, 2, 0);
	assert_round_trip();
	ended(2);
	assert_counts(2, 2, 0);
	assert_round_trip();
	import(3, 31, 99); /* of nobody known */
	import(3, 70, 5);
	bind(3, 70, 0, 31);
	assert_round_trip();
	ended(1);
	assert_round_trip();
	release(3, 70);
	assert_counts(1, 1, 0);
}

static void test_bind_by_address(void **state)
{
	const struct lien_binding *binding;

	(void)state;
	started(1);
	multicast(LIEN_CALL_CU_MULTICAST_CREATE, 1, 50, 1);
	buffer(1, 10, VA, 4 * PIECE);
	alloc_by(LIEN_CALL_CU_MEM_ALLOC_ASYNC, 1, VA + 8 * PIECE, 0);
	TELL(LIEN_CALL_CU_MULTICAST_BIND_ADDRESS, 1,
		.multicast = {.handle = 50, .bytes = PIECE, .memory = VA + PIECE});
	TELL(LIEN_CALL_CU_MULTICAST_BIND_ADDRESS, 1,
		.multicast = {.handle = 50,
			.offset = PIECE,
			.bytes = PIECE / 2,
			.memory = VA + 8 * PIECE + 4096});
	binding = LIST_FIRST(&allocation_at(1, VA)->bindings);
	assert_int_equal(binding->memory_offset, PIECE);
	assert_round_trip();
	unmap(1, VA, 4 * PIECE);
	release(1, 10);
	free_by(LIEN_CALL_CU_MEM_FREE_ASYNC, 1, VA + 8 * PIECE);
	assert_counts(1, 3, 0); /* held by the object alone */
	assert_round_trip();
	TELL(LIEN_CALL_CU_MULTICAST_BIND_ADDRESS, 1,
		.multicast = {.handle = 50, .bytes = PIECE, .memory = VA + PIECE});
	assert_true(odd());
	unbind(1, 50, 0, 0, 4 * PIECE);
	assert_counts(1, 1, 0);
	release(1, 50);
	assert_counts(1, 0, 0);
	assert_false(odd());
}

static void test_object_handle_again(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	started(1);
	multicast(LIEN_CALL_CU_MULTICAST_CREATE, 1, 50, 1);
	create(1, 10, PIECE);
	bind(1, 50, 0, 10);
	release(1, 10);
	ev = EVENT(LIEN_CALL_CU_MEM_RELEASE, 1, .release = {50});
	entry = entry_of(ev);
	apply(&entry);
	multicast(LIEN_CALL_CU_MULTICAST_CREATE, 1, 50, 1);
	assert_counts(1, 1, 0);
	assert_int_equal(bindings_of(allocation_of(1, 50)), 0);
	apply(&ev);
	assert_counts(1, 1, 0);
	assert_nothing_odd();
}

/* Forged: the control library puts bound memory, or an object, behind a parked mapping. */
static void test_control_maps_bound_memory(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	multicast(LIEN_CALL_CU_MULTICAST_CREATE, 1, 50, 1);
	park(1, VA, PIECE);
	tell.flags = LIEN_EVENT_CONTROL;
	create(1, 11, PIECE);
	bind(1, 50, 0, 11);
	map(1, VA, PIECE, 11);
	assert_int_equal(bindings_of(allocation_at(1, VA)), 1);
	assert_ptr_equal(allocation_at(1, VA), allocation_of(1, 11));
	tell.flags = 0;
	park(1, VA, PIECE);
	tell.flags = LIEN_EVENT_CONTROL;
	map(1, VA, PIECE, 50);
	tell.flags = 0;
	assert_ptr_equal(allocation_at(1, VA), allocation_of(1, 50));
	release(1, 50);
	ended(1);
	assert_counts(0, 0, 0);
}

/* --- dma-buf ---------------------------------------------------------------------------------- */

static void test_dmabufs(void **state)
{
	(void)state;
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	buffer(1, 11, VA + PIECE, PIECE);
	alloc(1, VA + 8 * PIECE, PIECE);
	for (unsigned i = 0; i < 3; i++)
		TELL(LIEN_CALL_CU_RANGE_HANDLE, 1, .range_handle = {VA, 2 * PIECE, 1, 7});
	TELL(LIEN_CALL_CU_RANGE_HANDLE, 1, .range_handle = {VA + 8 * PIECE, 4096, 1, 7});
	assert_int_equal(allocation_at(1, VA)->dmabufs, 3);
	assert_int_equal(allocation_at(1, VA + PIECE)->dmabufs, 3);
	assert_int_equal(allocation_at(1, VA + 8 * PIECE)->dmabufs, 1);
	assert_round_trip();
	export(1, 11, 5);
	import(2, 20, 5);
	unmap(1, VA, 2 * PIECE);
	assert_round_trip();
	ended(1);
	assert_int_equal(allocation_of(2, 20)->dmabufs, 3);
	assert_round_trip();
	assert_nothing_odd();
	TELL(LIEN_CALL_CU_RANGE_HANDLE, 2, .range_handle = {VA, PIECE, 1, 7});
	assert_true(odd());
}

/* --- call sites ------------------------------------------------------------------------------- */

/* Where it was asked for stays true when the library has moved, gone, or come later. */
static void test_sites(void **state)
{
	const uint64_t elsewhere = IN_TORCH + 64 * MIB;

	(void)state;
	started(1);
	started(2);
	tell.caller = IN_TORCH + 0x77;
	alloc(1, VA, PIECE); /* nothing is known to be mapped there yet */
	library(1, IN_TORCH, "libtorch_cuda.so");
	buffer(1, 10, VA + PIECE, PIECE);
	assert_round_trip();
	assert_ptr_not_equal(allocation_at(1, VA)->site, allocation_at(1, VA + PIECE)->site);
	library(1, IN_TORCH, "libother.so.2");
	alloc_by(LIEN_CALL_CU_HOST_ALLOC, 1, VA + 2 * PIECE, 0);
	tell.outer = LIEN_CALL_NCCL_REGISTER;
	create(1, 12, PIECE);
	tell.outer = 0;
	assert_string_equal(lien_allocation_library(allocation_of(1, 12)), "nccl");
	assert_string_equal(lien_allocation_library(allocation_of(1, 10)), "torch_cuda");
	assert_round_trip();
	/* The same file at another address. */
	TELL(LIEN_EVENT_LIBRARY, 1,
		.library = {.start = elsewhere,
			.length = MIB,
			.inode = IN_TORCH >> 12,
			.name = "libother.so.2"});
	TELL(LIEN_EVENT_LIBRARY, 1,
		.library = {.start = IN_TORCH, .length = MIB, .inode = 0}); /* nothing now */
	assert_null(lien_process_library(process(1), IN_TORCH));
	tell.caller = elsewhere + 0x77;
	alloc(1, VA + 3 * PIECE, PIECE);
	assert_string_equal(allocation_at(1, VA + 3 * PIECE)->site->file->text, "libother.so.2");
	assert_int_equal(allocation_at(1, VA + 3 * PIECE)->site->offset, 0x77);
	tell.caller = 0;
	export(1, 10, 5);
	import(2, 20, 5);
	assert_round_trip();
	ended(1);
	assert_string_equal(allocation_of(2, 20)->site->file->text, "libtorch_cuda.so");
	assert_round_trip();
}

#define SHAPE(name) cmocka_unit_test_setup_teardown(name, setup, shape_teardown)

/* However it ended. */
static int shape_teardown(void **state)
{
	assert_round_trip();
	return teardown(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHAPE(test_alloc_and_free),
		SHAPE(test_wrong_frees),
		SHAPE(test_free_returns_late),
		SHAPE(test_free_fails),
		SHAPE(test_alloc_of_nothing),
		SHAPE(test_ranges_that_wrap),
		SHAPE(test_context_takes_its_memory),
		SHAPE(test_context_of_opened_memory),
		SHAPE(test_free_returns_after_context),
		SHAPE(test_context_address_again),
		SHAPE(test_ipc),
		SHAPE(test_ipc_name_keeps_nothing),
		SHAPE(test_ipc_key_again),
		SHAPE(test_ipc_key_to_older),
		SHAPE(test_ipc_of_the_unknown),
		SHAPE(test_ipc_close_returns_late),
		SHAPE(test_last_opening_again),
		SHAPE(test_pools),
		SHAPE(test_fabric),
		SHAPE(test_last_handle_again),
		SHAPE(test_multicast),
		SHAPE(test_object_goes_with_bindings),
		SHAPE(test_multicast_and_death),
		SHAPE(test_bound_by_others),
		SHAPE(test_bind_by_address),
		SHAPE(test_object_handle_again),
		SHAPE(test_control_maps_bound_memory),
		SHAPE(test_dmabufs),
		SHAPE(test_sites),
	};

	return cmocka_run_group_tests_name("graph shapes", tests, NULL, NULL);
}
