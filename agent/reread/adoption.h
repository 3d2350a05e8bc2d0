/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Adoption: what has to be found out of memory that was there before the agent, so that it can be
 * moved like any other. Re-reading (reread.h) has told where it is mapped. Open are the references
 * that are held to it, and who owns what was imported. Both are found out while the job is at rest:
 * references are counted, and each allocation that may have been handed out gets a mark of its own
 * where it begins, which is looked for in all memory whose owner is not known.
 *
 * Plain C like the graph: says what to ask, and what the answers mean. Who asks is the transaction.
 */
#ifndef LIEN_ADOPTION_H
#define LIEN_ADOPTION_H

#include <stdbool.h>
#include <stddef.h>

#include <lien/wire.h>
#include "agent/graph/graph.h"
#include "agent/reread/emit.h"

struct lien_adoption_process {
	uint32_t pid, uid; /* marks are told to processes of the same user alone */
	uint64_t start;
	bool read;	 /* all that it has mapped is in the graph: it is adopted now */
	uint32_t doubts; /* the caller's: LIEN_INCOMPLETE_* that stay then */
	unsigned count, room;
	struct lien_wire_adopt *entries; /* answers are put into them; by address */
	/* What its open descriptors export begins with these. */
	uint8_t (*open)[LIEN_WIRE_MARK_BYTES];
	unsigned open_count;
};

struct lien_adoption {
	struct lien_adoption_process *processes;
	unsigned count;
	bool marks;	   /* owners are looked for */
	uint32_t outsider; /* a process that cannot be asked, so they are not; 0: none */
	/* What came of it: lien_adoption_emit(). */
	unsigned counted, marked, looked, matched;
	unsigned open;	   /* descriptors of exports */
	unsigned disputed; /* that two processes say they own: imports of nobody's, from now on */
};

/*
 * Those that must be at rest: everybody that has such memory, made or imported. Fills `all`, which
 * has room for every process, and returns how many; 0: there is nothing to find out. `pids`: those
 * that have been read.
 */
unsigned lien_adoption_pids(
	struct lien_graph *graph, const uint32_t *pids, unsigned count, uint32_t *all);

/* At rest: what to ask of these. 0, which lien_adoption_clear() ends; -ENOMEM, -EIO. */
int lien_adoption_plan(struct lien_graph *graph, const uint32_t *pids, unsigned count,
	const uint32_t *all, unsigned all_count, struct lien_adoption *adoption);
void lien_adoption_clear(struct lien_adoption *adoption);

/* The part of one process; NULL: it has none. */
struct lien_adoption_process *lien_adoption_process(
	const struct lien_adoption *adoption, uint32_t pid);

/* An answer that is no entry: an open descriptor's. 0 or -ENOMEM. */
int lien_adoption_open(
	struct lien_adoption_process *process, const uint8_t bytes[LIEN_WIRE_MARK_BYTES]);

/* The answers, as events. A process that has been read is not LIEN_INCOMPLETE_LATE any more. */
void lien_adoption_emit(
	struct lien_adoption *adoption, struct lien_graph *graph, struct lien_emitter *emitter);

#endif
