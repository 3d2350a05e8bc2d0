/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counts of calls since a job was last at rest. On a communicator that was in use before anybody
 * watched, the counts of its ranks began at different calls. At rest, all that was begun is done,
 * in all ranks: counts since then can be compared.
 */
#ifndef LIEN_SINCE_H
#define LIEN_SINCE_H

#include "agent/core/agent.h"

struct lien_since;

struct lien_counts_pair {
	uint32_t peer; /* rank x 2, plus 1 for receives from it */
	uint64_t calls;
};

/* Counts, as they are or as they were at the last rest. */
struct lien_counts {
	bool any;
	bool transfers; /* it has made some */
	uint64_t collectives;
	struct lien_counts_pair *pairs; /* those that have begun */
	unsigned pairs_count;
};

/* Returns the number of transfers with a peer that a rest's counts have. */
uint64_t lien_counts_pair(const struct lien_counts *counts, uint32_t peer);

/* Notes a communicator's counts at rest, and takes over .pairs; lien_since_clear() has removed
 * earlier ones. Out of memory: it has none. */
void lien_since_note(
	struct lien_tracked *tracked, const struct lien_comm *comm, struct lien_counts *counts);
/* Returns them, or NULL: it has not been at rest while it was watched. */
const struct lien_counts *lien_since_rest(
	const struct lien_tracked *tracked, const struct lien_comm *comm);
/* Returns the number of the rest whose counts these are; counts of equal numbers can be compared.
 */
uint64_t lien_since_number(const struct lien_tracked *tracked);
/* `number`: of the rest whose counts will be noted. */
void lien_since_clear(struct lien_tracked *tracked, uint64_t number);

#endif
