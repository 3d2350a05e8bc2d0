// SPDX-License-Identifier: BSD-2-Clause
#include "events.h"

#include "agent/plan/plan.h"

static struct lien_plan plan;
static char error[256];
static struct lien_selection all;

static int plan_setup(void **state)
{
	memset(&plan, 0, sizeof(plan));
	all = (struct lien_selection){.owner = NULL};
	return setup(state);
}

static int plan_teardown(void **state)
{
	lien_plan_clear(&plan);
	return teardown(state);
}

static int make(const struct lien_selection *selection)
{
	lien_plan_clear(&plan);
	memset(error, 0, sizeof(error));
	return lien_plan_offload(graph, selection, &plan, error, sizeof(error));
}

static void expect_refusal(const struct lien_selection *selection, int code, const char *words)
{
	assert_int_equal(make(selection), code);
	if (!strstr(error, words))
		fail_msg("\"%s\" is not in \"%s\"", words, error);
	assert_null(strchr(error, '\n'));
	assert_int_equal(plan.processes_count + plan.left_count, 0);
	assert_null(plan.processes);
}

/* Nothing is moved; one allocation of process 1 is left, for this reason. */
static void expect_left(uint32_t pid, uint64_t bytes, const char *words)
{
	struct lien_selection strict = all;

	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.processes_count, 0);
	assert_int_equal(plan.left_count, 1);
	assert_int_equal(plan.left[0].pid, pid);
	assert_int_equal(plan.left[0].allocations, 1);
	assert_int_equal(plan.left[0].bytes, bytes);
	if (!strstr(plan.left[0].reason, words))
		fail_msg("\"%s\" is not in \"%s\"", words, plan.left[0].reason);
	strict.strict = true;
	expect_refusal(&strict, -EBUSY, words);
	assert_non_null(strstr(error, "--strict"));
}

