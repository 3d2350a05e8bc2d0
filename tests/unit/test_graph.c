// SPDX-License-Identifier: BSD-2-Clause
#include "events.h"

static void test_lifetime(void **state)
{
	(void)state;
	started(1);
	create(1, 10, PIECE);
	assert_counts(1, 1, 0);
	assert_int_equal(handle_of(1, 10)->holding->allocation->bytes, PIECE);
	assert_int_equal(handle_of(1, 10)->holding->allocation->prop.location_id, 0);
	reserve(1, VA, PIECE);
	map_rw(1, VA, PIECE, 10);
	assert_counts(1, 1, 1);
	assert_ptr_equal(allocation_at(1, VA), handle_of(1, 10)->holding->allocation);
	assert_ptr_equal(mapping_at(1, VA + PIECE - 1), mapping_at(1, VA));
	assert_null(mapping_at(1, VA + PIECE));
	assert_null(mapping_at(1, VA - 1));
	retain(1, 10, VA);
	assert_int_equal(references_of(1, 10), 2);
	release(1, 10);
	unmap(1, VA, PIECE);
	assert_counts(1, 1, 0);
	release(1, 10);
	assert_counts(1, 0, 0);
	address_free(1, VA, PIECE);
	assert_true(SPLAY_EMPTY(&process(1)->reservations));
	assert_false(process(1)->incomplete);
	assert_nothing_odd();
}

/* A handle without references names its memory as long as that is mapped; retain finds it. */
static void test_released_handle(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	reserve(1, VA + PIECE, PIECE);
	map_rw(1, VA + PIECE, PIECE, 10);
	release(1, 10);
	assert_int_equal(references_of(1, 10), 0);
	retain(1, 10, VA);
	assert_int_equal(references_of(1, 10), 1);
	release(1, 10);
	unmap(1, VA, PIECE);
	assert_int_equal(references_of(1, 10), 0);
	assert_counts(1, 1, 1);
	unmap(1, VA + PIECE, PIECE);
	assert_null(handle_of(1, 10));
	assert_counts(1, 0, 0);
	assert_nothing_odd();
}

/* That VA was unmapped and mapped again was lost: two allocations do not become one. */
static void test_retain_contradicts(void **state)
{
	(void)state;
	started(1);
	create(1, 10, PIECE);
	create(1, 11, PIECE);
	map(1, VA, PIECE, 10);
	map(1, VA + PIECE, PIECE, 10);
	map(1, VA + 2 * PIECE, PIECE, 11);
	assert_nothing_odd();
	retain(1, 11, VA);
	assert_null(mapping_at(1, VA));
	assert_ptr_equal(handle_of(1, 10)->holding->allocation, allocation_at(1, VA + PIECE));
	assert_ptr_equal(handle_of(1, 11)->holding->allocation, allocation_at(1, VA + 2 * PIECE));
	assert_int_equal(references_of(1, 11), 2);
	assert_int_equal(process(1)->incomplete, LIEN_INCOMPLETE_ODD);
	assert_counts(1, 2, 2);
}

static void test_one_unmap_many(void **state)
{
	(void)state;
	started(1);
	reserve(1, VA, 4 * PIECE);
	for (unsigned i = 0; i < 4; i++) {
		create(1, 10 + i, PIECE);
		map(1, VA + i * PIECE, PIECE, 10 + i);
		release(1, 10 + i);
	}
	set_access(1, VA, 4 * PIECE, 1, CU_MEM_ACCESS_FLAGS_PROT_READ);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(mapping_at(1, VA + i * PIECE)->access->access[0].flags,
			CU_MEM_ACCESS_FLAGS_PROT_READ);
	unmap(1, VA + PIECE, 2 * PIECE);
	assert_counts(1, 2, 2);
	assert_non_null(mapping_at(1, VA));
	assert_null(mapping_at(1, VA + PIECE));
	assert_non_null(mapping_at(1, VA + 3 * PIECE));
	assert_nothing_odd();
}

