/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Adoption: what has to be found out about memory from before the agent, so that it can be moved
 * like any other. Re-reading (reread.h) has found where it is mapped. Two things are unknown: the
 * number of references to it, and the owner of imported memory. Both are found out while the job is
 * at rest: references are counted, and each allocation that may have been handed out gets a unique
 * mark at its beginning, which is then searched for in all memory of unknown owner.
 *
 * Untyped memory is that for which the driver reports no types of handles. It was made without any,
 * and cannot be handed out, or it was imported: the driver (580) reports the same for both. If no
 * mark is found in it, it gets one as well: if its process alone reads that, it was made there.
 *
 * Plain C like the graph: it says what to ask, and what the answers mean. The transaction does the
 * asking.
 */
#ifndef LIEN_ADOPTION_H
#define LIEN_ADOPTION_H

#include <stdbool.h>
#include <stddef.h>

#include <lien/wire.h>
#include "agent/graph/graph.h"

struct lien_adoption_process {
	uint32_t pid, uid; /* only processes of the same user get its marks */
	uint64_t start;
	bool read;	 /* the graph has all its mappings: it is being adopted */
	uint32_t doubts; /* set by the caller: LIEN_INCOMPLETE_* that remain */
	unsigned count, room;
	struct lien_wire_adopt *entries; /* with room for the answers; sorted by address */
	/* The first bytes of what its open descriptors export. */
	uint8_t (*open)[LIEN_WIRE_MARK_BYTES];
	unsigned open_count, open_room;
};

struct lien_adoption {
	struct lien_adoption_process *processes; /* that must be at rest; sorted by pid */
	unsigned count;
	bool marks;	   /* owners are searched for */
	uint32_t outsider; /* a process that cannot be asked prevents that; 0: none */
	unsigned untyped;  /* may be imports, and get a mark all the same */
	/* Untyped memory may be some that was not compared: any (also set by the caller, when a
	 * descriptor is on its way to one of the processes), or one of at most so many bytes. */
	bool unread;
	uint64_t unmarked;
	/* The result: lien_adoption_emit() (emit.h). */
	unsigned counted, marked, looked, matched;
	unsigned made;	   /* untyped, and its process's own */
	unsigned open;	   /* descriptors that are exports */
	unsigned disputed; /* claimed by two processes: imports of unknown owner from now on */
};

/*
 * Lists the processes that must be at rest: all that have such memory, made or imported; none:
 * there is nothing to find out. `pids`: those that have been read, in ascending order. Then, at
 * rest, lien_adoption_plan() plans what to ask them. Both return 0, -ENOMEM or -EIO, and
 * lien_adoption_clear() frees what they made in every case.
 */
int lien_adoption_begin(struct lien_graph *graph, const uint32_t *pids, unsigned count,
	struct lien_adoption *adoption);
int lien_adoption_plan(struct lien_graph *graph, struct lien_adoption *adoption);
void lien_adoption_clear(struct lien_adoption *adoption);

/* Did this process import it from an unknown owner, as far as is known? */
bool lien_unknown_in(const struct lien_allocation *allocation, const struct lien_process *process);

/* Returns one process's part; NULL: it has none. */
struct lien_adoption_process *lien_adoption_process(
	const struct lien_adoption *adoption, uint32_t pid);

/* Adds an answer without an entry: an open descriptor's. 0 or -ENOMEM. */
int lien_adoption_open(
	struct lien_adoption_process *process, const uint8_t bytes[LIEN_WIRE_MARK_BYTES]);

#endif
