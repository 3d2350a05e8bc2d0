// SPDX-License-Identifier: BSD-2-Clause
/* An offload that is to free a number of bytes: what the plan takes of which GPU. */
#include "events.h"

#include "agent/plan/plan.h"

static struct lien_plan plan;
static char error[512];
static struct lien_selection some;
static const struct lien_ordinals ordinals = {.count = 2, .uuid = {{.bytes = {7}}, {.bytes = {8}}}};

static int plan_setup(void **state)
{
	some = (struct lien_selection){.free = PIECE};
	return setup(state);
}

static int plan_teardown(void **state)
{
	lien_plan_clear(&plan);
	return teardown(state);
}

static int make(void)
{
	lien_plan_clear(&plan);
	error[0] = '\0';
	return lien_plan_offload(graph, &some, &plan, error, sizeof(error));
}

static void expect_refusal(const char *text)
{
	assert_int_equal(make(), -EBUSY);
	assert_string_equal(error, text);
	assert_null(plan.processes);
	assert_null(plan.freed);
	assert_int_equal(plan.blame.cause, LIEN_CAUSE_TOO_LITTLE);
	assert_string_equal(lien_causes[plan.blame.cause].code, "refused");
}

static unsigned has(uint32_t pid, uint64_t va)
{
	const struct lien_plan_process *part = lien_plan_part(&plan, pid);
	unsigned count = 0;

	for (unsigned i = 0; part && i < part->items_count; i++)
		count += part->items[i].va == va;
	return count;
}

/* Of process 1: pieces of 1, 8, 2 and 4, the one of 8 imported by process 2. */
static void pieces(void)
{
	static const unsigned sizes[] = {1, 8, 2, 4};

	started(1);
	started(2);
	for (unsigned i = 0; i < COUNT(sizes); i++)
		buffer(1, 10 + i, VA + 16 * i * PIECE, sizes[i] * PIECE);
	export(1, 11, 100);
	imported_buffer(2, 50, 100, VA, 8 * PIECE);
}

static void test_as_much_as_is_needed(void **state)
{
	(void)state;
	pieces();
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, PIECE);
	assert_int_equal(plan.processes_count, 1);
	assert_int_equal(has(1, VA), 1);
	assert_int_equal(plan.freed_count, 1);
	assert_int_equal(plan.freed[0].pid, 1);
	assert_int_equal(plan.freed[0].ordinal, 0);
	assert_false(plan.freed[0].has_uuid);
	assert_int_equal(plan.freed[0].index, -1);
	assert_int_equal(plan.freed[0].bytes, PIECE);
	assert_int_equal(plan.freed[0].movable, 15 * PIECE);
	assert_int_equal(plan.freed[0].allocations, 1);
	some.free = 6 * PIECE;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, 6 * PIECE);
	assert_int_equal(has(1, VA + 32 * PIECE) + has(1, VA + 48 * PIECE), 2);
	/* What is shared goes with all that share it. */
	some.free = 8 * PIECE;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, 8 * PIECE);
	assert_int_equal(plan.processes_count, 2);
	assert_int_equal(has(1, VA + 16 * PIECE), 1);
	assert_int_equal(has(2, VA), 1);
	some.free = 15 * PIECE;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, 15 * PIECE);
	assert_int_equal(plan.freed[0].allocations, 4);
	some.free++;
	expect_refusal("only 30.0 MiB of device 0 of process 1 can be freed, not 30.0 MiB: ask for "
		       "less");
	some.free = 0;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, 15 * PIECE);
	assert_null(plan.freed);
}

static void test_nothing_there(void **state)
{
	(void)state;
	expect_refusal(
		"nothing can be freed: no memory that is selected can be moved off a GPU (see "
		"`lien mem`)");
	some.owner = "nccl";
	pieces();
	/* What cannot be moved is no reason for a refusal. */
	alloc(1, VA + 1024 * PIECE, 1000);
	expect_refusal(
		"nothing can be freed: no memory that is selected can be moved off a GPU (see "
		"`lien mem`)");
}

/* A GPU that only has what cannot be moved counts if it is named. */
static void test_what_cannot_be_moved(void **state)
{
	(void)state;
	pieces();
	process(1)->ordinals = &ordinals;
	create_on(1, 20, PIECE, device_prop(1));
	map_rw(1, VA + 128 * PIECE, PIECE, 20);
	TELL(LIEN_CALL_IBV_REG_MR, 1, .mr = {0, VA + 128 * PIECE, PIECE, 0x502, "mlx5_3"});
	assert_int_equal(make(), 0);
	assert_int_equal(plan.freed_count, 1);
	assert_int_equal(plan.left_count, 1);
	some.by_gpu = true;
	some.gpus = ordinals.uuid;
	some.gpus_count = 2;
	expect_refusal("nothing of GPU-08000000-0000-0000-0000-000000000000 can be freed, not 2.0 "
		       "MiB: ask for less");
}