static void test_access(void **state)
{
	const struct lien_access_set *both;

	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	set_access(1, VA, PIECE, 3, CU_MEM_ACCESS_FLAGS_PROT_READ);
	set_access(1, VA, PIECE, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	set_access(1, VA, PIECE, 3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	both = mapping_at(1, VA)->access;
	assert_int_equal(both->count, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(both->access[i].location_id, i < 2 ? i : 3);
		assert_int_equal(both->access[i].flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	}
	/* Another order, the same set. */
	buffer(1, 11, VA + PIECE, PIECE);
	TELL(LIEN_CALL_CU_MEM_SET_ACCESS, 1,
		.access = {.va = VA + PIECE,
			.bytes = PIECE,
			.count = 2,
			.access = {{CU_MEM_LOCATION_TYPE_DEVICE, 3, 3},
				{CU_MEM_LOCATION_TYPE_DEVICE, 1, 3}}});
	assert_ptr_equal(mapping_at(1, VA + PIECE)->access, both);
	/* A device and a NUMA node of one number are two places. */
	TELL(LIEN_CALL_CU_MEM_SET_ACCESS, 1,
		.access = {.va = VA,
			.bytes = PIECE,
			.count = 1,
			.access = {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 3, 3}}});
	assert_int_equal(mapping_at(1, VA)->access->count, 4);
	assert_nothing_odd();
}

static void test_share(void **state)
{
	(void)state;
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, VA, PIECE);
	assert_counts(2, 1, 2);
	assert_ptr_equal(allocation_at(1, VA), allocation_at(2, VA));
	assert_int_equal(allocation_at(2, VA)->owner_pid, 1);
	assert_int_equal(allocation_at(2, VA)->exports, 1);
	assert_true(mapping_at(2, VA)->imported && handle_of(2, 20)->imported);
	assert_false(mapping_at(1, VA)->imported || handle_of(1, 10)->imported);
	/* The importer keeps it alive. */
	unmap(1, VA, PIECE);
	release(1, 10);
	assert_counts(2, 1, 1);
	ended(1);
	assert_counts(1, 1, 1);
	assert_null(allocation_at(2, VA)->owner);
	assert_int_equal(allocation_at(2, VA)->owner_pid, 1);
	release(2, 20);
	unmap(2, VA, PIECE);
	assert_counts(1, 0, 0);
	assert_nothing_odd();
}

/* The exported descriptor travels while the owner has dropped everything else. */
static void test_share_in_flight(void **state)
{
	(void)state;
	started(1);
	started(2);
	create(1, 10, PIECE);
	export(1, 10, 5);
	release(1, 10);
	assert_false(lien_allocation_held(lien_graph_first_allocation(graph)));
	imported_buffer(2, 20, 5, VA, PIECE);
	assert_int_equal(allocation_at(2, VA)->owner_pid, 1);
	assert_false(process(2)->incomplete);
	unmap(2, VA, PIECE);
	release(2, 20);
	assert_counts(2, 0, 0);
	/* Nobody imports this one: it goes with its owner. */
	create(1, 10, PIECE);
	export(1, 10, 6);
	release(1, 10);
	assert_counts(2, 1, 0);
	ended(1);
	assert_counts(1, 0, 0);
	assert_nothing_odd();
}

/* The same descriptor imported in two processes, and twice in one. */
static void test_share_twice(void **state)
{
	(void)state;
	for (unsigned pid = 1; pid <= 3; pid++)
		started(pid);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, VA, PIECE);
	imported_buffer(2, 21, 5, VA + PIECE, PIECE);
	imported_buffer(3, 30, 5, VA, PIECE);
	assert_counts(3, 1, 4);
	ended(2);
	assert_counts(2, 1, 2);
	ended(3);
	assert_counts(1, 1, 1);
	assert_nothing_odd();
}

/* Imported twice into one process: a handle goes with the mapping that was made by it, and the
 * driver gives its value out again. */
