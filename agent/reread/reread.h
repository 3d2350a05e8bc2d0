/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One reading of a process from the driver, compared with the graph. Plain C like the graph.
 *
 * The application goes on meanwhile, and a call's record comes a moment after the driver has done
 * the work. So a difference counts only when two passes over its address show the same and no event
 * of the process touched it between them. The first pass covers everything, each later one covers
 * what the previous one left open.
 */
#ifndef LIEN_REREAD_H
#define LIEN_REREAD_H

#include "agent/graph/graph.h"
#include "agent/reread/emit.h"
#include <lien/wire.h>

enum lien_difference_kind {
	LIEN_DIFFERENCE_MISSING = 1, /* mapped, but not in the graph */
	LIEN_DIFFERENCE_GONE,	     /* in the graph, but not mapped */
	LIEN_DIFFERENCE_SIZE,
	LIEN_DIFFERENCE_HANDLE, /* a different allocation than in the graph */
	/* type, location, kinds of handles; the device of plain memory */
	LIEN_DIFFERENCE_PROPERTIES,
	LIEN_DIFFERENCE_ACCESS, /* access by devices */
};

struct lien_difference {
	enum lien_difference_kind kind;
	uint64_t va, bytes;	      /* according to the graph; for MISSING as found */
	struct lien_wire_found found; /* .bytes 0: nothing was found */
};

struct lien_reread;

int lien_reread_new(struct lien_reread **out);
void lien_reread_free(struct lien_reread *reread);

/* Adds an area for the first pass, in any order; areas may overlap. 0 or -ENOMEM. */
int lien_reread_want(struct lien_reread *reread, uint64_t va, uint64_t bytes, uint32_t kind);
/* Adds every address of the process that the graph knows. */
int lien_reread_want_known(struct lien_reread *reread, struct lien_process *process);

/*
 * Begins a pass: releases under way count as touches. Merges the areas and rounds them to whole
 * steps.
 */
int lien_reread_begin(struct lien_reread *reread, struct lien_process *process);
/*
 * Returns the ranges of this pass, valid until the next call of a function other than
 * lien_reread_found().
 */
const struct lien_wire_range *lien_reread_ranges(const struct lien_reread *reread, unsigned *count);
int lien_reread_found(
	struct lien_reread *reread, const struct lien_wire_found *found, unsigned count);
/* Call this for every event of the process from the first lien_reread_begin() on. */
int lien_reread_touched(struct lien_reread *reread, const struct lien_event *event);
/* Compares. 1: another pass is needed, 0: it was the last one; -ENOMEM. */
int lien_reread_end(struct lien_reread *reread, struct lien_process *process);

/*
 * Returns the differences that count, sorted by address; and the number that were still open when
 * passes ran out.
 */
const struct lien_difference *lien_reread_differences(
	const struct lien_reread *reread, unsigned *count);
unsigned lien_reread_unstable(const struct lien_reread *reread);
/* Has the process mapped anything that cuMemCreate did not make (a multicast object)? */
bool lien_reread_objects(const struct lien_reread *reread);
/* Has it mapped such an object that may be its own alone? */
bool lien_reread_own_objects(const struct lien_reread *reread);
/* Returns the number of mappings and plain memory that the first pass found. */
unsigned lien_reread_mappings(const struct lien_reread *reread);

/*
 * Makes up the events that bring the graph in line with the driver, and passes them to the caller;
 * they carry LIEN_EVENT_FOUND and times from now_ns on. Memory that is no longer mapped, and is not
 * mapped elsewhere, is taken as released. An unknown allocation belongs to the process if it cannot
 * have come from another one; else it is an import of unknown owner, and the process stays
 * incomplete (LIEN_INCOMPLETE_SHARE) until adoption.h finds out. -ENOMEM.
 */
int lien_reread_repair(const struct lien_reread *reread, struct lien_graph *graph,
	struct lien_process *process, uint64_t now_ns, lien_emit_fn *emit, void *context);
/* Emits the devices of plain memory that the graph does not know. */
void lien_reread_learn(const struct lien_reread *reread, struct lien_process *process,
	uint64_t now_ns, lien_emit_fn *emit, void *context);

#endif
