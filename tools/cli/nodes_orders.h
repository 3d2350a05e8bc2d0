/* SPDX-License-Identifier: BSD-2-Clause */
/* The coordinator's orders to nodes in a move over several of them. */
#ifndef LIEN_TOOLS_NODES_ORDERS_H
#define LIEN_TOOLS_NODES_ORDERS_H

#include "tools/cli/nodes_mover.h"

/* Sends a member its order if that is new, or was last sent a quarter of the lease (at most a
 * second) ago. */
void lien_nodes_order(struct mover *mover, unsigned i);
/* Works out what each node has to know of the others, once all have reported. lien_nodes_order()
 * sends it. */
void lien_nodes_orders_compare(struct mover *mover);

#endif
