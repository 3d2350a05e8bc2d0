// SPDX-License-Identifier: BSD-2-Clause
/* Reports of nodes compared, as structures and as JSON, and the outcomes that outlive an agent. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/nodes/compare.h"
#include "agent/nodes/outcomes.h"
#include "agent/nodes/part.h"

#define NODES 3

static struct lien_node_report reports[NODES];
static struct lien_node_others others[NODES];
static int too_many;

static struct lien_node_group group(unsigned number)
{
	uint8_t id[128] = {number};

	return lien_node_group_of(id, sizeof(id));
}

static struct lien_node_standing *stands(
	unsigned node, unsigned number, int rank, uint64_t collectives)
{
	struct lien_node_standing *standing = lien_node_report_add(&reports[node]);

	assert_non_null(standing);
	standing->group = group(number);
	standing->rank = rank;
	standing->counted = true;
	standing->collectives = collectives;
	return standing;
}

/* Through JSON, as between processes. */
static void compare(void)
{
	struct lien_node_report read[NODES];
	struct lien_node_others before[NODES];
	json_t *json;
	unsigned i;

	for (i = 0; i < NODES; i++) {
		json = lien_node_report_json(&reports[i]);
		assert_non_null(json);
		assert_int_equal(lien_node_report_read(&read[i], json), 0);
		json_decref(json);
	}
	assert_int_equal(lien_node_compare(read, NODES, before, &too_many), 0);
	for (i = 0; i < NODES; i++) {
		json = lien_node_others_json(&before[i]);
		assert_non_null(json);
		assert_int_equal(lien_node_others_read(&others[i], json), 0);
		json_decref(json);
		lien_node_report_clear(&read[i]);
		lien_node_others_clear(&before[i]);
	}
}

static int end(void **state)
{
	unsigned i;

	(void)state;
	for (i = 0; i < NODES; i++) {
		lien_node_report_clear(&reports[i]);
		lien_node_others_clear(&others[i]);
	}
	return 0;
}

static const struct lien_others_group *of(unsigned node, unsigned number)
{
	const struct lien_node_group name = group(number);

	return lien_node_others_group(&others[node], &name);
}

/* Each node hears of the furthest rank elsewhere, and only of its own groups. */
static void test_furthest(void **state)
{
	(void)state;
	stands(0, 1, 0, 5);
	stands(0, 1, 1, 9);
	stands(1, 1, 2, 7);
	stands(2, 1, 3, 9);
	stands(0, 2, 0, 3); /* of one node alone */
	stands(1, 3, 0, 1);
	stands(2, 3, 1, 0);
	compare();
	assert_int_equal(of(0, 1)->collectives, 9);
	assert_int_equal(of(1, 1)->collectives, 9);
	assert_int_equal(of(2, 1)->collectives, 9);
	assert_null(of(0, 2));
	assert_null(of(0, 3));
	assert_int_equal(of(1, 3)->collectives, 0);
	assert_int_equal(of(2, 3)->collectives, 1);
	assert_true(others[0].counted && others[1].counted && others[2].counted);
	assert_false(others[0].busy || others[1].busy || others[2].busy);
}

/* The furthest node hears of the second one. */
static void test_second(void **state)
{
	(void)state;
	stands(0, 1, 0, 4);
	stands(1, 1, 1, 8);
	stands(2, 1, 2, 6);
	reports[1].busy = true;
	compare();
	assert_int_equal(of(0, 1)->collectives, 8);
	assert_int_equal(of(1, 1)->collectives, 6);
	assert_int_equal(of(2, 1)->collectives, 8);
	assert_true(others[0].busy && !others[1].busy && others[2].busy);
}