static void test_one(void **state)
{
	const struct lien_wire_item *item;

	(void)state;
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.processes_count + plan.left_count, 0);
	started(1);
	create_on(1, 10, 3 * PIECE, device_prop(2));
	reserve(1, VA, 3 * PIECE);
	map(1, VA, 3 * PIECE, 10);
	set_access(1, VA, 3 * PIECE, 2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	set_access(1, VA, 3 * PIECE, 5, CU_MEM_ACCESS_FLAGS_PROT_READ);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 3 * PIECE);
	assert_int_equal(plan.left_count, 0);
	assert_int_equal(plan.processes_count, 1);
	assert_int_equal(plan.processes[0].pid, 1);
	assert_int_equal(plan.processes[0].allocations, 1);
	assert_int_equal(plan.processes[0].imports, 0);
	assert_int_equal(plan.processes[0].bytes, 3 * PIECE);
	assert_int_equal(plan.processes[0].items_count, 1);
	item = plan.processes[0].items;
	assert_int_equal(item->token, allocation_at(1, VA)->id);
	assert_int_equal(item->va, VA);
	assert_int_equal(item->bytes, 3 * PIECE);
	assert_int_equal(item->allocation_bytes, 3 * PIECE);
	assert_int_equal(item->flags, LIEN_WIRE_OWNED);
	assert_int_equal(item->index, 0);
	assert_int_equal(item->mappings, 1);
	assert_int_equal(item->handles, 1);
	assert_int_equal(item->handle[0].value, 10);
	assert_int_equal(item->handle[0].references, 1);
	assert_int_equal(item->prop_type, CU_MEM_ALLOCATION_TYPE_PINNED);
	assert_int_equal(item->handle_types, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	assert_int_equal(item->location_type, CU_MEM_LOCATION_TYPE_DEVICE);
	assert_int_equal(item->location_id, 2);
	assert_int_equal(item->rdma, 1);
	assert_int_equal(item->usage, 2);
	assert_int_equal(item->places, 2);
	assert_int_equal(item->place[0].location_id, 2);
	assert_int_equal(item->place[0].flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	assert_int_equal(item->place[1].location_id, 5);
	assert_int_equal(item->place[1].flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
}

static void test_references(void **state)
{
	static const unsigned wanted[] = {0, 1, 3};

	(void)state;
	started(1);
	for (unsigned i = 0; i < COUNT(wanted); i++) {
		buffer(1, 10 + i, VA + i * PIECE, PIECE);
		for (unsigned n = 1; n < wanted[i]; n++)
			retain(1, 10 + i, VA + i * PIECE);
		if (!wanted[i])
			release(1, 10 + i);
	}
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.processes[0].items_count, 3);
	for (unsigned i = 0; i < COUNT(wanted); i++)
		assert_int_equal(plan.processes[0].items[i].handle[0].references, wanted[i]);
}

/* Aliases, of which the first one in the list maps all and can be copied through. */
static void test_aliases(void **state)
{
	const struct lien_wire_item *item;

	(void)state;
	started(1);
	for (unsigned whole = 0; whole < 4; whole++) {
		uint64_t va = VA + whole * 64 * PIECE;

		create(1, 10 + whole, 4 * PIECE);
		reserve(1, va, 32 * PIECE);
		for (unsigned i = 0; i < 4; i++) {
			uint64_t at = va + i * 8 * PIECE;

			if (i == whole) {
				map_rw(1, at, 4 * PIECE, 10 + whole);
			} else {
				/* part of it; or all, and it may only be read */
				map(1, at, i % 2 ? 4 * PIECE : PIECE, 10 + whole);
				set_access(1, at, PIECE, 0,
					i % 2 ? CU_MEM_ACCESS_FLAGS_PROT_READ
					      : CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
			}
		}
	}
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 4 * 4 * PIECE);
	assert_int_equal(plan.processes[0].allocations, 4);
	assert_int_equal(plan.processes[0].items_count, 16);
	for (unsigned i = 0; i < 16; i++) {
		item = &plan.processes[0].items[i];
		assert_int_equal(item->index, i % 4);
		assert_int_equal(item->mappings, 4);
		assert_int_equal(item->token, plan.processes[0].items[i & ~3u].token);
		assert_int_equal(item->handle[0].references, 1);
		if (!item->index) {
			assert_int_equal(item->va, VA + i / 4 * 64 * PIECE + i / 4 * 8 * PIECE);
			assert_int_equal(item->bytes, 4 * PIECE);
			assert_int_equal(item->place[0].flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		}
	}
}

static void shared_by_three(void)
{
	for (unsigned pid = 1; pid <= 3; pid++)
		started(pid);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	export(1, 10, 6);
	imported_buffer(2, 20, 5, VA, PIECE);
	imported_buffer(3, 30, 6, VA, PIECE);
	reserve(3, VA + PIECE, PIECE);
	map_rw(3, VA + PIECE, PIECE, 30);
	release(3, 30);
	buffer(1, 11, VA + PIECE, PIECE); /* its own */
}

static const struct lien_plan_process *part_of(uint32_t pid)
{
	return lien_plan_part(&plan, pid);
}

static void check_shared(void)
{
	uint64_t shared = allocation_at(1, VA)->id;

	assert_int_equal(plan.processes_count, 3);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(plan.processes[i].pid, i + 1);
	for (unsigned i = 0; i < 2; i++) {
		bool is_shared = part_of(1)->items[i].token == shared;

		assert_int_equal(part_of(1)->items[i].flags,
			is_shared ? LIEN_WIRE_OWNED | LIEN_WIRE_SHARED : LIEN_WIRE_OWNED);
	}
	assert_int_equal(part_of(1)->imports, 0);
	assert_int_equal(part_of(2)->allocations, 0);
	assert_int_equal(part_of(2)->imports, 1);
	assert_int_equal(part_of(2)->bytes, 0);
	assert_int_equal(part_of(2)->items[0].flags, LIEN_WIRE_IMPORTED);
	assert_int_equal(part_of(2)->items[0].token, shared);
	assert_int_equal(part_of(2)->items[0].handle[0].references, 1);
	assert_int_equal(part_of(3)->imports, 1);
	assert_int_equal(part_of(3)->items_count, 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(part_of(3)->items[i].flags, LIEN_WIRE_IMPORTED);
		assert_int_equal(part_of(3)->items[i].index, i);
		assert_int_equal(part_of(3)->items[i].mappings, 2);
		assert_int_equal(part_of(3)->items[i].handle[0].references, 0);
	}
}

static void test_imports(void **state)
{
	(void)state;
	shared_by_three();
	assert_int_equal(make(&all), 0);
	check_shared();
	assert_int_equal(plan.bytes, 2 * PIECE);
	assert_int_equal(part_of(1)->bytes, 2 * PIECE);
}

static void test_pids(void **state)
{
	uint32_t pids[] = {1, 3, 2}; /* in any order */
	struct lien_selection some = {.pids = pids, .pids_count = 1};

	(void)state;
	shared_by_three();
	buffer(2, 25, VA + 9 * PIECE, PIECE);
	expect_refusal(&some, -EBUSY, "--pid");
	assert_non_null(strstr(error, "--with-closure"));
	assert_non_null(strstr(error, "process 1"));
	some.with_closure = true;
	assert_int_equal(make(&some), 0);
	check_shared();
	assert_int_equal(plan.bytes, 2 * PIECE);
	some.with_closure = false;
	some.pids_count = 3;
	assert_int_equal(make(&some), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(plan.processes[i].pid, i + 1);
	assert_int_equal(plan.bytes, 3 * PIECE);
	/* An importer's own memory, not what it imported. */
	pids[0] = 2;
	some.pids_count = 1;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.processes_count, 1);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(part_of(2)->allocations, 1);
	assert_int_equal(part_of(2)->imports, 0);
	pids[0] = 3;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.processes_count, 0);
	pids[0] = 4;
	expect_refusal(&some, -ESRCH, "process 4 is not known");
}

static void test_owner(void **state)
{
	struct lien_selection nccl = {.owner = "nccl"}, torch = {.owner = "torch_cuda"},
			      nobody = {.owner = "nvshmem"};

	(void)state;
	started(1);
	library(1, IN_TORCH, "libtorch_cuda.so");
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	buffer(1, 10, VA, PIECE);
	tell.outer = 0;
	tell.caller = IN_TORCH;
	buffer(1, 11, VA + PIECE, PIECE);
	buffer(1, 12, VA + 2 * PIECE, PIECE);
	assert_int_equal(make(&nccl), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.processes[0].items[0].va, VA);
	assert_int_equal(make(&torch), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	expect_refusal(&nobody, -ESRCH,
		"no GPU memory belongs to owner nvshmem; there is memory of nccl, torch_cuda (see");
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 3 * PIECE);
}

/* Nothing is moved: each process says why, and what would move. */
static void test_idle(void **state)
{
	struct lien_selection nccl = {.owner = "nccl"};
	const struct lien_idle *idle;

	(void)state;
	started(1);
	started(2);
	library(1, IN_TORCH, "libtorch_cuda.so");
	tell.caller = IN_TORCH;
	buffer(1, 11, VA, 2 * PIECE);
	alloc(1, VA + 8 * PIECE, 1000);
	assert_int_equal(make(&nccl), 0);
	assert_int_equal(plan.processes_count, 0);
	assert_int_equal(plan.idle_count, 2);
	idle = plan.idle;
	assert_int_equal(idle->pid, 1);
	assert_null(idle->reason);
	assert_int_equal(idle->bytes, 2 * PIECE + 1000);
	assert_int_equal(idle->others, 2 * PIECE + 1000);
	assert_int_equal(idle->movable, 2 * PIECE);
	assert_int_equal(idle->owners_count, 1);
	assert_string_equal(idle->owners[0], "torch_cuda");
	assert_int_equal(idle[1].bytes + idle[1].others + idle[1].offloaded, 0);
	process(1)->presence = LIEN_CONTROL_NONE;
	nccl.pids = (uint32_t[]){1};
	nccl.pids_count = 1;
	assert_int_equal(make(&nccl), 0);
	assert_int_equal(plan.idle_count, 1);
	assert_non_null(strstr(plan.idle[0].reason, "no control library"));
	assert_int_equal(plan.idle[0].movable, 0);
	nccl = (struct lien_selection){.owner = "nccl", .viewer = {true, 4711}};
	assert_int_equal(make(&nccl), 0);
	assert_int_equal(plan.idle_count, 0);
}

/* --- discarded ---------------------------------------------------------------------------------
 */

static void expect_worthless(uint64_t va, bool worthless)
{
	const struct lien_plan_process *part = &plan.processes[0];

	for (unsigned i = 0; i < part->items_count; i++)
		if (part->items[i].va == va)
			assert_int_equal(!!(part->items[i].flags & LIEN_WIRE_WORTHLESS), worthless);
}

static void test_discard_owner(void **state)
{
	struct lien_discard torch = {.owner = "torch_cuda"};
	struct lien_selection nccl = {.owner = "nccl", .discard = &torch, .discard_count = 1};

	(void)state;
	started(1);
	library(1, IN_TORCH, "libtorch_cuda.so");
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	buffer(1, 10, VA, PIECE);
	tell.outer = 0;
	tell.caller = IN_TORCH;
	buffer(1, 11, VA + PIECE, 2 * PIECE);
	tell.caller = 0;
	/* Not selected by its owner, but by being worthless. */
	assert_int_equal(make(&nccl), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.discarded, 2 * PIECE);
	assert_int_equal(plan.processes[0].bytes, PIECE);
	assert_int_equal(plan.processes[0].discarded, 2 * PIECE);
	assert_int_equal(plan.processes[0].allocations, 2);
	expect_worthless(VA, false);
	expect_worthless(VA + PIECE, true);
	torch.owner = "nccl"; /* selected both ways: worthless */
	assert_int_equal(make(&nccl), 0);
	assert_int_equal(plan.bytes, 0);
	assert_int_equal(plan.discarded, PIECE);
	torch.owner = "nobody";
	expect_refusal(&nccl, -ESRCH, "no GPU memory belongs to owner nobody; there is memory of ");
	/* What cannot be moved cannot be dropped either. */
	alloc(1, VA + 8 * PIECE, 1000);
	torch.owner = "unknown";
	assert_int_equal(make(&nccl), 0);
	assert_int_equal(plan.discarded, 0);
	assert_int_equal(plan.left_count, 1);
}

/* --- left behind ------------------------------------------------------------------------------ */

static void test_left_alloc(void **state)
{
	(void)state;
	started(1);
	alloc(1, VA, 1000);
	expect_left(1, 1000, "cudaMalloc");
}

/* Not the device's: there is nothing to free, so nothing is left behind either. */
static void test_host_memory(void **state)
{
	struct lien_prop prop = device_prop(0);
	struct lien_selection strict = {.strict = true};

	(void)state;
	started(1);
	prop.location_type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	create_on(1, 10, PIECE, prop);
	map_rw(1, VA, PIECE, 10);
	assert_int_equal(make(&strict), 0);
	assert_int_equal(plan.processes_count + plan.left_count, 0);
	assert_string_equal(lien_plan_unmovable(allocation_at(1, VA)), "host memory");
}

static void test_left_dead_owner(void **state)
{
	(void)state;
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, VA, PIECE);
	ended(1);
	expect_left(1, PIECE, "exited");
}

