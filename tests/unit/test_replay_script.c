// SPDX-License-Identifier: BSD-2-Clause
#include "replay_script.h"

static void test_order(void **state)
{
	(void)state;
	ADD(CU_INIT, 1);
	create(1, 10);
	reserve(1, VA, 2 * MIB);
	map(1, VA, 10);
	set_access(1, VA, 2 * MIB, RW);
	ADD(CU_MEM_RELEASE, 1, .release = {10});
	ADD(CU_MEM_RETAIN, 1, .retain = {.handle = 10, .va = VA + MIB});
	ADD(CU_MEM_RELEASE, 1, .release = {10});
	ADD(CU_MEM_UNMAP, 1, .range = {VA, 2 * MIB});
	ADD(CU_MEM_RELEASE, 1, .release = {10});
	ADD(CU_MEM_ADDRESS_FREE, 1, .range = {VA, 2 * MIB});
	/* The second release has nothing to release: its retain was paid back. */
	expect(0, CREATE, RESERVE, MAP, ACCESS, RELEASE, RETAIN, RELEASE, UNMAP, AFREE, 0);
	assert_int_equal(script->skipped[LIEN_SKIP_UNKNOWN], 1);
	assert_int_equal(script->allocation_count, 1);
	assert_int_equal(script->allocations[0].filled, 2 * MIB);
	assert_int_equal(script->allocations[0].rewritable, 0);
	assert_int_equal(OP(0, 5)->allocation, 0);
}

static void test_left_out(void **state)
{
	(void)state;
	create(1, 10);
	ADD(CU_MEM_CREATE, 1, .create = {.handle = 11, .bytes = MIB}, .flags = LIEN_EVENT_CONTROL);
	ADD(CU_MEM_CREATE, 1, .create = {.handle = 12, .bytes = MIB}, .result = 2);
	ADD(CU_MEM_RELEASE, 1, .release = {10}, .flags = LIEN_EVENT_CONTROL);
	ADD(CU_MEM_RELEASE, 1, .release = {10}, .result = 400);
	ADD(CU_MEM_RELEASE, 1, .release = {10}, .flags = LIEN_EVENT_ENTRY);
	ADD(CU_CAPTURE_BEGIN, 1, .capture = {5});
	ADD(CU_MEM_CREATE, 1, .create = {.handle = 13}, .flags = LIEN_EVENT_PARTIAL);
	ADD(CU_MEM_EXPORT, 1, .share = {.handle = 13, .handle_type = FD});
	ADD(CU_MEM_EXPORT, 1, .share = {.handle = 10, .handle_type = 4});
	expect(0, CREATE, 0);
	assert_int_equal(script->control, 2);
	assert_int_equal(script->failed, 2);
	assert_int_equal(script->skipped[LIEN_SKIP_PARTIAL], 1);
	assert_int_equal(script->skipped[LIEN_SKIP_DEPENDENT], 1);
	assert_int_equal(script->skipped[LIEN_SKIP_TYPE], 1);
}

static void test_shares(void **state)
{
	(void)state;
	create(1, 10);
	create(2, 20);
	share(1, EXPORT, 10, 900);
	share(1, EXPORT, 10, 901);
	share(2, IMPORT, 30, 900);
	share(3, IMPORT, 30, 900);
	share(3, EXPORT, 30, 902); /* handed on */
	share(2, IMPORT, 31, 902);
	expect(0, CREATE, EXPORT, EXPORT, 0);
	expect(1, CREATE, IMPORT, IMPORT, 0);
	expect(2, IMPORT, EXPORT, 0);
	assert_int_equal(OP(0, 1)->flags, LIEN_OP_SHARED);
	assert_int_equal(OP(0, 2)->flags, 0);
	assert_int_equal(OP(2, 1)->flags, LIEN_OP_SHARED);
	assert_int_equal(lien_replay_share_find(&script->shares, 900)->imports, 2);
	assert_int_equal(lien_replay_share_find(&script->shares, 901)->imports, 0);
	/* All of them are process 1's allocation. */
	assert_int_equal(OP(1, 1)->allocation, 0);
	assert_int_equal(OP(1, 2)->allocation, 0);
	assert_int_equal(OP(2, 0)->allocation, 0);
	assert_int_equal(script->allocation_count, 2);
}