static void test_counts_that_cannot_be_compared(void **state)
{
	(void)state;
	stands(0, 1, 0, 4)->since = 77;
	stands(1, 1, 1, 8)->since = 77;
	stands(0, 2, 0, 4)->since = 77;
	stands(1, 2, 1, 4)->since = 78;
	stands(2, 4, 0, 1);
	compare();
	assert_true(of(0, 1)->counted && of(1, 1)->counted);
	assert_false(of(0, 2)->counted || of(1, 2)->counted);
	/* Node 0 knows of its own that it is not counted; what is missing is elsewhere as well. */
	assert_false(others[0].counted || others[1].counted || others[2].counted);
	end(NULL);
	stands(0, 1, 0, 4);
	stands(1, 1, 1, 4);
	reports[1].unnamed = true;
	compare();
	assert_true(others[1].counted);
	assert_false(others[0].counted || others[2].counted);
}

/* Transfers go to the node of the other rank; between ranks of one node they are its own business.
 */
static void test_transfers(void **state)
{
	struct lien_node_standing *standing;

	(void)state;
	stands(0, 1, 0, 0);
	standing = stands(0, 1, 1, 0);
	assert_int_equal(lien_node_standing_pair(standing, 2, false, 3), 0);
	assert_int_equal(lien_node_standing_pair(standing, 2, true, 1), 0);
	assert_int_equal(lien_node_standing_pair(standing, 0, false, 5), 0);
	assert_int_equal(lien_node_standing_pair(standing, 9, false, 5), 0); /* nobody's */
	standing = stands(1, 1, 2, 0);
	assert_int_equal(lien_node_standing_pair(standing, 1, true, 2), 0);
	compare();
	assert_int_equal(others[1].pairs_count, 1);
	assert_int_equal(others[1].pairs[0].rank, 1);
	assert_int_equal(others[1].pairs[0].peer, 2);
	assert_int_equal(others[1].pairs[0].sends, 3);
	assert_int_equal(others[1].pairs[0].receives, 1);
	assert_int_equal(others[0].pairs_count, 1);
	assert_int_equal(others[0].pairs[0].receives, 2);
	assert_int_equal(others[2].pairs_count, 0);
}

/* Peers come in the order of a map's keys, sends and receives apart. */
static void test_peers_in_any_order(void **state)
{
	struct lien_node_standing *standing;
	unsigned peer;

	(void)state;
	standing = stands(0, 1, 0, 0);
	for (peer = 300; peer-- > 1;)
		assert_int_equal(lien_node_standing_pair(standing, peer, false, peer), 0);
	for (peer = 1; peer < 300; peer++)
		assert_int_equal(lien_node_standing_pair(standing, peer, true, 2 * peer), 0);
	for (peer = 1; peer < 300; peer++)
		stands(1, 1, peer, 0);
	compare();
	assert_int_equal(others[1].pairs_count, 299);
	for (peer = 1; peer < 300; peer++) {
		assert_int_equal(others[1].pairs[peer - 1].peer, peer);
		assert_int_equal(others[1].pairs[peer - 1].sends, peer);
		assert_int_equal(others[1].pairs[peer - 1].receives, 2 * peer);
	}
}

/* Alone, a node knows all that there is to know. */
static void test_one_node(void **state)
{
	(void)state;
	stands(0, 1, 0, 5);
	reports[0].busy = true;
	assert_int_equal(lien_node_compare(reports, 1, others, &too_many), 0);
	assert_true(others[0].counted && !others[0].busy);
	end(NULL);
	stands(0, 1, 0, 5)->counted = false;
	reports[0].unnamed = true;
	assert_int_equal(lien_node_compare(reports, 1, others, &too_many), 0);
	assert_true(others[0].counted && !others[0].busy); /* its own report says the rest */
}

