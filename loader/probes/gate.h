/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The gate's probes, in one process at a time (bpf/gate.h says what they do). Attached around a
 * transaction and while something is offloaded; at other times there are none. Needs links that are
 * bound to a process, as loader/probes/follow.h.
 */
#ifndef LIEN_GATE_H
#define LIEN_GATE_H

#include "loader/probes/probes.h"

/* Can processes be held back on this kernel? */
bool lien_probes_can_gate(const struct lien_probes *probes);
/*
 * Makes the process's gate, open: from now on its gated calls are counted while they run. 0 also if
 * it is there; -errno.
 */
int lien_probes_gate(struct lien_probes *probes, uint32_t pid, uint64_t start);
/* Attaches it to a library that the process has mapped; once per file. With `all`, to calls that
 * work on any memory, too. 0 or -errno. */
int lien_probes_gate_file(struct lien_probes *probes, uint32_t pid, enum lien_library library,
	const char *path, bool all);
/* From when this returns, threads that enter are held. `low`, `high`: between which all lies that
 * is moved; of what was away before as well. */
int lien_probes_gate_shut(struct lien_probes *probes, uint32_t pid, uint64_t low, uint64_t high);
bool lien_probes_gate_get(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_gate *gate);
/* Removes it; there may be none. */
void lien_probes_ungate(struct lien_probes *probes, uint32_t pid);
/* How many there are. */
unsigned lien_probes_gates(const struct lien_probes *probes);

/* The threads that are held, until fn returns something else than 0, which is returned. -errno. */
int lien_probes_held(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key,
		const struct lien_probe_held *held),
	void *context);
/* A thread is about to be let in: it is held no more. */
void lien_probes_let_in(struct lien_probes *probes, uint32_t pid, uint32_t tid);
/* How many sends to (or receives from) a rank the process has begun. */
uint64_t lien_probes_pair(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	uint32_t peer, bool receives);

/* A thread that has made traced calls. */
struct lien_probe_thread {
	uint32_t tid;
	bool seen;     /* it has entered a gated call since there is the gate */
	bool inside;   /* seen: it counts as inside, or is held; else: a call that is seen returning
			  is under way */
	bool group;    /* seen: it counts as inside until it closes an NCCL group */
	uint32_t call; /* seen: the gated call that it is in; 0: none */
	uint64_t sp, caller; /* of the last collective: it is under way as long as its return
				address lies there, below what the thread's stack has become */
};

/* The process's threads that have made traced calls, if it has a gate. As lien_probes_held(). */
int lien_probes_threads(struct lien_probes *probes, uint32_t pid,
	int (*fn)(void *context, const struct lien_probe_thread *thread), void *context);

#endif
