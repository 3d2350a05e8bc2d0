/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One look at a job that comes to rest: what the kernel side says, how far each rank is, and which
 * held threads go on. Only agent/quiesce includes this. The agent's one thread makes a look within
 * one turn of its loop. The function that declares the struct rest owns everything in it, and frees
 * it. The files, in the order in which a look uses them:
 *
 *	rest_lists.c	lists of who is held, and of what has begun
 *	standings.c	what follows: how far each rank is on each communicator
 *	others.c	the same of ranks on other nodes
 *	inside.c	threads in a call
 *	let_in.c	who goes on
 *	quiesce.c	calls all of them
 *	rested.c	what is noted once the job is at rest
 */
#ifndef LIEN_REST_INTERNAL_H
#define LIEN_REST_INTERNAL_H

#include "agent/core/agent.h"
#include "agent/nodes/compare.h"
#include "agent/transaction/transaction.h"
#include "agent/quiesce/since.h"
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

struct place {
	uint32_t pid;
	unsigned index; /* in the list of pids, which is in any order */
};

#define UNSEEN_MAX 64

struct rest {
	struct lien_agent *agent;
	struct lien_resting *resting;
	const uint32_t *pids;
	struct place *places; /* sorted by pid */
	bool *busy;	      /* parallel to pids: a device is busy, or a thread is in a call */
	unsigned count;
	bool behind;	 /* others are known to wait for some of the threads */
	bool allowed;	 /* this look allowed calls that will enter without being held */
	bool miscounted; /* calls may be missing from the counts, or be among them too soon */
	uint64_t since;	 /* CLOCK_MONOTONIC ns: before anything was looked at */
	struct waiting *waiting; /* sorted by process, communicator, call and peer */
	unsigned waiting_count, waiting_room;
	struct lien_probe_held_key *by_thread; /* the same, sorted by process and thread */
	struct begun *begun;		       /* sorted */
	unsigned begun_count, begun_room;
	struct lien_targets targets; /* its processes are those of pids, its threads the waiting */
	unsigned standings_room;
	const struct lien_counts **start; /* parallel to the standings */
	/* Threads that may be in a call and that the gates have not seen; not all of them. */
	struct lien_probe_held_key unseen[UNSEEN_MAX];
	unsigned unseen_count;
	unsigned here;			/* the first standings, so many, are this node's */
	struct lien_node_report report; /* what other nodes are told of them */
};

/* Returns the index that stands for all processes of other nodes. */
static inline unsigned lien_rest_elsewhere(const struct rest *rest)
{
	return rest->count;
}

/* --- rest_lists.c ----------------------------------------------------------------------------- */

/* Makes .places. Returns false if out of memory. */
bool lien_rest_index_pids(struct rest *rest);
/* Returns the index of a pid, or -1. */
int lien_rest_index_of(const struct rest *rest, uint32_t pid);
/* Callbacks for lien_probes_held() and lien_probes_pairs(), in this order. Both skip processes that
 * are not in .pids. Each adds an entry. 0, -ENOMEM. */
int lien_rest_gather(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held);
int lien_rest_note_pair(void *context, const struct lien_probe_pair *which, uint64_t calls);
/* Call this after the last entry is added. All functions below need it. */
void lien_rest_sort(struct rest *rest);
/* Makes .by_thread. Returns false if out of memory. */
bool lien_rest_index_threads(struct rest *rest);
/* Returns the index of the first thread that is held at this call with this peer, or of the one
 * that would follow it in the list. Zeros come before all others. */
unsigned lien_rest_first_waiting(
	const struct rest *rest, uint32_t pid, uint64_t comm, uint32_t call, uint32_t peer);
/* Returns the thread if it is held on the communicator; NULL: there is none further on. */
const struct waiting *lien_rest_waiting_on(
	const struct rest *rest, unsigned i, uint32_t pid, uint64_t comm);
/* Returns how many threads of the process are held. */
unsigned lien_rest_held_in(const struct rest *rest, uint32_t pid);
/* Needs .by_thread. */
bool lien_rest_is_held(const struct rest *rest, const struct lien_probe_thread *thread);
/* Returns the first of the communicator's pairs; *count: how many follow it. */
const struct begun *lien_rest_pairs(
	const struct rest *rest, uint32_t pid, uint64_t comm, unsigned *count);

/* --- standings.c ------------------------------------------------------------------------------ */

/* Returns the kernel side's key for such calls of a standing. */
struct lien_probe_pair lien_rest_calls(const struct rest *rest,
	const struct lien_standing *standing, enum lien_held_at at, uint32_t peer);
/* Returns the counts of calls that have begun; held calls have not. Leaves .pairs empty. */
struct lien_counts lien_rest_count_comm(
	const struct rest *rest, uint32_t pid, const struct lien_comm *comm);
/* Returns `sum` less the transfers that are held. `peer`: as in struct lien_probe_pair. */
uint64_t lien_rest_without_held(
	const struct rest *rest, uint64_t sum, uint32_t pid, uint64_t comm, uint32_t peer);
/* For struct lien_targets. */
uint64_t lien_rest_transfers(
	void *context, const struct lien_standing *standing, uint32_t peer, bool receives);
/* These return false if out of memory. `start`: counts since then; NULL: since the beginning. */
bool lien_rest_add(
	struct rest *rest, const struct lien_standing *standing, const struct lien_counts *start);
bool lien_rest_take_standings(struct rest *rest);
/* The held threads, for struct lien_targets. */
bool lien_rest_take_held(struct rest *rest);

/* --- others.c: only with other nodes ---------------------------------------------------------- */

/* Adds what ranks on other nodes have begun, and makes .report. Returns false if out of memory. */
bool lien_rest_take_others(struct rest *rest);
/* Tells other nodes what this one counts, and clears .report. `reached`: it is at rest. */
void lien_rest_tell_others(struct rest *rest, bool reached);

/* --- inside.c --------------------------------------------------------------------------------- */

/* Have the gates seen every thread that is in a call? Puts one such thread into `why` (NULL: why
 * not to go on is known). Sets .miscounted if need be: call it when all has been counted. */
bool lien_rest_all_seen(struct rest *rest, char *why, size_t size);
/* Could the gates hold every thread, including those that have made no call yet? Puts one that they
 * could not into `why`. */
bool lien_rest_can_hold(struct rest *rest, char *why, size_t size);
/* Returns true if the gate counts no thread of the process in a call. *covered becomes false if the
 * gate may miss some. */
bool lien_rest_is_quiet(
	const struct rest *rest, uint32_t pid, bool *busy, bool *covered, char *why, size_t size);

/* --- let_in.c --------------------------------------------------------------------------------- */

/*
 * NEAR: somebody is let in; FAR: nobody; UNEVEN. While the ranks come level, threads that are still
 * held at calls in which they do not meet go on: they were held before.
 */
enum lien_rest lien_rest_advance(struct rest *rest);
/* Lets in threads that wait for a gate that does not know of them. Returns true if there are any.
 */
bool lien_rest_let_late_in(struct rest *rest);

#endif
