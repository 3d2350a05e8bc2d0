// SPDX-License-Identifier: BSD-2-Clause
/* Transactions that hold threads back: who is let in, when a job is at rest, and when all may go
 * on. */
#include "fake_processes.h"

static struct {
	bool begun[FAKES], made[FAKES], level[FAKES], shut[FAKES]; /* as the kernel side has it */
	unsigned passes, looks, guesses;
	unsigned rest_after;		/* looks, before nobody is in a call */
	unsigned pass_to;		/* as often somebody is behind */
	int refuse;			/* step + 1 */
	unsigned uneven;		/* so often the gates must go back to LEVEL, */
	unsigned levels;		/* and how often they did */
	unsigned slow;			/* so often the first process cannot be looked at */
	struct lien_plan plan;		/* at rest, */
	unsigned members;		/* of these processes; 0: none is made */
	bool allocates;			/* the first process, before it is held */
	unsigned replans, looks_before; /* when the plan became another one */
	enum lien_wire_type slips;	/* once this has been ordered, somebody comes through, */
	unsigned slips_by;		/* the gate of this process; FAKES: nobody */
	bool slipped;
	bool uncounted;	      /* nobody knows who is behind unless the devices are asked, */
	unsigned asked_level; /* and so they were, while the ranks came level */
	bool wrong;	      /* counts show nobody who is behind, but somebody is: */
	bool doubted;	      /* it was found when the devices were asked */
	bool misleads;	      /* or only when counts are not believed at all */
	bool launches;	      /* somebody may have to launch, whatever the counts say */
	bool waits, idle;     /* a device is busy; a rank is held that it may wait for */
} g;

static int gate(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	unsigned p = pid - PID(0);

	assert_ptr_equal(context, &w);
	if (g.refuse == (int)step + 1) {
		snprintf(why, size, "refused");
		return -EPERM;
	}
	switch (step) {
	case LIEN_GATE_BEGIN: /* in all, once, before any is waited for */
		assert_false(g.begun[p]);
		/* The kernel is at it while the processes still take their orders down. */
		assert_int_equal(lien_transaction_phase(w.transaction), LIEN_PHASE_STAGE);
		assert_true(w.fake[p].given[LIEN_WIRE_STAGE] || w.fake[p].dead);
		for (unsigned i = 0; i < w.n; i++)
			assert_false(g.made[i]);
		g.begun[p] = true;
		break;
	case LIEN_GATE_MAKE:
		for (unsigned i = 0; i < w.n; i++)
			assert_true(
				g.begun[i] || w.fake[i].dead || !w.fake[i].given[LIEN_WIRE_STAGE]);
		if (!p && g.slow) {
			g.slow--;
			snprintf(why, size, "too slow");
			return -ETIMEDOUT;
		}
		g.made[p] = true;
		break;
	case LIEN_GATE_LEVEL:
		assert_true(g.made[p]);
		assert_true(w.fake[p].shut); /* else a thread that is signalled would not wait */
		assert_true(!g.shut[p] || g.uneven);
		g.level[p] = true;
		g.shut[p] = false;
		break;
	case LIEN_GATE_SHUT: /* also those of which memory has just been found */
		assert_true(g.made[p] && w.fake[p].shut);
		g.shut[p] = true;
		break;
	case LIEN_GATE_HOLDS:
		assert_true(g.shut[p]);
		if (!g.slipped || p != g.slips_by)
			break;
		snprintf(why, size, "thread 7 has entered cuMemsetD8Async");
		return -EAGAIN;
	case LIEN_GATE_BACK: /* it refused to let them go */
		assert_true(any_in(&w.fake[p], AWAY) || any_in(&w.fake[p], BACK));
		g.begun[p] = g.made[p] = g.level[p] = g.shut[p] = false;
		break;
	case LIEN_GATE_OPEN:
		/* Those that are let go may work at once, with everybody whose memory they have. */
		for (unsigned i = 0; i < w.n && w.fake[p].count; i++)
			assert_false(any_in(&w.fake[i], AWAY) && !w.fake[i].dead);
		g.begun[p] = g.made[p] = g.level[p] = g.shut[p] = false;
		break;
	}
	return 0;
}

static enum lien_rest at_rest(void *context, struct lien_resting *resting)
{
	const uint32_t tid = 77;

