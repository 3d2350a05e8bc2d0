/* SPDX-License-Identifier: BSD-2-Clause */
/* Which devices the node has, and which of them a process's ordinals mean (agent/graph/devices.h).
 */
#ifndef LIEN_NODE_H
#define LIEN_NODE_H

#include "agent/core/agent.h"
#include "agent/graph/devices.h"

int lien_node_start(struct lien_agent *agent);
void lien_node_stop(struct lien_agent *agent);

/* What NVML said last; valid until the agent's loop goes on. */
const struct lien_node *lien_node_now(struct lien_agent *agent);
/* Asks NVML again unless it has just answered. True while its answer is awaited. */
bool lien_node_refresh(struct lien_agent *agent);

/* The process's driver has named its devices. */
void lien_node_ordinals(struct lien_agent *agent, struct lien_process *process,
	const struct lien_ordinals *ordinals);
/* Its environment names them, if anything does; what its driver says takes precedence. */
void lien_node_process(struct lien_agent *agent, struct lien_process *process);

#endif
