/* SPDX-License-Identifier: BSD-2-Clause */
/* The node's devices, and which of them a process's ordinals refer to (agent/graph/devices.h). */
#ifndef LIEN_NODE_H
#define LIEN_NODE_H

#include "agent/core/agent.h"

/* Returns NVML's last answer; valid until the agent's loop goes on. */
const struct lien_node *lien_node_now(struct lien_agent *agent);
/* Asks NVML again unless it has just answered. Returns true while the answer is outstanding. */
bool lien_node_refresh(struct lien_agent *agent);

/* Handles the names that the process's driver gave for its devices. */
void lien_node_ordinals(struct lien_process *process, const struct lien_ordinals *ordinals);
/*
 * Reads the names from the process's environment, if it has any. The driver's answer takes
 * precedence.
 */
void lien_node_process(struct lien_process *process);

#endif