	assert_ptr_equal(context, &w);
	assert_int_equal(resting->guesses, g.guesses);
	for (unsigned i = 0; i < resting->count; i++) {
		assert_true(g.level[resting->pids[i] - PID(0)]);
		assert_int_equal(g.shut[resting->pids[i] - PID(0)], !resting->levelling);
		assert_true(!i || resting->pids[i] > resting->pids[i - 1]);
	}
	snprintf(resting->why, resting->size, "somebody is inside");
	resting->counted = !g.uncounted;
	resting->launches = g.launches;
	for (unsigned i = 0; resting->unasked && i < resting->count; i++)
		assert_true(resting->busy[i]);
	if (g.looks++ < g.pass_to) {
		g.passes++;
		g.guesses = ++resting->guesses;
		resting->pass(resting->to, resting->pids[0], &tid, 1);
		return LIEN_REST_NEAR;
	}
	if (resting->levelling)
		return LIEN_REST_LEVEL;
	if (g.wrong) { /* once the devices have been asked, it is found */
		g.doubted |= !resting->unasked;
		g.wrong = resting->unasked || (g.misleads && !resting->disbelieved);
		g.rest_after = g.looks + 2;
		return LIEN_REST_FAR;
	}
	resting->idle = g.idle;
	if (g.waits && resting->disbelieved) { /* it comes */
		g.waits = false;
		g.doubted = true;
		w.fake[1].drain_ms = 0;
		return LIEN_REST_NEAR;
	}
	assert_int_equal(resting->levels, g.levels);
	if (g.uneven > g.levels) {
		g.levels++;
		return LIEN_REST_UNEVEN;
	}
	return g.looks > g.rest_after ? LIEN_REST_REACHED : LIEN_REST_FAR;
}

static int send(void *context, uint32_t pid, const struct lien_wire_header *order, const void *body,
	const int *fds, unsigned count)
{
	unsigned p = pid - PID(0);

	if (order->type == LIEN_WIRE_GATE && order->arg == LIEN_WIRE_GATE_PASS) {
		assert_int_equal(order->length - sizeof(*order), sizeof(uint32_t));
		assert_int_equal(*(const uint32_t *)body, 77);
		assert_true(w.fake[p].shut);
	}
	/* Who launches meanwhile would wait: nobody has to, or it is asked another way. */
	if (order->type == LIEN_WIRE_DRAIN && order->arg) {
		bool uncounted = g.uncounted || g.wrong || g.doubted;

		assert_int_equal(order->flags & LIEN_WIRE_LAUNCHES,
			(uncounted || g.launches) * LIEN_WIRE_LAUNCHES);
		assert_true(uncounted || (g.shut[p] && g.looks > g.rest_after));
		g.asked_level += g.level[p] && !g.shut[p];
	}
	if (order->type >= LIEN_WIRE_CHECK && order->type <= LIEN_WIRE_DROP)
		for (unsigned i = 0; i < w.n; i++)
			assert_true(w.fake[i].dead || (g.shut[i] && w.fake[i].shut));
	if (order->type == LIEN_WIRE_SAVE)
		assert_true(g.looks > g.rest_after);
	/* What was saved is not all that there is: nothing more may be dropped. */
	if (g.slipped && g.slips != LIEN_WIRE_DROP)
		assert_int_not_equal(order->type, LIEN_WIRE_DROP);
	g.slipped |= order->type == g.slips;
	return fake_send(context, pid, order, body, fds, count);
}

static int replan(void *context, const struct lien_plan **plan, struct lien_blame *blame, char *why,
	size_t size)
{
	assert_ptr_equal(context, &w);
	for (unsigned p = 0; p < w.n; p++)
		assert_true(w.fake[p].dead || g.shut[p] || !w.fake[p].given[LIEN_WIRE_STAGE]);
	lien_plan_clear(&g.plan);
	if (!g.replans++)
		g.looks_before = g.looks;
	if (g.refuse == -1) {
		snprintf(why, size, "it has become incomplete");
		*blame = (struct lien_blame){LIEN_CAUSE_PERMISSION, 812, 813};
		return -EPERM;
	}
	if (!g.members)
		return 0;
	if (g.allocates && g.replans == 1)
		memory_new(0, 0, 1);
	g.plan = plan_of(g.members);
	*plan = &g.plan;
	return 1;
}

static unsigned timeout_ms;

