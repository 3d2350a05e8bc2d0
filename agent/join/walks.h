/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Re-reading of processes over the links to their control libraries: on request, and by itself when
 * something about a process was lost. Short orders, so that other orders get in between; none while
 * a transaction is under way.
 */
#ifndef LIEN_WALKS_H
#define LIEN_WALKS_H

#include "agent/join/join.h"
#include "agent/reread/reread.h"

/* What came of one reading. */
struct lien_walked {
	const struct lien_reread *reread; /* NULL: it did not come to an end */
	const char *error;		  /* then why */
	bool repaired;
	unsigned orders;
	uint64_t ns, walk_ns; /* wall time, and what the process spent on it */
};

/* Has the process mapped such a library? */
bool lien_walk_maps(struct lien_process *process, enum lien_library library);
typedef void lien_walked_fn(
	void *to, struct lien_process *process, const struct lien_walked *walked);
/* Begins; `done` (NULL: nobody) is told of the end. -EBUSY: it is being read; -errno. */
int lien_walk_start(struct lien_agent *agent, struct lien_process *process, bool repair,
	lien_walked_fn *done, void *to);
void lien_walks_tick(struct lien_agent *agent);

#endif