/* Whatever fits is short enough for a request; more is refused by who sends and by who reads. */
static void test_too_many(void **state)
{
	const unsigned most = LIEN_NODE_OTHERS_MAX - 1; /* and a group */
	struct lien_node_standing *standing;
	struct lien_node_others read = {0};
	unsigned peer;
	json_t *json;

	(void)state;
	standing = stands(0, 1, INT32_MAX, INT64_MAX);
	for (peer = INT32_MAX - most; peer < INT32_MAX; peer++) {
		assert_int_equal(lien_node_standing_pair(standing, peer, false, INT64_MAX), 0);
		assert_int_equal(lien_node_standing_pair(standing, peer, true, INT64_MAX), 0);
		stands(1, 1, peer, 0);
	}
	compare();
	assert_int_equal(others[1].pairs_count, most);
	json = lien_node_others_json(&others[1]);
	assert_in_range(json_dumpb(json, NULL, 0, JSON_COMPACT), 900000, (1 << 20) - 1000);
	json_array_append(
		json_object_get(json, "pairs"), json_array_get(json_object_get(json, "pairs"), 0));
	assert_int_equal(lien_node_others_read(&read, json), -E2BIG);
	lien_node_others_clear(&read);
	json_decref(json);
	for (unsigned i = 0; i < NODES; i++)
		lien_node_others_clear(&others[i]);
	peer = INT32_MAX - most - 1;
	assert_int_equal(lien_node_standing_pair(standing, peer, false, 1), 0);
	stands(1, 1, peer, 0);
	assert_int_equal(lien_node_compare(reports, NODES, others, &too_many), -E2BIG);
	assert_int_equal(too_many, 1);
}

static void test_pairs_of_a_group(void **state)
{
	const struct lien_others_pair *pairs;
	struct lien_node_group name;
	unsigned number, rank, count;

	(void)state;
	for (number = 0; number < 5; number++)
		for (rank = 0; rank < number; rank++) {
			assert_int_equal(lien_node_standing_pair(
						 stands(0, number, rank, 0), 9, false, number),
				0);
			stands(1, number, 9, 0);
		}
	compare();
	for (number = 0; number < 6; number++) {
		name = group(number);
		pairs = lien_node_others_pairs(&others[1], &name, &count);
		assert_int_equal(count, number < 5 ? number : 0);
		for (rank = 0; rank < count; rank++)
			assert_true(pairs[rank].rank == rank && pairs[rank].sends == number);
	}
}

static struct lien_node_standing *split_off(
	unsigned node, unsigned number, int parent_rank, int key, unsigned members)
{
	struct lien_node_standing *standing = stands(node, number, -1, 0);

	standing->placed = true;
	standing->split = group(99);
	standing->split_nranks = 4;
	standing->split_members = members;
	standing->parent_rank = parent_rank;
	standing->key = key;
	return standing;
}

/* Ranks in a split follow from the keys and ranks in the parent of all its members, wherever. */
static void test_ranks_in_splits(void **state)
{
	struct lien_node_standing *standing;
	const struct lien_node_group one = group(1), two = group(2);
	unsigned again;

	(void)state;
	standing = split_off(0, 1, 0, 5, 2);
	assert_int_equal(lien_node_standing_pair(standing, 0, false, 3), 0);
	split_off(0, 2, 1, 0, 2);
	standing = split_off(1, 1, 2, 4, 1);
	assert_int_equal(lien_node_standing_pair(standing, 1, true, 2), 0);
	compare();
	/* One rank of the parent has not been heard of. */
	assert_int_equal(lien_node_others_rank(&others[0], &one, 0), -1);
	assert_false(of(0, 1)->counted);
	assert_false(others[0].counted || others[1].counted);
	split_off(2, 2, 3, 0, 1);
	for (again = 0; again < 2; again++) {
		for (unsigned i = 0; i < NODES; i++)
			lien_node_others_clear(&others[i]);
		compare();
		/* The smaller key first; of equal ones, the smaller rank in the parent. */
		assert_int_equal(lien_node_others_rank(&others[1], &one, 2), 0);
		assert_int_equal(lien_node_others_rank(&others[0], &one, 0), 1);
		assert_int_equal(lien_node_others_rank(&others[0], &two, 1), 0);
		assert_int_equal(lien_node_others_rank(&others[2], &two, 3), 1);
		assert_true(of(0, 1)->counted && others[0].counted && others[1].counted);
		assert_int_equal(others[1].pairs_count, 1);
		assert_int_equal(others[1].pairs[0].rank, 1);
		assert_int_equal(others[1].pairs[0].peer, 0);
		assert_int_equal(others[0].pairs[0].receives, 2);
		assert_int_equal(others[2].pairs_count, 0);
	}
	/* The coordinator compares the same reports again and again. */
	for (again = 0; again < 2; again++) {
		for (unsigned i = 0; i < NODES; i++)
			lien_node_others_clear(&others[i]);
		assert_int_equal(lien_node_compare(reports, NODES, others, &too_many), 0);
		assert_int_equal(lien_node_others_rank(&others[0], &one, 0), 1);
	}
}