/* One process has two handles to the memory of another, no references to them, and one mapping. */
static void imported_twice(void)
{
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, VA, PIECE);
	imported_buffer(2, 21, 5, VA + PIECE, PIECE);
	release(2, 20);
	release(2, 21);
	unmap(2, VA + PIECE, PIECE);
}

static void test_import_twice(void **state)
{
	(void)state;
	imported_twice();
	create(2, 21, PIECE);
	assert_int_equal(lien_graph_stats(graph)->odd, 0);
	assert_true(lien_process_whole(process(2)));
	/* One that has a reference cannot have gone. */
	create(2, 21, PIECE);
	assert_int_equal(lien_graph_stats(graph)->odd, 1);
}

/* As above, while the driver is about to refuse an unmap that ends within a mapping. */
static void test_import_twice_refused_unmap(void **state)
{
	struct lien_event refused, entry;

	(void)state;
	imported_twice();
	refused = EVENT(LIEN_CALL_CU_MEM_UNMAP, 2, .range = {VA, PIECE + 4096});
	map_rw(1, VA + PIECE, PIECE, 10);
	entry = entry_of(refused);
	apply(&entry);
	create(2, 21, PIECE);
	refused.result = CUDA_ERROR_INVALID_VALUE;
	apply(&refused);
	assert_non_null(mapping_at(2, VA));
	assert_nothing_odd();
}

static void test_unmatched_import(void **state)
{
	(void)state;
	started(2);
	imported_buffer(2, 20, 77, VA, PIECE);
	assert_int_equal(lien_graph_stats(graph)->unmatched_imports, 1);
	assert_int_equal(process(2)->incomplete, LIEN_INCOMPLETE_SHARE);
	assert_int_equal(allocation_at(2, VA)->origin, LIEN_ORIGIN_IMPORT);
	assert_int_equal(allocation_at(2, VA)->bytes, PIECE);
	assert_null(allocation_at(2, VA)->owner);
	assert_int_equal(allocation_at(2, VA)->owner_pid, 0);
}

static void test_failed_calls(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	comm_init(1, 0x100, 1, 0, 2);
	comm_register(1, 0x100, VA, PIECE, 0x200);
	tell.result = CUDA_ERROR_INVALID_VALUE;
	create(1, 11, PIECE);
	release(1, 10);
	retain(1, 10, VA);
	reserve(1, VA + PIECE, PIECE);
	address_free(1, VA, PIECE);
	map(1, VA + PIECE, PIECE, 10);
	unmap(1, VA, PIECE);
	set_access(1, VA, PIECE, 5, 1);
	export(1, 10, 5);
	import(1, 12, 5);
	alloc(1, VA + 8 * PIECE, PIECE);
	free_alloc(1, VA);
	comm_init(1, 0x101, 1, 1, 2);
	comm_register(1, 0x100, VA, PIECE, 0x201);
	comm_deregister(1, 0x100, 0x200);
	comm_destroy(1, 0x100);
	capture_begin(1, 3);
	assert_counts(1, 1, 1);
	assert_int_equal(references_of(1, 10), 1);
	assert_int_equal(mapping_at(1, VA)->access->count, 1);
	assert_int_equal(allocation_at(1, VA)->exports, 0);
	assert_true(RB_EMPTY(&process(1)->captures));
	assert_true(TAILQ_EMPTY(&process(1)->pending));
	assert_int_equal(RB_MIN(lien_comm_tree, &process(1)->comms)->address, 0x100);
	assert_int_equal(
		RB_ROOT(&RB_MIN(lien_comm_tree, &process(1)->comms)->registrations)->handle, 0x200);
	assert_false(process(1)->incomplete);
	assert_nothing_odd();
}

