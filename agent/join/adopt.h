/* SPDX-License-Identifier: BSD-2-Clause */
/* The transaction that adopts processes (adoption.h), begun by `attach`. */
#ifndef LIEN_ADOPT_H
#define LIEN_ADOPT_H

#include "agent/core/agent.h"

/*
 * Adopts these processes, whose mappings must all be in the graph, and finds out what is still
 * unknown of others. Brings only the viewer's own processes to rest. Returns 0, and calls
 * lien_attach_adopted() at the end, possibly before this returns; or sets *nothing if there is
 * nothing to find out; or returns -errno with one line in error.
 */
int lien_adopt_start(struct lien_agent *agent, const struct lien_viewer *viewer,
	const uint32_t *pids, unsigned count, bool *nothing, char *error, size_t error_size);

#endif
