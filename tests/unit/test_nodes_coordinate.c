// SPDX-License-Identifier: BSD-2-Clause
/* Single cases of the coordinator of an offload over several nodes: what nodes are asked, and when
 * it gives up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/nodes/coordinate.h"

#define LEASE  10000u
#define SECOND 1000u

static struct lien_coordinator c;
static struct lien_coordinator_node nodes[3];
static uint64_t now;
static uint64_t version;

static void hear(unsigned node, struct lien_node_status status)
{
	status.version = ++version;
	lien_coordinator_hear(&c, node, &status, now, now);
}

static void says(unsigned node, enum lien_part_state state)
{
	hear(node, (struct lien_node_status){.state = state});
}

/* All three have saved, and the decision is about to be written. */
static void begin(void)
{
	unsigned i;

	for (i = 0; i < 3; i++)
		nodes[i] = (struct lien_coordinator_node){0};
	now = SECOND;
	version = 0;
	lien_coordinator_begin(&c, nodes, 3, false, LEASE, now);
	for (i = 0; i < 3; i++)
		says(i, LIEN_PART_PLANNED);
	for (i = 0; i < 3; i++)
		hear(i, (struct lien_node_status){.state = LIEN_PART_GOING, .at_rest = true});
	for (i = 0; i < 3; i++)
		hear(i, (struct lien_node_status){.state = LIEN_PART_GOING,
				.at_rest = true,
				.held = true,
				.round = c.round});
	for (i = 0; i < 3; i++)
		says(i, LIEN_PART_READY);
	assert_int_equal(c.phase, LIEN_COORDINATOR_DECIDING);
}

/* The same, and nodes 0 and 1 have dropped. */
static void begin_committed(void)
{
	begin();
	assert_true(lien_coordinator_decided(&c, true, now));
	says(0, LIEN_PART_DONE);
	says(1, LIEN_PART_DONE);
}

static enum lien_node_word word(unsigned node)
{
	struct lien_node_order order;

	return lien_coordinator_order(&c, node, &order) ? order.word : LIEN_WORDS;
}

static void seconds(unsigned count)
{
	for (; count; count--) {
		now += SECOND;
		lien_coordinator_tick(&c, now);
	}
}

/* Nobody needs the link of a node that is done, until another one undoes. */
static void test_a_link_that_died_early(void **state)
{
	(void)state;
	begin_committed();
	lien_coordinator_lost(&c, 0, now);
	assert_false(nodes[0].lost);
	says(2, LIEN_PART_UNDONE);
	assert_int_equal(c.phase, LIEN_COORDINATOR_MENDING);
	assert_true(nodes[0].lost); /* the caller reaches it again, and does not wait */
	assert_false(nodes[1].lost);
	assert_int_equal(word(1), LIEN_WORD_RESTORE);
	lien_coordinator_mended(&c, 1, true, now);
	assert_int_equal(word(0), LIEN_WORD_UNDO); /* where does it stand? */
	says(0, LIEN_PART_DONE);
	assert_false(nodes[0].lost);
	assert_int_equal(word(0), LIEN_WORD_RESTORE);
	lien_coordinator_mended(&c, 0, true, now);
	assert_int_equal(c.outcome, LIEN_NODES_MENDED);
}

/* A node that was heard after its link had died has another one. */
static void test_a_link_that_is_made_anew(void **state)
{
	(void)state;
	begin_committed();
	lien_coordinator_lost(&c, 0, now);
	says(0, LIEN_PART_DONE);
	says(2, LIEN_PART_UNDONE);
	assert_false(nodes[0].lost);
}

static void test_a_link_that_dies_while_mending(void **state)
{
	(void)state;
	begin_committed();
	says(2, LIEN_PART_UNDONE);
	lien_coordinator_mended(&c, 1, true, now);
	lien_coordinator_lost(&c, 0, now);
	lien_coordinator_lost(&c, 1, now);
	assert_true(nodes[0].lost && !nodes[1].lost);
	seconds(3 * LEASE / SECOND);
	assert_int_equal(c.phase, LIEN_COORDINATOR_MENDING);
	seconds(2);
	assert_int_equal(c.outcome, LIEN_NODES_PART);
	assert_int_equal(c.failed, 2);
}

