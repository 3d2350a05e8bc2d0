/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TURNS_H
#define LIEN_TURNS_H

#include <stdint.h>

/* How long the loop's turns took since the agent started. A turn is the work between two looks at
 * the sources (agent/daemon/run.c); its longest part names it. */
struct lien_turns {
	uint64_t count, requests;
	/* The longest turn, without the time that it waited for a processor; and the CPU time of
	 * the agent's thread in it. */
	uint64_t longest_ns, longest_cpu_ns;
	uint64_t longest_ready_ns; /* longest time that a turn waited for a processor */
	char longest_in[48];	   /* the part of it that took longest: "source orders" */
	unsigned most_requests;	   /* handled in one turn */
	unsigned most_records;	   /* taken from the ring in one turn */
	uint64_t answers;	   /* made by copies of the agent (daemon/requests.h) */
	unsigned most_answers;	   /* at a time, for one user other than root */
	/* The current turn. */
	uint64_t t_begun, cpu_begun, ready_begun, t_part, longest_part_ns;
	int schedstat; /* the thread's /proc file */
	const char *part[2], *longest_part[2];
	unsigned turn_requests, turn_records;
};

struct lien_agent;

/* Call these in the loop's thread. */
void lien_turns_start(struct lien_turns *turns);
void lien_turns_stop(struct lien_turns *turns);
void lien_turn_begin(struct lien_turns *turns);
void lien_turn_end(struct lien_turns *turns);
/*
 * Names what the agent does from now on in this turn. Both strings are static, such as "request"
 * and "check".
 */
void lien_turn_part(struct lien_agent *agent, const char *kind, const char *name);

#endif
