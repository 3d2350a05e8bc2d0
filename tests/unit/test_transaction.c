// SPDX-License-Identifier: BSD-2-Clause
#include "fake_processes.h"

static void test_offload_and_restore(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= FAKES; n++)
		for (unsigned order = 0; order < 3; order++) {
			job(n, 3);
			w.order = order;
			for (unsigned round = 0; round < 3; round++) {
				offload();
				assert_int_equal(w.result.error, 0);
				check_away();
				restore();
				assert_int_equal(w.result.error, 0);
				check_back("after a restore");
				check_forgotten("after a restore");
			}
			assert_int_equal(w.broken, 0);
		}
}

/* Long lists go in several messages, and so do exports. */
static void test_large(void **state)
{
	(void)state;
	job(2, 150);
	offload();
	assert_int_equal(w.result.error, 0);
	assert_true(w.fake[0].given[LIEN_WIRE_STAGE] > 2);
	check_away();
	restore();
	assert_int_equal(w.result.error, 0);
	assert_true(w.fake[0].given[LIEN_WIRE_IMPORT] >= 3);
	check_back("after a restore");
	check_forgotten("after a restore");
	assert_int_equal(w.broken, 0);
}

static void test_result(void **state)
{
	const struct lien_transaction_process *process;
	uint64_t bytes = 0;

	(void)state;
	job(3, 2);
	for (unsigned m = 0; m < w.memories; m++)
		bytes += w.memory[m].bytes;
	for (unsigned round = 0; round < 2; round++) {
		if (round)
			restore();
		else
			offload();
		assert_false(w.result.error || w.result.rolled_back || w.result.undo_failed);
		assert_int_equal(w.result.text[0], 0);
		assert_int_equal(w.result.bytes, bytes);
		assert_int_equal(w.result.processes_count, 3);
		assert_true(w.progress >= 5);
		for (unsigned p = 0; p < 3; p++) {
			process = &w.result.processes[p];
			assert_int_equal(process->pid, PID(p));
			assert_int_equal(process->allocations, 5);
			assert_int_equal(process->imports, 4);
			/* 1 + 3 + 1 + 2 + 2, and imports 1 + 2 + 2 * 2 */
			assert_int_equal(process->mappings, 9 + 7);
			if (round)
				assert_int_equal(process->phase_ns[LIEN_PHASE_CREATE], 1000);
			else
				assert_int_equal(process->freed_bytes, (p + 1) * MIB);
			assert_int_equal(process->phase_ns[LIEN_PHASE_SAVE], round ? 0 : 1000);
		}
	}
	assert_int_equal(w.broken, 0);
}

/* The order's argument and flags. */
static void test_orders(void **state)
{
	struct lien_plan plan;

	(void)state;
	job(1, 0);
	plan = plan_of(1);
	transaction_begins();
	assert_int_equal(
		lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1234, &fake_ops), 0);
	lien_plan_clear(&plan);
	assert_int_equal(lien_transaction_kind(w.transaction), LIEN_TRANSACTION_OFFLOAD);
	lien_transaction_start(w.transaction);
	assert_int_equal(w.fake[0].order.flags, LIEN_WIRE_FIRST | LIEN_WIRE_LAST);
	assert_int_equal(lien_transaction_phase(w.transaction), LIEN_PHASE_STAGE);
	happen(0);
	assert_int_equal(w.fake[0].order.type, LIEN_WIRE_DRAIN);
	assert_int_equal(w.fake[0].order.arg, 1234);
	play();
	transaction_ends();
	assert_int_equal(w.broken, 0);
}

#define RAW 5000 /* more than one message has room for */

static int raw(void *context, uint32_t pid, struct lien_wire_raw **list, unsigned *count)
{
	assert_ptr_equal(context, &w);
	*count = pid == PID(1) ? RAW : 0;
	*list = calloc(*count + 1, sizeof(**list));
	for (unsigned i = 0; i < *count; i++)
		(*list)[i] = (struct lien_wire_raw){.handle = 0x1000 + i, .certain = 1};
	return *list ? 0 : -ENOMEM;
}

static const char *raw_to(void *context, uint32_t pid, uint64_t handle)
{
	assert_ptr_equal(context, &w);
	assert_true(pid == PID(1) && handle == 0x1000 + RAW - 1);
	return "late";
}

