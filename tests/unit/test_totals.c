// SPDX-License-Identifier: BSD-2-Clause
/* What ended transactions add up to. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/transaction/transaction_internal.h"

static struct lien_transaction_process processes[2];

static void end(struct lien_totals *totals, enum lien_transaction_kind kind,
	struct lien_transaction_result result)
{
	struct lien_transaction t = {.kind = kind, .result = result};

	t.result.processes = processes;
	t.result.processes_count = 2;
	lien_totals_ended(totals, &t);
}

static void test_outcomes(void **state)
{
	struct lien_totals totals = {0};
	uint64_t *offloads = totals.ended[LIEN_TRANSACTION_OFFLOAD];
	uint64_t *refused = totals.refused[LIEN_TRANSACTION_OFFLOAD];

	(void)state;
	end(&totals, LIEN_TRANSACTION_OFFLOAD,
		(struct lien_transaction_result){
			.error = -EBUSY, .blame = {lien_cause_of(-EBUSY), 0, 0}});
	end(&totals, LIEN_TRANSACTION_OFFLOAD,
		(struct lien_transaction_result){.error = -ETIMEDOUT,
			.blame = {lien_cause_of(-ETIMEDOUT), 0, 0},
			.rolled_back = true});
	end(&totals, LIEN_TRANSACTION_OFFLOAD,
		(struct lien_transaction_result){.error = -ESRCH,
			.blame = {lien_cause_of(-ESRCH), 0, 0},
			.undo_failed = true});
	end(&totals, LIEN_TRANSACTION_OFFLOAD,
		(struct lien_transaction_result){
			.error = -ECANCELED, .blame = {lien_cause_of(-ECANCELED), 0, 0}});
	end(&totals, LIEN_TRANSACTION_RESTORE,
		(struct lien_transaction_result){
			.error = -ENOMEM, .blame = {lien_cause_of(-ENOMEM), 0, 0}});
	assert_int_equal(offloads[LIEN_OUTCOME_DONE], 0);
	assert_int_equal(offloads[LIEN_OUTCOME_REFUSED], 2);
	assert_int_equal(offloads[LIEN_OUTCOME_ROLLED_BACK], 1);
	assert_int_equal(offloads[LIEN_OUTCOME_FAILED], 1);
	assert_int_equal(refused[LIEN_CAUSE_NOT_AT_REST], 1);
	assert_int_equal(refused[LIEN_CAUSE_CANCELLED], 1);
	assert_int_equal(refused[LIEN_CAUSE_NO_ANSWER], 0); /* it had begun to move */
	assert_int_equal(totals.ended[LIEN_TRANSACTION_RESTORE][LIEN_OUTCOME_FAILED], 1);
	assert_int_equal(totals.refused[LIEN_TRANSACTION_RESTORE][LIEN_CAUSE_HOST_MEMORY], 0);
	assert_int_equal(totals.duration[LIEN_TRANSACTION_OFFLOAD].count, 0);
}

static void test_before_a_transaction(void **state)
{
	struct lien_totals totals = {0};
	uint64_t *refused = totals.refused[LIEN_TRANSACTION_OFFLOAD];

	(void)state;
	lien_totals_refused(&totals, LIEN_TRANSACTION_OFFLOAD, LIEN_CAUSE_BUSY);
	lien_totals_refused(&totals, LIEN_TRANSACTION_OFFLOAD, LIEN_CAUSE_STRICT);
	lien_totals_refused(&totals, LIEN_TRANSACTION_OFFLOAD, LIEN_CAUSE_STRICT);
	assert_int_equal(refused[LIEN_CAUSE_BUSY], 1);
	assert_int_equal(refused[LIEN_CAUSE_STRICT], 2);
	assert_int_equal(totals.ended[LIEN_TRANSACTION_OFFLOAD][LIEN_OUTCOME_REFUSED], 3);
}

static void test_histograms(void **state)
{
	const struct lien_histogram *save;
	struct lien_totals totals = {0};

	(void)state;
	processes[0].phase_ns[LIEN_PHASE_SAVE] = 3000000;
	processes[1].phase_ns[LIEN_PHASE_SAVE] = 2000000;
	end(&totals, LIEN_TRANSACTION_OFFLOAD,
		(struct lien_transaction_result){.bytes = 5, .ns = 1000000, .rest_ns = 100});
	end(&totals, LIEN_TRANSACTION_OFFLOAD,
		(struct lien_transaction_result){.bytes = 6, .ns = 61000000000});
	assert_int_equal(totals.bytes[LIEN_TRANSACTION_OFFLOAD], 11);
	/* a bound belongs to its bucket; what is above all bounds has its own */
	assert_int_equal(totals.duration[LIEN_TRANSACTION_OFFLOAD].buckets[0], 1);
	assert_int_equal(totals.duration[LIEN_TRANSACTION_OFFLOAD].buckets[LIEN_BUCKETS], 1);
	assert_int_equal(totals.duration[LIEN_TRANSACTION_OFFLOAD].ns, 61001000000);
	assert_int_equal(totals.rest.count, 2);
	save = &totals.phase[LIEN_TRANSACTION_OFFLOAD][LIEN_PHASE_SAVE];
	assert_int_equal(save->count, 2);
	assert_int_equal(save->ns, 6000000); /* of the process that took the longest */
	assert_int_equal(save->buckets[2], 2);
	/* a phase without a time in results */
	assert_int_equal(totals.phase[LIEN_TRANSACTION_OFFLOAD][LIEN_PHASE_OPEN].count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_outcomes),
		cmocka_unit_test(test_before_a_transaction),
		cmocka_unit_test(test_histograms),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
