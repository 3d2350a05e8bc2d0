// SPDX-License-Identifier: BSD-2-Clause
/* Scripts where records come in another order than what they tell of. */
#include "replay_script.h"

#include "tools/replay/names.h"
#include "tools/replay/space.h"

/* A driver that does nothing but object. */
struct strict {
	struct lien_replay_names names;
	struct lien_replay_space space;
};

static void hold(struct strict *s, enum lien_replay_name_kind kind, uint64_t name, bool fresh)
{
	if (fresh)
		assert_null(lien_replay_names_find(&s->names, kind, name));
	assert_non_null(lien_replay_names_push(&s->names, kind, name, 0, 0, 0));
}

static void give(struct strict *s, enum lien_replay_name_kind kind, uint64_t name)
{
	struct lien_replay_name *held = lien_replay_names_find(&s->names, kind, name);

	assert_non_null(held);
	lien_replay_names_pop(&s->names, held);
}

static void take_range(struct strict *s, uint64_t va, uint64_t bytes, bool linear)
{
	struct lien_replay_range *range;

	assert_null(lien_replay_space_range(&s->space, va, bytes));
	range = lien_replay_space_reserve(&s->space, va, bytes, 0, 0);
	range->linear = linear;
}

static void free_range(struct strict *s, uint64_t va, bool linear)
{
	struct lien_replay_range *range = lien_replay_space_range(&s->space, va, 1);

	assert_non_null(range);
	assert_int_equal(range->va, va);
	assert_int_equal(range->linear, linear);
	assert_null(lien_replay_space_mapping(&s->space, va, range->bytes));
	lien_replay_space_unreserve(&s->space, range);
}

static void obey(struct strict *s, const struct lien_event *ev)
{
	struct lien_replay_mapping *m;

	switch (ev->type) {
	case CREATE:
		hold(s, LIEN_REPLAY_NAME_HANDLE, ev->create.handle, true);
		break;
	case IMPORT:
		hold(s, LIEN_REPLAY_NAME_HANDLE, ev->share.handle, false);
		break;
	case RETAIN:
		assert_non_null(lien_replay_space_range(&s->space, ev->retain.va, 1));
		hold(s, LIEN_REPLAY_NAME_HANDLE, ev->retain.handle, false);
		break;
	case RELEASE:
		give(s, LIEN_REPLAY_NAME_HANDLE, ev->release.handle);
		break;
	case EXPORT:
		assert_non_null(lien_replay_names_find(
			&s->names, LIEN_REPLAY_NAME_HANDLE, ev->share.handle));
		break;
	case RESERVE:
		take_range(s, ev->reserve.va, ev->reserve.bytes, false);
		break;
	case ALLOC:
		take_range(s, ev->alloc.va, ev->alloc.bytes, true);
		break;
	case AFREE:
		free_range(s, ev->range.va, false);
		break;
	case FREE:
		free_range(s, ev->range.va, true);
		break;
	case MAP:
		assert_non_null(
			lien_replay_names_find(&s->names, LIEN_REPLAY_NAME_HANDLE, ev->map.handle));
		assert_null(lien_replay_space_mapping(&s->space, ev->map.va, ev->map.bytes));
		assert_non_null(lien_replay_space_map(&s->space, ev->map.va, ev->map.bytes, 0, 0));
		break;
	case ACCESS:
		assert_non_null(
			lien_replay_space_mapping(&s->space, ev->access.va, ev->access.bytes));
		break;
	case UNMAP:
		assert_non_null(
			lien_replay_space_mapping(&s->space, ev->range.va, ev->range.bytes));
		/* What it takes a part of, a driver refuses; a recording could say so though. */
		while ((m = lien_replay_space_mapping(&s->space, ev->range.va, ev->range.bytes)))
			lien_replay_space_unmap(&s->space, m);
		break;
	case INIT:
		hold(s, LIEN_REPLAY_NAME_COMM, ev->comm.comm, true);
		break;
	case DESTROY:
	case ABORT:
		give(s, LIEN_REPLAY_NAME_COMM, ev->comm_end.comm);
		break;
	}
}

static void check_consistent(void)
{
	const struct lien_replay_process *p;
	struct strict s;
	size_t i, k;

	lien_script_finish(script);
	for (i = 0; i < script->process_count; i++) {
		p = script->processes[i];
		lien_replay_names_init(&s.names);
		lien_replay_space_init(&s.space);
		for (k = 0; k < p->count; k++)
			obey(&s, &p->ops[k].event);
		lien_replay_names_clear(&s.names);
		lien_replay_space_clear(&s.space);
	}
}