static void offload_raw(void)
{
	struct lien_transaction_ops ops = fake_ops;
	struct lien_plan plan = plan_of(~0u);

	ops.raw = raw;
	ops.raw_to = raw_to;
	transaction_begins();
	assert_int_equal(lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1000, &ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

/* The handles that a process has from the driver itself are told before anything is staged; one
 * that means other memory is a refusal that names it. */
static void test_raw(void **state)
{
	(void)state;
	job(3, 2);
	offload_raw();
	assert_int_equal(w.result.error, 0);
	assert_int_equal(w.fake[0].raw, 0);
	assert_int_equal(w.fake[1].raw, RAW);
	check_away();
	restore();
	w.fake[1].raw = 0;
	w.fake[1].clashes = 0x1000 + RAW - 1;
	offload_raw();
	assert_int_equal(w.result.error, -EBUSY);
	assert_non_null(
		strstr(w.result.text, "process 101: late has handle 0x2387 from the driver"));
	assert_false(w.result.rolled_back || w.result.undo_failed);
	assert_int_equal(w.fake[1].raw, RAW);
	assert_int_equal(w.fake[1].count, 0); /* nothing of it was staged */
	check_back("after a refusal");
	assert_int_equal(w.broken, 0);
}

/* What each order of a type was sent with. */
static unsigned flags_of(enum lien_wire_type type)
{
	unsigned flags = 0;

	for (unsigned p = 0; p < w.n; p++)
		flags |= w.fake[p].flags[type];
	return flags;
}

static void offload_verified(uint32_t flags)
{
	struct lien_plan plan = plan_of(~0u);

	transaction_begins();
	assert_int_equal(
		lien_transaction_offload(&w.transaction, &plan, BASE, flags, 1000, &fake_ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

static void test_verify_flags(void **state)
{
	(void)state;
	job(2, 2);
	offload_verified(0);
	assert_int_equal(flags_of(LIEN_WIRE_SAVE), 0);
	restore();
	assert_int_equal(flags_of(LIEN_WIRE_LIST), LIEN_WIRE_ROOM);
	assert_int_equal(flags_of(LIEN_WIRE_CREATE), LIEN_WIRE_ROOM);
	offload_verified(LIEN_WIRE_VERIFY);
	assert_int_equal(flags_of(LIEN_WIRE_SAVE), LIEN_WIRE_VERIFY);
	assert_int_equal(flags_of(LIEN_WIRE_UNMAP), 0);
	restore();
	assert_int_equal(flags_of(LIEN_WIRE_FINISH), LIEN_WIRE_LAST);
	check_back("after all");
	assert_int_equal(w.broken, 0);
}

/* Every order of a restore for some groups says so. */
static void test_chosen_flags(void **state)
{
	const uint64_t group = 0x5ac1, tag = 0x7a6;

	(void)state;
	job(2, 2);
	for (unsigned m = 0; m < w.memories; m++)
		w.memory[m].group = group;
	offload();
	transaction_begins();
	assert_int_equal(restore_new(&w.transaction, (uint32_t[]){PID(0), PID(1)}, 2, NULL, 0, 1000,
				 &fake_ops),
		0);
	assert_int_equal(lien_transaction_choose(w.transaction, NULL, 0, &group, 1, &tag, 1), 0);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
	assert_int_equal(flags_of(LIEN_WIRE_LIST), LIEN_WIRE_ROOM | LIEN_WIRE_CHOSEN);
	assert_int_equal(flags_of(LIEN_WIRE_CREATE), LIEN_WIRE_ROOM | LIEN_WIRE_CHOSEN);
	assert_int_equal(flags_of(LIEN_WIRE_EXPORT), LIEN_WIRE_CHOSEN);
	assert_int_equal(flags_of(LIEN_WIRE_FINISH), LIEN_WIRE_CHOSEN | LIEN_WIRE_LAST);
	assert_true(w.result.chosen && !w.result.all_back);
	check_back("after all");
	assert_int_equal(w.broken, 0);
}

/* After any event: what was moved is put back, or it is too late and all is away. */
static void test_cancel(void **state)
{
	bool rolled_back = false, nothing_moved = false, cancelled = true;
	struct lien_plan plan;
	unsigned after, i;
	int p;

	(void)state;
	for (after = 0; cancelled; after++) {
		job(2, 2);
		plan = plan_of(~0u);
		transaction_begins();
		assert_int_equal(
			lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1000, &fake_ops),
			0);
		lien_plan_clear(&plan);
		lien_transaction_start(w.transaction);
		for (i = 0; i < after && !w.done; i++) {
			p = pick();
			if (p >= 0)
				happen(p);
			else
				tick();
		}
		cancelled =
			!w.done && lien_transaction_cancel(w.transaction, -ECANCELED, "cancelled");
		assert_false(w.done == 0 && lien_transaction_cancel(w.transaction, -ECANCELED,
						    "cancelled")); /* only once */
		if (cancelled)
			lien_transaction_react(w.transaction);
		play();
		transaction_ends();
		if (!cancelled) {
			assert_int_equal(w.result.error, 0);
			check_away();
			break;
		}
		assert_int_equal(w.result.error, -ECANCELED);
		assert_string_equal(w.result.text, "cancelled");
		assert_false(w.result.undo_failed);
		rolled_back |= w.result.rolled_back;
		nothing_moved |= !w.result.rolled_back;
		check_back("after it was cancelled");
		check_forgotten("after it was cancelled");
	}
	assert_true(rolled_back && nothing_moved);
	restore();
	assert_int_equal(w.broken, 0);
}

/* --- other nodes ------------------------------------------------------------------------------ */

static enum lien_point far; /* the point at which it may not go on */
static bool waits;	    /* it has been asked there */

static enum lien_go_on fake_may_go_on(void *context, enum lien_point point)
{
	assert_ptr_equal(context, &w);
	waits |= point == far;
	return point < far ? LIEN_GO_ON_YES : LIEN_GO_ON_NO;
}

/* Everything that can happen without another node, and some seconds. */
static void settle(void)
{
	for (unsigned i = 0; i < 5 && !w.done; i++) {
		w.now_ms += 1100;
		tick();
		while (!w.done && pick() >= 0)
			happen(pick());
	}
}

static void begin_with_nodes(enum lien_point until)
{
	struct lien_transaction_ops ops = fake_ops;
	struct lien_plan plan = plan_of(~0u);

	ops.may_go_on = fake_may_go_on;
	far = until;
	waits = false;
	transaction_begins();
	assert_int_equal(lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1000, &ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	settle();
	assert_true(waits && !w.done);
}

/* Nothing is sent before the plan may be carried out, and nothing is dropped before all are ready;
 * meanwhile the processes are told that we are alive. */
static void test_other_nodes(void **state)
{
	unsigned p, alive = 0;

	(void)state;
	job(2, 2);
	begin_with_nodes(LIEN_POINT_PLANNED);
	for (p = 0; p < w.n; p++)
		assert_int_equal(w.fake[p].orders, 0);
	far = LIEN_POINT_READY;
	waits = false;
	lien_transaction_wake(w.transaction);
	react();
	settle();
	assert_true(waits && !w.done);
	for (p = 0; p < w.n; p++) {
		assert_true(w.fake[p].answered[LIEN_WIRE_SAVE]);
		assert_int_equal(w.fake[p].given[LIEN_WIRE_UNMAP], 0);
		assert_int_equal(w.fake[p].given[LIEN_WIRE_DROP], 0);
		alive += w.fake[p].alive;
	}
	assert_true(alive > 0);
	far = LIEN_POINT_READY + 1;
	lien_transaction_wake(w.transaction);
	react();
	play();
	transaction_ends();
	assert_int_equal(w.result.error, 0);
	check_away();
	restore();
	assert_int_equal(w.broken, 0);
}

/* Wherever it waits for other nodes, it can be undone, and a death undoes it. */
static void test_other_nodes_undo(void **state)
{
	unsigned point, dies;

	(void)state;
	for (point = LIEN_POINT_PLANNED; point <= LIEN_POINT_READY; point += LIEN_POINT_READY)
		for (dies = 0; dies < 2; dies++) {
			job(2, 2);
			begin_with_nodes(point);
			if (dies) {
				die(1);
			} else {
				assert_true(lien_transaction_cancel(
					w.transaction, -ECANCELED, "as its coordinator wants"));
				react();
			}
			play();
			transaction_ends();
			assert_int_equal(w.result.error, dies ? -ESRCH : -ECANCELED);
			assert_false(w.result.undo_failed || w.result.rolled_back);
			if (!dies)
				check_back("after other nodes");
			for (unsigned p = 0; p < w.n; p++)
				assert_int_equal(w.fake[p].given[LIEN_WIRE_DROP], 0);
		}
}

/* A restore waits for the plans of other nodes. If a process ends meanwhile, its own memory is gone
 * and the rest comes back; if it is cancelled, nothing was touched. */
static void test_other_nodes_restore(void **state)
{
	struct lien_transaction_ops ops = fake_ops;
	unsigned dies, p;

	(void)state;
	for (dies = 0; dies < 2; dies++) {
		job(2, 2);
		offload();
		ops.may_go_on = fake_may_go_on;
		far = LIEN_POINT_PLANNED;
		waits = false;
		restore_begins(NULL, 0, &ops);
		lien_transaction_start(w.transaction);
		settle();
		assert_true(waits && !w.done);
		assert_int_equal(lien_transaction_phase(w.transaction), LIEN_PHASE_LIST);
		if (dies)
			die(1);
		else
			assert_true(lien_transaction_cancel(
				w.transaction, -ECANCELED, "as its coordinator wants"));
		far = dies ? LIEN_POINT_READY + 1 : far;
		react();
		play();
		transaction_ends();
		assert_int_equal(w.result.error, dies ? -EOWNERDEAD : -ECANCELED);
		assert_int_equal(w.result.only_lost, dies);
		for (p = 0; p < w.n; p++)
			assert_int_equal(!!w.fake[p].given[LIEN_WIRE_LIST], dies && p != 1);
	}
}

/* An order to each, whatever becomes of the others. */
static void test_release(void **state)
{
	static const enum fault_kind kinds[] = {
		NO_FAULT, REFUSES, DIES_BEFORE, UNREACHABLE, HANGS_BEFORE};

	(void)state;
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		job(3, 2);
		w.fault[0] = (struct fault){kinds[i], 1, 1};
		transaction_begins();
		assert_int_equal(lien_transaction_new(&w.transaction, LIEN_TRANSACTION_RELEASE,
					 (uint32_t[]){PID(0), PID(1), PID(2)}, 3, 0, &fake_ops),
			0);
		assert_int_equal(lien_transaction_kind(w.transaction), LIEN_TRANSACTION_RELEASE);
		lien_transaction_start(w.transaction);
		play();
		assert_int_equal(w.result.processes_count, 3);
		assert_int_equal(w.result.bytes, kinds[i] ? 2 * MIB : 3 * MIB);
		/* One that has ended holds nothing any more. */
		assert_int_equal(!w.result.error, !kinds[i] || w.fake[1].dead);
		assert_int_equal(w.result.processes[0].bytes, MIB);
		assert_int_equal(w.fake[2].given[LIEN_WIRE_RELEASE], 1);
		transaction_ends();
		assert_int_equal(w.broken, 0);
	}
}

/* Each process at each of its orders in each way. What must be true afterwards, in any case: no
 * byte lost, no descriptor, one end; the rest depends on how far it had got. */
static void check_failed_offload(const struct fault *fault, bool injected)
{
	unsigned dropped = 0, p;

	for (p = 0; p < w.n; p++)
		dropped += w.fake[p].given[LIEN_WIRE_UNMAP] + w.fake[p].given[LIEN_WIRE_DROP];
	/* One that dies when it has given its last answer has not failed. */
	if (!injected || (fault->kind == DIES_BETWEEN && fault->order == 6 && !w.result.error)) {
		assert_int_equal(w.result.error, 0);
		for (p = 0; p < w.n; p++)
			assert_int_equal(w.fake[p].answered[LIEN_WIRE_DROP], 1);
		if (!injected)
			check_away();
		return;
	}
	if (!w.result.error || !w.result.text[0])
		BROKEN("no error is reported");
	if (!dropped && (w.result.rolled_back || w.result.undo_failed))
		BROKEN("nothing was dropped, so there was nothing to roll back");
	for (p = 0; p < w.n && !dropped; p++)
		if (well(p) && !w.fake[p].given[LIEN_WIRE_DISCARD])
			BROKEN("process %u is not told to discard what it staged", PID(p));
	check_back("after a failed offload");
	if (!dropped || fault->kind <= HALF)
		check_forgotten("after a failed offload");
	if (dropped && fault->kind <= HALF && (!w.result.rolled_back || w.result.undo_failed))
		BROKEN("rolled back, but not reported as such");
	if (dropped && fault->kind >= HANGS_BEFORE &&
		(w.result.rolled_back || !w.result.undo_failed))
		BROKEN("a process may have dropped memory and is not heard of again, but all is "
		       "said to be put back");
}

static const char *const fault_names[FAULT_KINDS] = {
	[REFUSES] = "refuses",
	[HALF] = "does half of it",
	[DIES_BEFORE] = "dies before",
	[DIES_AFTER] = "dies after",
	[DIES_BETWEEN] = "dies between replies",
	[UNREACHABLE] = "has ended",
	[CUT_OFF] = "is cut off after",
	[HANGS_BEFORE] = "hangs before",
	[HANGS_AFTER] = "hangs after",
};

/* Which way of failing a test is about, by its state. */
static enum fault_kind kind_of(void **state)
{
	return (enum fault_kind)(uintptr_t)*state;
}

static void report(const char *what, const struct fault *fault, unsigned before)
{
	if (w.broken > before)
		print_error("^ %s, process %u %s its order %u, schedule %u\n", what,
			PID(fault->process), fault_names[fault->kind], fault->order, w.order);
}

/* Whether the fault was reached: there may be no such order. */
static bool injected(const struct fault *fault)
{
	return w.fake[fault->process].orders >= fault->order;
}

static void test_failed_offload(void **state)
{
	struct fault fault = {.kind = kind_of(state)};
	unsigned broken = 0, reached = 0;

	for (unsigned run = 0; run < 3 * 3 * 8 && broken < 8; run++) {
		job(3, 2);
		w.order = run % 3;
		w.random = run;
		fault.process = run / 3 % 3;
		fault.order = 1 + run / 9;
		w.fault[0] = fault;
		offload();
		reached += injected(&fault);
		check_failed_offload(&fault, injected(&fault));
		if (fault.kind <= HALF && injected(&fault)) { /* it is as if nothing had been */
			no_faults();
			offload();
			assert_int_equal(w.result.error, 0);
			check_away();
		}
		report("offload", &fault, 0);
		broken += w.broken;
	}
	assert_int_equal(broken, 0);
	assert_true(reached >= 54); /* six orders */
}

static void test_failed_restore(void **state)
{
	struct fault fault = {.kind = kind_of(state)};
	unsigned broken = 0, reached = 0;

	for (unsigned run = 0; run < 3 * 3 * 9 && broken < 8; run++) {
		job(3, run % 2 ? 70 : 2);
		offload();
		assert_int_equal(w.broken + -w.result.error, 0);
		w.order = run % 3;
		w.random = run;
		fault.process = run / 3 % 3;
		fault.order = 1 + run / 9;
		w.fault[0] = fault;
		restore();
		if (injected(&fault)) {
			reached++;
			/* A process that dies while it lists has nothing to do with it. */
			if (!w.result.error && !(fault.order == 1 && w.fake[fault.process].dead) &&
				!w.fake[fault.process].answered[LIEN_WIRE_FINISH])
				BROKEN("no error is reported");
			if (w.result.rolled_back)
				BROKEN("a restore cannot be rolled back");
			/* Nobody waits for what does not come; a refusal to list stops it all. */
			if (fault.kind > HALF && !(fault.order == 1 && fault.kind >= HANGS_BEFORE))
				check_back("after a restore with a death in it");
			no_faults();
			wake(fault.process);
			restore();
		}
		check_back("after another restore");
		check_forgotten("after another restore");
		report("restore", &fault, 0);
		broken += w.broken;
	}
	assert_int_equal(broken, 0);
	assert_true(reached >= 45); /* five orders */
}

/* It fails, and then the undo fails: named, and a restore makes it good. */
static void test_failed_undo(void **state)
{
	unsigned broken = 0, undone = 0;

	(void)state;
	for (unsigned run = 0; run < 3 * 3 * 6 && broken < 8; run++) {
		struct fault second = {REFUSES, run / 3 % 3, 7 + run / 9};

		job(3, 2);
		w.order = run % 3;
		w.fault[0] = (struct fault){HALF, 1, 6};
		w.fault[1] = second;
		offload();
		if (w.fake[second.process].orders < second.order)
			continue;
		assert_int_equal(w.result.error, -EIO); /* a CUresult */
		if (w.result.rolled_back || !w.result.undo_failed)
			BROKEN("the undo's failure is not reported");
		undone++;
		no_faults();
		restore();
		assert_int_equal(w.result.error, 0);
		check_back("after another restore");
		check_forgotten("after another restore");
		report("undo", &second, 0);
		broken += w.broken;
	}
	assert_int_equal(broken, 0);
	assert_true(undone >= 20);
}

/* It hangs when it may have dropped some of its memory, which nobody shares: who knows? */
static void test_hang_alone(void **state)
{
	(void)state;
	for (unsigned order = 5; order <= 6; order++)
		for (unsigned kind = HANGS_BEFORE; kind <= HANGS_AFTER; kind++) {
			memset(&w, 0, sizeof(w));
			w.n = 2;
			memory_new(0, 0, 0);
			memory_new(1, 0, 0);
			w.fault[0] = (struct fault){kind, 1, order};
			offload();
			assert_int_equal(w.result.error, -ETIMEDOUT);
			assert_true(w.result.undo_failed && !w.result.rolled_back);
			check_back("of the other");
			assert_int_equal(w.broken, 0);
		}
}

/* It hangs while it saves, and is given up: nobody tells it to forget what it has saved for others.
 * So the next restore has to ask it, or it would refuse all that is to come. */
static void test_hang_in_save(void **state)
{
	(void)state;
	for (unsigned kind = HANGS_BEFORE; kind <= HANGS_AFTER; kind++) {
		job(3, 1);
		w.fault[0] = (struct fault){kind, 1, 4};
		offload();
		assert_int_equal(w.fake[1].order.type, LIEN_WIRE_SAVE);
		assert_int_equal(w.result.error, -ETIMEDOUT);
		assert_false(w.result.undo_failed);
		for (unsigned p = 0; p < 3; p++)
			assert_int_equal(w.process[p].lends, p == 1);
		no_faults();
		let_go(&w.fake[1]);
		wake(1);
		restore();
		assert_int_equal(w.result.error, 0);
		check_forgotten("after the restore");
		assert_int_equal(w.broken, 0);
	}
}

/* A capture that began since the plan was made: nobody is drained. */
static void test_capture(void **state)
{
	(void)state;
	job(3, 1);
	w.capturing = PID(1);
	offload();
	assert_int_equal(w.result.error, -EBUSY);
	assert_string_equal(w.result.text, "process 101 is capturing");
	assert_false(w.result.rolled_back || w.result.undo_failed);
	for (unsigned p = 0; p < 3; p++) {
		assert_int_equal(w.fake[p].given[LIEN_WIRE_DRAIN], 0);
		assert_int_equal(w.fake[p].given[LIEN_WIRE_DISCARD], 1);
	}
	check_forgotten("after a refusal");
	assert_int_equal(w.broken, 0);
}

/* An owner dies while its memory is away: it is gone for good, which is said; all else comes back,
 * and the others can be offloaded again. */
static void test_owner_dies_while_away(void **state)
{
	(void)state;
	for (unsigned dead = 0; dead < 3; dead++) {
		job(3, 2);
		offload();
		die(dead);
		restore();
		assert_int_equal(w.result.error, -EOWNERDEAD);
		assert_true(w.result.lost);
		assert_non_null(
			strstr(w.result.text, dead == 0	  ? "process 100, which has ended"
					      : dead == 1 ? "process 101, which has ended"
							  : "process 102, which has ended"));
		check_back("after the owner's death");
		check_forgotten("after the owner's death");
		for (unsigned m = 0; m < w.memories; m++)
			if (w.memory[m].owner == dead)
				w.memory[m].importers = 0;
		offload_of(7 & ~(1u << dead));
		assert_int_equal(w.result.error, 0);
		restore();
		assert_int_equal(w.result.error, 0);
		assert_false(w.result.lost);
		check_back("after another round");
		assert_int_equal(w.broken, 0);
	}
}

static void restore_with(const struct lien_transaction_ops *ops, unsigned n)
{
	const uint32_t all[] = {PID(0), PID(1), PID(2), PID(3)};

	transaction_begins();
	assert_int_equal(restore_new(&w.transaction, all, n, NULL, 0, 1000, ops), 0);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

/* A restore that the owner is not known to have a part in. */
static void restore_without_by(const struct lien_transaction_ops *ops, unsigned owner)
{
	uint32_t all[FAKES];
	unsigned n = 0;

	transaction_begins();
	for (unsigned p = 0; p < w.n; p++)
		if (p != owner)
			all[n++] = PID(p);
	assert_int_equal(restore_new(&w.transaction, all, n, NULL, 0, 1000, ops), 0);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

static void restore_without(unsigned owner)
{
	restore_without_by(&fake_ops, owner);
}

static bool is_stopped(void *context, uint32_t pid, char remedy[static LIEN_REMEDY])
{
	(void)context;
	snprintf(remedy, LIEN_REMEDY, "kill -CONT %u", pid);
	return pid == PID(3);
}

/* The importers name it: it is asked, and all comes back. */
static void test_owner_is_not_known(void **state)
{
	(void)state;
	for (unsigned owner = 0; owner < 3; owner++)
		for (unsigned order = 0; order < 3; order++) {
			job(3, 2);
			w.order = order;
			offload();
			restore_without(owner);
			assert_int_equal(w.result.error, 0);
			assert_int_equal(w.result.processes_count, 3);
			check_back("after a restore");
			check_forgotten("after a restore");
			assert_int_equal(w.broken, 0);
		}
	/* It cannot be: those who share with it are left as they are. */
	job(3, 2);
	offload();
	w.fault[0] = (struct fault){HANGS_BEFORE, 1, 1};
	restore_without(1);
	assert_int_equal(w.result.error, -ETIMEDOUT);
	assert_false(w.result.lost);
	no_faults();
	wake(1);
	restore();
	assert_int_equal(w.result.error, 0);
	check_back("after another restore");
	assert_int_equal(w.broken, 0);
}

/* It lives and does not have its memory any more: it runs another program. That is gone for good,
 * and holds up nobody. */
static void test_owner_forgets(void **state)
{
	(void)state;
	for (unsigned known = 0; known < 2; known++) {
		job(3, 2);
		offload();
		for (unsigned m = 0; m < w.memories; m++)
			w.memory[m].freed |= w.memory[m].owner == 1;
		w.fake[1].count = 0;
		if (known)
			restore();
		else
			restore_without(1);
		assert_int_equal(w.result.error, -EOWNERDEAD);
		assert_true(w.result.lost && w.result.only_lost);
		assert_non_null(
			strstr(w.result.text, "process 101, which does not have it any more"));
		for (unsigned m = 0; m < w.memories; m++)
			if (w.memory[m].owner != 1)
				assert_true(w.memory[m].device);
		check_forgotten("after the loss");
		restore();
		assert_int_equal(w.result.error, 0);
		assert_int_equal(w.broken, 0);
	}
}

static struct {
	uint32_t pid[ITEMS];
	uint64_t va[ITEMS];
	unsigned count;
} lost;

static void note_lost(void *context, uint32_t pid, uint64_t va)
{
	assert_ptr_equal(context, &lost);
	lost.pid[lost.count] = pid;
	lost.va[lost.count++] = va;
}

/* Which places are lost is told, each once; of many imports it takes several orders to name them.
 */
static void test_lost_places(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	w.n = 2;
	for (unsigned i = 0; i < MEMORIES - 1; i++)
		memory_new(0, 2, 0);
	memory_new(1, 1, 2);
	offload();
	die(0);
	transaction_begins();
	assert_int_equal(restore_new(&w.transaction, (const uint32_t[]){PID(1)}, 1, NULL, 0, 1000,
				 &fake_ops),
		0);
	lien_transaction_start(w.transaction);
	play();
	memset(&lost, 0, sizeof(lost));
	lien_transaction_lost(w.transaction, note_lost, &lost);
	transaction_ends();
	assert_int_equal(w.result.error, -EOWNERDEAD);
	assert_int_equal(w.result.processes[0].lost_mappings, MEMORIES - 1);
	assert_int_equal(w.fake[1].given[LIEN_WIRE_FINISH], 3); /* the first waits for copies */
	assert_int_equal(lost.count, MEMORIES - 1);
	for (unsigned i = 0; i < lost.count; i++) {
		assert_int_equal(lost.pid[i], PID(1));
		assert_true(!i || lost.va[i] > lost.va[i - 1]);
	}
	check_forgotten("after the loss");
	assert_int_equal(w.broken, 0);
}

/* What a dead owner had is given up, whatever else is missing. */
static void test_one_owner_is_dead(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	w.n = 3;
	memory_new(0, 4, 0);
	memory_new(1, 4, 1);
	offload();
	die(0);
	w.fake[1].withholds = 1;
	restore();
	assert_true(w.result.error && w.result.lost && !w.result.only_lost);
	assert_int_equal(w.fake[2].count, 2); /* the other one's import, and its alias */
	assert_int_equal(w.fake[1].flags[LIEN_WIRE_FINISH], LIEN_WIRE_KEEP | LIEN_WIRE_LAST);
	restore();
	assert_int_equal(w.result.error, 0);
	check_back("after another restore");
	check_forgotten("after another restore");
	assert_int_equal(w.broken, 0);
}

static bool is_unheard;

static bool unheard(void *context, uint32_t pid, uint64_t token)
{
	(void)context, (void)pid;
	assert_true(token);
	return is_unheard;
}

/* As long as somebody may turn up who lacks it, what is shared stays exportable. */
static void test_unheard(void **state)
{
	struct lien_transaction_ops ops = fake_ops;

	(void)state;
	ops.unheard = unheard;
	job(2, 2);
	offload();
	for (unsigned round = 0; round < 3; round++) {
		is_unheard = round < 2;
		restore_with(&ops, 2);
		assert_int_equal(w.result.error, 0);
		for (unsigned p = 0; p < 2; p++) {
			assert_int_equal(w.process[p].lends, is_unheard);
			assert_true(!w.fake[p].count == !is_unheard);
			assert_true(!any_in(&w.fake[p], BACK) && !any_in(&w.fake[p], AWAY));
		}
		check_back("after a restore");
	}
	check_forgotten("when all have been heard");
	assert_int_equal(w.broken, 0);
}

/* All of them die, one after the other. */
static void test_all_die(void **state)
{
	unsigned broken = 0;

	(void)state;
	for (unsigned run = 0; run < 2 * 6 * 6; run++) {
		const struct fault faults[] = {
			{DIES_BEFORE, 0, 1 + run / 2 % 6}, {DIES_AFTER, 1, 1 + run / 12}};

		job(2, 1);
		if (run % 2)
			offload();
		memcpy(w.fault, faults, sizeof(faults));
		if (run % 2)
			restore();
		else
			offload();
		broken += w.broken;
	}
	job(2, 1);
	w.fake[0].dead = w.fake[1].dead = true; /* nobody can be reached from the start on */
	offload();
	assert_int_equal(w.result.error, -ESRCH);
	assert_int_equal(broken + w.broken, 0);
}

/* It ends the same way whether or not another program has the pid of one that has ended. */
static void test_pid_of_another_program(void **state)
{
	const enum fault_kind kinds[] = {DIES_BEFORE, DIES_AFTER, DIES_BETWEEN, UNREACHABLE};
	struct lien_transaction_result first;
	unsigned hit = 0;

	(void)state;
	for (unsigned run = 0; run < 2 * 2 * 4 * 14; run++) {
		job(3, 1);
		w.reborn = run % 2;
		if (run / 2 % 2)
			offload();
		w.fault[0] = (struct fault){kinds[run / 4 % 4], 1, 1 + run / 16};
		if (run / 2 % 2)
			restore();
		else
			offload();
		hit += w.fake[1].dead;
		assert_int_equal(w.broken, 0);
		if (run % 2) {
			assert_int_equal(w.result.error, first.error);
			assert_string_equal(w.result.text, first.text);
			assert_string_equal(w.result.undo_text, first.undo_text);
			assert_int_equal(w.result.lost, first.lost);
		}
		first = w.result;
	}
	assert_true(hit > 100);
}

static void test_texts(void **state)
{
	static const struct {
		enum fault_kind kind;
		const char *word;
		int error;
	} cases[] = {
		{REFUSES, "process 101, save: said no", -EIO},
		{HALF, "process 101, save: said no", -EIO},
		{DIES_BEFORE, "process 101 ended in `save`", -ESRCH},
		{UNREACHABLE, "process 101 has ended", -ESRCH},
		{HANGS_BEFORE, "process 101 did not answer `save` within", -ETIMEDOUT},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		job(2, 1);
		w.fault[0] = (struct fault){cases[i].kind, 1, 4};
		offload();
		if (!strstr(w.result.text, cases[i].word))
			fail_msg("%s", w.result.text);
		assert_int_equal(w.result.error, cases[i].error);
		assert_int_equal(w.broken, 0);
	}
}

/* What was waited for is named, in a restore as well. */
static void test_restore_texts(void **state)
{
	static const char *const orders[] = {"list", "create", "export", "import", "finish"};

	(void)state;
	for (unsigned i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		char expected[64];

		job(2, 1);
		offload();
		w.fault[0] = (struct fault){HANGS_BEFORE, 1, i + 1};
		restore();
		snprintf(expected, sizeof(expected), "process 101 did not answer `%s`", orders[i]);
		if (!strstr(w.result.text, expected))
			fail_msg("it hung in `%s`: %s", orders[i], w.result.text);
	}
}

/* Two groups of processes that share nothing. */
static void two_groups(void)
{
	memset(&w, 0, sizeof(w));
	w.n = 4;
	memory_new(0, 0x2, 0);
	memory_new(1, 0, 0);
	memory_new(2, 0x8, 0);
	memory_new(3, 0x4, 0);
}

static void test_restore_closure(void **state)
{
	(void)state;
	for (unsigned p = 0; p < 4; p++) {
		two_groups();
		offload();
		restore_of((const uint32_t[]){PID(p)}, 1);
		assert_int_equal(w.result.error, 0);
		assert_int_equal(w.result.processes_count, 2);
		assert_int_equal(w.result.processes[0].pid, PID(p / 2 * 2));
		assert_int_equal(w.result.processes[1].pid, PID(p / 2 * 2 + 1));
		assert_int_equal(
			w.result.bytes, w.memory[p / 2 * 2].bytes + w.memory[p / 2 * 2 + 1].bytes);
		for (unsigned other = 0; other < 4; other++) {
			assert_int_equal(w.memory[other].device, other / 2 == p / 2);
			assert_int_equal(w.fake[other].given[LIEN_WIRE_CREATE], other / 2 == p / 2);
		}
		restore();
		assert_int_equal(w.result.processes_count, 2);
		check_back("after both");
		check_forgotten("after both");
		assert_int_equal(w.broken, 0);
	}
}

static struct lien_wire_room room_of(unsigned gpu, uint64_t needed, uint64_t free_bytes)
{
	return (struct lien_wire_room){
		.device = 0, .uuid = {gpu}, .needed = needed, .free_bytes = free_bytes};
}

static void check_refused(unsigned first, const char *text)
{
	assert_int_equal(w.result.error, -ENOSPC);
	if (!strstr(w.result.text, text))
		fail_msg("%s", w.result.text);
	for (unsigned p = 0; p < 4; p++)
		assert_int_equal(w.fake[p].given[LIEN_WIRE_CREATE], p / 2 != first / 2);
	for (unsigned p = 0; p < 4; p++)
		w.fake[p].room.needed = 0;
	restore();
	assert_int_equal(w.result.error, 0);
	check_back("when there is room");
	check_forgotten("when there is room");
	assert_int_equal(w.broken, 0);
}

/* Too little room on a device: those who need it and their partners wait, the others come back. */
static void test_no_room(void **state)
{
	(void)state;
	for (unsigned p = 0; p < 4; p++) {
		two_groups();
		offload();
		w.fake[p].room = room_of(7, 3ull << 30, 1 << 20);
		restore();
		check_refused(p, p == 2 ? "device 0 of process 102 needs 3.0 GiB and has 1.0 MiB "
					  "free: free 3.0 GiB there"
					: "needs 3.0 GiB and has 1.0 MiB free");
	}
	/* Each would have room, not both; the one that sees less is right. */
	two_groups();
	offload();
	w.fake[0].room = room_of(7, 10 * MIB, 15 * MIB);
	w.fake[1].room = room_of(7, 10 * MIB, 16 * MIB);
	restore();
	check_refused(0, "device 0 of process 100 and 1 more needs 20.0 MiB and has 15.0 MiB free: "
			 "free 5.0 MiB there");
	/* On different devices, and on ones whose names are not known. */
	for (unsigned gpu = 0; gpu < 2; gpu++) {
		two_groups();
		offload();
		w.fake[0].room = room_of(gpu, 10 * MIB, 15 * MIB);
		w.fake[1].room = room_of(2 * gpu, 10 * MIB, 16 * MIB);
		restore();
		assert_int_equal(w.result.error, 0);
		check_back("with room for each");
	}
	/* Sums that overflow. */
	two_groups();
	offload();
	w.fake[2].room = room_of(1, UINT64_MAX, UINT64_MAX - 1);
	w.fake[3].room = room_of(1, UINT64_MAX, 5);
	restore();
	check_refused(2, "needs 17179869184.0 GiB");
}

/* A chain of processes: each shares with the next one only, and all go together. */
static void test_restore_chain(void **state)
{
	(void)state;
	for (unsigned p = 0; p < 4; p++) {
		memset(&w, 0, sizeof(w));
		w.n = 4;
		for (unsigned i = 0; i < 3; i++)
			memory_new(3 - i, 1u << (2 - i), 0);
		offload();
		restore_of((const uint32_t[]){PID(p)}, 1);
		assert_int_equal(w.result.processes_count, 4);
		check_back("after a restore of one");
		assert_int_equal(w.broken, 0);
	}
}

/* Who can share what: the first two, and the others. */
static bool in_pairs(void *context, uint32_t pid, uint32_t other)
{
	(void)context;
	return (pid - PID(0)) / 2 == (other - PID(0)) / 2;
}

static bool not_the_second(void *context, uint32_t pid)
{
	(void)context;
	return pid != PID(1);
}

/* A process says that it holds what is others', as its owner or as an importer. */
static void test_forged_list(void **state)
{
	struct lien_transaction_ops ops = fake_ops;
	unsigned n;

	(void)state;
	ops.may_share = in_pairs;
	for (unsigned kind = 0; kind < 2; kind++) {
		two_groups();
		offload();
		n = w.fake[2].count++;
		w.fake[2].item[n] = w.fake[kind].item[0];
		for (unsigned i = 0; i < w.fake[kind].count; i++)
			if (w.fake[kind].item[i].wire.flags &
				(kind ? LIEN_WIRE_IMPORTED : LIEN_WIRE_SHARED))
				w.fake[2].item[n] = w.fake[kind].item[i];
		restore_of((const uint32_t[]){PID(0)}, 1); /* takes its word */
		assert_true(w.result.processes_count > 2);
		two_groups();
		offload();
		n = w.fake[2].count++;
		w.fake[2].item[n] = w.fake[kind].item[0];
		transaction_begins();
		assert_int_equal(restore_new(&w.transaction,
					 (const uint32_t[]){PID(0), PID(1), PID(2), PID(3)}, 4,
					 (const uint32_t[]){PID(0)}, 1, 1000, &ops),
			0);
		lien_transaction_start(w.transaction);
		play();
		transaction_ends();
		assert_int_equal(w.result.error, 0);
		assert_int_equal(w.result.processes_count, 2);
		assert_int_equal(w.fake[2].given[LIEN_WIRE_CREATE], 0);
	}
}

/* One that does not say what it holds keeps back those that may share with it, and no others. */
static void test_silent_list(void **state)
{
	struct lien_transaction_ops ops = fake_ops;

	(void)state;
	ops.may_share = in_pairs;
	two_groups();
	offload();
	w.fault[0] = (struct fault){HANGS_BEFORE, 2, 1};
	restore_with(&ops, 4);
	no_faults();
	assert_int_equal(w.result.error, -ETIMEDOUT);
	assert_int_equal(w.result.processes_count, 2);
	assert_true(w.memory[0].device && w.memory[1].device);
	assert_int_equal(w.fake[3].given[LIEN_WIRE_CREATE], 0);
	assert_int_equal(w.broken, 0);
}

/* An owner that only importers name is stopped: nobody waits for it. */
static void test_stopped_owner(void **state)
{
	struct lien_transaction_ops ops = fake_ops;

	(void)state;
	ops.may_share = in_pairs;
	ops.stopped = is_stopped;
	two_groups();
	offload();
	memset(w.fake[3].given, 0, sizeof(w.fake[3].given));
	restore_without_by(&ops, 3);
	assert_int_equal(w.result.error, -EBUSY);
	assert_false(w.result.lost);
	assert_non_null(strstr(w.result.text, "kill -CONT 103"));
	assert_int_equal(w.fake[3].given[LIEN_WIRE_LIST], 0);
	assert_int_equal(w.result.processes_count, 2);
	assert_true(w.memory[0].device && w.memory[1].device);
	restore();
	assert_int_equal(w.result.error, 0);
	check_back("after another restore");
	assert_int_equal(w.broken, 0);
}

/* What is shared with a process that the asker may not order about stays as it is. */
static void test_not_allowed(void **state)
{
	struct lien_transaction_ops ops = fake_ops;

	(void)state;
	ops.allowed = not_the_second;
	two_groups();
	offload();
	restore_with(&ops, 4);
	assert_int_equal(w.result.error, -EPERM);
	assert_non_null(strstr(w.result.text, "only root"));
	assert_int_equal(w.result.processes_count, 2);
	assert_int_equal(w.fake[0].given[LIEN_WIRE_CREATE], 0);
	restore();
	check_back("after root's");
	assert_int_equal(w.broken, 0);
}

static void test_nothing(void **state)
{
	(void)state;
	job(3, 1);
	restore();
	assert_int_equal(w.result.error, 0);
	assert_int_equal(w.result.processes_count, 0);
	assert_int_equal(w.result.bytes, 0);
	for (unsigned p = 0; p < 3; p++)
		assert_int_equal(w.fake[p].orders, 1);
	/* Asked for one that has nothing away. */
	two_groups();
	offload_of(0x3);
	restore_of((const uint32_t[]){PID(3)}, 1);
	assert_int_equal(w.result.processes_count, 0);
	assert_int_equal(w.fake[0].orders, 1);
	/* Nobody there at all. */
	w.n = 0;
	restore();
	assert_int_equal(w.result.processes_count, 0);
	assert_int_equal(w.broken, 0);
}

/* Replies to other orders, of other processes, after the end: their descriptors are closed, and
 * nothing else comes of them. */
static void test_stray_replies(void **state)
{
	struct lien_wire_header stray = {.length = sizeof(stray), .flags = LIEN_WIRE_LAST};
	struct lien_plan plan;
	int fds[2];

	(void)state;
	job(2, 1);
	plan = plan_of(3);
	transaction_begins();
	assert_int_equal(lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1, &fake_ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	for (unsigned i = 0; !w.done || i < 30; i++) {
		unsigned orders = w.fake[0].orders + w.fake[1].orders;

		stray.type = i % 13;
		stray.result = -EIO;
		stray.seq = i % 3 ? w.fake[i % 2].order.seq + 2 : 0;
		if (i % 3 == 2) /* to an order that has been answered, or to this one what fits no
				   order */
			stray.seq = w.fake[i % 2].order.seq;
		if (i % 3 == 2 && w.fake[i % 2].busy && stray.type == w.fake[i % 2].order.type)
			stray.type = LIEN_WIRE_LIST;
		fds[0] = fd_new(1);
		fds[1] = fd_new(2);
		lien_transaction_reply(w.transaction, PID(i % 2), &stray, NULL, fds, 2);
		fds[0] = fd_new(1);
		lien_transaction_reply(w.transaction, 99999, &w.fake[0].order, NULL, fds, 1);
		assert_int_equal(fds_open(), 0);
		assert_int_equal(w.fake[0].orders + w.fake[1].orders, orders);
		if (pick() >= 0)
			happen(pick());
	}
	transaction_ends();
	assert_int_equal(w.result.error, 0);
	assert_int_equal(w.broken, 0);
	check_away();
}

/* Descriptors that come with the answer to an order that asks for none are closed. */
static void test_stray_descriptors(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 2; round++) {
		job(2, 1);
		if (round)
			offload();
		w.gifts = true;
		if (round)
			restore();
		else
			offload();
		assert_int_equal(w.result.error, 0);
		assert_int_equal(w.broken, 0);
	}
}

/* A process answers an order with what belongs to another one. It may lose its own memory by that;
 * the agent must not be harmed, and nobody else. */
static void test_foreign_replies(void **state)
{
	static char body[LIEN_WIRE_MESSAGE_MAX];
	struct lien_wire_item *items = (void *)body;
	unsigned broken = 0;

	(void)state;
	for (unsigned i = 0; i < 150; i++)
		items[i] = (struct lien_wire_item){.token = BASE + i,
			.flags = i % 2 ? LIEN_WIRE_IMPORTED : LIEN_WIRE_OWNED | LIEN_WIRE_SHARED,
			.mappings = 1,
			.bytes = 1,
			.allocation_bytes = 1};
	for (unsigned run = 0; run < 13 * 12; run++) {
		struct lien_wire_header reply = {.type = 1 + run % 13};
		struct lien_plan plan;

		job(3, 1);
		if (run / 13 >= 6) {
			offload();
			transaction_begins();
			assert_int_equal(restore_new(&w.transaction,
						 (const uint32_t[]){PID(0), PID(1), PID(2)}, 3,
						 NULL, 0, 1, &fake_ops),
				0);
		} else {
			plan = plan_of(~0u);
			transaction_begins();
			assert_int_equal(lien_transaction_offload(
						 &w.transaction, &plan, BASE, 0, 1, &fake_ops),
				0);
			lien_plan_clear(&plan);
			w.fault[0] = (struct fault){HALF, 1, 6}; /* so that an undo follows */
		}
		lien_transaction_start(w.transaction);
		while (!w.done && w.fake[2].orders <= run / 13 % 6 && pick() >= 0)
			happen(pick());
		if (!w.done && w.fake[2].busy && w.fake[2].order.type != reply.type) {
			reply.seq = w.fake[2].order.seq;
			reply.length = sizeof(reply) + 150 * sizeof(items[0]);
			lien_transaction_reply(
				w.transaction, PID(2), &reply, body, (int[]){fd_new(BASE)}, 1);
		}
		play();
		transaction_ends();
		for (unsigned m = 0; m < w.memories; m++)
			if (w.memory[m].owner != 2 && !w.memory[m].device && !w.memory[m].arena)
				BROKEN("memory %u is lost", m);
		if (w.broken)
			print_error("^ a reply of type %u to order %u\n", reply.type, run / 13 + 1);
		broken += w.broken;
	}
	assert_int_equal(broken, 0);
}

/* An owner that says it has exported everything and has not: nobody waits for it, and it shows. */
static void test_withheld_export(void **state)
{
	(void)state;
	for (unsigned order = 0; order < 3; order++) {
		job(3, 2);
		w.order = order;
		offload();
		w.fake[1].withholds = 1;
		restore();
		assert_true(w.result.error);
		restore();
		assert_int_equal(w.result.error, 0);
		check_back("after another restore");
		check_forgotten("after another restore");
		assert_int_equal(w.broken, 0);
	}
}

static int out_of_fds(int fd)
{
	static unsigned n;

	return ++n % 3 ? fake_fd_dup(fd) : -EMFILE;
}

static void test_out_of_descriptors(void **state)
{
	struct lien_transaction_ops ops = fake_ops;

	(void)state;
	ops.fd_dup = out_of_fds;
	job(3, 3);
	offload();
	transaction_begins();
	assert_int_equal(restore_new(&w.transaction, (const uint32_t[]){PID(0), PID(1), PID(2)}, 3,
				 NULL, 0, 1, &ops),
		0);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
	assert_int_equal(w.result.error, -EMFILE);
	assert_non_null(strstr(w.result.text, "ulimit"));
	restore();
	check_back("after another restore");
	check_forgotten("after another restore");
	assert_int_equal(w.broken, 0);
}

/* Returns how many descriptors were open at the same time in a restore of such a job. */
static unsigned peak_with(unsigned fds_max)
{
	struct lien_transaction_ops ops = fake_ops;

	ops.fds_max = fds_max;
	job(4, 10);
	offload();
	transaction_begins();
	assert_int_equal(
		restore_new(&w.transaction, (const uint32_t[]){PID(0), PID(1), PID(2), PID(3)}, 4,
			NULL, 0, 1, &ops),
		0);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
	assert_int_equal(w.result.error, 0);
	check_back("after the restore");
	check_forgotten("after the restore");
	assert_int_equal(fds_open(), 0);
	assert_int_equal(w.broken, 0);
	return w.fds_peak;
}

/* Exports of a large job are more than the descriptors that the agent may have. */
static void test_few_descriptors_at_a_time(void **state)
{
	/* Each exports ten to one process, and one to three. */
	const unsigned of_one = 13, more = 11; /* its answer, before it is handed on */

	(void)state;
	assert_true(peak_with(0) > of_one + more);
	assert_true(peak_with(1) <= of_one + more);
	assert_int_equal(peak_with(1000), peak_with(0));
}

/* All but the last process have obeyed, and wait for that one in an order of this type. */
static void all_wait_in(enum lien_wire_type type)
{
	for (unsigned p = 0; p < w.n; p++)
		while (w.fake[p].busy && (p + 1 < w.n || w.fake[p].order.type != type)) {
			happen(p);
			p = 0;
		}
	assert_true(w.fake[w.n - 1].busy);
	assert_int_equal(w.fake[w.n - 1].order.type, type);
}

static void check_told_alive(void)
{
	for (unsigned i = 1; i <= 5; i++) {
		w.now_ms += 1500;
		tick();
		for (unsigned p = 0; p + 1 < w.n; p++) {
			assert_int_equal(w.fake[p].alive, i);
			assert_true(w.fake[p].busy);
			happen(p);
			assert_false(w.fake[p].busy);
		}
		assert_int_equal(w.fake[w.n - 1].alive, 0);
	}
}

/* Those who wait hear of the agent: in an offload, in its undo, and in a restore. */
static void test_alive(void **state)
{
	struct lien_plan plan;

	(void)state;
	for (unsigned undo = 0; undo < 2; undo++) {
		job(3, 2);
		w.fault[0] = (struct fault){undo ? HALF : NO_FAULT, 0, 6};
		plan = plan_of(~0u);
		transaction_begins();
		assert_int_equal(
			lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1000, &fake_ops),
			0);
		lien_plan_clear(&plan);
		lien_transaction_start(w.transaction);
		all_wait_in(undo ? LIEN_WIRE_CREATE : LIEN_WIRE_SAVE);
		check_told_alive();
		play();
		transaction_ends();
		assert_int_equal(!w.result.error, !undo);
		assert_int_equal(w.result.rolled_back, undo);
	}
	job(3, 2);
	offload();
	transaction_begins();
	assert_int_equal(restore_new(&w.transaction, (const uint32_t[]){PID(0), PID(1), PID(2)}, 3,
				 NULL, 0, 1000, &fake_ops),
		0);
	lien_transaction_start(w.transaction);
	all_wait_in(LIEN_WIRE_CREATE);
	check_told_alive();
	play();
	transaction_ends();
	assert_int_equal(w.result.error, 0);
	check_back("after a restore");
	assert_int_equal(w.broken, 0);
}

/* Limits grow with what there is to do, and the drain's with what the caller allows. */
static void test_limits(void **state)
{
	struct lien_plan plan;

	(void)state;
	job(1, 0);
	w.memory[0].bytes = 10000 * MIB;
	plan = plan_of(1);
	transaction_begins();
	assert_int_equal(
		lien_transaction_offload(&w.transaction, &plan, BASE, 0, 60000, &fake_ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	happen(0);
	assert_int_equal(w.fake[0].order.type, LIEN_WIRE_DRAIN);
	w.now_ms += 60000;
	tick();
	happen(0);
	happen(0);
	assert_int_equal(w.fake[0].order.type, LIEN_WIRE_SAVE);
	w.now_ms += 79000; /* 30 s, and 5 ms a MiB */
	tick();
	assert_int_equal(w.done, 0);
	assert_int_equal(lien_transaction_phase(w.transaction), LIEN_PHASE_SAVE);
	w.now_ms += 10000;
	tick();
	assert_int_equal(w.done, 1);
	assert_int_equal(w.result.error, -ETIMEDOUT);
	assert_int_equal(w.result.ns, 149000000000ull);
	w.fake[0].hung = true;
	transaction_ends();
	assert_int_equal(w.broken, 0);
}

static bool first_is_busy;
static unsigned cancelled;

static void is_busy(void *context, uint32_t pid, char *why, size_t size)
{
	(void)context;
	if (first_is_busy && pid == PID(0))
		snprintf(why, size, "it reads a long book");
}

static void cancel(void *context, uint32_t pid)
{
	(void)context;
	assert_int_equal(pid, PID(0));
	cancelled++;
}

/* Its order has not been sent in time: it is told why, and it will not be sent any more. */
static void test_busy(void **state)
{
	struct lien_transaction_ops ops = fake_ops;
	struct lien_plan plan;

	(void)state;
	ops.silent = is_busy;
	ops.cancel = cancel;
	for (unsigned busy = 0; busy < 2; busy++) {
		job(1, 0);
		plan = plan_of(1);
		first_is_busy = busy;
		cancelled = 0;
		transaction_begins();
		assert_int_equal(
			lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1000, &ops), 0);
		lien_plan_clear(&plan);
		lien_transaction_start(w.transaction);
		assert_int_equal(cancelled, 0);
		w.now_ms += 20000;
		tick();
		assert_int_equal(cancelled, 1);
		assert_int_equal(w.done, 1);
		assert_int_equal(w.result.error, -ETIMEDOUT);
		assert_non_null(strstr(w.result.text, "did not answer `stage` within"));
		assert_int_equal(!!strstr(w.result.text, " ms: it reads a long book"), busy);
		w.fake[0].hung = true;
		transaction_ends();
	}
}

/* --- multicast objects ------------------------------------------------------------------------ */

/* Objects join the memory of all processes. */
static void join(struct lien_plan *plan)
{
	for (unsigned i = 0; i < plan->processes_count; i++)
		for (unsigned j = 0; j < plan->processes[i].items_count; j++)
			plan->processes[i].items[j].team = 1;
}

static void offload_team(unsigned n)
{
	struct lien_plan plan;

	memset(w.fake, 0, sizeof(w.fake));
	w.n = n;
	w.memories = 0;
	for (unsigned i = 0; i < 2 * n; i++)
		memory_new(i / 2, 0, 0);
	plan = plan_of(~0u);
	join(&plan);
	transaction_begins();
	assert_int_equal(
		lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1000, &fake_ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

/* Whoever is let go touches memory that is not bound again. */
static void check_team_waits(const char *when)
{
	unsigned p, away = 0;

	for (p = 0; p < w.memories; p++)
		away += !w.memory[p].device;
	assert_int_equal(away, 2); /* one process's */
	for (p = 0; p < w.n; p++)
		if (!w.fake[p].count)
			BROKEN("%s: process %u goes on without the others' memory", when, PID(p));
	no_faults();
	restore();
	assert_int_equal(w.result.error, 0);
	check_back(when);
	check_forgotten(when);
	assert_int_equal(w.broken, 0);
}

/* One cannot make its memory again: the others wait for a later restore, too. */
static void test_team_without_one(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	for (unsigned p = 0; p < 3; p++) {
		no_faults();
		offload_team(3);
		assert_int_equal(w.result.error, 0);
		w.fault[0] = (struct fault){REFUSES, p, 2};
		restore();
		assert_int_equal(w.result.error, -EIO);
		check_team_waits("after a restore");
		w.fault[0] = (struct fault){HALF, p, 6};
		w.fault[1] = (struct fault){REFUSES, (p + 1) % 3, 7};
		offload_team(3);
		assert_true(w.result.error && w.result.undo_failed);
		check_team_waits("after an undo");
	}
}

/* One has not said yet what it holds, and may have memory of the team. */
static void test_team_unheard(void **state)
{
	struct lien_transaction_ops ops = fake_ops;

	(void)state;
	ops.unheard = unheard;
	offload_team(2);
	is_unheard = true;
	restore_with(&ops, 1);
	assert_int_equal(w.result.error, -EBUSY);
	assert_non_null(strstr(w.result.text, "process 100"));
	assert_int_equal(w.fake[0].given[LIEN_WIRE_CREATE], 0);
	is_unheard = false;
	restore_with(&ops, 2);
	assert_int_equal(w.result.error, 0);
	check_back("after another restore");
	check_forgotten("after another restore");
	assert_int_equal(w.broken, 0);
}

/* `done` may free the transaction; whoever called it may not touch it then. */
static void test_freed_in_done(void **state)
{
	(void)state;
	for (unsigned kind = 0; kind < FAULT_KINDS; kind++)
		for (unsigned order = 1; order <= 6; order++) {
			job(2, 1);
			w.free_in_done = true;
			w.fault[0] = (struct fault){kind, order % 2, order};
			offload();
			assert_null(w.transaction);
			job(2, 1);
			w.free_in_done = true;
			offload();
			w.fault[0] = (struct fault){kind, order % 2, order};
			restore();
			assert_null(w.transaction);
		}
}

#define FAULT(test, kind)                                                                          \
	{                                                                                          \
#test "(" #kind ")", test, NULL, NULL, (void *)(uintptr_t)kind                     \
	}
#define FAULTS(test)                                                                               \
	FAULT(test, REFUSES), FAULT(test, HALF), FAULT(test, DIES_BEFORE),                         \
		FAULT(test, DIES_AFTER), FAULT(test, DIES_BETWEEN), FAULT(test, UNREACHABLE),      \
		FAULT(test, CUT_OFF), FAULT(test, HANGS_BEFORE), FAULT(test, HANGS_AFTER)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_offload_and_restore),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_result),
		cmocka_unit_test(test_orders),
		cmocka_unit_test(test_raw),
		cmocka_unit_test(test_verify_flags),
		cmocka_unit_test(test_chosen_flags),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_other_nodes),
		cmocka_unit_test(test_other_nodes_undo),
		cmocka_unit_test(test_other_nodes_restore),
		cmocka_unit_test(test_release),
		FAULTS(test_failed_offload),
		FAULTS(test_failed_restore),
		cmocka_unit_test(test_failed_undo),
		cmocka_unit_test(test_hang_alone),
		cmocka_unit_test(test_hang_in_save),
		cmocka_unit_test(test_capture),
		cmocka_unit_test(test_owner_dies_while_away),
		cmocka_unit_test(test_owner_is_not_known),
		cmocka_unit_test(test_stopped_owner),
		cmocka_unit_test(test_owner_forgets),
		cmocka_unit_test(test_lost_places),
		cmocka_unit_test(test_one_owner_is_dead),
		cmocka_unit_test(test_unheard),
		cmocka_unit_test(test_all_die),
		cmocka_unit_test(test_pid_of_another_program),
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_restore_texts),
		cmocka_unit_test(test_restore_closure),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_restore_chain),
		cmocka_unit_test(test_forged_list),
		cmocka_unit_test(test_silent_list),
		cmocka_unit_test(test_not_allowed),
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_stray_replies),
		cmocka_unit_test(test_stray_descriptors),
		cmocka_unit_test(test_withheld_export),
		cmocka_unit_test(test_out_of_descriptors),
		cmocka_unit_test(test_few_descriptors_at_a_time),
		cmocka_unit_test(test_alive),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_busy),
		cmocka_unit_test(test_foreign_replies),
		cmocka_unit_test(test_team_without_one),
		cmocka_unit_test(test_team_unheard),
		cmocka_unit_test(test_freed_in_done),
	};

	return cmocka_run_group_tests_name("transaction", tests, NULL, NULL);
}