/* ncclInProgress is not a failure; of the driver, 7 is. */
static void test_in_progress(void **state)
{
	(void)state;
	started(1);
	tell.result = 7;
	comm_init(1, 0x100, 1, 0, 2);
	comm_register(1, 0x100, VA, PIECE, 0x200);
	create(1, 10, PIECE);
	assert_int_equal(RB_MIN(lien_comm_tree, &process(1)->comms)->nranks, 2);
	assert_false(RB_EMPTY(&RB_MIN(lien_comm_tree, &process(1)->comms)->registrations));
	assert_counts(1, 0, 0);
	comm_destroy(1, 0x100);
	assert_true(RB_EMPTY(&process(1)->comms));
}

static void test_alloc(void **state)
{
	(void)state;
	started(1);
	alloc(1, VA, 1000);
	alloc(1, VA + 1024, 24);
	assert_counts(1, 2, 2);
	assert_int_equal(allocation_at(1, VA + 999)->origin, LIEN_ORIGIN_ALLOC);
	assert_null(mapping_at(1, VA + 1000));
	assert_true(lien_allocation_on_device(allocation_at(1, VA)));
	free_alloc(1, VA);
	free_alloc(1, 0);
	assert_counts(1, 1, 1);
	assert_nothing_odd();
	free_alloc(1, VA);
	assert_int_equal(process(1)->incomplete, LIEN_INCOMPLETE_ODD);
}

static void test_comms(void **state)
{
	struct lien_registration *registration;
	struct lien_comm *comm;

	(void)state;
	started(1);
	comm_init(1, 0x100, 0xaa, 1, 4);
	comm_init(1, 0x200, 0xbb, 0, 2);
	comm_register(1, 0x100, VA, PIECE, 0x900);
	window_register(1, 0x100, VA + PIECE, PIECE, 0x901);
	comm_register(1, 0x200, VA, PIECE, 0x900); /* its own handle, though of the same value */
	comm = RB_MIN(lien_comm_tree, &process(1)->comms);
	assert_int_equal(comm->address, 0x100);
	assert_int_equal(comm->id[0], 0xaa);
	assert_int_equal(comm->rank, 1);
	assert_true(RB_MAX(lien_registration_tree, &comm->registrations)->window);
	comm_deregister(1, 0x100, 0x900);
	registration = RB_ROOT(&comm->registrations);
	assert_int_equal(registration->handle, 0x901);
	assert_ptr_equal(RB_MIN(lien_registration_tree, &comm->registrations), registration);
	assert_null(RB_NEXT(lien_registration_tree, &comm->registrations, registration));
	RELEASE(LIEN_CALL_NCCL_WINDOW_DEREGISTER, 1, .reg = {.comm = 0x100, .handle = 0x901});
	assert_true(RB_EMPTY(&comm->registrations));
	RELEASE(LIEN_CALL_NCCL_ABORT, 1, .comm_end = {0x100});
	comm = RB_MIN(lien_comm_tree, &process(1)->comms);
	assert_int_equal(comm->address, 0x200);
	assert_false(RB_EMPTY(&comm->registrations));
	comm_destroy(1, 0x200);
	assert_true(RB_EMPTY(&process(1)->comms));
	/* A communicator of before, and one that did not come to be. */
	comm_register(1, 0x300, VA, PIECE, 1);
	comm_deregister(1, 0x300, 1);
	comm_destroy(1, 0x300);
	comm_init(1, 0, 1, 0, 1);
	assert_true(RB_EMPTY(&process(1)->comms));
	assert_nothing_odd();
}

static void test_captures(void **state)
{
	static const int goes_on[] = {1, 400, 903, 908};
	struct lien_capture *capture;
	unsigned captures = 0;

	(void)state;
	started(1);
	capture_begin(1, 3);
	TELL(LIEN_CALL_CU_CAPTURE_BEGIN_PTSZ, 1, .capture = {4});
	TELL(LIEN_CALL_CU_CAPTURE_TO_GRAPH, 1, .capture = {5});
	for (unsigned i = 0; i < COUNT(goes_on); i++) {
		tell.result = goes_on[i];
		capture_end(1, 3);
	}
	tell.result = 0;
	RB_FOREACH (capture, lien_capture_tree, &process(1)->captures)
		captures++;
	assert_int_equal(captures, 3);
	tell.result = 901; /* STREAM_CAPTURE_INVALIDATED: ends it, without a graph */
	capture_end(1, 3);
	tell.result = 0;
	capture_end(1, 4);
	TELL(LIEN_CALL_CU_CAPTURE_END_PTSZ, 1, .capture = {5});
	capture_end(1, 5);
	assert_true(RB_EMPTY(&process(1)->captures));
}

