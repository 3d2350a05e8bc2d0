/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The gate's probes, one process at a time (bpf/gate.h describes their work). They are attached
 * only around a transaction and while something is offloaded. Needs links that are bound to a
 * process, like loader/probes/follow.h.
 */
#ifndef LIEN_GATE_H
#define LIEN_GATE_H

#include "loader/probes/probes.h"

/* Returns true if this kernel can hold processes back. */
bool lien_probes_can_gate(const struct lien_probes *probes);
/*
 * Creates the process's gate, open: from now on its gated calls are counted while they run. Returns
 * 0 also if the gate exists; -errno.
 */
int lien_probes_gate(struct lien_probes *probes, uint32_t pid, uint64_t start);
/* Attaches the gate to a library that the process has mapped, once per file. With `all`, also to
 * calls that work on any memory. Returns 0 or -errno. */
int lien_probes_gate_file(struct lien_probes *probes, uint32_t pid, enum lien_library library,
	const char *path, bool all);
/* Shuts the gate: threads that enter after this returns are held. `low`, `high`: the range that
 * contains all memory being moved, including memory that was away before. */
int lien_probes_gate_shut(struct lien_probes *probes, uint32_t pid, uint64_t low, uint64_t high);
bool lien_probes_gate_get(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_gate *gate);
/* Removes the gate, if there is one. */
void lien_probes_ungate(struct lien_probes *probes, uint32_t pid);
/* Returns the number of gates. */
unsigned lien_probes_gates(const struct lien_probes *probes);

/* Calls fn for each held thread until it returns non-zero, and returns that value. Returns -errno
 * on error. */
int lien_probes_held(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key,
		const struct lien_probe_held *held),
	void *context);
/* Removes a thread that is about to be let in from the held ones. */
void lien_probes_let_in(struct lien_probes *probes, uint32_t pid, uint32_t tid);
/* Returns the number of sends to (or receives from) a rank that the process has begun. */
uint64_t lien_probes_pair(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	uint32_t peer, bool receives);

/* A thread that has made traced calls. */
struct lien_probe_thread {
	uint32_t tid;
	bool seen;	     /* it has entered a gated call since the gate was made */
	bool inside;	     /* if seen: it counts as inside, or is held; otherwise: a call whose
			      * return is probed is in progress */
	bool group;	     /* if seen: it counts as inside until it closes an NCCL group */
	uint32_t call;	     /* if seen: the gated call that it is in; 0: none */
	uint64_t sp, caller; /* of the last collective, in progress as long as sp points to its
			      * return address and the thread's stack pointer is not above sp */
};

/* Calls fn for the process's threads that have made traced calls, if it has a gate. Returns as
 * lien_probes_held(). */
int lien_probes_threads(struct lien_probes *probes, uint32_t pid,
	int (*fn)(void *context, const struct lien_probe_thread *thread), void *context);

#endif
