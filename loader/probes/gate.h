/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The gates of single processes (bpf/gate.h describes their work). Their probes
 * (loader/probes/gate_links.h) are attached only around a transaction and while something is
 * offloaded; those at NCCL's calls, and all on kernels that are slow to remove them, a while
 * longer.
 */
#ifndef LIEN_GATE_H
#define LIEN_GATE_H

#include "loader/probes/probes.h"

static inline bool lien_probes_can_gate(const struct lien_probes *probes)
{
	return !lien_probes_facts(probes)->gate_lacks;
}

/*
 * Probes can be attached for the process's gate from now on. `shared`: other gates are made with
 * it, and nobody else uses its libraries, so links that all processes run into cost nobody
 * anything, and the kernel makes them once for all gates. Returns 0 or -errno.
 */
int lien_probes_gate_prepare(struct lien_probes *probes, uint32_t pid, uint64_t start, bool shared);
/*
 * Creates a prepared gate, open: from now on its gated calls are counted while they run. All probes
 * must be there: of a group whose end has none yet, the thread would seem to be inside forever.
 * Returns 1; 0: the gate exists; -errno.
 */
int lien_probes_gate(struct lien_probes *probes, uint32_t pid, uint64_t start);
/*
 * Attaches the gate to a library that the process has mapped, once per file. With `all`, also to
 * calls that work on any memory. Returns 0; -EINPROGRESS: the kernel is making them, call again
 * (without `wait`, always the first time); -errno.
 */
int lien_probes_gate_file(struct lien_probes *probes, uint32_t pid, enum lien_library library,
	const char *path, bool all, bool wait);
/* Returns false while the kernel makes what lien_probes_gate_file() has begun for the process. */
bool lien_probes_gate_ready(const struct lien_probes *probes, uint32_t pid);
/* What a gate holds. Returns false if it is not shut. */
bool lien_probes_gate_holds(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_shut *range);
/*
 * Shuts the gate: threads that enter after this returns are held. It holds what `before` says as
 * well (NULL: nothing): ranges are joined. Threads that it has held and would not hold now stay
 * held until they are let in.
 */
int lien_probes_gate_shut(struct lien_probes *probes, uint32_t pid,
	const struct lien_probe_shut *range, const struct lien_probe_shut *before);
/*
 * From now on a shut gate lets calls of NCCL pass that name none of these communicators of the
 * process, or that make one; other threads that it has held stay held until they are let in.
 * Returns -errno if there are too many: then it goes on to hold all.
 */
int lien_probes_gate_comms(
	struct lien_probes *probes, uint32_t pid, const uint64_t *comms, unsigned count);
/* From now on a shut gate holds calls with any communicator. */
void lien_probes_gate_all_comms(struct lien_probes *probes, uint32_t pid);
/* Would a gate with `by_comm` hold calls that name it? */
bool lien_probes_comm_away(const struct lien_probes *probes, uint32_t pid, uint64_t comm);
/* From now on it holds and counts only calls that have to do with NCCL. */
void lien_probes_gate_nccl_alone(struct lien_probes *probes, uint32_t pid);
/*
 * While gates are shut, lets in so many further calls without asking: the collectives of a process
 * on a communicator (.peer LIEN_PROBE_COLLECTIVES), its sends to or receives from a rank, or all
 * calls in which ranks do not meet (LIEN_PROBE_OTHERS). Returns 0, or -errno: each of them is held,
 * and can be let in.
 */
int lien_probes_allow(struct lien_probes *probes, const struct lien_probe_pair *key, uint64_t more);
/* Takes back all that has not been used, of all processes. Returns 0, or -errno: some may be left.
 */
int lien_probes_allow_none(struct lien_probes *probes);
bool lien_probes_gate_get(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_gate *gate);
/* Removes the gate, if there is one. `ends`: the process ends or is let go, so no other will be
 * made; otherwise what holds NCCL's calls stays attached for a while, for the next. */
void lien_probes_ungate(struct lien_probes *probes, uint32_t pid, bool ends);
/* Call periodically: removes probes that no gate has needed for long. */
void lien_probes_gate_tick(struct lien_probes *probes);

/* Calls fn for each held thread until it returns non-zero, and returns that value. Returns -errno
 * on error. */
int lien_probes_held(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key,
		const struct lien_probe_held *held),
	void *context);
/* Calls fn for each thread that its process's gate could not hold: it does not take the signal, or
 * the process handles that otherwise. As lien_probes_held(). */
int lien_probes_unheld(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key), void *context);
bool lien_probes_is_held(const struct lien_probes *probes, uint32_t pid, uint32_t tid);
/* Removes a thread that is about to be let in from the held ones. */
void lien_probes_let_in(struct lien_probes *probes, uint32_t pid, uint32_t tid);
/* Returns the number of sends to (or receives from) a rank that the process has begun. */
uint64_t lien_probes_pair(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	uint32_t peer, bool receives);
/* Calls fn for each pair whose transfers the kernel side counts: struct lien_probe_pair, their
 * number (uint64_t). As lien_probes_held(). */
int lien_probes_pairs(const struct lien_probes *probes, lien_map_fn *fn, void *context);

/* A thread that has made traced calls. */
struct lien_probe_thread {
	uint32_t pid, tid;
	bool seen;	     /* it has entered a gated call since the gate was made */
	bool inside;	     /* if seen: it counts as inside, or is held; otherwise: a call whose
			      * return is probed is in progress */
	bool group;	     /* if seen: it counts as inside until it closes an NCCL group */
	uint32_t call;	     /* if seen: the gated call that it is in; 0: none */
	uint64_t t_entered;  /* if seen: that call, CLOCK_MONOTONIC ns */
	uint64_t t_counted;  /* when a collective or transfer of it was last counted */
	uint64_t sp, caller; /* of the last collective, in progress as long as sp points to its
			      * return address and the thread's stack pointer is not above sp */
};

/* Calls fn for the threads that have made traced calls, of those processes that have a gate; one
 * walk for all. Returns as lien_probes_held(). */
int lien_probes_threads(struct lien_probes *probes, const uint32_t *pids, unsigned count,
	int (*fn)(void *context, const struct lien_probe_thread *thread), void *context);

#endif