static void test_unknown_owner(void **state)
{
	(void)state;
	started(2);
	imported_buffer(2, 20, 5, VA, PIECE);
	assert_non_null(lien_plan_unmovable(allocation_at(2, VA)));
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.processes_count, 0);
}

static void test_own_import(void **state)
{
	const struct lien_wire_item *item;

	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	retain(1, 10, VA);
	export(1, 10, 5);
	imported_buffer(1, 11, 5, VA + PIECE, PIECE);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.left_count, 0);
	assert_int_equal(part_of(1)->items_count, 2);
	item = part_of(1)->items;
	assert_int_equal(item->flags, LIEN_WIRE_OWNED);
	assert_int_equal(item->handles, 2);
	assert_int_equal(item->handle[0].value + item->handle[1].value, 21);
	assert_int_equal(item->handle[item->handle[1].value == 10].references, 2);
	allocation_at(1, VA)->found = allocation_at(1, VA)->adopted = true;
	expect_left(1, PIECE, "more handles than are known");
	allocation_at(1, VA)->found = allocation_at(1, VA)->adopted = false;
	for (unsigned i = 12; i < 10 + LIEN_WIRE_HANDLES; i++) {
		export(1, 10, i);
		import(1, i, i);
		assert_int_equal(make(&all), 0);
		assert_int_equal(plan.bytes, PIECE);
	}
	export(1, 10, 99);
	import(1, 99, 99);
	expect_left(1, PIECE, "imported more often by one process");
}

/* The control library maps what the process has not. */
static void expect_scratch(uint32_t pid, uint64_t bytes, unsigned mappings, uint64_t handle)
{
	const struct lien_wire_item *item = part_of(pid)->items;

	assert_int_equal(part_of(pid)->items_count, mappings);
	assert_int_equal(item->mappings, mappings);
	assert_int_equal(item->index, 0);
	assert_int_equal(item->va, 0);
	assert_int_equal(item->places, 0);
	assert_int_equal(item->bytes, bytes);
	assert_int_equal(item->handle[0].value, handle);
	for (unsigned i = 1; i < mappings; i++) {
		assert_int_equal(item[i].index, i);
		assert_true(item[i].va);
	}
}

static void test_not_mapped(void **state)
{
	(void)state;
	started(1);
	started(2);
	create(1, 10, PIECE);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, PIECE);
	expect_scratch(1, PIECE, 1, 10);
	reserve(1, VA, PIECE);
	map_rw(1, VA, PIECE, 10);
	export(1, 10, 5);
	import(2, 20, 5);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(part_of(1)->items[0].va, VA);
	assert_int_equal(part_of(2)->items[0].flags, LIEN_WIRE_IMPORTED);
	expect_scratch(2, PIECE, 1, 20);
	/* The owner has let go of it, and the importer has not: nobody can make it again. */
	release(1, 10);
	unmap(1, VA, PIECE);
	expect_left(1, PIECE, "only others hold it");
}

static void test_not_whole(void **state)
{
	(void)state;
	started(1);
	create(1, 10, 2 * PIECE);
	reserve(1, VA, 4 * PIECE);
	map_rw(1, VA, PIECE, 10);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	expect_scratch(1, 2 * PIECE, 2, 10);
	unmap(1, VA, PIECE);
	map(1, VA, 2 * PIECE, 10); /* no access at all */
	assert_int_equal(make(&all), 0);
	expect_scratch(1, 2 * PIECE, 2, 10);
	set_access(1, VA, 2 * PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
	assert_int_equal(make(&all), 0);
	expect_scratch(1, 2 * PIECE, 2, 10);
	set_access(1, VA, 2 * PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	assert_int_equal(part_of(1)->items_count, 1);
	assert_int_equal(part_of(1)->items[0].va, VA);
}

/* The importer's mapping does not help: the owner copies. */
static void test_only_importer_writes(void **state)
{
	(void)state;
	started(1);
	started(2);
	create(1, 10, PIECE);
	reserve(1, VA, PIECE);
	map(1, VA, PIECE, 10);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, VA, PIECE);
	assert_int_equal(make(&all), 0);
	expect_scratch(1, PIECE, 2, 10);
	assert_int_equal(part_of(2)->items[0].va, VA);
}

/* --- multicast objects ------------------------------------------------------------------------ */

static const struct lien_selection joined = {.multicast = true};

/* Two processes, each with memory bound to the first one's object. */
static void team(void)
{
	started(1);
	started(2);
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 1,
		.multicast = {.handle = 50, .bytes = 4 * PIECE, .device = 2});
	export(1, 50, 77);
	import(2, 60, 77);
	buffer(1, 10, VA, PIECE);
	buffer(2, 20, VA, PIECE);
	bind_object(1, 50, 0, 10);
	bind_object(2, 60, PIECE, 20);
}