/* Without its export an import is left out, with all that hangs on it and nothing else. */
static void test_unknown_import(void **state)
{
	(void)state;
	create(1, 10);
	share(1, IMPORT, 20, 0);
	share(1, IMPORT, 21, 555);
	reserve(1, VA, 8 * MIB);
	map(1, VA, 20);
	map(1, VA + 2 * MIB, 10);
	map(1, VA + 4 * MIB, 21);
	set_access(1, VA, 6 * MIB, RW);
	ADD(CU_MEM_RETAIN, 1, .retain = {.handle = 20, .va = VA});
	ADD(CU_MEM_RELEASE, 1, .release = {20});
	ADD(CU_MEM_RELEASE, 1, .release = {20});
	ADD(CU_MEM_UNMAP, 1, .range = {VA, 6 * MIB});
	ADD(CU_MEM_ADDRESS_FREE, 1, .range = {VA, 8 * MIB});
	expect(0, CREATE, RESERVE, MAP, ACCESS, UNMAP, AFREE, 0);
	assert_int_equal(OP(0, 3)->event.access.va, VA + 2 * MIB);
	assert_int_equal(OP(0, 3)->event.access.bytes, 2 * MIB);
	assert_int_equal(OP(0, 4)->event.range.va, VA + 2 * MIB);
	assert_int_equal(script->skipped[LIEN_SKIP_IMPORT], 2);
	assert_int_equal(script->skipped[LIEN_SKIP_DEPENDENT], 5);
}

/* A recording that began after the process. */
static void test_unknown_names(void **state)
{
	(void)state;
	ADD(CU_MEM_RELEASE, 1, .release = {20});
	map(1, VA, 20);
	set_access(1, VA, 2 * MIB, RW);
	ADD(CU_MEM_UNMAP, 1, .range = {VA, 2 * MIB});
	ADD(CU_MEM_ADDRESS_FREE, 1, .range = {VA, 2 * MIB});
	ADD(CU_MEM_FREE, 1, .range = {VA, 0});
	ADD(NCCL_DESTROY, 1, .comm_end = {5});
	ADD(NCCL_REGISTER, 1, .reg = {.comm = 5, .handle = 6});
	share(1, EXPORT, 20, 900);
	expect(0, 0);
	assert_int_equal(script->skipped[LIEN_SKIP_UNKNOWN], 9);
	assert_true(script->processes[0]->used);
}

/* Values that no driver gives, as in a file made to hurt. */
static void test_wrapping_ranges(void **state)
{
	(void)state;
	reserve(1, VA, UINT64_MAX);
	reserve(1, UINT64_MAX - 10, 8);
	ADD(CU_MEM_ALLOC, 1, .alloc = {UINT64_MAX, 2, .device = -1});
	ADD(CU_MEM_UNMAP, 1, .range = {VA, UINT64_MAX});
	set_access(1, VA, UINT64_MAX, RW);
	reserve(1, 1, UINT64_MAX - 1);
	create(1, 10);
	map(1, VA, 10);
	ADD(CU_MEM_ALLOC, 1, .alloc = {VA, 2, .device = -1});
	ADD(CU_MEM_UNMAP, 1, .range = {VA, 2});
	ADD(CU_MEM_RETAIN, 1, .retain = {.handle = 1, .va = UINT64_MAX});
	map(1, VA, 10);
	ADD(CU_MEM_FREE, 1, .range = {VA, 0});
	expect(0, RESERVE, AFREE, RESERVE, CREATE, MAP, UNMAP, AFREE, ALLOC, FREE, 0);
}

static void test_patterns(void **state)
{
	(void)state;
	create(1, 10);
	create(1, 11);
	create(1, 12);
	reserve(1, VA, 32 * MIB);
	map(1, VA, 10);
	set_access(1, VA, 2 * MIB, RW);
	map(1, VA + 2 * MIB, 11);
	set_access(1, VA + 2 * MIB, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READ);
	map(1, VA + 4 * MIB, 12);
	set_access(1, VA + 4 * MIB, 2 * MIB, RW);
	ADD(CU_MEM_UNMAP, 1, .range = {VA + 4 * MIB, 2 * MIB});
	ADD(CU_MEM_ALLOC, 1, .alloc = {VA + 512 * MIB, 12345, .device = -1});
	lien_script_finish(script);
	assert_int_equal(script->allocations[0].filled, 2 * MIB);
	assert_int_equal(script->allocations[0].rewritable, 2 * MIB);
	assert_int_equal(script->allocations[1].filled, 0);
	assert_int_equal(script->allocations[2].filled, 2 * MIB);
	assert_int_equal(script->allocations[2].rewritable, 0);
	assert_int_equal(script->allocations[3].filled, 12345);
	assert_int_equal(script->allocations[3].rewritable, 12345);
}

