// SPDX-License-Identifier: BSD-2-Clause
/* Whose memory from before the agent seems to be, and what an offload makes of it. */
#include "agent/graph/devices.h"
#include "agent/plan/plan.h"
#include "see.h"

#define OWNER	 1
#define IMPORTER 2
#define COMM	 0x5500
#define SHARED	 VA
#define LOCAL	 (VA + PIECE)
#define THERE	 (VA + (1ull << 32))

static const struct lien_selection of_nccl = {.owner = "nccl"}, of_nobody = {.owner = "unknown"};

static void late(uint32_t pid)
{
	TELL(LIEN_EVENT_PROCESS, pid, .process = {.uid = 1000, .comm = "python3"});
	process(pid)->presence = LIEN_CONTROL_READY;
}

static void adopted(uint32_t pid, uint64_t handle)
{
	TELL(LIEN_EVENT_ADOPT, pid, .adopt = {.handle = handle, .references = 1, .round = 1});
}

static void doubts(uint32_t pid, uint32_t reasons)
{
	TELL(LIEN_EVENT_INCOMPLETE, pid, .incomplete = {LIEN_INCOMPLETE_ADOPTED | reasons});
}

/* Two that ran before the agent and have been adopted: one owns two, and the other imported one of
 * these, which `device` of it may use. */