/* A handle's value comes again before the release that made it free has returned. */
static void test_late_release(void **state)
{
	struct lien_event late;

	(void)state;
	create(1, 10);
	late = announce(EVENT(CU_MEM_RELEASE, 1, .release = {10}), 77);
	create(1, 10);
	add(late);
	ADD(CU_MEM_EXPORT, 1, .share = {.handle = 10, .handle_type = FD});
	expect(0, CREATE, RELEASE, CREATE, EXPORT, 0);
	assert_int_equal(OP(0, 1)->flags & LIEN_OP_INFERRED, LIEN_OP_INFERRED);
	assert_int_equal(OP(0, 3)->allocation, 1);
	assert_int_equal(script->inferred, 0);
}

/* One that has not been given again waits for its return, however long. */
static void test_announced_in_time(void **state)
{
	struct lien_event late;

	(void)state;
	create(1, 10);
	late = announce(EVENT(CU_MEM_RELEASE, 1, .release = {10}), 77);
	create(1, 11);
	add(late);
	create(1, 10);
	expect(0, CREATE, CREATE, RELEASE, CREATE, 0);
}

/* The return says it failed, and nothing shows otherwise. */
static void test_announced_and_failed(void **state)
{
	struct lien_event late;

	(void)state;
	create(1, 10);
	late = announce(EVENT(CU_MEM_RELEASE, 1, .release = {10}), 77);
	late.result = CUDA_ERROR_INVALID_VALUE;
	add(late);
	expect(0, CREATE, 0);
}

/* Many threads, each with the other's return outstanding. */
static void test_late_releases(void **state)
{
	struct lien_event late[3];
	uint32_t i;

	(void)state;
	for (i = 0; i < 3; i++) {
		create(1, 10);
		late[i] = announce(EVENT(CU_MEM_RELEASE, 1, .release = {10}), 70 + i);
	}
	for (i = 0; i < 3; i++)
		add(late[2 - i]);
	/* The last one's return is applied like any other. */
	expect(0, CREATE, RELEASE, CREATE, RELEASE, CREATE, RELEASE, 0);
	assert_int_equal(script->skipped[LIEN_SKIP_UNKNOWN], 0);
}

/* Released twice (it was retained) by two threads, then created anew. */
static void test_late_references(void **state)
{
	struct lien_event late[2];
	uint32_t i;

	(void)state;
	create(1, 10);
	reserve(1, VA, 2 * MIB);
	map(1, VA, 10);
	ADD(CU_MEM_RETAIN, 1, .retain = {.handle = 10, .va = VA});
	for (i = 0; i < 2; i++)
		late[i] = announce(EVENT(CU_MEM_RELEASE, 1, .release = {10}), 70 + i);
	create(1, 10);
	for (i = 0; i < 2; i++)
		add(late[i]);
	expect(0, CREATE, RESERVE, MAP, RETAIN, RELEASE, RELEASE, CREATE, 0);
}

/* Neither announced nor returned: the record was lost, the driver knows better. */
static void test_lost_release(void **state)
{
	(void)state;
	create(1, 10);
	create(1, 10);
	reserve(1, VA, 8 * MIB);
	map(1, VA, 10);
	reserve(1, VA + 2 * MIB, 2 * MIB);
	ADD(CU_MEM_ALLOC, 1, .alloc = {VA + 2 * MIB, 100, .device = -1});
	expect(0, CREATE, RELEASE, CREATE, RESERVE, MAP, UNMAP, AFREE, RESERVE, AFREE, ALLOC, 0);
	assert_int_equal(script->inferred, 4);
	assert_int_equal(OP(0, 6)->event.range.bytes, 8 * MIB);
}

/* An address range is a name too, and may come back with another beginning and length. */
static void test_late_address_free(void **state)
{
	struct lien_event late;

	(void)state;
	reserve(1, VA, 8 * MIB);
	late = announce(EVENT(CU_MEM_ADDRESS_FREE, 1, .range = {VA, 8 * MIB}), 77);
	reserve(1, VA + 4 * MIB, 16 * MIB);
	add(late);
	expect(0, RESERVE, AFREE, RESERVE, 0);
	assert_int_equal(OP(0, 1)->event.range.va, VA);
	assert_int_equal(script->skipped[LIEN_SKIP_UNKNOWN], 0);
}

static void test_late_free(void **state)
{
	struct lien_event late;

	(void)state;
	ADD(CU_MEM_ALLOC, 1, .alloc = {VA, 1000, .device = -1});
	late = announce(EVENT(CU_MEM_FREE, 1, .range = {VA, 0}), 77);
	ADD(CU_MEM_ALLOC, 1, .alloc = {VA, 500, .device = -1});
	add(late);
	ADD(CU_MEM_FREE, 1, .range = {VA, 0});
	expect(0, ALLOC, FREE, ALLOC, FREE, 0);
}

