/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What all transactions since the agent's start add up to: how they ended, how long they took, what
 * was refused and why. Numbers only, of the whole node.
 */
#ifndef LIEN_TOTALS_H
#define LIEN_TOTALS_H

#include <stdint.h>

#include "agent/plan/cause.h"
#include "agent/transaction/transaction.h"

#define LIEN_OUTCOMES(X)                                                                           \
	X(DONE, done)                                                                              \
	X(REFUSED, refused)	    /* nothing was moved */                                        \
	X(ROLLED_BACK, rolled_back) /* an offload: everything was put back */                      \
	X(FAILED, failed)	    /* not everything is where it should be */

enum lien_outcome {
#define LIEN_OUTCOME_NUMBER(NAME, name) LIEN_OUTCOME_##NAME,
	LIEN_OUTCOMES(LIEN_OUTCOME_NUMBER)
#undef LIEN_OUTCOME_NUMBER
		LIEN_OUTCOME_COUNT,
};

#define LIEN_BUCKETS 13

/* The buckets' upper bounds in seconds, ascending; one more bucket has the rest. */
extern const double lien_bucket_bounds[LIEN_BUCKETS];

struct lien_histogram {
	uint64_t buckets[LIEN_BUCKETS + 1]; /* each without those below it */
	uint64_t count, ns;
};

struct lien_totals {
	uint64_t ended[LIEN_TRANSACTION_KINDS][LIEN_OUTCOME_COUNT];
	uint64_t refused[LIEN_TRANSACTION_KINDS][LIEN_CAUSE_COUNT];
	uint64_t bytes[LIEN_TRANSACTION_KINDS]; /* moved, or released */
	/* of those that were done: */
	struct lien_histogram duration[LIEN_TRANSACTION_KINDS];
	/* in the process that took the longest */
	struct lien_histogram phase[LIEN_TRANSACTION_KINDS][LIEN_PHASE_COUNT];
	struct lien_histogram rest; /* of offloads: until the job was at rest */
};

/* Counts a transaction that has ended. */
void lien_totals_ended(struct lien_totals *totals, const struct lien_transaction *transaction);
/* Counts a request that was refused before a transaction was made for it. */
void lien_totals_refused(
	struct lien_totals *totals, enum lien_transaction_kind kind, enum lien_cause cause);

const char *lien_outcome_name(enum lien_outcome outcome);

#endif