static void pair(unsigned device)
{
	late(OWNER);
	late(IMPORTER);
	tell.flags = LIEN_EVENT_FOUND;
	create(OWNER, 10, PIECE);
	map_rw(OWNER, SHARED, PIECE, 10);
	create(OWNER, 11, PIECE);
	map_rw(OWNER, LOCAL, PIECE, 11);
	export(OWNER, 10, 77);
	import(IMPORTER, 20, 77);
	map(IMPORTER, THERE, PIECE, 20);
	set_access(IMPORTER, THERE, PIECE, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	adopted(OWNER, 10);
	adopted(OWNER, 11);
	adopted(IMPORTER, 20);
	tell.flags = 0;
	doubts(OWNER, 0);
	doubts(IMPORTER, 0);
}

static void ranks(void)
{
	comm_init(OWNER, COMM, 0x31, 0, 2);
	comm_init(IMPORTER, COMM, 0x31, 1, 2);
}

/* As NCCL's RAS names it. */
static void found_comm(uint32_t pid, uint64_t comm, uint64_t hash)
{
	struct lien_event ev = EVENT(LIEN_CALL_NCCL_INIT_RANK, pid,
		.comm = {.comm = comm, .rank = pid - 1, .nranks = 2, .device = -1});

	ev.flags |= LIEN_EVENT_FOUND;
	lien_comm_found_id(ev.comm.id, hash, 1, 1);
	apply(&ev);
}

static const char *owner_at(uint64_t va, bool *inferred)
{
	return lien_allocation_attributed(allocation_at(OWNER, va), inferred);
}

static void expect_owner(uint64_t va, const char *library, bool as_it_seems)
{
	bool inferred;

	assert_string_equal(owner_at(va, &inferred), library);
	assert_int_equal(inferred, as_it_seems);
}

static void test_shared_with_a_rank(void **state)
{
	(void)state;
	pair(1);
	expect_owner(SHARED, "unknown", false); /* nothing says that they use NCCL */
	ranks();
	expect_owner(SHARED, "nccl", true);
	expect_owner(LOCAL, "unknown", false);
	comm_destroy(IMPORTER, COMM);
	expect_owner(SHARED, "unknown", false);
}

static void test_other_communicators(void **state)
{
	(void)state;
	pair(1);
	comm_init(OWNER, COMM, 0x31, 0, 2);
	comm_init(IMPORTER, COMM, 0x32, 0, 2);
	expect_owner(SHARED, "unknown", false);
	comm_init(IMPORTER, COMM + 1, 0x33, 0, 2);
	expect_owner(SHARED, "unknown", false);
	comm_init(OWNER, COMM + 1, 0x33, 0, 2);
	expect_owner(SHARED, "nccl", true);
}

/* NCCL's RAS names the same group in one process, and its making was seen in the other. */
static void test_named_by_ras(void **state)
{
	(void)state;
	pair(1);
	found_comm(OWNER, COMM, 0x1234);
	found_comm(IMPORTER, COMM, 0x4321);
	expect_owner(SHARED, "unknown", false);
	comm_init(IMPORTER, COMM + 1, 0x31, 1, 2);
	found_comm(IMPORTER, COMM + 1, 0x1234);
	expect_owner(SHARED, "nccl", true);
}

/* An NCCL that names nothing: both used it before it was watched, so they may be ranks. */
static void test_nothing_is_named(void **state)
{
	(void)state;
	pair(1);
	doubts(OWNER, LIEN_INCOMPLETE_NCCL);
	expect_owner(SHARED, "unknown", false);
	doubts(IMPORTER, LIEN_INCOMPLETE_NCCL);
	expect_owner(SHARED, "nccl", true);
	found_comm(OWNER, COMM, 0x1234); /* the other one's are still not known */
	expect_owner(SHARED, "unknown", false);
}

/* A helper on the same device is no rank. */
static void test_same_device(void **state)
{
	static const struct lien_ordinals here = {
		.count = 2, .uuid = {{.bytes = {1}}, {.bytes = {2}}}};
	static const struct lien_ordinals there = {
		.count = 2, .uuid = {{.bytes = {2}}, {.bytes = {1}}}};

	(void)state;
	pair(1);
	ranks();
	process(OWNER)->ordinals = &here;
	expect_owner(SHARED, "nccl", true); /* the importer's devices are not known */
	process(IMPORTER)->ordinals = &here;
	expect_owner(SHARED, "nccl", true);
	process(IMPORTER)->ordinals = &there; /* its device 1 is the owner's 0 */
	expect_owner(SHARED, "unknown", false);
}

/* What was seen to be made is known. */
static void test_seen(void **state)
{
	(void)state;
	late(OWNER);
	late(IMPORTER);
	buffer(OWNER, 10, SHARED, PIECE);
	export(OWNER, 10, 77);
	import(IMPORTER, 20, 77);
	map(IMPORTER, THERE, PIECE, 20);
	set_access(IMPORTER, THERE, PIECE, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	ranks();
	expect_owner(SHARED, "unknown", false);
}

static struct lien_plan plan;

static void make(const struct lien_selection *selection)
{
	char error[300];

	lien_plan_clear(&plan);
	assert_int_equal(lien_plan_offload(graph, selection, &plan, error, sizeof(error)), 0);
}

static int plan_teardown(void **state)
{
	lien_plan_clear(&plan);
	return view_teardown(state);
}

static void test_plan(void **state)
{
	struct lien_selection selection = of_nccl;

	(void)state;
	pair(1);
	make(&of_nccl);
	assert_int_equal(plan.bytes + plan.inferred, 0);
	assert_int_equal(plan.nameless, 2 * PIECE);
	see(lien_view_plan(&plan));
	STRING("unknown", "outcome");
	ranks();
	make(&of_nccl);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.inferred, PIECE);
	assert_int_equal(plan.nameless, PIECE);
	assert_int_equal(plan.processes_count, 2);
	make(&of_nobody);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.inferred, 0);
	assert_int_equal(plan.nameless, 0); /* the other piece seems to be NCCL's */
	selection.certain = true;
	make(&selection);
	assert_int_equal(plan.bytes + plan.inferred, 0);
	assert_int_equal(plan.nameless, 2 * PIECE);
}

/* Memory that is only probably NCCL's is saved, even if NCCL's memory is discarded. */
static void test_not_discarded(void **state)
{
	const struct lien_discard discard = {.owner = "nccl"};
	struct lien_selection selection = of_nccl;

	(void)state;
	pair(1);
	ranks();
	selection.discard = &discard;
	selection.discard_count = 1;
	make(&selection);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.discarded, 0);
}