static const char *owner_at(uint64_t va)
{
	return allocation_at(1, va)->site->library->text;
}

static void test_caller(void **state)
{
	static const struct {
		const char *file, *name;
	} cases[] = {
		{"libtorch_cuda.so", "torch_cuda"},
		{"libfoo.so.2.1", "foo"},
		{"python3.11", "python3.11"},
		{"lib", ""},
		{"libbar", "bar"},
		{"tool.so", "tool.so"},
		{"memfd:lien/libbar.so", "bar"},
	};

	(void)state;
	started(1);
	for (unsigned i = 0; i < COUNT(cases); i++) {
		library(1, IN_TORCH + i * 4 * MIB, cases[i].file);
		tell.caller = IN_TORCH + i * 4 * MIB + MIB - 1;
		buffer(1, 10 + i, VA + i * PIECE, PIECE);
		assert_string_equal(owner_at(VA + i * PIECE), cases[i].name);
	}
	tell.outer = LIEN_CALL_NCCL_INIT_RANK; /* its own code is no part of the question */
	alloc(1, VA + 50 * PIECE, 1);
	assert_string_equal(owner_at(VA + 50 * PIECE), "nccl");
	tell.outer = LIEN_CALL_CUDA_MALLOC;
	tell.caller = IN_TORCH;
	alloc(1, VA + 51 * PIECE, 1);
	assert_string_equal(owner_at(VA + 51 * PIECE), "torch_cuda");
	assert_int_equal(allocation_at(1, VA + 51 * PIECE)->site->outer, LIEN_CALL_CUDA_MALLOC);
	tell.caller = IN_TORCH + MIB;
	alloc(1, VA + 52 * PIECE, 1);
	assert_string_equal(owner_at(VA + 52 * PIECE), "unknown");
}

/* A process that was too slow to be read when it began to allocate. */
static void test_library_found_later(void **state)
{
	struct lien_event ev = EVENT(LIEN_EVENT_LIBRARY, 1,
		.library = {.start = IN_TORCH,
			.length = MIB,
			.inode = 7,
			.offset = 4096,
			.name = "libtorch_cuda.so"});

	(void)state;
	started(1);
	tell.caller = IN_TORCH + 5;
	alloc(1, VA, 1);
	tell.caller = IN_TORCH + MIB; /* elsewhere */
	alloc(1, VA + PIECE, 1);
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	tell.caller = IN_TORCH;
	alloc(1, VA + 2 * PIECE, 1);
	assert_string_equal(owner_at(VA), "unknown");
	ev.t_entry = ev.t_return = 0;
	apply(&ev);
	assert_string_equal(owner_at(VA), "torch_cuda");
	assert_int_equal(allocation_at(1, VA)->site->offset, 4096 + 5);
	assert_int_equal(allocation_at(1, VA)->site->inode, 7);
	assert_string_equal(owner_at(VA + PIECE), "unknown");
	assert_string_equal(owner_at(VA + 2 * PIECE), "nccl");
	assert_int_equal(allocation_at(1, VA + 2 * PIECE)->site->inode, 7);
}