static void test_owner(void **state)
{
	struct lien_event ev;

	(void)state;
	add((struct lien_event){.size = LIEN_EVENT_SIZE(library),
		.type = LIEN_EVENT_LIBRARY,
		.pid = 1,
		.start = 1,
		.library = {.start = 0x1000,
			.length = 0x1000,
			.inode = 1,
			.name = "libnccl.so.2.28.9"}});
	ev = EVENT(CU_MEM_CREATE, 1, .create = {.handle = 10, .bytes = 2 * MIB}, .caller = 0x1fff);
	add(ev);
	ev.caller = 0x2000;
	ev.create.handle = 11;
	add(ev);
	ev.outer = LIEN_CALL_NCCL_INIT_RANK;
	ev.create.handle = 12;
	add(ev);
	ADD(NCCL_INIT_RANK, 1, .comm = {.comm = 5, .nranks = 1});
	/* Another library where libnccl was. */
	add((struct lien_event){.size = LIEN_EVENT_SIZE(library),
		.type = LIEN_EVENT_LIBRARY,
		.pid = 1,
		.start = 1,
		.library = {.start = 0x1800, .length = 0x1000, .inode = 2, .name = "libother.so"}});
	ev.caller = 0x1fff;
	ev.outer = CREATE;
	ev.create.handle = 13;
	add(ev);
	expect(0, CREATE, CREATE, CREATE, INIT, CREATE, 0);
	assert_int_equal(OP(0, 0)->flags, LIEN_OP_NCCL);
	assert_int_equal(OP(0, 1)->flags, 0);
	assert_int_equal(OP(0, 2)->flags, LIEN_OP_NCCL);
	assert_int_equal(OP(0, 3)->flags, LIEN_OP_NCCL);
	assert_int_equal(OP(0, 4)->flags, 0);
	assert_true(script->processes[0]->nccl);
}

/* A pid alone names no process, and a program ends with exec. */
static void test_processes(void **state)
{
	struct lien_event end = {.size = LIEN_EVENT_HEADER, .pid = 1, .start = 1};
	struct lien_event other = EVENT(CU_MEM_CREATE, 1, .create = {.handle = 10, .bytes = MIB});

	(void)state;
	create(1, 10);
	end.type = LIEN_EVENT_EXEC;
	add(end);
	create(1, 10);
	end.type = LIEN_EVENT_EXIT;
	add(end);
	other.start = 999;
	add(other);
	add((struct lien_event){.size = LIEN_EVENT_SIZE(process),
		.type = LIEN_EVENT_PROCESS,
		.pid = 4,
		.start = 4,
		.process = {.comm = "idle"}});
	expect(0, CREATE, 0);
	expect(1, CREATE, 0);
	expect(2, CREATE, 0);
	assert_int_equal(script->process_count, 4);
	assert_true(script->processes[0]->ended);
	assert_true(script->processes[1]->ended);
	assert_false(script->processes[2]->ended);
	assert_false(script->processes[3]->used);
	assert_string_equal(script->processes[3]->comm, "idle");
}

static void test_devices(void **state)
{
	struct lien_event ev = EVENT(CU_MEM_CREATE, 1,
		.create = {.handle = 10,
			.bytes = 2 * MIB,
			.prop = {.location_type = DEVICE, .location_id = 3}});

	(void)state;
	reserve(1, VA, 8 * MIB);
	set_access(1, VA, 2 * MIB, RW);
	add(ev);
	ev.create.prop.location_type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	ev.create.prop.location_id = 5;
	ev.create.handle = 11;
	add(ev);
	set_access(2, VA, 2 * MIB, RW);
	lien_script_finish(script);
	assert_int_equal(script->processes[0]->devices, 1 << 3);
	assert_int_equal(script->processes[0]->home, 3);
	assert_int_equal(script->processes[1]->devices, 0);
	assert_int_equal(script->processes[1]->home, 0);
	assert_int_equal(script->last_device, 3);
}

static void test_too_many(void **state)
{
	struct lien_event ev = {.size = LIEN_EVENT_HEADER, .type = LIEN_CALL_CU_INIT};
	uint32_t i;

	(void)state;
	for (i = 0; i < LIEN_REPLAY_PROCESSES_MAX; i++) {
		ev.pid = i;
		assert_int_equal(lien_script_add(script, &ev), 0);
	}
	ev.pid = i;
	assert_int_equal(lien_script_add(script, &ev), -E2BIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_order),
		TEST(test_left_out),
		TEST(test_shares),
		TEST(test_unknown_import),
		TEST(test_unknown_names),
		TEST(test_wrapping_ranges),
		TEST(test_patterns),
		TEST(test_owner),
		TEST(test_processes),
		TEST(test_devices),
		TEST(test_too_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
