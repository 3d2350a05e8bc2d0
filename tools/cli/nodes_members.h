/* SPDX-License-Identifier: BSD-2-Clause */
/* Which nodes take part in a move, and with which request. */
#ifndef LIEN_TOOLS_NODES_MEMBERS_H
#define LIEN_TOOLS_NODES_MEMBERS_H

#include "tools/cli/nodes_mover.h"

/* Is each pid on a node that is named? Otherwise prints which one is not. */
bool lien_nodes_members_check(const struct lien_nodes *nodes, const struct lien_nodes_move *move);
/*
 * Adds the nodes that have one of the processes: those of --pid; without it those of of_job, an
 * array of pids for each node; without both, any. Returns false if there are no such nodes, or out
 * of memory. Call lien_nodes_members_free() in any case.
 */
bool lien_nodes_members_add(struct mover *mover, const json_t *of_job);
void lien_nodes_members_free(struct mover *mover);

#endif