static void test_json_that_is_wrong(void **state)
{
	static const char *const wrong[] = {"{}", "[]", "{\"standings\": 3}",
		"{\"standings\": [3]}",
		"{\"standings\": [{\"group\": \"xyz\", \"rank\": 0, \"since\": 0, "
		"\"collectives\": 0}]}",
		"{\"standings\": [{\"group\": \"00000000000000000000000000000000\", \"rank\": 0, "
		"\"since\": -1, \"collectives\": 0}]}",
		"{\"groups\": [], \"pairs\": [[]]}", "{\"groups\": [{}], \"pairs\": []}"};
	struct lien_node_report report;
	struct lien_node_others other;
	unsigned i;

	(void)state;
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		json_t *json = json_loads(wrong[i], 0, NULL);

		assert_non_null(json);
		assert_int_equal(lien_node_report_read(&report, json), -EINVAL);
		lien_node_report_clear(&report);
		assert_int_equal(lien_node_others_read(&other, json), -EINVAL);
		lien_node_others_clear(&other);
		json_decref(json);
	}
}

/* --- outcomes --------------------------------------------------------------------------------- */

/* Where a line does not fit into the file, all before it are kept, and so is what follows. */
static void test_outcomes_on_a_full_disk(void **state)
{
	char path[] = "/tmp/lien-outcomes-XXXXXX", new[sizeof(path) + 4];
	const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	const struct rlimit full = {35, RLIM_INFINITY}; /* within the third line */
	struct lien_outcomes *outcomes;

	(void)state;
	close(mkstemp(path));
	snprintf(new, sizeof(new), "%s.new", path);
	signal(SIGXFSZ, SIG_IGN);
	outcomes = lien_outcomes_open(path);
	assert_int_equal(lien_outcomes_note(outcomes, "a", 7, LIEN_PART_COMMITTED), 0);
	assert_int_equal(lien_outcomes_note(outcomes, "b", 7, LIEN_PART_COMMITTED), 0);
	setrlimit(RLIMIT_FSIZE, &full);
	assert_true(lien_outcomes_note(outcomes, "c", 7, LIEN_PART_COMMITTED) < 0);
	setrlimit(RLIMIT_FSIZE, &all);
	assert_int_equal(access(new, F_OK), -1);
	assert_int_equal(lien_outcomes_note(outcomes, "d", 7, LIEN_PART_DONE), 0);
	lien_outcomes_close(outcomes, false);
	outcomes = lien_outcomes_open(path);
	assert_int_equal(lien_outcomes_find(outcomes, "a", true, 7), LIEN_PART_BROKEN);
	assert_int_equal(lien_outcomes_find(outcomes, "b", true, 7), LIEN_PART_BROKEN);
	assert_int_equal(lien_outcomes_find(outcomes, "d", true, 7), LIEN_PART_DONE);
	lien_outcomes_close(outcomes, true);
	outcomes = lien_outcomes_open(NULL); /* no file is wanted */
	assert_int_equal(lien_outcomes_note(outcomes, "a", 7, LIEN_PART_COMMITTED), 0);
	lien_outcomes_close(outcomes, false);
}

