/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Re-reading of processes over the links to their control libraries: on request, and by itself when
 * something about a process was lost. Short orders, so that other orders get in between; none while
 * a transaction is under way.
 */
#ifndef LIEN_WALKS_H
#define LIEN_WALKS_H

#include "agent/core/agent.h"
#include "agent/reread/reread.h"

struct lien_client;

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
/* Ends it before its time. */
void lien_walk_end(struct lien_agent *agent, struct lien_process *process, const char *error);

/* A reply to a walk's order. */
void lien_walks_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);
/* An event that the graph has taken in. */
void lien_walks_event(struct lien_agent *agent, const struct lien_event *event);
/* Is this a call that a walk makes for itself? The graph need not know. */
bool lien_walks_own(struct lien_agent *agent, const struct lien_event *event);
void lien_walks_tick(struct lien_agent *agent);

/* compare.c: the request. Answers the client when all processes have been read. */
void lien_compare_start(struct lien_client *client, const uint32_t *pids, unsigned pids_count,
	bool repair, unsigned timeout_ms);

#endif
