// SPDX-License-Identifier: BSD-2-Clause
#include "agent/ras/ras.h"
#include "see.h"

#define REDUCES	   (LIEN_CALL_NCCL_ALL_REDUCE - LIEN_TRAFFIC_FIRST)
#define BROADCASTS (LIEN_CALL_NCCL_BROADCAST - LIEN_TRAFFIC_FIRST)
#define SENDS	   (LIEN_CALL_NCCL_SEND - LIEN_TRAFFIC_FIRST)
#define RECEIVES   (LIEN_CALL_NCCL_RECV - LIEN_TRAFFIC_FIRST)

static struct lien_counted counted[8];
static size_t counts;
static bool pending; /* false but where a test sets it */

static struct lien_probe_traffic *count(uint32_t pid, uint64_t comm)
{
	struct lien_counted *one = &counted[counts++];

	*one = (struct lien_counted){.comm = {.comm = comm, .pid = pid}};
	return &one->traffic;
}

static json_t *see_comms(void)
{
	return see(lien_view_comms(graph, NULL, counted, counts, pending, 9000000));
}

static int comms_setup(void **state)
{
	counts = 0;
	pending = false;
	return setup(state);
}

#define COMMS(name) cmocka_unit_test_setup_teardown(name, comms_setup, view_teardown)

static void test_nothing(void **state)
{
	(void)state;
	see_comms();
	assert_members(view, "groups:a communicators:a late:a pending:b");
	LENGTH(0, "late");
	LENGTH(0, "groups");
	LENGTH(0, "communicators");
}

static void test_members(void **state)
{
	(void)state;
	started(1);
	started(2);
	comm_init(2, 0x200, 0xaa, 1, 4);
	comm_init(1, 0x100, 0xaa, 0, 4);
	*count(1, 0x100) = (struct lien_probe_traffic){
		.calls = {[REDUCES] = 3, [SENDS] = 2}, .bytes = 4096, .t_last = 8500000};
	comm_register(1, 0x100, VA, PIECE, 7);
	window_register(1, 0x100, VA, MIB, 8);
	see_comms();
	LENGTH(1, "groups");
	LENGTH(2, "communicators");
	assert_members(at("groups[0]"),
		"group:s by:n nranks:i here:i made_by:s id:o parent:n behind:a sends:i receives:i");
	STRING("00000000000000aa", "groups[0].group");
	INTEGER(4, "groups[0].nranks");
	INTEGER(2, "groups[0].here");
	STRING("ncclCommInitRank", "groups[0].made_by");
	STRING("0xaa", "groups[0].id.magic");
	assert_true(json_is_null(at("groups[0].id.address")));
	INTEGER(2, "groups[0].sends");
	INTEGER(0, "groups[0].receives");
	LENGTH(1, "groups[0].behind");
	assert_members(at("groups[0].behind[0]"), "pid:i address:s rank:i call:s calls:i");
	INTEGER(2, "groups[0].behind[0].pid");
	INTEGER(3, "groups[0].behind[0].calls");
	STRING("ncclAllReduce", "groups[0].behind[0].call");
	assert_members(at("communicators[0]"),
		"group:s hash:n by:n pid:i command:s address:s rank:i nranks:i device:? state:s "
		"complete:b "
		"bytes:i inferred_bytes:i host_bytes:i inferred_host_bytes:i offloaded_bytes:i "
		"registrations:o calls:o calls_total:i moved_bytes:i last_ms:r");
	INTEGER(1, "communicators[0].pid"); /* by rank */
	STRING("0x100", "communicators[0].address");
	INTEGER(3, "communicators[0].calls.ncclAllReduce");
	INTEGER(2, "communicators[0].calls.ncclSend");
	assert_int_equal(json_object_size(at("communicators[0].calls")), 2);
	INTEGER(5, "communicators[0].calls_total");
	INTEGER(4096, "communicators[0].moved_bytes");
	assert_true(json_real_value(at("communicators[0].last_ms")) == 0.5);
	INTEGER(2, "communicators[0].registrations.count");
	INTEGER(1, "communicators[0].registrations.windows");
	INTEGER(3 * MIB, "communicators[0].registrations.bytes");
	INTEGER(0, "communicators[1].calls_total");
	assert_true(json_is_null(at("communicators[1].last_ms")));
}

/* From a snapshot, say. */
static void test_not_counted(void **state)
{
	(void)state;
	started(1);
	comm_init(1, 0x100, 0xaa, 0, 2);
	see(lien_view_comms(graph, NULL, NULL, 0, false, 0));
	assert_members(at("groups[0]"),
		"group:s by:n nranks:i here:i made_by:s id:o parent:n behind:n sends:n receives:n");
	assert_true(json_is_null(at("communicators[0].calls")));
	assert_true(json_is_null(at("communicators[0].calls_total")));
	assert_true(json_is_null(at("communicators[0].moved_bytes")));
	assert_true(json_is_null(at("communicators[0].last_ms")));
}