static void test_outcomes(void **state)
{
	char path[] = "/tmp/lien-outcomes-XXXXXX", id[32];
	const int fd = mkstemp(path);
	struct lien_outcomes *outcomes;
	unsigned i;

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	unlink(path);
	outcomes = lien_outcomes_open(path);
	assert_int_equal(access(path, F_OK), -1); /* nothing to keep yet */
	assert_int_equal(lien_outcomes_note(outcomes, "a", 7, LIEN_PART_COMMITTED), 0);
	assert_int_equal(lien_outcomes_note(outcomes, "b", 7, LIEN_PART_COMMITTED), 0);
	assert_int_equal(lien_outcomes_note(outcomes, "b", 7, LIEN_PART_DONE), 0);
	assert_int_equal(lien_outcomes_find(outcomes, "a", true, 7), LIEN_PART_COMMITTED);
	assert_int_equal(lien_outcomes_find(outcomes, "a", true, 8), LIEN_PART_STATES);
	assert_int_equal(lien_outcomes_find(outcomes, "a", false, 0), LIEN_PART_COMMITTED);
	lien_outcomes_close(outcomes, false);
	outcomes = lien_outcomes_open(path); /* the next agent's */
	assert_int_equal(lien_outcomes_find(outcomes, "a", true, 7), LIEN_PART_BROKEN);
	assert_int_equal(lien_outcomes_find(outcomes, "b", true, 7), LIEN_PART_DONE);
	/* A user pushes out the user's own. */
	assert_int_equal(lien_outcomes_note(outcomes, "root's", 0, LIEN_PART_DONE), 0);
	for (i = 0; i < 3000; i++) {
		snprintf(id, sizeof(id), "n%u", i);
		assert_int_equal(lien_outcomes_note(outcomes, id, 7, LIEN_PART_DONE), 0);
	}
	assert_int_equal(lien_outcomes_find(outcomes, "a", false, 0), LIEN_PART_STATES);
	assert_int_equal(lien_outcomes_find(outcomes, "n2999", true, 7), LIEN_PART_DONE);
	assert_int_equal(lien_outcomes_find(outcomes, "n2984", true, 7), LIEN_PART_DONE);
	assert_int_equal(lien_outcomes_find(outcomes, "n2983", true, 7), LIEN_PART_STATES);
	assert_int_equal(lien_outcomes_find(outcomes, "root's", true, 0), LIEN_PART_DONE);
	lien_outcomes_close(outcomes, true);
	assert_int_equal(access(path, F_OK), -1);
}

static void test_ids(void **state)
{
	(void)state;
	assert_true(lien_nodes_is_id("a") && lien_nodes_is_id("A-1._z"));
	assert_false(lien_nodes_is_id(NULL) || lien_nodes_is_id("") || lien_nodes_is_id("a b") ||
		     lien_nodes_is_id("../x/y"));
	assert_false(lien_nodes_is_id("12345678901234567890123456789012345678901234567890123456789"
				      "012345"));
}

/* --- a part ----------------------------------------------------------------------------------- */

/* A hold counts for the round and for the report that it names, and only at rest. */
static void test_holding(void **state)
{
	struct lien_part part;
	struct lien_node_order order = {LIEN_WORD_GO, 0, 0};

	(void)state;
	lien_part_begin(&part, false, 1000, 0);
	assert_int_equal(lien_part_may_go_on(&part, LIEN_POINT_PLANNED), LIEN_GO_ON_NO);
	lien_part_hear(&part, &order, 1);
	assert_int_equal(lien_part_may_go_on(&part, LIEN_POINT_PLANNED), LIEN_GO_ON_YES);
	order = (struct lien_node_order){LIEN_WORD_HOLD, 1, part.status.version};
	lien_part_hear(&part, &order, 2);
	assert_false(part.status.held); /* not at rest */
	assert_int_equal(lien_part_may_go_on(&part, LIEN_POINT_REST), LIEN_GO_ON_LOOK);
	order = (struct lien_node_order){LIEN_WORD_HOLD, 2, part.status.version + 1};
	lien_part_hear(&part, &order, 3);
	assert_false(part.status.held);
	order = (struct lien_node_order){LIEN_WORD_HOLD, 3, part.status.version};
	lien_part_hear(&part, &order, 4);
	assert_true(part.status.held);
	assert_int_equal(lien_part_may_go_on(&part, LIEN_POINT_REST), LIEN_GO_ON_NO);
	order.round = 2;
	order.word = LIEN_WORD_SAVE;
	lien_part_hear(&part, &order, 5);
	assert_int_equal(part.status.state, LIEN_PART_GOING); /* of an earlier round */
	order = (struct lien_node_order){LIEN_WORD_GO, 4, 0};
	lien_part_hear(&part, &order, 6);
	assert_false(part.status.held);
	order = (struct lien_node_order){LIEN_WORD_HOLD, 5, part.status.version};
	lien_part_hear(&part, &order, 7);
	order.word = LIEN_WORD_SAVE;
	lien_part_hear(&part, &order, 8);
	assert_int_equal(part.status.state, LIEN_PART_SAVING);
	assert_int_equal(lien_part_may_go_on(&part, LIEN_POINT_REST), LIEN_GO_ON_YES);
	assert_int_equal(lien_part_may_go_on(&part, LIEN_POINT_READY), LIEN_GO_ON_NO);
	lien_part_tick(&part, 1007);
	assert_int_equal(part.status.state, LIEN_PART_READY);
	lien_part_tick(&part, 1008);
	assert_true(lien_part_must_undo(&part));
	order.word = LIEN_WORD_COMMIT;
	lien_part_hear(&part, &order, 1009);
	assert_int_equal(lien_part_may_go_on(&part, LIEN_POINT_READY), LIEN_GO_ON_NO);
}