static void test_libraries(void **state)
{
	struct lien_library_map *found;

	(void)state;
	started(1);
	library(1, IN_TORCH, "liba.so");
	library(1, IN_TORCH + MIB, "libb.so");
	now += 100;
	library(1, IN_TORCH, "liba.so"); /* told twice */
	found = lien_process_library(process(1), IN_TORCH);
	assert_true(found->t_mapped < now - 50);
	assert_string_equal(found->file->text, "liba.so");
	assert_ptr_equal(lien_process_library(process(1), IN_TORCH + MIB - 1), found);
	assert_string_equal(
		lien_process_library(process(1), IN_TORCH + MIB)->file->text, "libb.so");
	assert_null(lien_process_library(process(1), IN_TORCH - 1));
	assert_null(lien_process_library(process(1), IN_TORCH + 2 * MIB));
	/* Mapped over both. */
	library(1, IN_TORCH + MIB / 2, "libc.so");
	assert_null(lien_process_library(process(1), IN_TORCH));
	assert_string_equal(
		lien_process_library(process(1), IN_TORCH + MIB)->file->text, "libc.so");
	/* Mapping a library is not using CUDA. */
	library(2, IN_TORCH, "liba.so");
	assert_false(process(2)->cuda);
	assert_true(process(1)->cuda);
}

static unsigned ends;
static uint32_t last_end;

static void on_end(void *context, struct lien_process *ending)
{
	assert_ptr_equal(context, &ends);
	ends++;
	last_end = ending->pid;
}

static void test_processes(void **state)
{
	(void)state;
	ends = 0;
	lien_graph_on_process_end(graph, on_end, &ends);
	assert_null(lien_graph_first(graph));
	ended(5);
	TELL(LIEN_EVENT_EXEC, 5, );
	assert_counts(0, 0, 0);
	create(5, 10, PIECE); /* no first sight of it: it may have called before */
	assert_int_equal(process(5)->incomplete, LIEN_INCOMPLETE_LATE);
	started(3);
	assert_int_equal(process(3)->incomplete, 0);
	assert_int_equal(process(3)->uid, 1000);
	assert_string_equal(process(3)->command, "python3");
	assert_ptr_equal(lien_graph_first(graph), process(3));
	assert_ptr_equal(lien_graph_next(process(3)), process(5));
	assert_null(lien_graph_next(process(5)));
	/* The pid is another process now. */
	TELL(LIEN_CALL_CU_INIT, 5, .start = 1);
	assert_int_equal(ends, 1);
	assert_int_equal(process(5)->start, 1);
	assert_true(SPLAY_EMPTY(&process(5)->handles));
	buffer(3, 10, VA, PIECE);
	alloc(3, VA + PIECE, 5);
	comm_init(3, 0x100, 1, 0, 1);
	comm_register(3, 0x100, VA, 1, 1);
	capture_begin(3, 4);
	TELL(LIEN_EVENT_EXEC, 3, );
	assert_int_equal(ends, 2);
	assert_int_equal(last_end, 3);
	assert_counts(1, 0, 0);
	started(4);
	buffer(4, 10, VA, PIECE);
	lien_graph_free(graph);
	assert_int_equal(ends, 4);
	assert_int_equal(lien_graph_new(&graph), 0);
}

/* What does not fit is noted, and the driver is right. */
static void test_odd(void **state)
{
	(void)state;
	started(1);
	create(1, 10, PIECE);
	create(1, 10, 2 * PIECE); /* the release was missed */
	assert_int_equal(process(1)->incomplete, LIEN_INCOMPLETE_ODD);
	assert_int_equal(lien_graph_stats(graph)->odd, 1);
	assert_int_equal(handle_of(1, 10)->holding->allocation->bytes, 2 * PIECE);
	assert_counts(1, 1, 0);
	map(1, VA, PIECE, 10);
	map(1, VA, PIECE, 11); /* of an unknown handle, over a mapping */
	assert_int_equal(allocation_at(1, VA)->origin, LIEN_ORIGIN_IMPORT);
	assert_int_equal(mapping_at(1, VA)->bytes, PIECE);
	assert_counts(1, 2, 1);
	release(1, 99);
	unmap(1, VA + 9 * PIECE, PIECE);
	address_free(1, VA, PIECE);
	retain(1, 98, VA + 9 * PIECE);
	set_access(1, VA + 9 * PIECE, PIECE, 0, 3);
	export(1, 97, 4);
	reserve(1, VA, PIECE);
	reserve(1, VA, 2 * PIECE);
	assert_int_equal(lien_graph_stats(graph)->odd, 10);
	assert_counts(1, 2, 1);
	assert_int_equal(
		SPLAY_MIN(lien_reservation_tree, &process(1)->reservations)->bytes, 2 * PIECE);
	/* Of a process whose beginning was missed it is expected. */
	TELL(LIEN_EVENT_PROCESS, 2, .process = {.complete = 0});
	release(2, 99);
	unmap(2, VA, PIECE);
	assert_int_equal(process(2)->incomplete, LIEN_INCOMPLETE_LATE);
	assert_int_equal(lien_graph_stats(graph)->odd, 10);
}