static void test_unknown(void **state)
{
	const uint32_t pids[] = {IMPORTER};
	struct lien_selection selection = of_nccl;

	(void)state;
	pair(1);
	tell.flags = LIEN_EVENT_FOUND;
	alloc(OWNER, VA + 64 * PIECE, 1000); /* cudaMalloc's stays */
	tell.flags = 0;
	buffer(IMPORTER, 30, VA, PIECE); /* seen, and somebody else's */
	make(&of_nccl);
	assert_int_equal(plan.unknown_count, 1);
	assert_int_equal(plan.unknown[0].pid, OWNER);
	assert_true(plan.unknown[0].read);
	assert_int_equal(plan.unknown[0].allocations, 3);
	assert_int_equal(plan.unknown[0].bytes, 2 * PIECE + 1000);
	assert_int_equal(plan.unknown[0].movable, 2 * PIECE);
	see(lien_view_plan(&plan));
	assert_members(at("unknown[0]"), "pid:i read:b allocations:i bytes:i movable_bytes:i");
	INTEGER(2 * PIECE, "unknown[0].movable_bytes");
	selection.pids = pids;
	selection.pids_count = 1;
	make(&selection);
	assert_int_equal(plan.unknown_count, 0);
	see(lien_view_plan(&plan));
	STRING("nothing to do", "outcome");
	selection = (struct lien_selection){0};
	make(&selection);
	assert_int_equal(plan.unknown_count, 0);
}

/* A process that has not been read may have anything. */
static void test_unread(void **state)
{
	struct lien_selection all = {0};

	(void)state;
	started(3);
	make(&of_nccl);
	assert_int_equal(plan.unknown_count, 0);
	late(OWNER);
	process(OWNER)->cuda = false; /* it only mapped a library */
	make(&of_nccl);
	assert_int_equal(plan.unknown_count, 0);
	process(OWNER)->cuda = true;
	make(&of_nccl);
	assert_int_equal(plan.unknown_count, 1);
	assert_false(plan.unknown[0].read);
	assert_int_equal(plan.unknown[0].bytes, 0);
	see(lien_view_plan(&plan));
	STRING("unknown", "outcome");
	make(&all);
	assert_int_equal(plan.unknown_count, 1);
	all.viewer = (struct lien_viewer){.one_user = true, .uid = 1};
	make(&all);
	assert_int_equal(plan.unknown_count, 0);
	all.viewer.uid = 1000;
	process(OWNER)->held_items = 1; /* its memory is away */
	make(&all);
	assert_int_equal(plan.unknown_count, 0);
}

static void test_views(void **state)
{
	(void)state;
	pair(1);
	ranks();
	see(lien_view_ps(graph, NULL));
	INTEGER(PIECE, "processes[0].nccl_bytes");
	INTEGER(PIECE, "processes[0].nccl_inferred_bytes");
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(3, "rows");
	STRING("nccl", "rows[0].owner");
	assert_true(json_is_true(at("rows[0].owner_inferred")));
	INTEGER(PIECE, "rows[0].bytes");
	STRING("unknown", "rows[1].owner");
	assert_false(json_is_true(at("rows[1].owner_inferred")));
	STRING("imported", "rows[2].kind");
	assert_true(json_is_true(at("rows[2].owner_inferred")));
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_OWNER, 0, NULL));
	LENGTH(2, "rows");
	STRING("nccl, probably", "rows[0].key");
	STRING("unknown", "rows[1].key");
	see(lien_view_graph(graph, NULL));
	assert_true(json_is_true(at("allocations[0].owner_inferred")));
	assert_false(json_is_true(at("allocations[1].owner_inferred")));
}

#define INFERRED(name) cmocka_unit_test_setup_teardown(name, setup, plan_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		INFERRED(test_shared_with_a_rank),
		INFERRED(test_other_communicators),
		INFERRED(test_named_by_ras),
		INFERRED(test_nothing_is_named),
		INFERRED(test_same_device),
		INFERRED(test_seen),
		INFERRED(test_plan),
		INFERRED(test_not_discarded),
		INFERRED(test_unknown),
		INFERRED(test_unread),
		INFERRED(test_views),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