/* A coordinator that only keeps it waiting keeps others from beginning theirs. */
static void test_a_wait_has_a_limit(void **state)
{
	struct lien_node_order order = {LIEN_WORD_WAIT, 0, 0};
	struct lien_part part;
	uint64_t now;

	(void)state;
	lien_part_begin(&part, false, 1000, 0);
	for (now = 0; now < LIEN_PART_WAIT_NS; now += LIEN_PART_WAIT_NS / 1000) {
		assert_false(lien_part_must_undo(&part));
		part.t_heard = now;
		lien_part_hear(&part, &order, now);
	}
	part.t_heard = now;
	lien_part_hear(&part, &order, now);
	assert_true(lien_part_must_undo(&part) && part.late);
}

/* Before GO nothing is touched, whatever the transaction says of itself. */
static void test_an_end_before_go(void **state)
{
	struct lien_node_order order = {LIEN_WORD_UNDO, 0, 0};
	struct lien_part part;
	unsigned restore;

	(void)state;
	for (restore = 0; restore < 2; restore++) {
		lien_part_begin(&part, restore, 1000, 0);
		lien_part_ended(&part, false, !restore);
		assert_int_equal(part.status.state, LIEN_PART_UNDONE);
		lien_part_begin(&part, restore, 1000, 0);
		lien_part_hear(&part, &order, 1);
		assert_true(lien_part_must_undo(&part));
		lien_part_ended(&part, false, !restore);
		assert_int_equal(part.status.state, LIEN_PART_UNDONE);
		lien_part_begin(&part, restore, 1000, 0);
		order.word = LIEN_WORD_GO;
		lien_part_hear(&part, &order, 1);
		order.word = LIEN_WORD_UNDO;
		lien_part_hear(&part, &order, 2);
		lien_part_ended(&part, false, false);
		assert_int_equal(part.status.state, LIEN_PART_BROKEN);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_furthest, end),
		cmocka_unit_test_teardown(test_second, end),
		cmocka_unit_test_teardown(test_counts_that_cannot_be_compared, end),
		cmocka_unit_test_teardown(test_transfers, end),
		cmocka_unit_test_teardown(test_pairs_of_a_group, end),
		cmocka_unit_test_teardown(test_peers_in_any_order, end),
		cmocka_unit_test_teardown(test_one_node, end),
		cmocka_unit_test_teardown(test_too_many, end),
		cmocka_unit_test_teardown(test_ranks_in_splits, end),
		cmocka_unit_test(test_json_that_is_wrong),
		cmocka_unit_test(test_outcomes),
		cmocka_unit_test(test_outcomes_on_a_full_disk),
		cmocka_unit_test(test_ids),
		cmocka_unit_test(test_holding),
		cmocka_unit_test(test_a_wait_has_a_limit),
		cmocka_unit_test(test_an_end_before_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