/* A link that says nothing is as good as dead. */
static void test_silence_while_mending(void **state)
{
	(void)state;
	begin_committed();
	says(2, LIEN_PART_UNDONE);
	lien_coordinator_mended(&c, 1, true, now);
	seconds(LEASE / SECOND + 1);
	assert_true(nodes[0].lost);
	seconds(3 * LEASE / SECOND + 1);
	assert_int_equal(c.outcome, LIEN_NODES_PART);
}

/* A restore may take longer than any lease, as long as its node answers; but not for ever. */
static void test_a_long_mend(void **state)
{
	unsigned asked = 0, i;

	(void)state;
	begin_committed();
	lien_coordinator_lost(&c, 0, now);
	says(2, LIEN_PART_UNDONE);
	lien_coordinator_mended(&c, 1, true, now);
	for (i = 0; i < 20 * LEASE / SECOND; i++) {
		seconds(1);
		if (word(0) != LIEN_WORD_UNDO)
			continue;
		says(0, LIEN_PART_DONE);
		asked++;
	}
	assert_int_equal(c.phase, LIEN_COORDINATOR_MENDING);
	assert_in_range(asked, 10, 20);
	now += LIEN_NODES_MEND_NS;
	says(0, LIEN_PART_DONE);
	seconds(1);
	assert_int_equal(c.outcome, LIEN_NODES_PART);
}

/* The disk took so long that a node would not hear of the decision within its lease. */
static void test_a_late_decision(void **state)
{
	(void)state;
	begin();
	now += LEASE * 3 / 4;
	assert_int_equal(lien_coordinator_late(&c, now), -1);
	now++;
	assert_int_equal(lien_coordinator_late(&c, now), 0);
	assert_false(lien_coordinator_decided(&c, true, now));
	assert_int_equal(c.phase, LIEN_COORDINATOR_UNDOING);
	assert_int_equal(c.failed, 0);
	assert_int_equal(word(1), LIEN_WORD_UNDO);
	begin();
	now += LEASE * 3 / 4;
	assert_true(lien_coordinator_decided(&c, true, now));
	assert_int_equal(word(1), LIEN_WORD_COMMIT);
}

/* Words take so long that there is never time for a decision: somebody is named. */
static void test_slow_words(void **state)
{
	struct lien_node_status ready = {.state = LIEN_PART_READY};
	unsigned i;

	(void)state;
	begin();
	c.phase = LIEN_COORDINATOR_SAVING;
	now += LEASE * 3 / 4;
	for (i = 0; i < 4 * LEASE / SECOND && c.phase == LIEN_COORDINATOR_SAVING; i++) {
		now += SECOND;
		ready.version = ++version;
		lien_coordinator_hear(&c, 0, &ready, now, now);
		lien_coordinator_hear(&c, 1, &ready, now - LEASE * 3 / 4, now);
		lien_coordinator_hear(&c, 2, &ready, now, now);
		lien_coordinator_tick(&c, now);
	}
	assert_int_equal(c.phase, LIEN_COORDINATOR_UNDOING);
	assert_int_equal(c.failed, 1);
}

/* A restore that nobody has begun leaves everything as it was. */
static void test_a_restore_that_is_cancelled(void **state)
{
	unsigned i;

	(void)state;
	for (i = 0; i < 2; i++)
		nodes[i] = (struct lien_coordinator_node){0};
	lien_coordinator_begin(&c, nodes, 2, true, LEASE, now);
	says(0, LIEN_PART_PLANNED);
	assert_true(lien_coordinator_cancel(&c, now));
	assert_int_equal(word(0), LIEN_WORD_UNDO);
	says(0, LIEN_PART_UNDONE);
	lien_coordinator_lost(&c, 1, now);
	assert_int_equal(c.outcome, LIEN_NODES_UNDONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_link_that_died_early),
		cmocka_unit_test(test_a_link_that_is_made_anew),
		cmocka_unit_test(test_a_link_that_dies_while_mending),
		cmocka_unit_test(test_silence_while_mending),
		cmocka_unit_test(test_a_long_mend),
		cmocka_unit_test(test_a_late_decision),
		cmocka_unit_test(test_slow_words),
		cmocka_unit_test(test_a_restore_that_is_cancelled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
