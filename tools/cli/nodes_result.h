/* SPDX-License-Identifier: BSD-2-Clause */
/* How a move over several nodes has ended: its result, or the message. */
#ifndef LIEN_TOOLS_NODES_RESULT_H
#define LIEN_TOOLS_NODES_RESULT_H

#include "tools/cli/nodes_mover.h"

/* Returns the result (docs/protocol.md), which the caller owns. ms: what it took. */
json_t *lien_nodes_result(const struct mover *mover, double ms);
/* Prints what has failed, on which node, how the job stands and what to do, in one line. Returns
 * the exit code. */
int lien_nodes_result_complain(struct mover *mover);

#endif