static void test_late_unmap(void **state)
{
	struct lien_event late;

	(void)state;
	create(1, 10);
	create(1, 11);
	reserve(1, VA, 8 * MIB);
	map(1, VA, 10);
	map(1, VA + 2 * MIB, 11);
	late = announce(EVENT(CU_MEM_UNMAP, 1, .range = {VA, 4 * MIB}), 77);
	map(1, VA + 2 * MIB, 10);
	add(late);
	expect(0, CREATE, CREATE, RESERVE, MAP, MAP, UNMAP, MAP, 0);
}

static void test_late_destroy(void **state)
{
	struct lien_event late;

	(void)state;
	ADD(NCCL_INIT_RANK, 1, .comm = {.comm = 5, .nranks = 1});
	late = announce(EVENT(NCCL_ABORT, 1, .comm_end = {5}), 77);
	ADD(NCCL_INIT_RANK, 1, .comm = {.comm = 5, .nranks = 1}, .result = 7);
	add(late);
	ADD(NCCL_DESTROY, 1, .comm_end = {5}, .result = 7);
	expect(0, INIT, ABORT, INIT, DESTROY, 0);
}

static void test_import_of_released_value(void **state)
{
	struct lien_event late;

	(void)state;
	create(1, 10);
	share(1, EXPORT, 10, 900);
	share(2, IMPORT, 20, 900);
	late = announce(EVENT(CU_MEM_RELEASE, 2, .release = {20}), 77);
	share(2, IMPORT, 20, 900);
	add(late);
	ADD(CU_MEM_RELEASE, 2, .release = {20});
	expect(1, IMPORT, RELEASE, IMPORT, RELEASE, 0);
	assert_int_equal(script->skipped[LIEN_SKIP_UNKNOWN], 0);
}

/* Thousands of announcements without returns are bounded. */
static void test_announcements(void **state)
{
	uint32_t i;

	(void)state;
	create(1, 10);
	for (i = 0; i < 20000; i++)
		announce(EVENT(CU_MEM_RELEASE, 1, .release = {i}), i);
	create(1, 10);
	expect(0, CREATE, RELEASE, CREATE, 0);
}

/* Any valid records at all give a script that keeps its own books. */
static void test_noise(void **state)
{
	static const uint16_t sizes[] = {CREATE, RELEASE, RETAIN, RESERVE, AFREE, MAP, UNMAP,
		ACCESS, EXPORT, IMPORT, ALLOC, FREE, INIT, DESTROY, ABORT, LIEN_CALL_NCCL_REGISTER,
		LIEN_CALL_NCCL_DEREGISTER, LIEN_EVENT_EXIT};
	struct lien_event ev;
	uint32_t i, k;
	uint64_t *body;

	(void)state;
	srandom(7);
	for (i = 0; i < 200000; i++) {
		memset(&ev, 0, sizeof(ev));
		ev.size = sizeof(ev);
		ev.type = sizes[random() % (sizeof(sizes) / sizeof(*sizes))];
		if (ev.type == LIEN_EVENT_EXIT && random() % 64)
			continue;
		ev.pid = random() % 4;
		ev.tid = random() % 3;
		ev.t_entry = random() % 5;
		body = (uint64_t *)((char *)&ev + LIEN_EVENT_HEADER);
		for (k = 0; k < 4; k++)
			body[k] = random() % 12 - (random() % 8 ? 0 : 12);
		if (random() % 3 == 0)
			ev.flags = LIEN_EVENT_ENTRY;
		if (ev.type == EXPORT)
			ev.share.handle_type = FD;
		if (lien_event_valid(&ev))
			assert_int_equal(lien_script_add(script, &ev), 0);
		if (script->process_count > LIEN_REPLAY_PROCESSES_MAX - 4) {
			check_consistent();
			lien_script_free(script);
			assert_int_equal(lien_script_new(&script), 0);
		}
	}
	check_consistent();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_late_release),
		TEST(test_announced_in_time),
		TEST(test_announced_and_failed),
		TEST(test_late_releases),
		TEST(test_late_references),
		TEST(test_lost_release),
		TEST(test_late_address_free),
		TEST(test_late_free),
		TEST(test_late_unmap),
		TEST(test_late_destroy),
		TEST(test_import_of_released_value),
		TEST(test_announcements),
		TEST(test_noise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
