/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory that an offload has dropped and that the driver does not report as free: something that
 * lien does not see holds it, or another program has allocated meanwhile (the driver's figures are
 * the whole GPU's). Up to 2 MiB for each process count as what the driver takes for itself. Pure.
 */
#ifndef LIEN_SHORTFALL_H
#define LIEN_SHORTFALL_H

#include "agent/plan/plan.h"
#include "agent/transaction/transaction.h"

#define LIEN_SHORTFALLS 16

/* Processes whose memory was on one GPU; one by itself where that is not known, or was on several.
 */
struct lien_shortfall {
	uint32_t pid; /* the first of them */
	unsigned processes;
	uint64_t dropped; /* bytes */
	uint64_t missing; /* bytes of these that are not free */
};

struct lien_shortfalls {
	struct lien_shortfall row[LIEN_SHORTFALLS];
	unsigned count; /* the first ones, if there are more */
	uint64_t t_ns;	/* when the offload ended; 0: none has had any */
};

/* Fills *found, but for t_ns, from an offload that succeeded. */
void lien_shortfalls_find(struct lien_shortfalls *found, struct lien_graph *graph,
	const struct lien_plan *plan, const struct lien_transaction_result *result);

#endif