static struct lien_transaction_ops gated(void)
{
	struct lien_transaction_ops ops = fake_ops;

	memset(&g, 0, sizeof(g));
	g.slips_by = FAKES;
	timeout_ms = 3600000; /* the world's clock makes large steps, */
	step_ms = 5000;
	ops.gate = gate;
	ops.at_rest = at_rest;
	ops.replan = replan;
	ops.send = send;
	return ops;
}

/* Time is too short to doubt that counts are right. */
static struct lien_transaction_ops gated_in_short(void)
{
	struct lien_transaction_ops ops = gated();

	step_ms = 10;
	return ops;
}

static void offload_gated(const struct lien_transaction_ops *ops)
{
	struct lien_plan plan = plan_of(~0u);

	transaction_begins();
	assert_int_equal(
		lien_transaction_offload(&w.transaction, &plan, BASE, 0, timeout_ms, ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

static void restore_gated(const struct lien_transaction_ops *ops)
{
	uint32_t all[FAKES];

	for (unsigned p = 0; p < w.n; p++)
		all[p] = PID(p);
	transaction_begins();
	assert_int_equal(restore_new(&w.transaction, all, w.n, NULL, 0, 1000, ops), 0);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

static void all_are(bool shut)
{
	for (unsigned p = 0; p < w.n; p++) {
		if (w.fake[p].dead)
			continue;
		assert_int_equal(g.shut[p], shut);
		assert_int_equal(w.fake[p].shut, shut);
	}
}

static void test_shut_while_away(void **state)
{
	struct lien_transaction_ops ops;

	(void)state;
	job(3, 2);
	for (unsigned rest = 0; rest < 4; rest++) {
		ops = gated_in_short();
		g.rest_after = rest;
		offload_gated(&ops);
		assert_int_equal(w.result.error, 0);
		all_are(true);
		restore_gated(&ops);
		assert_int_equal(w.result.error, 0);
		all_are(false);
	}
	assert_int_equal(w.broken, 0);
}

/* For a moment: it is looked at again. For good: nothing is moved. */
static void test_slow_to_be_looked_at(void **state)
{
	struct lien_transaction_ops ops = gated();

	(void)state;
	job(3, 2);
	g.slow = 1;
	offload_gated(&ops);
	assert_int_equal(w.result.error, 0);
	assert_int_equal(g.slow, 0);
	all_are(true);
	restore_gated(&ops);
	g.slow = ~0u;
	offload_gated(&ops);
	assert_int_equal(w.result.error, -ETIMEDOUT);
	assert_non_null(strstr(w.result.text, "too slow"));
	all_are(false);
	assert_int_equal(w.broken, 0);
}

static void test_those_behind_are_let_in(void **state)
{
	struct lien_transaction_ops ops = gated_in_short();

	(void)state;
	job(3, 2);
	g.pass_to = 3;
	offload_gated(&ops);
	assert_int_equal(w.result.error, 0);
	assert_int_equal(g.passes, 3);
	assert_true(g.looks > 3);
	all_are(true);
	assert_int_equal(w.broken, 0);
}

/* Without counts the devices must be asked earlier, in a way that makes no thread wait. */
static void test_asked_while_they_come_level(void **state)
{
	struct lien_transaction_ops ops = gated();

	(void)state;
	for (unsigned round = 0; round < 4; round++) {
		ops = gated_in_short();
		g.uncounted = round & 1;
		g.launches = round & 2;
		g.pass_to = 3;
		g.rest_after = 5;
		job(2, 2);
		offload_gated(&ops);
		assert_int_equal(w.result.error, 0);
		assert_int_equal(g.asked_level > 0, round & 1);
	}
}

/* Counts that lead nowhere are not believed for ever: the devices are asked, in the way that lets
 * threads launch. */
static void test_wrong_counts(void **state)
{
	struct lien_transaction_ops ops = gated();

	(void)state;
	job(2, 2);
	g.wrong = true;
	offload_gated(&ops);
	assert_int_equal(w.result.error, 0);
	assert_true(g.doubted);
	all_are(true);
	assert_int_equal(w.broken, 0);
}

/* Half of the time has to pass before nobody is held on account of counts. */
static void test_misleading_counts(void **state)
{
	struct lien_transaction_ops ops = gated();
	uint64_t began;

	(void)state;
	job(2, 2);
	timeout_ms = 100000;
	g.wrong = g.misleads = true;
	began = w.now_ms;
	offload_gated(&ops);
	assert_int_equal(w.result.error, 0);
	assert_in_range(w.now_ms - began, 50000, 99999);
	all_are(true);
	assert_int_equal(w.broken, 0);
}

/* All are held, and a device waits for one of them. It may as well have long work of its own, if
 * none is held that is idle. */
static void test_misleading_counts_at_rest(void **state)
{
	struct lien_transaction_ops ops;

	(void)state;
	for (unsigned idle = 0; idle < 2; idle++) {
		job(2, 2);
		ops = gated();
		timeout_ms = 10000;
		w.fake[1].drain_ms = ~0u;
		g.waits = true;
		g.idle = idle;
		offload_gated(&ops);
		assert_int_equal(w.result.error, idle ? 0 : -EBUSY);
		assert_int_equal(g.waits, !idle);
		all_are(idle);
		assert_int_equal(w.broken, 0);
	}
}

static void test_level_again(void **state)
{
	struct lien_transaction_ops ops = gated();

	(void)state;
	job(3, 2);
	g.uneven = 3;
	offload_gated(&ops);
	assert_int_equal(w.result.error, 0);
	assert_int_equal(g.levels, 3);
	all_are(true);
	assert_int_equal(w.broken, 0);
}

/* However slow a machine is, rounds become long enough for it to say that its devices are idle. */
static void test_slow_devices(void **state)
{
	struct lien_transaction_ops ops = gated();

	(void)state;
	job(3, 2);
	w.fake[1].drain_ms = 300;
	offload_gated(&ops);
	assert_int_equal(w.result.error, 0);
	all_are(true);
	assert_int_equal(w.broken, 0);
}

static void test_never_at_rest(void **state)
{
	struct lien_transaction_ops ops = gated();

	(void)state;
	job(3, 2);
	g.rest_after = ~0u - 1;
	timeout_ms = 1000;
	offload_gated(&ops);
	assert_int_equal(w.result.error, -EBUSY);
	assert_non_null(strstr(w.result.text, "somebody is inside"));
	all_are(false);
	for (unsigned p = 0; p < w.n; p++)
		assert_int_equal(w.fake[p].given[LIEN_WIRE_SAVE], 0);
	assert_int_equal(w.broken, 0);
}

static void test_no_gate_no_offload(void **state)
{
	struct lien_transaction_ops ops;

	(void)state;
	for (int step = LIEN_GATE_MAKE; step <= LIEN_GATE_SHUT; step++) {
		ops = gated();
		job(2, 2);
		g.refuse = step + 1;
		offload_gated(&ops);
		assert_int_equal(w.result.error, -EPERM);
		assert_non_null(strstr(w.result.text, "gate: refused"));
		all_are(false);
		assert_int_equal(w.broken, 0);
	}
}

/* Whatever goes wrong, and when: those who live go on if nothing is away, and only then. */
static void test_failures(void **state)
{
	struct fault fault = {0};
	struct lien_transaction_ops ops;

	(void)state;
	for (unsigned run = 0; run < 2 * 3 * 12; run++) {
		ops = gated();
		job(3, 2);
		w.order = run % 3;
		fault.kind = run & 1 ? REFUSES : DIES_BEFORE;
		fault.process = run / 2 % 3;
		fault.order = 1 + run / 6;
		w.fault[0] = fault;
		offload_gated(&ops);
		for (unsigned p = 0; p < w.n; p++)
			if (!w.fake[p].dead)
				assert_int_equal(w.fake[p].shut, any_in(&w.fake[p], AWAY));
		no_faults();
		restore_gated(&ops);
		for (unsigned p = 0; p < w.n; p++)
			if (!w.fake[p].dead)
				assert_false(w.fake[p].shut);
	}
}

/* What is there when nobody can change it any more is what is moved. */
static void test_planned_again_at_rest(void **state)
{
	struct lien_transaction_ops ops = gated();
	uint64_t bytes;

	(void)state;
	job(3, 2);
	offload_gated(&ops);
	assert_int_equal(g.replans, 1);
	assert_int_equal(w.fake[0].given[LIEN_WIRE_STAGE], 1);
	bytes = w.result.bytes;
	ops = gated();
	job(3, 2);
	g.members = ~0u;
	g.allocates = true;
	offload_gated(&ops);
	assert_int_equal(w.result.error, 0);
	for (unsigned p = 0; p < w.n; p++)
		assert_int_equal(w.fake[p].given[LIEN_WIRE_STAGE], 2);
	assert_int_equal(w.result.bytes, bytes + w.memory[w.memories - 1].bytes);
	/* Copies to what has come were not held: they are over. */
	assert_int_equal(g.replans, 2);
	assert_true(g.looks > g.looks_before);
	check_away();
	all_are(true);
	lien_plan_clear(&g.plan);
	restore_gated(&ops);
	check_back("after all");
	assert_int_equal(w.broken, 0);
}

static void test_nothing_left_to_move(void **state)
{
	struct lien_transaction_ops ops = gated();

	(void)state;
	memset(&w, 0, sizeof(w));
	w.n = 2;
	memory_new(0, 0, 0);
	memory_new(1, 0, 0);
	g.members = 1;
	offload_gated(&ops);
	assert_int_equal(w.result.error, 0);
	assert_false(w.memory[0].device);
	assert_true(w.memory[1].device);
	assert_true(g.shut[0] && w.fake[0].shut);
	assert_false(g.shut[1] || w.fake[1].shut);
	assert_int_equal(w.result.bytes, w.memory[0].bytes);
	lien_plan_clear(&g.plan);
	assert_int_equal(w.broken, 0);
}

static void test_no_plan_at_rest(void **state)
{
	struct lien_transaction_ops ops = gated();
	struct lien_plan plan;

	(void)state;
	job(2, 2);
	g.refuse = -1;
	offload_gated(&ops);
	assert_int_equal(w.result.error, -EPERM);
	assert_string_equal(w.result.text, "it has become incomplete");
	assert_int_equal(w.result.blame.cause, LIEN_CAUSE_PERMISSION);
	assert_int_equal(w.result.blame.process, 812);
	assert_int_equal(w.result.blame.holder, 813);
	all_are(false);
	check_back("after a refusal");
	/* One that has come to share, and is not held. */
	ops = gated();
	g.members = ~0u;
	plan = plan_of(1);
	transaction_begins();
	assert_int_equal(
		lien_transaction_offload(&w.transaction, &plan, BASE, 0, timeout_ms, &ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
	assert_int_equal(w.result.error, -EBUSY);
	assert_non_null(strstr(w.result.text, "others have come to share"));
	assert_false(g.shut[0] || g.shut[1]);
	check_back("after a refusal");
	lien_plan_clear(&g.plan);
	assert_int_equal(w.broken, 0);
}

/* A thread that nothing can hold, after all were at rest. */
static void test_somebody_comes_through(void **state)
{
	static const enum lien_wire_type moments[] = {
		LIEN_WIRE_SAVE, LIEN_WIRE_UNMAP, LIEN_WIRE_DROP};
	struct lien_transaction_ops ops;

	(void)state;
	for (unsigned i = 0; i < 3 * 3; i++) {
		ops = gated();
		job(3, 2);
		g.slips = moments[i / 3];
		g.slips_by = i % 3;
		offload_gated(&ops);
		assert_true(g.slipped);
		assert_int_equal(w.result.error, -EAGAIN);
		assert_non_null(strstr(w.result.text, "thread 7 has entered"));
		/* Only then may something be missing, and only then it is said. */
		assert_int_equal(g.slips == LIEN_WIRE_DROP,
			strstr(w.result.text, "what it wrote is lost") != NULL);
		all_are(false);
		check_back("after somebody came through");
		assert_int_equal(w.broken, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shut_while_away),
		cmocka_unit_test(test_slow_to_be_looked_at),
		cmocka_unit_test(test_those_behind_are_let_in),
		cmocka_unit_test(test_asked_while_they_come_level),
		cmocka_unit_test(test_wrong_counts),
		cmocka_unit_test(test_misleading_counts),
		cmocka_unit_test(test_misleading_counts_at_rest),
		cmocka_unit_test(test_level_again),
		cmocka_unit_test(test_slow_devices),
		cmocka_unit_test(test_never_at_rest),
		cmocka_unit_test(test_no_gate_no_offload),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_planned_again_at_rest),
		cmocka_unit_test(test_nothing_left_to_move),
		cmocka_unit_test(test_no_plan_at_rest),
		cmocka_unit_test(test_somebody_comes_through),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