static void test_behind(void **state)
{
	uint32_t pid;

	(void)state;
	for (pid = 1; pid <= 3; pid++) {
		started(pid);
		comm_init(pid, 0x100, 0xaa, pid - 1, 3);
		*count(pid, 0x100) = (struct lien_probe_traffic){
			.calls = {[REDUCES] = 10 - pid, [BROADCASTS] = 5, [SENDS] = pid}};
	}
	see_comms();
	LENGTH(2, "groups[0].behind");
	INTEGER(1, "groups[0].behind[0].rank");
	INTEGER(1, "groups[0].behind[0].calls");
	INTEGER(2, "groups[0].behind[1].rank");
	INTEGER(2, "groups[0].behind[1].calls");
	INTEGER(6, "groups[0].sends");
	INTEGER(0, "groups[0].receives");
}

static void test_addresses(void **state)
{
	(void)state;
	started(1);
	TELL(LIEN_CALL_NCCL_INIT_RANK_CONFIG, 1,
		.comm = {.comm = 0x100,
			.nranks = 1,
			.id = {1, [8] = 2, 0, 0x11, 0xd7, 10, 1, 2, 3}});
	TELL(LIEN_CALL_NCCL_INIT_RANK_SCALABLE, 1,
		.comm = {.comm = 0x200,
			.nranks = 1,
			.id = {2, [8] = 10, 0, 0, 99, [16] = 0x20, 1, 0xd, 0xb8, [31] = 0x17}});
	TELL(LIEN_CALL_NCCL_INIT_ALL, 1, .comm = {.comm = 0x300, .nranks = 1, .id = {3, [8] = 2}});
	see_comms();
	STRING("10.1.2.3:4567", "groups[0].id.address");
	STRING("[2001:db8::17]:99", "groups[1].id.address");
	STRING("ncclCommInitAll", "groups[2].made_by");
	assert_true(json_is_null(at("groups[2].id")));
}

static void test_parent(void **state)
{
	unsigned child;

	(void)state;
	started(1);
	comm_init(1, 0x100, 0xaa, 0, 1);
	TELL(LIEN_CALL_NCCL_SPLIT, 1, .comm = {.comm = 0x200, .parent = 0x100, .rank = -1});
	see_comms();
	LENGTH(2, "groups");
	child = !json_is_null(at("groups[0].id")); /* sorted by names, of which one is made up */
	STRING("ncclCommSplit", "groups[%u].made_by", child);
	STRING("00000000000000aa", "groups[%u].parent", child);
	comm_destroy(1, 0x100);
	see_comms();
	LENGTH(1, "groups");
	assert_true(json_is_null(at("groups[0].parent")));
	assert_true(json_is_null(at("groups[0].id")));
}

/* The making of the first two was not seen; of the second, not a call that the graph knows. */
static void test_made_before(void **state)
{
	(void)state;
	started(1);
	comm_register(1, 0x100, VA, PIECE, 7);
	count(1, 0x200)->calls[REDUCES] = 5;
	count(9, 0x300)->calls[REDUCES] = 5; /* a process that is gone by now */
	see_comms();
	LENGTH(1, "groups");
	LENGTH(2, "communicators");
	assert_true(json_is_null(at("groups[0].made_by")));
	assert_true(json_is_null(at("groups[0].nranks")));
	LENGTH(0, "groups[0].behind"); /* who is of one group is not known */
	STRING("0x100", "communicators[0].address");
	assert_true(json_is_false(at("communicators[0].complete")));
	INTEGER(1, "communicators[0].registrations.count");
	STRING("0x200", "communicators[1].address");
	INTEGER(5, "communicators[1].calls_total");
	assert_true(json_is_null(at("communicators[1].rank")));
}

static void nccl_buffer(uint64_t handle, uint64_t va, uint64_t scope, unsigned flags)
{
	struct lien_event event =
		EVENT(LIEN_CALL_CU_MEM_CREATE, 1, .create = {handle, PIECE, device_prop(0)});

	event.outer = LIEN_CALL_NCCL_INIT_RANK;
	event.scope = scope;
	event.flags = flags;
	apply(&event);
	reserve(1, va, PIECE);
	map_rw(1, va, PIECE, handle);
}

static void test_memory(void **state)
{
	struct lien_event made;

	(void)state;
	started(1);
	/* While it is made, under the name that the call has; then by its address. */
	made = EVENT(LIEN_CALL_NCCL_INIT_RANK, 1, .comm = {.comm = 0x100, .nranks = 1, .id = {1}});
	nccl_buffer(10, VA, LIEN_SCOPE_INIT | made.t_entry, 0);
	apply(&made);
	nccl_buffer(11, VA + PIECE, 0x100, LIEN_EVENT_INFERRED);
	nccl_buffer(12, VA + 2 * PIECE, 0, 0);
	see_comms();
	INTEGER(PIECE, "communicators[0].bytes");
	INTEGER(PIECE, "communicators[0].inferred_bytes");
	/* A thread of NCCL's goes on after the call has returned, or begins only then. */
	nccl_buffer(13, VA + 3 * PIECE, LIEN_SCOPE_INIT | made.t_entry, LIEN_EVENT_INFERRED);
	made = EVENT(LIEN_CALL_NCCL_INIT_RANK, 1, .comm = {.comm = 0x200, .nranks = 1, .id = {2}});
	apply(&made);
	nccl_buffer(14, VA + 4 * PIECE, LIEN_SCOPE_INIT | made.t_entry, LIEN_EVENT_INFERRED);
	see_comms();
	INTEGER(PIECE, "communicators[0].bytes");
	INTEGER(2 * PIECE, "communicators[0].inferred_bytes");
	INTEGER(0, "communicators[1].bytes");
	INTEGER(PIECE, "communicators[1].inferred_bytes");
	tell.flags = LIEN_EVENT_CONTROL;
	unmap(1, VA, PIECE);
	release(1, 10);
	tell.flags = 0;
	see_comms();
	INTEGER(0, "communicators[0].bytes");
	INTEGER(PIECE, "communicators[0].offloaded_bytes");
}

