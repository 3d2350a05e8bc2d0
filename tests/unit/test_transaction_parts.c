// SPDX-License-Identifier: BSD-2-Clause
/* Restores in parts (agent/transaction/transaction_list.c): one group after the other. */
#include "tests/unit/fake_processes.h"

#define GROUP(g) (0x5ac0ull + (g)) /* 0: no communicator's */

/* What the transaction has asked of its caller. */
static struct {
	unsigned groups;    /* that there are: it names the last one first, */
	unsigned named;	    /* and so many; then all */
	unsigned asked;	    /* ops->next_part */
	unsigned back;	    /* ops->part_back */
	bool repeats;	    /* names the same one again */
	unsigned opened;    /* bits: gates that were opened */
	unsigned failed_at; /* .back at the first that reported an error; 0: none did */
	unsigned lost;	    /* mappings, at the end of parts */
} told;

static bool is_back(const struct memory *memory)
{
	const unsigned all = memory->importers | 1u << memory->owner;

	return memory->device && memory->on_device == memory->written && memory->mapped == all;
}

static bool needed(unsigned m, unsigned part)
{
	return w.memory[m].group == GROUP(told.groups - part);
}

static unsigned next_part(void *context, const struct lien_transaction_result *result,
	uint64_t *groups, unsigned max, char *why, size_t size)
{
	const unsigned part = result->parts;

	assert_ptr_equal(context, &w);
	assert_true(result->processes && max && size);
	assert_int_equal(part, told.asked++);
	why[0] = 0;
	if (told.repeats) {
		groups[0] = GROUP(1);
		return 1;
	}
	if (part < told.named) {
		groups[0] = GROUP(told.groups - part);
		return 1;
	}
	snprintf(why, size, "no more");
	return 0;
}

static void note_lost(void *context, uint32_t pid, uint64_t va)
{
	(void)context, (void)pid, (void)va;
	told.lost++;
}

static void part_back(void *context, const struct lien_transaction *transaction)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);

	assert_ptr_equal(context, &w);
	told.back++;
	if (result->error && !told.failed_at)
		told.failed_at = told.back;
	lien_transaction_lost(transaction, note_lost, NULL);
	/* Everything of this part is back, and nothing of later ones has been begun. */
	for (unsigned m = 0; m < w.memories && !result->error && !told.repeats; m++) {
		if (w.memory[m].freed || w.fake[w.memory[m].owner].dead)
			continue;
		if (needed(m, told.back - 1) && !is_back(&w.memory[m]))
			BROKEN("part %u is over without memory %u", told.back, m);
		if (w.memory[m].group < GROUP(told.groups - told.back + 1) &&
			(w.memory[m].device || w.memory[m].mapped))
			BROKEN("part %u is over, and memory %u has been begun", told.back, m);
	}
}

static int gate(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	struct fake *fake = &w.fake[pid - PID(0)];

	(void)context, (void)why, (void)size;
	if (step != LIEN_GATE_OPEN)
		return 0;
	if (any_in(fake, AWAY) || any_in(fake, BACK))
		BROKEN("the gate of process %u is opened, and memory is away", pid);
	told.opened |= 1u << (pid - PID(0));
	return 0;
}

static struct lien_transaction_ops divided(void)
{
	struct lien_transaction_ops ops = fake_ops;

	ops.gate = gate;
	ops.next_part = next_part;
	ops.part_back = part_back;
	return ops;
}

/* Three groups, and memory of none; what process `first` owns comes back first. */
static void away_but(unsigned n, unsigned first)
{
	job(n, 4);
	for (unsigned m = 0; m < w.memories; m++)
		w.memory[m].group = w.memory[m].owner == first ? GROUP(3)
				    : m % 4		       ? GROUP(m % 4)
							       : 0;
	offload();
	check_away();
	memset(&told, 0, sizeof(told));
	told.groups = told.named = 3;
}

static void away(unsigned n)
{
	away_but(n, FAKES);
}