/* Each GPU gets as much. */
static void test_gpus(void **state)
{
	static struct lien_node_device device = {.uuid = {.bytes = {8}}, .index = 5};
	static const struct lien_node node = {.nvml = true, .devices = &device, .count = 1};

	(void)state;
	for (unsigned pid = 1; pid <= 2; pid++) {
		started(pid);
		process(pid)->ordinals = &ordinals;
		buffer(pid, 10, VA, 2 * PIECE);
		create_on(pid, 11, PIECE, device_prop(1));
		map_rw(pid, VA + 8 * PIECE, PIECE, 11);
	}
	some.node = &node;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.freed_count, 2);
	assert_int_equal(plan.freed[0].index, -1);
	assert_int_equal(plan.freed[1].index, 5);
	assert_int_equal(plan.freed[1].ordinal, 1);
	assert_int_equal(plan.freed[1].uuid.bytes[0], 8);
	assert_int_equal(plan.bytes, 3 * PIECE);
	assert_int_equal(plan.processes_count, 1); /* of what is equal, one process's */
	some.free = 4 * PIECE;
	expect_refusal("only 4.0 MiB of GPU 5 can be freed, not 8.0 MiB: ask for less");
	some.by_gpu = true;
	some.gpus = &ordinals.uuid[0];
	some.gpus_count = 1;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, 4 * PIECE);
	/* A GPU that was named counts, even if nothing is there. */
	some.gpus = (struct lien_uuid[]){{.bytes = {7}}, {.bytes = {9}}};
	some.gpus_count = 2;
	expect_refusal("nothing of GPU-09000000-0000-0000-0000-000000000000 can be freed, not "
		       "8.0 MiB: ask for less");
	some.gpus_count = 0;
	some.ordinals = 1 << 1;
	some.free = 2 * PIECE;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.freed_count, 1);
	some.ordinals |= 1 << 3;
	expect_refusal("nothing of device 3 can be freed, not 4.0 MiB: ask for less");
}

/* What would be a refusal is left alone while there is enough without it. */
static void test_holders_that_do_not_take_part(void **state)
{
	uint32_t first[] = {1};

	(void)state;
	pieces();
	some.pids = first;
	some.pids_count = 1;
	some.free = 7 * PIECE;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, 7 * PIECE);
	assert_int_equal(plan.processes_count, 1);
	some.free = 8 * PIECE;
	expect_refusal(
		"only 14.0 MiB of device 0 of process 1 can be freed, not 16.0 MiB: ask for "
		"less; 16.0 MiB more cannot be moved: 16.0 MiB of process 1 at 0x7e0002000000 "
		"is mapped by process 2 at 0x7e0000000000, which is not selected: add --pid 2 "
		"or --with-closure");
	some.with_closure = true;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, 8 * PIECE);
	/* Planned again when the job is at rest: nobody else takes part any more. */
	some.within = first;
	some.within_count = 1;
	assert_int_equal(make(), -EBUSY);
	assert_non_null(
		strstr(error, "process 2 has come to share 16.0 MiB of process 1 meanwhile"));
	some.free = 7 * PIECE;
	assert_int_equal(make(), 0);
	process(1)->presence = LIEN_CONTROL_NONE;
	assert_int_equal(make(), -EBUSY);
	assert_non_null(strstr(error, "30.0 MiB more cannot be moved: process 1 cannot take part"));
}

/* Memory that is joined by a multicast object moves together, or not at all. */
static void test_teams(void **state)
{
	uint32_t both[] = {1, 2};

	(void)state;
	for (unsigned pid = 1; pid <= 2; pid++) {
		started(pid);
		process(pid)->ordinals = &ordinals;
	}
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 1,
		.multicast = {.handle = 50, .bytes = 4 * PIECE, .device = 2});
	export(1, 50, 77);
	import(2, 60, 77);
	buffer(1, 10, VA, PIECE);
	create_on(2, 20, PIECE, device_prop(1));
	map_rw(2, VA, PIECE, 20);
	bind_object(1, 50, 0, 10);
	bind_object(2, 60, PIECE, 20);
	export(2, 20, 78);
	started(3);
	imported_buffer(3, 30, 78, VA, PIECE);
	some.multicast = true;
	some.by_gpu = true;
	some.ordinals = 3;
	assert_int_equal(make(), 0);
	assert_int_equal(plan.bytes, 2 * PIECE);
	assert_int_equal(plan.processes_count, 3);
	some.pids = both;
	some.pids_count = 2;
	expect_refusal(
		"nothing of device 0 of process 1 can be freed, not 2.0 MiB: ask for "
		"less; 2.0 MiB more cannot be moved: 2.0 MiB of process 2 at 0x7e0000000000 is "
		"mapped by process 3 at 0x7e0000000000, which is not selected: add --pid 3 or "
		"--with-closure");
}

#define PLAN(name) cmocka_unit_test_setup_teardown(name, plan_setup, plan_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PLAN(test_as_much_as_is_needed),
		PLAN(test_nothing_there),
		PLAN(test_what_cannot_be_moved),
		PLAN(test_gpus),
		PLAN(test_holders_that_do_not_take_part),
		PLAN(test_teams),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