static void expect_all_left(const struct lien_selection *selection, const char *words)
{
	assert_int_equal(make(selection), 0);
	assert_int_equal(plan.processes_count, 0);
	assert_true(plan.left_count > 0);
	for (unsigned i = 0; i < plan.left_count; i++)
		if (strstr(plan.left[i].reason, words))
			return;
	fail_msg("\"%s\" is not in \"%s\"", words, plan.left[0].reason);
}

static void test_multicast(void **state)
{
	const struct lien_wire_item *item;

	(void)state;
	team();
	expect_all_left(&all, "see --multicast");
	assert_int_equal(make(&joined), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	for (uint32_t pid = 1; pid <= 2; pid++) {
		item = part_of(pid)->items;
		assert_int_equal(part_of(pid)->items_count, 2);
		assert_int_equal(item[0].va, VA);
		assert_int_equal(item[0].object, 0);
		assert_int_equal(item[1].index, 1);
		assert_int_equal(item[1].mappings, 2);
		assert_int_equal(item[1].va, 0);
		assert_int_equal(item[1].bytes, PIECE);
		assert_int_equal(item[1].object, pid == 1 ? 50 : 60);
		assert_int_equal(item[1].object_offset, pid == 1 ? 0 : PIECE);
		assert_int_equal(item[0].team, allocation_at(1, VA)->id);
		assert_int_equal(item[1].team, item[0].team);
	}
}

/* Whoever reaches the memory through the object is held, or none of it moves. */
static void test_multicast_with_others(void **state)
{
	static const uint32_t first[] = {1};
	struct lien_selection some = {.multicast = true, .pids = first, .pids_count = 1};

	(void)state;
	team();
	expect_all_left(&some, "together with memory that stays");
	some.with_closure = true;
	expect_all_left(&some, "together with memory that stays");
	started(3);
	export(2, 60, 78); /* on its way */
	expect_all_left(&joined, "may be imported yet");
	import(3, 70, 78);
	expect_all_left(&joined, "no memory in it");
	release(3, 70);
	assert_int_equal(make(&joined), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	TELL(LIEN_CALL_IBV_REG_MR, 2, .mr = {0, VA, PIECE, 0x502, "mlx5_3"});
	expect_all_left(&joined, "together with memory that stays");
	RELEASE(LIEN_CALL_IBV_DEREG_MR, 2, .reg = {.handle = 0x502});
	lien_graph_process(graph, 2)->incomplete |= LIEN_INCOMPLETE_ODD;
	expect_all_left(&joined, "together with memory that stays");
	lien_graph_process(graph, 2)->incomplete = 0;
	map(2, VA + 16 * PIECE, 4 * PIECE, 60);
	release(2, 60); /* by what would it be bound again? */
	expect_all_left(&joined, "no handle any more");
}

/* By way of other memory, objects join memory of which neither knows. */
static void test_multicast_chain(void **state)
{
	(void)state;
	team();
	started(3);
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 2,
		.multicast = {.handle = 61, .bytes = 4 * PIECE, .device = 2});
	export(2, 61, 79);
	import(3, 71, 79);
	buffer(3, 30, VA, PIECE);
	bind_object(2, 61, 0, 20);
	bind_object(3, 71, PIECE, 30);
	assert_int_equal(make(&joined), 0);
	assert_int_equal(plan.bytes, 3 * PIECE);
	assert_int_equal(part_of(3)->items[0].team, part_of(1)->items[0].team);
	assert_int_equal(part_of(2)->items_count, 3);
	export(3, 30, 80); /* nobody has it yet */
	expect_all_left(&joined, "together with memory that stays");
}

static void test_multicast_too_many(void **state)
{
	(void)state;
	team();
	for (unsigned i = 0; i < 300; i++) {
		buffer(1, 1000 + i, VA + (2 + i) * PIECE, PIECE);
		bind_object(1, 50, (2 + i) * PIECE, 1000 + i);
	}
	expect_all_left(&joined, "too much other memory");
}

/* Deciding takes too long: then none of it moves, and not the part that was decided. */
static void test_multicast_too_long(void **state)
{
	const unsigned objects = 6, members = 50, times = 40;

	(void)state;
	started(1);
	for (unsigned i = 0; i < objects; i++) {
		TELL(LIEN_CALL_CU_MULTICAST_CREATE, 1,
			.multicast = {
				.handle = 50 + i, .bytes = members * times * PIECE, .device = 1});
		for (unsigned j = 0; j < members; j++) {
			uint64_t handle = 1000 + i * members + j;

			buffer(1, handle, VA + (i * members + j) * PIECE, PIECE);
			for (unsigned n = 0; n < times; n++)
				bind_object(1, 50 + i, (j * times + n) * PIECE, handle);
		}
	}
	expect_all_left(&joined, "too much other memory");
}

static void test_left_fabric(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	expect_left(1, PIECE, "not imported by anybody yet"); /* it may be on its way */
	started(2);
	imported_buffer(2, 20, 5, VA, PIECE);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, PIECE);
	export(1, 10, 0); /* not joined to any file */
	expect_left(1, PIECE, "fabric");
}

/* A restore exports again; that does not make up for what cannot be followed. */
static void test_left_fabric_after_restore(void **state)
{
	(void)state;
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, VA, PIECE);
	control_detach(2, VA, PIECE, 20, 1);
	control_detach(1, VA, PIECE, 10, 1);
	tell.flags = LIEN_EVENT_CONTROL;
	create(1, 11, PIECE);
	tell.flags = 0;
	control_attach(1, VA, PIECE, 11, 1);
	tell.flags = LIEN_EVENT_CONTROL;
	export(1, 11, 6);
	import(2, 21, 6);
	tell.flags = 0;
	control_attach(2, VA, PIECE, 21, 1);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, PIECE);
	export(1, 11, 0);
	expect_left(1, PIECE, "fabric");
}

static void test_window(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, 2 * PIECE);
	comm_init(1, 0x100, 1, 0, 2);
	/* NCCL retains the handle, and maps the memory once more. */
	retain(1, 10, VA);
	map_rw(1, VA + 8 * PIECE, 2 * PIECE, 10);
	window_register(1, 0x100, VA, 2 * PIECE, 4);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	assert_int_equal(plan.left_count, 0);
}

