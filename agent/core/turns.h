/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TURNS_H
#define LIEN_TURNS_H

#include <stdint.h>

/* How long the loop's turns took since the agent started. */
struct lien_turns {
	uint64_t count, requests;
	/* The longest turn, without the time that it waited for a processor; and the CPU time of
	 * the agent's thread in it. */
	uint64_t longest_ns, longest_cpu_ns;
	uint64_t longest_ready_ns; /* longest time that a turn waited for a processor */
	char longest_in[48];	   /* the part of it that took longest: "source orders" */
	unsigned most_requests;	   /* handled in one turn */
	unsigned most_records;	   /* taken from the ring in one turn */
	uint64_t answers;	   /* made by copies of the agent (answers.h) */
	unsigned most_answers;	   /* at a time, for one user other than root */
	/* The current turn. */
	uint64_t t_begun, cpu_begun, ready_begun, t_part, longest_part_ns;
	int schedstat; /* the thread's /proc file */
	const char *part[2], *longest_part[2];
	unsigned turn_requests, turn_records;
};

#endif
