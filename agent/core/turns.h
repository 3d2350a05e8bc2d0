/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TURNS_H
#define LIEN_TURNS_H

#include <stdint.h>

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

#endif
