/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One look at a job that comes to rest: what the kernel side says, how far each rank is
 * (standings.c, others.c), and which held threads go on (quiesce.c). No other file includes this.
 * The agent's one thread makes a look within one turn of its loop.
 */
#ifndef LIEN_REST_INTERNAL_H
#define LIEN_REST_INTERNAL_H

#include "agent/core/agent.h"
#include "agent/nodes/compare.h"
#include "agent/quiesce/quiesce.h"
#include "agent/targets/targets.h"
#include "loader/probes/gate.h"

struct waiting {
	struct lien_probe_held_key who;
	struct lien_probe_held held;
};

/* So many transfers of a pair have begun. */
struct begun {
	struct lien_probe_pair which;
	uint64_t calls;
};

struct rest {
	struct lien_agent *agent;
	struct lien_resting *resting;
	const uint32_t *pids; /* sorted */
	bool *busy;	      /* parallel to pids: a device is busy, or a thread is in a call */
	unsigned count;
	bool behind;	 /* others are known to wait for some of the threads */
	bool allowed;	 /* this look allowed calls that will enter without being held */
	bool miscounted; /* calls may be missing from the counts, or be among them too soon */
	uint64_t since;	 /* CLOCK_MONOTONIC ns: before anything was looked at */
	struct waiting *waiting; /* sorted by process, communicator, call and peer */
	unsigned waiting_count, waiting_room;
	struct begun *begun; /* sorted */
	unsigned begun_count, begun_room;
	struct lien_targets targets; /* its processes are those of pids, its threads the waiting */
	unsigned standings_room;
	unsigned here;			/* the first standings, so many, are this node's */
	struct lien_node_report report; /* what other nodes are told of them */
};

/* Returns the index that stands for all processes of other nodes. */
static inline unsigned lien_rest_elsewhere(const struct rest *rest)
{
	return rest->count;
}

/* --- standings.c ------------------------------------------------------------------------------ */

/* Lists the held threads and this node's standings; .agent, .resting, .pids, .busy and .count are
 * set. Returns false if out of memory, as the others do; lien_rest_clear() in any case. */
bool lien_rest_take(struct rest *rest);
void lien_rest_clear(struct rest *rest);
bool lien_rest_add(struct rest *rest, const struct lien_standing *standing);
/* Returns the index of a pid, or -1. */
int lien_rest_index_of(const struct rest *rest, uint32_t pid);
/* Returns the index of the first thread that is held at this call with this peer, or of the one
 * that would follow it in the list. Zeros come before all others. */
unsigned lien_rest_first_waiting(
	const struct rest *rest, uint32_t pid, uint64_t comm, uint32_t call, uint32_t peer);
/* Lists the pairs that have transfers. */
bool lien_rest_list_pairs(struct rest *rest);
/* Returns the first of the communicator's; *count: how many follow it. */
const struct begun *lien_rest_pairs(
	const struct rest *rest, uint32_t pid, uint64_t comm, unsigned *count);

/* --- others.c: only with other nodes ---------------------------------------------------------- */

/* Adds what ranks on other nodes have begun, and makes .report. Returns false if out of memory. */
bool lien_rest_take_others(struct rest *rest);
/* Tells other nodes what this one counts, and clears .report. `reached`: it is at rest. */
void lien_rest_tell_others(struct rest *rest, bool reached);

#endif
