/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Loading a snapshot (lien/state.h), record by record. Records come from files, so nothing in them
 * is trusted: a record only adds to the graph, and one that does not fit is refused as a whole.
 *
 * An allocation may have no holder yet. Until the snapshot is loaded it counts as being imported:
 * nothing frees it, and without holders it is not shown.
 *
 * Shared by the graph's own files. No other file includes this.
 */
#ifndef LIEN_SNAPSHOT_H
#define LIEN_SNAPSHOT_H

#include "agent/graph/internal.h"

/* Numbers that the graph counts up from stay below these, so that they never run out. */
#define LIEN_ID_END	(1ull << 62)
#define LIEN_NUMBER_END (1u << 31)

/* Returns 0, -EBADMSG or -ENOMEM. The process is NULL if the record's process is not known. */
typedef int lien_load_fn(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event);

#define LIEN_LOAD(name, number, least) lien_load_fn lien_load_##name;
LIEN_STATES(LIEN_LOAD)
#undef LIEN_LOAD

/* The number has been given out: the next one is greater. */
static inline void lien_load_count(uint32_t *last, uint32_t number)
{
	if (*last < number)
		*last = number;
}

#endif
