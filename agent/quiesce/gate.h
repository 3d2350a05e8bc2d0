/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Holding threads back around transactions and while memory is away, over the kernel's probes
 * (loader/probes/gate.h). Which of them to let in so that a job comes to rest:
 * agent/quiesce/quiesce.h.
 */
#ifndef LIEN_AGENT_GATE_H
#define LIEN_AGENT_GATE_H

#include <jansson.h>

#include "agent/core/agent.h"

/* The agent's plan is about to be carried out. `all`: more than NCCL's memory is moved. */
void lien_gate_set(struct lien_agent *agent, bool all);
/* It has been: what is to happen to who needs the memory until it is back. */
void lien_gate_set_on_use(struct lien_agent *agent, enum lien_on_use on_use);
/*
 * Before all are at rest: does the gate of the process hold everybody back, and know whom? Attaches
 * to libraries that the process has mapped since. False and why.
 */
bool lien_gate_covers(struct lien_agent *agent, uint32_t pid, const struct lien_probe_gate *gate,
	char *why, size_t size);
/* For struct lien_transaction_ops. */
int lien_gate_step(void *agent, uint32_t pid, enum lien_gate_step step, char *why, size_t size);

/* Looks whether somebody waits for memory that is away, and does about it what was asked for. */
void lien_gate_tick(struct lien_agent *agent);
/* A control library has said whether memory of its process is away, and whether its gate is shut:
 * shuts the gate of a process from which an earlier agent has moved memory, or opens one that is
 * shut for no reason. True: the control library has been ordered to, and will answer. */
bool lien_gate_found(struct lien_agent *agent, struct lien_process *process, bool away, bool shut);
/* The threads that are held, as `status` tells them. */
json_t *lien_gate_view(struct lien_agent *agent, const struct lien_viewer *viewer);
extern const char *const lien_on_use_names[LIEN_ON_USE_FAIL + 1];

#endif
