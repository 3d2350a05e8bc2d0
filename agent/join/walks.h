/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Re-reads processes over the links to their control libraries: on request, and automatically when
 * events of a process were lost. Orders are short, so that others get in between; there are none
 * while a transaction is under way.
 */
#ifndef LIEN_WALKS_H
#define LIEN_WALKS_H

#include "agent/join/join.h"
#include "agent/reread/emit.h"

/* The result of one reading. */
struct lien_walked {
	const struct lien_reread *reread; /* NULL: the reading failed */
	const char *error;		  /* the reason, if it failed */
	bool repaired;
	unsigned orders;
	uint64_t ns, walk_ns; /* wall time; time that the process spent on it */
};

typedef void lien_walked_fn(
	void *to, struct lien_process *process, const struct lien_walked *walked);
/*
 * Begins a reading; calls `done` at the end (NULL: nobody). -EBUSY: the process is being read; or
 * -errno.
 */
int lien_walk_start(struct lien_agent *agent, struct lien_process *process, bool repair,
	lien_walked_fn *done, void *to);

/* For an adoption, as in struct lien_transaction_ops. When all processes are at rest, plans what to
 * ask them; when they have answered and still rest, so that addresses still mean the same, puts the
 * answers into the graph. */
int lien_adopt_plan(void *agent, struct lien_adoption **out, char *why, size_t size);
void lien_adopt_answered(void *agent);

#endif