static void test_left_network_card(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, 2 * PIECE);
	TELL(LIEN_CALL_IBV_REG_MR, 1, .reg = {0, VA + 2 * PIECE, PIECE, 0x500});
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	TELL(LIEN_CALL_IBV_REG_MR, 1, .reg = {0, VA + PIECE, 100, 0x501});
	TELL(LIEN_CALL_IBV_REG_MR_IOVA2, 1, .reg = {0, VA + PIECE, 100, 0x501});
	expect_left(1, 2 * PIECE, "a network card (RDMA)");
	TELL(LIEN_CALL_IBV_REG_MR, 1, .mr = {0, VA, PIECE, 0x502, "mlx5_3"});
	expect_left(1, 2 * PIECE, "network card mlx5_3 (RDMA)"); /* the first byte's */
	TELL(LIEN_CALL_IBV_REG_MR, 1, .mr = {0, VA, 2 * PIECE, 0x503, "mlx5_3"});
	expect_left(1, 2 * PIECE, "several network cards");
	RELEASE(LIEN_CALL_IBV_DEREG_MR, 1, .reg = {.handle = 0x502});
	RELEASE(LIEN_CALL_IBV_DEREG_MR, 1, .reg = {.handle = 0x503});
	RELEASE(LIEN_CALL_IBV_DEREG_MR, 1, .reg = {.handle = 0x500});
	expect_left(1, 2 * PIECE, "network card");
	RELEASE(LIEN_CALL_IBV_DEREG_MR, 1, .reg = {.handle = 0x501});
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
}

/* A region's handle comes back while the one before it is being deregistered. */
static void test_network_card_race(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	buffer(1, 11, VA + PIECE, PIECE);
	TELL(LIEN_CALL_IBV_REG_MR, 1, .reg = {0, VA, PIECE, 0x500});
	ev = EVENT(LIEN_CALL_IBV_DEREG_MR, 1, .reg = {.handle = 0x500});
	entry = entry_of(ev);
	apply(&entry);
	TELL(LIEN_CALL_IBV_REG_MR, 1, .reg = {0, VA + PIECE, PIECE, 0x500});
	apply(&ev);
	assert_null(lien_plan_unmovable(allocation_at(1, VA)));
	assert_non_null(lien_plan_unmovable(allocation_at(1, VA + PIECE)));
}

static void test_left_many_places(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	for (unsigned i = 1; i < LIEN_WIRE_PLACES; i++)
		set_access(1, VA, PIECE, i, CU_MEM_ACCESS_FLAGS_PROT_READ);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.processes[0].items[0].places, LIEN_WIRE_PLACES);
	set_access(1, VA, PIECE, LIEN_WIRE_PLACES, CU_MEM_ACCESS_FLAGS_PROT_READ);
	expect_left(1, PIECE, "more places");
}

/* Several allocations of one reason and process are one entry. */
static void test_left_summed(void **state)
{
	(void)state;
	started(1);
	started(2);
	alloc(1, VA, 100);
	alloc(1, VA + PIECE, 200);
	alloc(2, VA, 400);
	create(1, 10, PIECE);
	export(1, 10, 5); /* nobody has imported it */
	buffer(1, 11, VA + 2 * PIECE, PIECE);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.left_count, 3);
	assert_int_equal(plan.left[0].allocations, 2);
	assert_int_equal(plan.left[0].bytes, 300);
	assert_int_equal(plan.left[1].pid, 2);
	assert_int_equal(plan.left[2].pid, 1);
	assert_int_equal(plan.left[2].bytes, PIECE);
}

/* --- processes that cannot take part ---------------------------------------------------------- */

static const struct {
	unsigned incomplete;
	enum lien_control_presence presence;
	const char *words;
} unreachable[] = {
	{LIEN_INCOMPLETE_LATE, LIEN_CONTROL_READY, "before it was watched"},
	{LIEN_INCOMPLETE_LOST, LIEN_CONTROL_READY, "events of the process were lost"},
	{LIEN_INCOMPLETE_SHARE, LIEN_CONTROL_READY, "whose export was not seen"},
	{LIEN_INCOMPLETE_ODD, LIEN_CONTROL_READY, "could not follow"},
	{LIEN_INCOMPLETE_ARGS, LIEN_CONTROL_READY, "could not follow"},
	{0, LIEN_CONTROL_NONE, "lien attach"},
	{0, LIEN_CONTROL_LOADED, "does not run yet"},
};

static void test_unreachable_owner(void **state)
{
	uint32_t pid = 1;
	struct lien_selection one = {.pids = &pid, .pids_count = 1};

	(void)state;
	started(1);
	assert_null(lien_plan_unreachable(process(1)));
	buffer(1, 10, VA, PIECE);
	for (unsigned i = 0; i < COUNT(unreachable); i++) {
		process(1)->incomplete = unreachable[i].incomplete;
		process(1)->presence = unreachable[i].presence;
		expect_left(1, PIECE, unreachable[i].words);
		expect_refusal(&one, -EBUSY, unreachable[i].words);
		assert_non_null(strstr(error, "process 1 "));
	}
}

/* On purpose: no offload is to attach it. */
static void test_detached(void **state)
{
	uint32_t pid = 1;
	struct lien_selection one = {.pids = &pid, .pids_count = 1};

	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	process(1)->presence = LIEN_CONTROL_NONE;
	process(1)->detached = true;
	expect_refusal(&one, -EBUSY, "detached by `lien detach`: `lien attach`");
}

static void test_unreachable_holder(void **state)
{
	(void)state;
	shared_by_three();
	for (unsigned i = 0; i < COUNT(unreachable); i++) {
		process(3)->incomplete = unreachable[i].incomplete;
		process(3)->presence = unreachable[i].presence;
		expect_refusal(&all, -EBUSY, unreachable[i].words);
		assert_non_null(strstr(error, "mapped by process 3 at 0x7e0000"));
	}
	process(3)->incomplete = 0;
	process(3)->presence = LIEN_CONTROL_READY;
	assert_int_equal(make(&all), 0);
}

/* An exported descriptor that is open keeps what the memory was: neither bytes nor room move. */
static void test_open_export(void **state)
{
	const struct lien_probe_open_file open[] = {{.share = 5, .pid = 7}, {.share = 9, .pid = 2}};
	struct lien_selection with_files = {.open = open, .open_count = 2};

	(void)state;
	shared_by_three();
	assert_int_equal(make(&with_files), 0);
	assert_int_equal(plan.bytes, PIECE); /* the other one */
	assert_int_equal(plan.left_count, 1);
	assert_int_equal(plan.left[0].pid, 1);
	assert_int_equal(plan.left[0].holder, 7);
	assert_int_equal(plan.left[0].address, VA);
	assert_non_null(strstr(plan.left[0].reason, "still open"));
	with_files.strict = true;
	expect_refusal(&with_files, -EBUSY, "process 7");
	assert_non_null(strstr(error, "of process 1 at 0x7e0000"));
	with_files.strict = false;
	with_files.open = &open[1];
	with_files.open_count = 1;
	assert_int_equal(make(&with_files), 0);
	assert_int_equal(plan.left_count, 0);
}

