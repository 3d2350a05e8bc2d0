/* SPDX-License-Identifier: BSD-2-Clause */
/* An offload or a restore over several nodes: the coordinator's sockets, files and clock around
 * agent/nodes/coordinate.h. */
#ifndef LIEN_TOOLS_NODES_MOVE_H
#define LIEN_TOOLS_NODES_MOVE_H

#include "tools/cli/nodes.h"

struct lien_nodes_move {
	const char *command;	      /* "lien offload" */
	const json_t *request;	      /* as for one agent */
	const struct lien_pids *pids; /* those on nodes */
	const char *slurm;	      /* only this job's processes; NULL: of all */
	const char *state;	      /* --state; NULL: the default */
	unsigned lease_ms;	      /* 0: the default */
	bool restore;
};

/* Returns the result (docs/protocol.md), also of a dry run; NULL after a message, with *code. */
json_t *lien_nodes_move(struct lien_nodes *nodes, const struct lien_nodes_move *move, int *code);

#endif