static void restore_divided(const uint64_t *chosen, unsigned count)
{
	const struct lien_transaction_ops ops = divided();

	restore_begins(NULL, 0, &ops);
	if (count)
		assert_int_equal(
			lien_transaction_choose(w.transaction, NULL, 0, chosen, count, NULL, 0), 0);
	lien_transaction_divide(w.transaction);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

static void test_one_after_the_other(void **state)
{
	uint64_t bytes = 0;

	(void)state;
	for (unsigned order = 0; order < 3; order++) {
		away(3);
		w.order = order;
		for (unsigned m = 0; m < w.memories; m++)
			bytes += w.memory[m].bytes;
		restore_divided(NULL, 0);
		assert_int_equal(w.result.error, 0);
		assert_int_equal(told.back, 3);
		assert_int_equal(w.result.parts, 4);
		assert_string_equal(w.result.undivided, "no more");
		assert_true(w.result.first_ns <= w.result.ns);
		assert_int_equal(w.result.bytes, bytes);
		assert_int_equal(w.result.processes_count, 3);
		assert_true(w.result.all_back && !w.result.chosen);
		assert_int_equal(told.opened, 7);
		check_back("after all");
		check_forgotten("after all");
		bytes = 0;
	}
	assert_int_equal(w.broken, 0);
}

/* It tells how long that took. */
static void test_first(void **state)
{
	const struct lien_transaction_ops ops = divided();

	(void)state;
	away(1);
	transaction_begins();
	assert_int_equal(
		restore_new(&w.transaction, (uint32_t[]){PID(0)}, 1, NULL, 0, 1000, &ops), 0);
	lien_transaction_divide(w.transaction);
	lien_transaction_start(w.transaction);
	while (!told.back) {
		w.now_ms += 10;
		happen(0);
	}
	assert_true(w.fake[0].given[LIEN_WIRE_LIST] == 2 && w.fake[0].given[LIEN_WIRE_CREATE] == 1);
	w.now_ms += 1000;
	play();
	transaction_ends();
	assert_true(w.result.first_ns >= 50 * 1000000ull && w.result.first_ns < 500 * 1000000ull);
	assert_true(w.result.ns >= 1000 * 1000000ull);
	assert_int_equal(w.broken, 0);
}

/* With groups of its own, the rest stays. */
static void test_chosen(void **state)
{
	const uint64_t chosen[] = {GROUP(3), GROUP(2)};

	(void)state;
	away(2);
	told.named = 1;
	restore_divided(chosen, 2);
	assert_int_equal(w.result.parts, 2);
	assert_true(w.result.chosen && !w.result.all_back);
	for (unsigned m = 0; m < w.memories; m++)
		assert_int_equal(is_back(&w.memory[m]), w.memory[m].group >= GROUP(2));
	restore();
	check_back("after all");
	check_forgotten("after all");
	assert_int_equal(w.broken, 0);
}

/* Whoever names the next part is wrong: the rest comes at once. */
static void test_named_again(void **state)
{
	(void)state;
	away(2);
	told.repeats = true;
	restore_divided(NULL, 0);
	assert_int_equal(w.result.parts, 2);
	assert_int_equal(w.result.error, 0);
	check_back("after all");
	assert_int_equal(w.broken, 0);
}

/* Without a gate nobody waits for anything. */
static void test_no_gate(void **state)
{
	struct lien_transaction_ops ops = divided();

	(void)state;
	away(2);
	ops.gate = NULL;
	transaction_begins();
	assert_int_equal(
		restore_new(&w.transaction, (uint32_t[]){PID(0), PID(1)}, 2, NULL, 0, 1000, &ops),
		0);
	lien_transaction_divide(w.transaction);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
	assert_int_equal(told.asked, 0);
	assert_int_equal(w.result.parts, 0);
	check_back("after all");
	assert_int_equal(w.broken, 0);
}

/* A failure at any order: the rest comes at once, and what is not back then, the next restore
 * brings. */
static void test_failures(void **state)
{
	unsigned failures = 0, mended = 0;

	(void)state;
	for (unsigned kind = REFUSES; kind < FAULT_KINDS; kind++) {
		for (unsigned order = 1; order < 30; order++) {
			away(3);
			w.random = order * 7 + kind;
			w.order = 2;
			w.fault[0] = (struct fault){kind, 1, order};
			restore_divided(NULL, 0);
			failures += w.result.error != 0;
			mended += !w.result.error && told.failed_at;
			if (told.failed_at && told.back > told.failed_at)
				BROKEN("fault %u at %u: more parts after a failure", kind, order);
			if (!w.result.error && kind < DIES_BEFORE)
				check_back("without an error");
			no_faults();
			w.fake[1].hung = w.fake[1].busy = w.fake[1].cut = false;
			restore();
			check_back("after another restore");
			check_forgotten("after another restore");
			if (w.broken) {
				print_error("fault %u at order %u\n", kind, order);
				assert_int_equal(w.broken, 0);
			}
		}
	}
	assert_true(failures > 20 && mended > 5);
}

/* What nobody has any more is named once, in the part in which that turns out: it may be all. */
static void test_lost(void **state)
{
	(void)state;
	for (unsigned at_once = 0; at_once < 2; at_once++) {
		away_but(at_once ? 2 : 3, at_once ? 1 : FAKES);
		w.fake[1].dead = true;
		for (unsigned m = 0; m < w.memories; m++)
			if (w.memory[m].owner == 1)
				w.memory[m].arena = false;
		restore_divided(NULL, 0);
		assert_int_equal(w.result.error, -EOWNERDEAD);
		assert_true(w.result.lost && w.result.only_lost);
		assert_true(told.lost > 0);
		assert_non_null(strstr(w.result.text, "memory of process 101"));
		assert_null(strstr(w.result.undo_text, "memory of process 0"));
		assert_int_equal(told.failed_at, 1);
		assert_int_equal(told.back, 1);
		check_back("after all");
		check_forgotten("after all");
		assert_int_equal(w.broken, 0);
	}
}

/* The third process has memory in common with nobody. */
static bool may_share(void *context, uint32_t pid, uint32_t other)
{
	(void)context;
	return (pid == PID(2)) == (other == PID(2));
}

/* Who shares nothing with a process that stays silent gets everything back all the same, in the
 * part that comes after: only what may need that process stays away, and the result says so. */
static void test_a_silent_process(void **state)
{
	struct lien_transaction_ops ops = divided();
	unsigned silent = 0;

	(void)state;
	ops.may_share = may_share;
	for (unsigned p = 1; p < 3; p++) {
		for (unsigned order = 1; order < 12; order++) {
			job(3, 0);
			w.memories = 0;
			for (unsigned m = 0; m < 9; m++)
				w.memory[memory_new(m % 3, m % 3 == 2 ? 0 : 3, 0)].group =
					GROUP(1 + m / 3);
			offload();
			memset(&told, 0, sizeof(told));
			told.groups = told.named = 3;
			w.order = 2;
			w.fault[0] = (struct fault){HANGS_BEFORE, p, order};
			restore_begins(NULL, 0, &ops);
			lien_transaction_divide(w.transaction);
			lien_transaction_start(w.transaction);
			play();
			transaction_ends();
			silent += w.fake[p].hung;
			for (unsigned m = 0; m < w.memories; m++)
				if ((w.memory[m].owner == 2) != (p == 2))
					assert_true(is_back(&w.memory[m]));
			if (w.fake[p].hung)
				assert_int_equal(w.result.error, -ETIMEDOUT);
			no_faults();
			w.fake[p].hung = w.fake[p].busy = false;
			restore();
			check_back("after another restore");
			assert_int_equal(w.broken, 0);
		}
	}
	assert_true(silent > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_after_the_other),
		cmocka_unit_test(test_first),
		cmocka_unit_test(test_chosen),
		cmocka_unit_test(test_named_again),
		cmocka_unit_test(test_no_gate),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_a_silent_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