/* Nobody can import any more what nobody has imported; who has it in a socket still can. */
static void test_closed_export(void **state)
{
	const struct lien_probe_open_file on_its_way = {.share = 5, .fd = 1};
	struct lien_selection with_files = {.open = &on_its_way, .open_count = 1};

	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	expect_left(1, PIECE, "not imported by anybody yet");
	lien_graph_open_exports(graph, 0, NULL, 0); /* as of before it was made */
	lien_graph_open_exports(graph, 1, (const uint64_t[]){4, 5, 6}, 3);
	expect_left(1, PIECE, "not imported by anybody yet");
	lien_graph_open_exports(graph, 1, (const uint64_t[]){4, 6}, 2);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.left_count, 0);
	assert_int_equal(plan.bytes, PIECE);
	started(2);
	export(1, 10, 6);
	imported_buffer(2, 20, 6, VA, PIECE);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.left_count, 0);
	assert_int_equal(make(&with_files), 0);
	assert_int_equal(plan.left_count, 1);
	assert_int_equal(plan.left[0].holder, 0);
	assert_non_null(strstr(plan.left[0].reason, "on its way"));
}

/* Processes whose calls are not seen may have it; but those of another user cannot say so. */
static void test_unseen_import(void **state)
{
	const uint32_t unseen[] = {LIEN_INCOMPLETE_UNPROBED, LIEN_INCOMPLETE_REWRITTEN};

	(void)state;
	shared_by_three();
	started(4);
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned p = 1; p <= 4; p++)
			process(p)->uid = 7;
		process(4)->incomplete = unseen[i];
		assert_int_equal(make(&all), 0);
		assert_int_equal(plan.left_count, 1);
		assert_int_equal(plan.left[0].holder, 4);
		assert_non_null(strstr(plan.left[0].reason, "whose calls are not seen"));
		process(4)->uid = 8;
		assert_int_equal(make(&all), 0);
		assert_int_equal(plan.left_count, 0);
		process(4)->uid = 0;
		assert_int_equal(make(&all), 0);
		assert_int_equal(plan.left_count, 1);
	}
}

/* Somebody may have it of whom that is not known. */
static void test_lost_import(void **state)
{
	(void)state;
	shared_by_three();
	started(4);
	process(4)->incomplete = LIEN_INCOMPLETE_LOST;
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.left_count, 1);
	assert_int_equal(plan.left[0].holder, 4);
	process(4)->incomplete = LIEN_INCOMPLETE_NCCL;
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.left_count, 0);
}

static void test_users(void **state)
{
	struct lien_selection mine = {.viewer = {.one_user = true, .uid = 7}};
	uint32_t pid = 4;

	(void)state;
	shared_by_three();
	started(4);
	buffer(4, 40, VA, PIECE);
	for (unsigned p = 1; p <= 3; p++)
		process(p)->uid = 7;
	process(4)->uid = 8;
	assert_int_equal(make(&mine), 0);
	assert_int_equal(plan.processes_count, 3);
	assert_int_equal(plan.bytes, 2 * PIECE);
	mine.pids = &pid;
	mine.pids_count = 1;
	expect_refusal(&mine, -ESRCH, "process 4 is not known");
	mine.pids_count = 0;
	process(3)->uid = 8;
	mine.with_closure = true;
	expect_refusal(&mine, -EPERM, "mapped by a process of another user");
	assert_null(strstr(error, "process 3"));
	process(1)->uid = 0; /* an importer does not move what is another's */
	assert_int_equal(make(&mine), 0);
	assert_int_equal(plan.processes_count, 0);
	assert_int_equal(make(&all), 0);
	assert_int_equal(plan.bytes, 3 * PIECE);
}

/* What a process of another user keeps where it is: said without its pid. */
static void expect_no_pid(struct lien_selection *mine, const char *words)
{
	mine->strict = false;
	assert_int_equal(make(mine), 0);
	assert_int_equal(plan.left_count, 1);
	assert_int_equal(plan.left[0].pid, 1);
	assert_int_equal(plan.left[0].holder, 0);
	assert_true(plan.left[0].other_user);
	assert_non_null(strstr(plan.left[0].reason, words));
	mine->strict = true;
	expect_refusal(mine, -EBUSY, "(a process of another user)");
	assert_null(strstr(error, "process 4"));
}

static void test_pids_of_other_users(void **state)
{
	const struct lien_probe_open_file open = {.share = 5, .pid = 4};
	struct lien_selection mine = {.viewer = {.one_user = true, .uid = 7}};

	(void)state;
	shared_by_three();
	started(4);
	for (unsigned p = 1; p <= 4; p++)
		process(p)->uid = p < 4 ? 7 : 8;
	process(4)->incomplete = LIEN_INCOMPLETE_LOST;
	assert_int_equal(make(&mine), 0); /* any user could lose events */
	assert_int_equal(plan.left_count, 0);
	process(4)->uid = 0;
	expect_no_pid(&mine, "may have imported it");
	process(4)->uid = 8;
	process(4)->incomplete = 0;
	mine.strict = false;
	mine.open = &open;
	mine.open_count = 1;
	expect_no_pid(&mine, "still open");
	process(4)->uid = 7;
	mine.strict = false;
	assert_int_equal(make(&mine), 0);
	assert_int_equal(plan.left[0].holder, 4);
	assert_false(plan.left[0].other_user);
}

static void expect_blame(enum lien_cause cause, uint32_t pid, uint32_t holder)
{
	assert_int_equal(plan.blame.cause, cause);
	assert_int_equal(plan.blame.process, pid);
	assert_int_equal(plan.blame.holder, holder);
}

/* What programs get of a refusal. */
static void test_blame(void **state)
{
	struct lien_selection some = {.pids = (uint32_t[]){1}, .pids_count = 1};

	(void)state;
	shared_by_three();
	expect_refusal(&some, -EBUSY, "--with-closure");
	assert_int_equal(plan.blame.cause, LIEN_CAUSE_NOT_SELECTED);
	assert_int_equal(plan.blame.process, 1);
	assert_in_range(plan.blame.holder, 2, 3);
	process(3)->presence = LIEN_CONTROL_NONE;
	some.with_closure = true;
	expect_refusal(&some, -EBUSY, "cannot take part");
	expect_blame(LIEN_CAUSE_NO_CONTROL, 1, 3);
	process(3)->presence = LIEN_CONTROL_TAKEN;
	expect_refusal(&some, -EBUSY, "cannot take part");
	expect_blame(LIEN_CAUSE_UNABLE, 1, 3);
	process(3)->presence = LIEN_CONTROL_READY;
	capture_begin(3, 7);
	expect_refusal(&some, -EBUSY, "capturing");
	expect_blame(LIEN_CAUSE_CAPTURING, 3, 0);
	capture_end(3, 7);
	some.pids = (uint32_t[]){9};
	expect_refusal(&some, -ESRCH, "process 9 is not known");
	expect_blame(LIEN_CAUSE_INVALID, 9, 0);
	alloc(1, VA + 20 * PIECE, 1000);
	some.pids_count = 0;
	some.strict = true;
	expect_refusal(&some, -EBUSY, "--strict");
	expect_blame(LIEN_CAUSE_STRICT, 1, 0);
	assert_string_equal(lien_causes[LIEN_CAUSE_STRICT].code, "refused");
	assert_non_null(lien_causes[LIEN_CAUSE_STRICT].remedy);
	assert_int_equal(make(&all), 0);
	expect_blame(LIEN_CAUSE_FAILED, 0, 0);
	assert_int_equal(lien_cause_of(-ECANCELED), LIEN_CAUSE_CANCELLED);
	assert_int_equal(lien_cause_of(-EIO), LIEN_CAUSE_FAILED);
}