/* NCCL says yes and registers nothing where it has no use for it. */
static void test_no_handle(void **state)
{
	(void)state;
	started(1);
	comm_init(1, 0x100, 0xaa, 0, 1);
	comm_register(1, 0x100, VA, PIECE, 0);
	window_register(1, 0x100, VA, PIECE, 0);
	see_comms();
	INTEGER(0, "communicators[0].registrations.count");
	assert_nothing_odd();
}

/* --- processes that ran before they were watched ---------------------------------------------- */

static struct lien_ras_row rows[2];
static struct lien_ras_report said;

static void late(uint32_t pid)
{
	struct lien_event ev = EVENT(LIEN_CALL_NCCL_INIT_RANK, pid,
		.comm = {.comm = 0x100, .rank = pid - 1, .nranks = 2, .device = 0});

	started(pid);
	ev.flags = LIEN_EVENT_FOUND;
	lien_comm_found_id(ev.comm.id, 0xabc, 0, 0);
	apply(&ev);
}

static void test_late(void **state)
{
	(void)state;
	late(1);
	late(2);
	started(3);
	rows[0] = (struct lien_ras_row){
		.hash = 0xabc, .rank = 0, .nranks = 2, .device = 0, .address = 0x100};
	rows[1] = (struct lien_ras_row){.hash = 0xdef, .rank = 1, .nranks = 4, .device = -1};
	said = (struct lien_ras_report){.t_asked = 8000000,
		.version = "2.28.9",
		.job = 3,
		.whole = true,
		.row = rows,
		.rows = 2};
	process(1)->ras = &said;
	pending = true;
	*count(1, 0x100) = (struct lien_probe_traffic){.calls = {[REDUCES] = 3}};
	*count(2, 0x100) = (struct lien_probe_traffic){.calls = {[REDUCES] = 4}};
	see_comms();
	assert_true(json_is_true(at("pending")));
	assert_members(at("communicators[0]"),
		"group:s hash:s by:s pid:i command:s address:s rank:i nranks:i device:? state:s "
		"complete:b bytes:i inferred_bytes:i host_bytes:i inferred_host_bytes:i "
		"offloaded_bytes:i registrations:o calls:o calls_total:i moved_bytes:i last_ms:?");
	STRING("0xabc", "communicators[0].hash");
	STRING("NCCL RAS", "communicators[1].by");
	assert_true(json_is_false(at("communicators[0].complete")));
	STRING("NCCL RAS", "groups[0].by");
	INTEGER(2, "groups[0].here");
	LENGTH(0, "groups[0].behind"); /* counted from different calls on */
	LENGTH(2, "late");
	assert_members(at("late[0]"),
		"pid:i command:s ras:s problem:n version:s age_ms:r job:i named:i matched:i "
		"unmatched:a others:b");
	INTEGER(1, "late[0].pid");
	STRING("answered", "late[0].ras");
	assert_true(json_real_value(at("late[0].age_ms")) == 1);
	INTEGER(3, "late[0].job");
	INTEGER(2, "late[0].named");
	INTEGER(1, "late[0].matched");
	assert_true(json_is_false(at("late[0].others")));
	LENGTH(1, "late[0].unmatched");
	assert_members(at("late[0].unmatched[0]"), "group:s hash:s rank:i nranks:i device:n");
	STRING("0000000000000def", "late[0].unmatched[0].group");
	assert_members(at("late[1]"),
		"pid:i command:s ras:s problem:n version:n age_ms:n job:n named:n matched:n "
		"unmatched:a others:b");
	STRING("not asked", "late[1].ras");
	assert_true(json_is_true(at("late[1].others")));
	/* What it said before it fell silent is still there, and not all. */
	strcpy(said.problem, "it does not answer");
	said.whole = false;
	see_comms();
	STRING("silent", "late[0].ras");
	STRING("it does not answer", "late[0].problem");
	INTEGER(2, "late[0].named");
	assert_true(json_is_true(at("late[0].others")));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		COMMS(test_nothing),
		COMMS(test_members),
		COMMS(test_not_counted),
		COMMS(test_behind),
		COMMS(test_addresses),
		COMMS(test_parent),
		COMMS(test_made_before),
		COMMS(test_memory),
		COMMS(test_no_handle),
		COMMS(test_late),
	};

	return cmocka_run_group_tests_name("views_comms", tests, NULL, NULL);
}
