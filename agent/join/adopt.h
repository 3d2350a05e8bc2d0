/* SPDX-License-Identifier: BSD-2-Clause */
/* The transaction that adopts processes (adoption.h), begun by `attach`. */
#ifndef LIEN_ADOPT_H
#define LIEN_ADOPT_H

#include "agent/core/agent.h"

/*
 * Adopts these processes, all that they have mapped being in the graph, and finds out what is still
 * open of others. The viewer's own are brought to rest, and no others. 0, and lien_attach_adopted()
 * is called at the end, maybe before this returns; or with `nothing`: there is nothing to find out;
 * or -errno with one line in error.
 */
int lien_adopt_start(struct lien_agent *agent, const struct lien_viewer *viewer,
	const uint32_t *pids, unsigned count, bool *nothing, char *error, size_t error_size);

#endif
