/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shared by the files of agent/quiesce/gate.h, and by no others:
 *
 *	gate_make.c	makes gates, and attaches them to libraries
 *	gate.c		shuts and opens them, and lets threads go that they hold no more
 *	gate_use.c	what is done about threads that wait while memory is away
 *
 * What returns 0 or -errno says why in `why`.
 */
#ifndef LIEN_GATE_INTERNAL_H
#define LIEN_GATE_INTERNAL_H

#include "agent/quiesce/gate.h"
#include "loader/probes/gate.h"

#define LIEN_GATE_AGAIN_NS 1000000000ull /* after what was not possible */

/* NULL: it has ended, or nothing is known of it. */
static inline struct lien_tracked *lien_gate_tracked(const struct lien_agent *agent, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process ? process->agent : NULL;
}

/* Makes the process's gate, which holds nobody yet. `wait`: for the kernel, for a while; otherwise
 * it only begins. -ETIMEDOUT: try again. */
int lien_gate_make(
	struct lien_agent *agent, struct lien_process *process, bool wait, char *why, size_t size);
/* Makes the gate of a process whose memory is away, and shuts it for everything: only the client
 * that asked knew what was moved. lien_gate_make_late() tries again what the kernel, or the
 * process, takes too long for. */
int lien_gate_make_for_all(
	struct lien_agent *agent, struct lien_process *process, char *why, size_t size);
void lien_gate_make_late(struct lien_agent *agent);
/* Shuts a gate that has been made. It goes on holding what `before` says; NULL: it holds nothing
 * else. */
int lien_gate_shut_to(struct lien_agent *agent, uint32_t pid, const struct lien_probe_shut *range,
	const struct lien_probe_shut *before, char *why, size_t size);

#endif
