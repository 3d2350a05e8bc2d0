/* SPDX-License-Identifier: BSD-2-Clause */
/* The replies of nodes in a move over several of them. */
#ifndef LIEN_TOOLS_NODES_REPLIES_H
#define LIEN_TOOLS_NODES_REPLIES_H

#include "tools/cli/nodes_mover.h"

/* Returns the functions for lien_nodes_poll(). They store errors and results in the members, and
 * tell mover->coordinator the state of each node. */
struct lien_nodes_calls lien_nodes_replies(struct mover *mover);
/* Records that a node cannot be reached; why: for the message. */
void lien_nodes_replies_lost(struct mover *mover, unsigned node, const char *why);

#endif