static void test_incomplete(void **state)
{
	(void)state;
	started(1);
	started(2);
	TELL(LIEN_EVENT_LOST, 1, .lost = {41});
	assert_int_equal(process(1)->incomplete, LIEN_INCOMPLETE_LOST);
	assert_int_equal(lien_graph_stats(graph)->lost, 41);
	tell.flags = LIEN_EVENT_PARTIAL;
	create(2, 1, PIECE);
	assert_int_equal(process(2)->incomplete, LIEN_INCOMPLETE_ARGS);
}

static void test_malformed(void **state)
{
	struct lien_event ev = EVENT(LIEN_CALL_CU_MEM_CREATE, 1, .create = {.handle = 1});

	(void)state;
	ev.size = LIEN_EVENT_HEADER;
	assert_int_equal(lien_graph_apply(graph, &ev), -EBADMSG);
	ev.size = sizeof(ev);
	ev.type = LIEN_CALL_CUDA_MALLOC;
	assert_int_equal(lien_graph_apply(graph, &ev), -EBADMSG);
	ev.type = LIEN_CALL_CU_MEM_CREATE;
	ev.flags = LIEN_EVENT_ENTRY;
	assert_int_equal(lien_graph_apply(graph, &ev), -EBADMSG);
	assert_counts(0, 0, 0);
	assert_int_equal(lien_graph_stats(graph)->events, 0);
	ev = EVENT(LIEN_EVENT_END, 0, );
	assert_int_equal(lien_graph_apply(graph, &ev), 0);
	assert_counts(0, 0, 0);
	/* A share's number told twice can only be forged. */
	started(1);
	create(1, 10, PIECE);
	export(1, 10, 5);
	ev = EVENT(LIEN_CALL_CU_MEM_EXPORT, 1, .share = {.handle = 10, .share = 5});
	assert_int_equal(lien_graph_apply(graph, &ev), -EBADMSG);
}