static void test_gpus(void **state)
{
	static const struct lien_ordinals ordinals = {
		.count = 2, .uuid = {{.bytes = {7}}, {.bytes = {8}}}};
	static const struct lien_uuid unused = {.bytes = {9}},
				      many[] = {{.bytes = {9}}, {.bytes = {11}}, {.bytes = {8}},
					      {.bytes = {3}}, {.bytes = {5}}};
	struct lien_selection some = {.by_gpu = true, .gpus_count = 1};

	(void)state;
	for (unsigned pid = 1; pid <= 2; pid++) {
		started(pid);
		buffer(pid, 10, VA, PIECE);
		create_on(pid, 11, 2 * PIECE, device_prop(1));
		map_rw(pid, VA + PIECE, 2 * PIECE, 11);
	}
	process(1)->ordinals = &ordinals; /* those of 2 are not known */
	some.gpus = &ordinals.uuid[1];
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	assert_int_equal(plan.processes_count, 1);
	assert_int_equal(plan.processes[0].pid, 1);
	some.gpus = &unused;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, 0);
	/* In any order. */
	some.gpus = many;
	some.gpus_count = COUNT(many);
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	some.gpus_count = 0;
	some.ordinals = 1;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	assert_int_equal(plan.processes_count, 2);
}

static struct lien_comm *comm_of(uint64_t address)
{
	struct lien_comm key = {.address = address};

	return RB_FIND(lien_comm_tree, &process(1)->comms, &key);
}

/* Makes memory with a tag. */
static void tagged(uint32_t pid, uint64_t handle, uint64_t va, const char *tag)
{
	struct lien_event ev = EVENT(LIEN_CALL_CU_MEM_CREATE, pid,
		.create = {.handle = handle, .bytes = PIECE, .prop = device_prop(0)});

	strncpy(ev.tagged.tag, tag, sizeof(ev.tagged.tag) - 1);
	apply(&ev);
	reserve(pid, va, PIECE);
	map_rw(pid, va, PIECE, handle);
}

static void test_groups(void **state)
{
	uint64_t groups[] = {0xbb, 0xcc}, many[] = {9, 7, 0xbb, 5, 3, 1};
	struct lien_selection some = {.groups = groups, .groups_count = 1};
	struct lien_discard discard = {.tag = "kv_cache"};

	(void)state;
	started(1);
	comm_init(1, 0x100, 0xaa, 0, 2);
	comm_init(1, 0x200, 0xbb, 0, 2);
	for (unsigned i = 0; i < 2; i++)
		buffer(1, 10 + i, VA + i * PIECE, PIECE);
	tagged(1, 12, VA + 2 * PIECE, "kv_cache");
	allocation_at(1, VA)->comm = comm_of(0x100)->number;
	allocation_at(1, VA + PIECE)->comm = comm_of(0x200)->number;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.processes[0].items[0].va, VA + PIECE);
	/* What is discarded moves, too, whatever it is for. */
	some.discard = &discard;
	some.discard_count = 1;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.discarded, PIECE);
	some.discard_count = 0;
	/* In any order. */
	some.groups = many;
	some.groups_count = COUNT(many);
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, PIECE);
	some.groups = groups;
	some.groups_count = 1;
	groups[0] = 0xcc;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.processes_count, 0);
}

static void test_tags(void **state)
{
	static const char *const tags[] = {"weights", "kv_cache"};
	struct lien_selection some = {.tags = tags, .tags_count = 1};
	struct lien_discard discard = {.tag = "kv_cache"};

	(void)state;
	started(1);
	tagged(1, 10, VA, "kv_cache");
	tagged(1, 11, VA + PIECE, "weights");
	buffer(1, 12, VA + 2 * PIECE, PIECE);
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.processes[0].items[0].va, VA + PIECE);
	assert_int_equal(plan.processes[0].items[0].tag, lien_plan_tag_hash("weights"));
	some.tags_count = 2;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	some.owner = "nccl"; /* both narrow it down */
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.processes_count, 0);
	/* What is dropped moves, too, whosever it is. */
	some.discard = &discard;
	some.discard_count = 1;
	assert_int_equal(make(&some), 0);
	assert_int_equal(plan.bytes, 0);
	assert_int_equal(plan.discarded, PIECE);
	assert_int_equal(
		plan.processes[0].items[0].flags & LIEN_WIRE_WORTHLESS, LIEN_WIRE_WORTHLESS);
	/* One of them has to exist. */
	discard.tag = "none";
	assert_int_equal(make(&some), 0);
	some.tags = (const char *const[]){"other"};
	some.tags_count = 1;
	expect_refusal(&some, -ESRCH,
		"no GPU memory has the tag other; there is memory with the "
		"tag kv_cache, weights");
}

static void test_capture(void **state)
{
	(void)state;
	shared_by_three();
	for (unsigned pid = 1; pid <= 3; pid += 2) {
		capture_begin(pid, 7);
		expect_refusal(&all, -EBUSY, "capturing");
		assert_non_null(strstr(error, pid == 1 ? "process 1" : "process 3"));
		capture_end(pid, 7);
		assert_int_equal(make(&all), 0);
	}
	/* One that does not take part may capture. */
	started(4);
	capture_begin(4, 7);
	assert_int_equal(make(&all), 0);
}

/* What is away already is not moved again; what came since is. */
static void test_second_offload(void **state)
{
	struct lien_selection strict = {.strict = true};

	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	control_detach(1, VA, PIECE, 10, 1);
	assert_int_equal(make(&strict), 0);
	assert_int_equal(plan.processes_count + plan.left_count, 0);
	buffer(1, 11, VA + PIECE, PIECE);
	assert_int_equal(make(&strict), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.processes[0].items[0].va, VA + PIECE);
}

/* An offload that was not undone whole: the owner still has it, an importer does not. */
static void test_left_partly_away(void **state)
{
	(void)state;
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	imported_buffer(2, 20, 5, VA, PIECE);
	control_detach(2, VA, PIECE, 20, 1);
	expect_left(1, PIECE, "lien restore");
}

