// SPDX-License-Identifier: BSD-2-Clause
/* Transactions that hold threads back: who is let in, when a job is at rest, and when all may go
 * on. */
#include "fake_processes.h"

static struct {
	bool made[FAKES], shut[FAKES]; /* as the kernel side has it */
	unsigned passes, looks;
	unsigned rest_after;   /* looks, before nobody is in a call */
	unsigned pass_to;      /* as often somebody is behind */
	int refuse;	       /* step + 1 */
	unsigned slow;	       /* so often the first process cannot be looked at */
	struct lien_plan plan; /* at rest, */
	unsigned members;      /* of these processes; 0: none is made */
	bool allocates;	       /* the first process, before it is held */
	unsigned replans;
	enum lien_wire_type slips; /* once this has been ordered, somebody comes through, */
	unsigned slips_by;	   /* the gate of this process; FAKES: nobody */
	bool slipped;
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
	case LIEN_GATE_MAKE:
		if (!p && g.slow) {
			g.slow--;
			snprintf(why, size, "too slow");
			return -ETIMEDOUT;
		}
		g.made[p] = true;
		break;
	case LIEN_GATE_SHUT:
		assert_true(g.made[p]);
		assert_true(w.fake[p].shut); /* else a thread that is signalled would not wait */
		g.shut[p] = true;
		break;
	case LIEN_GATE_HOLDS:
		assert_true(g.shut[p]);
		if (!g.slipped || p != g.slips_by)
			break;
		snprintf(why, size, "thread 7 has entered cuMemsetD8Async");
		return -EAGAIN;
	case LIEN_GATE_OPEN:
		/* Those that are let go may work at once, with everybody whose memory they have. */
		for (unsigned i = 0; i < w.n && w.fake[p].count; i++)
			assert_false(any_in(&w.fake[i], AWAY) && !w.fake[i].dead);
		g.made[p] = g.shut[p] = false;
		break;
	}
	return 0;
}

static bool at_rest(void *context, const uint32_t *pids, const bool *busy, unsigned count,
	lien_pass_fn *pass, void *to, char *why, size_t size)
{
	const uint32_t tid = 77;

	assert_ptr_equal(context, &w);
	(void)busy;
	for (unsigned i = 0; i < count; i++)
		assert_true(g.shut[pids[i] - PID(0)]);
	snprintf(why, size, "somebody is inside");
	if (g.looks++ < g.pass_to) {
		g.passes++;
		pass(to, pids[0], &tid, 1);
		return false;
	}
	return g.looks > g.rest_after;
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

static int replan(void *context, const struct lien_plan **plan, char *why, size_t size)
{
	assert_ptr_equal(context, &w);
	for (unsigned p = 0; p < w.n; p++)
		assert_true(w.fake[p].dead || g.shut[p] || !w.fake[p].given[LIEN_WIRE_STAGE]);
	g.replans++;
	if (g.refuse == -1) {
		snprintf(why, size, "it has become incomplete");
		return -EPERM;
	}
	if (!g.members)
		return 0;
	if (g.allocates)
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
	timeout_ms = 3600000; /* the world's clock makes large steps */
	ops.gate = gate;
	ops.at_rest = at_rest;
	ops.replan = replan;
	ops.send = send;
	return ops;
}

static void offload_gated(const struct lien_transaction_ops *ops)
{
	struct lien_plan plan = plan_of(~0u);

	transaction_begins();
	assert_int_equal(lien_transaction_offload(&w.transaction, &plan, BASE, timeout_ms, ops), 0);
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
	assert_int_equal(lien_transaction_restore(&w.transaction, all, w.n, NULL, 0, 1000, ops), 0);
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
		ops = gated();
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
	struct lien_transaction_ops ops = gated();

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
	all_are(false);
	check_back("after a refusal");
	/* One that has come to share, and is not held. */
	ops = gated();
	g.members = ~0u;
	plan = plan_of(1);
	transaction_begins();
	assert_int_equal(
		lien_transaction_offload(&w.transaction, &plan, BASE, timeout_ms, &ops), 0);
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