/* Offload and restore of an allocation with an alias, held by a released handle, and imported. */
static void test_offload(void **state)
{
	uint64_t id, imports_va = VA + 8 * PIECE;
	struct lien_allocation *allocation;

	(void)state;
	started(1);
	started(2);
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	buffer(1, 10, VA, PIECE);
	tell.outer = 0;
	map_rw(1, VA + PIECE, PIECE, 10);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, imports_va, PIECE);
	release(1, 10);
	allocation = allocation_at(1, VA);
	id = allocation->id;
	for (unsigned round = 0; round < 3; round++) {
		uint64_t own = 100 + round, theirs = 200 + round;

		control_detach(2, imports_va, PIECE, round ? theirs - 1 : 20, 1);
		assert_true(mapping_at(2, imports_va)->parked);
		assert_false(lien_allocation_offloaded(allocation));
		tell.flags = LIEN_EVENT_CONTROL;
		retain(1, round ? own - 1 : 10, VA);
		unmap(1, VA, PIECE);
		assert_false(lien_allocation_offloaded(allocation));
		unmap(1, VA + PIECE, PIECE);
		release(1, round ? own - 1 : 10);
		tell.flags = 0;
		assert_true(lien_allocation_offloaded(allocation));
		assert_true(lien_allocation_held(allocation));
		assert_int_equal(allocation->id, id);
		assert_counts(2, 1, 3);

		tell.flags = LIEN_EVENT_CONTROL;
		create(1, own, PIECE);
		map_rw(1, VA, PIECE, own);
		map_rw(1, VA + PIECE, PIECE, own);
		release(1, own);
		retain(1, own, VA);
		export(1, own, 50 + round);
		release(1, own);
		import(2, theirs, 50 + round);
		tell.flags = 0;
		control_attach(2, imports_va, PIECE, theirs, 1);
		assert_counts(2, 1, 3);
		assert_int_equal(allocation_at(1, VA)->id, id);
		assert_int_equal(allocation_at(2, imports_va)->id, id);
		assert_string_equal(allocation->site->library->text, "nccl");
		assert_int_equal(allocation->exports, 1); /* restores are not the application's */
		assert_int_equal(references_of(1, own), 0);
		assert_int_equal(references_of(2, theirs), 1);
		assert_int_equal(mapping_at(1, VA + PIECE)->access->count, 1);
		assert_false(lien_allocation_offloaded(allocation));
		/* The application's, and the last restore's: they do not pile up. */
		assert_non_null(LIST_NEXT(LIST_FIRST(&allocation->shares), of_allocation));
		assert_null(LIST_NEXT(
			LIST_NEXT(LIST_FIRST(&allocation->shares), of_allocation), of_allocation));
	}
	assert_nothing_odd();
	assert_false(process(1)->incomplete || process(2)->incomplete);
}

/* What is offloaded goes with its process, and what it parked of others does not keep these. */
static void test_offloaded_exit(void **state)
{
	(void)state;
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, VA, PIECE);
	control_detach(2, VA, PIECE, 20, 1);
	control_detach(1, VA, PIECE, 10, 1);
	assert_true(lien_allocation_offloaded(allocation_at(1, VA)));
	ended(1);
	assert_counts(1, 1, 1);
	assert_true(mapping_at(2, VA)->parked);
	ended(2);
	assert_counts(0, 0, 0);
	assert_nothing_odd();
}

/* A map of the control library's that is not at a parked place is one like any other. */
static void test_control_maps_elsewhere(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	control_detach(1, VA, PIECE, 10, 1);
	tell.flags = LIEN_EVENT_CONTROL;
	create(1, 11, PIECE);
	map(1, VA + PIECE, PIECE, 11);
	tell.flags = 0;
	assert_counts(1, 2, 2);
	assert_true(mapping_at(1, VA)->parked);
	/* Not the whole of the parked mapping: not a restore, so the old one is gone. */
	buffer(1, 12, VA + 4 * PIECE, 2 * PIECE);
	control_detach(1, VA + 4 * PIECE, 2 * PIECE, 12, 1);
	tell.flags = LIEN_EVENT_CONTROL;
	create(1, 13, PIECE);
	map(1, VA + 4 * PIECE, PIECE, 13);
	tell.flags = 0;
	assert_int_equal(process(1)->incomplete, LIEN_INCOMPLETE_ODD);
	assert_int_equal(mapping_at(1, VA + 4 * PIECE)->bytes, PIECE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_lifetime),
		TEST(test_released_handle),
		TEST(test_retain_contradicts),
		TEST(test_one_unmap_many),
		TEST(test_access),
		TEST(test_share),
		TEST(test_share_in_flight),
		TEST(test_share_twice),
		TEST(test_import_twice),
		TEST(test_import_twice_refused_unmap),
		TEST(test_unmatched_import),
		TEST(test_failed_calls),
		TEST(test_in_progress),
		TEST(test_alloc),
		TEST(test_comms),
		TEST(test_captures),
		TEST(test_caller),
		TEST(test_library_found_later),
		TEST(test_libraries),
		TEST(test_processes),
		TEST(test_odd),
		TEST(test_incomplete),
		TEST(test_malformed),
		TEST(test_offload),
		TEST(test_offloaded_exit),
		TEST(test_control_maps_elsewhere),
	};

	return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
