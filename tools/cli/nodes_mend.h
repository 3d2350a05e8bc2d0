/* SPDX-License-Identifier: BSD-2-Clause */
/* After a failure that follows the decision: putting back what a node has dropped. */
#ifndef LIEN_TOOLS_NODES_MEND_H
#define LIEN_TOOLS_NODES_MEND_H

#include "tools/cli/nodes_mover.h"

/*
 * Asks a member's agent for a restore of what this offload has dropped; call it as long as the
 * coordinator orders it. It waits for the member's result, which names the processes, and repeats
 * what found the agent busy or lost. Without processes or a selection it asks for nothing, sets
 * member->unknown, and tells the coordinator that the node is not mended.
 */
void lien_nodes_mend(struct mover *mover, struct member *member);
/* The agent's answer. */
void lien_nodes_mend_take(struct mover *mover, unsigned i, const json_t *line);

#endif
