/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's loop. One turn is what the agent does between two looks at its sources. First what
 * the kernel side has reported is put into the graph, a limited number of records in each turn;
 * then, when the graph has all that was reported until a source became ready, the source is
 * handled. Requests of clients come last, one in each turn, users in turn.
 */
#ifndef LIEN_LOOP_H
#define LIEN_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_agent;
struct lien_event;

/* How long turns took, since the start. */
struct lien_turns {
	uint64_t count, requests;
	/* As others wait, but for the time in which the machine had no processor for the agent; and
	 * what the agent's thread ran of it. */
	uint64_t longest_ns, longest_cpu_ns;
	uint64_t longest_ready_ns; /* that a turn has waited for a processor */
	char longest_in[48];	   /* the part of it that took longest: "source orders" */
	unsigned most_requests;	   /* handled in one turn */
	unsigned most_records;	   /* taken from the ring in one turn */
	uint64_t answers;	   /* that copies of the agent have made (answers.h) */
	unsigned most_answers;	   /* at a time, for one user who is not root */
	/* Of the turn under way. */
	uint64_t t_begun, cpu_begun, ready_begun, t_part, longest_part_ns;
	int schedstat; /* the thread's own */
	const char *part[2], *longest_part[2];
	unsigned turn_requests, turn_records;
};

/* Until the agent is told to stop, and no transaction is under way. */
void lien_loop_run(struct lien_agent *agent);
/* What the agent does from now on in this turn; static texts, such as "request" and "check". */
void lien_loop_part(struct lien_agent *agent, const char *kind, const char *name);

/* ring.c: reading what the kernel side reports. */

/* For struct lien_probes_config. */
int lien_ring_record(void *agent, const struct lien_event *event, size_t size);
int lien_ring_start(struct lien_agent *agent);
/* True: the graph has all that had been reported when this was asked for the first time, until it
 * was true. Else takes in some of it. */
bool lien_ring_caught_up(struct lien_agent *agent);
/* Is there something to take in? */
bool lien_ring_behind(struct lien_agent *agent);
void lien_ring_tick(struct lien_agent *agent);
/* The time has come to wait for it again. */
void lien_ring_wake(struct lien_agent *agent, uint64_t now);

#endif