static unsigned restored(uint32_t *pids, unsigned count, uint32_t *all_pids)
{
	const struct lien_selection selection = {.pids = pids, .pids_count = count};
	unsigned n = lien_plan_restore(graph, &selection, all_pids), i, j, bits = 0;

	for (i = 0; i < n; i++) {
		for (j = 0; j < i; j++)
			assert_int_not_equal(all_pids[i], all_pids[j]);
		bits |= 1u << all_pids[i];
	}
	return bits;
}

/* Who has to be asked: 1 and 2 share, 3 and 4 share, 5 has its own, 6 has nothing away, and of what
 * 7 holds only its control library knows. */
static void test_restore(void **state)
{
	uint32_t all_pids[8];

	(void)state;
	for (unsigned pid = 1; pid <= 7; pid++)
		started(pid);
	for (unsigned pid = 1; pid <= 6; pid++)
		buffer(pid, 10, VA, PIECE);
	for (unsigned pid = 1; pid <= 3; pid += 2) {
		export(pid, 10, pid);
		imported_buffer(pid + 1, 20, pid, VA + PIECE, PIECE);
	}
	assert_int_equal(restored(NULL, 0, all_pids), 0);
	for (unsigned pid = 1; pid <= 3; pid += 2) {
		control_detach(pid + 1, VA + PIECE, PIECE, 20, 1);
		control_detach(pid, VA, PIECE, 10, 1);
	}
	control_detach(5, VA, PIECE, 10, 1);
	assert_int_equal(restored(NULL, 0, all_pids), 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5);
	assert_int_equal(restored((uint32_t[]){1}, 1, all_pids), 1 << 1 | 1 << 2);
	assert_int_equal(restored((uint32_t[]){4}, 1, all_pids), 1 << 3 | 1 << 4);
	assert_int_equal(restored((uint32_t[]){5, 6}, 2, all_pids), 1 << 5);
	assert_int_equal(restored((uint32_t[]){6}, 1, all_pids), 0);
	process(7)->held_items = 3;
	assert_int_equal(restored((uint32_t[]){5}, 1, all_pids), 1 << 5 | 1 << 7);
	assert_int_equal(restored((uint32_t[]){2, 4}, 2, all_pids),
		1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 7);
}

static void test_many(void **state)
{
	(void)state;
	started(1);
	started(2);
	for (unsigned i = 0; i < 3000; i++) {
		buffer(1, 0x1000 + i, VA + i * PIECE, PIECE);
		export(1, 0x1000 + i, 100 + i);
		imported_buffer(2, 0x5000 + i, 100 + i, VA + i * PIECE, PIECE);
	}
	assert_int_equal(make(&all), 0);
	assert_int_equal(part_of(1)->items_count, 3000);
	assert_int_equal(part_of(2)->items_count, 3000);
	assert_int_equal(part_of(2)->imports, 3000);
	assert_null(lien_plan_part(&plan, 3));
	assert_int_equal(plan.bytes, 3000 * PIECE);
}

static unsigned raw_of(uint32_t pid, uint64_t handle)
{
	struct lien_wire_raw *list;
	unsigned count, found = 0;

	assert_int_equal(lien_plan_raw(process(pid), &list, &count), 0);
	for (unsigned i = 0; i < count; i++)
		if (list[i].handle == handle)
			found = list[i].certain ? 2 : 1;
	free(list);
	return found;
}

/* Which handles the application may know by the driver's own value: 2 if it does, 1 if it may. */
static void test_raw(void **state)
{
	(void)state;
	started(1);
	library(1, IN_TORCH - 0x1000, "libtorch.so.2");
	tell.caller = IN_TORCH;
	buffer(1, 10, VA, PIECE);
	assert_int_equal(raw_of(1, 10), 2);
	assert_string_equal(lien_plan_raw_to(process(1), 10), "torch");
	release(1, 10);
	assert_int_equal(raw_of(1, 10), 0); /* mapped, and nobody has a handle */
	tell.flags = LIEN_EVENT_TRANSLATED;
	buffer(1, 11, VA + PIECE, PIECE);
	assert_int_equal(raw_of(1, 11), 0);
	tell.flags = LIEN_EVENT_CONTROL;
	retain(1, 11, VA + PIECE);
	assert_int_equal(raw_of(1, 11), 0);
	release(1, 11);
	/* A second reference, by the driver's word; which of the two is given back is known by how.
	 */
	tell.flags = 0;
	tell.caller = 0;
	retain(1, 11, VA + PIECE);
	assert_int_equal(raw_of(1, 11), 2);
	assert_string_equal(lien_plan_raw_to(process(1), 11), "a library");
	tell.flags = LIEN_EVENT_TRANSLATED;
	release(1, 11);
	assert_int_equal(raw_of(1, 11), 2);
	retain(1, 11, VA + PIECE);
	tell.flags = 0;
	release(1, 11);
	assert_int_equal(raw_of(1, 11), 0);
	/* What was found by asking the driver. */
	tell.flags = LIEN_EVENT_FOUND;
	buffer(1, 12, VA + 2 * PIECE, PIECE);
	tell.flags = 0;
	assert_int_equal(raw_of(1, 12), 1);
}

#define PLAN(name) cmocka_unit_test_setup_teardown(name, plan_setup, plan_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PLAN(test_one),
		PLAN(test_references),
		PLAN(test_multicast),
		PLAN(test_multicast_with_others),
		PLAN(test_multicast_chain),
		PLAN(test_multicast_too_many),
		PLAN(test_multicast_too_long),
		PLAN(test_aliases),
		PLAN(test_imports),
		PLAN(test_pids),
		PLAN(test_idle),
		PLAN(test_owner),
		PLAN(test_discard_owner),
		PLAN(test_left_alloc),
		PLAN(test_host_memory),
		PLAN(test_left_dead_owner),
		PLAN(test_unknown_owner),
		PLAN(test_own_import),
		PLAN(test_not_mapped),
		PLAN(test_not_whole),
		PLAN(test_only_importer_writes),
		PLAN(test_left_fabric),
		PLAN(test_left_fabric_after_restore),
		PLAN(test_window),
		PLAN(test_left_network_card),
		PLAN(test_network_card_race),
		PLAN(test_left_many_places),
		PLAN(test_left_summed),
		PLAN(test_unreachable_owner),
		PLAN(test_detached),
		PLAN(test_unreachable_holder),
		PLAN(test_open_export),
		PLAN(test_closed_export),
		PLAN(test_unseen_import),
		PLAN(test_lost_import),
		PLAN(test_users),
		PLAN(test_pids_of_other_users),
		PLAN(test_blame),
		PLAN(test_gpus),
		PLAN(test_groups),
		PLAN(test_tags),
		PLAN(test_capture),
		PLAN(test_second_offload),
		PLAN(test_left_partly_away),
		PLAN(test_restore),
		PLAN(test_many),
		PLAN(test_raw),
	};

	return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
