/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One reading of a process from the driver, compared with the graph. Plain C like the graph.
 *
 * The application goes on while it is read, and a call's record comes a moment after the driver has
 * done what it says. So a difference counts only when two passes over its address show the same and
 * no event of the process touched it from the first to the second: the first pass goes over
 * everything, each later one over what the one before left open.
 */
#ifndef LIEN_REREAD_H
#define LIEN_REREAD_H

#include "agent/graph/graph.h"
#include "agent/reread/emit.h"
#include <lien/wire.h>

enum lien_difference_kind {
	LIEN_DIFFERENCE_MISSING = 1, /* mapped, and not in the graph */
	LIEN_DIFFERENCE_GONE,	     /* in the graph, and not there */
	LIEN_DIFFERENCE_SIZE,
	LIEN_DIFFERENCE_HANDLE,	    /* another allocation than the graph has there */
	LIEN_DIFFERENCE_PROPERTIES, /* type, location, kinds of handles; the device of plain memory
				     */
	LIEN_DIFFERENCE_ACCESS,	    /* of devices */
};

struct lien_difference {
	enum lien_difference_kind kind;
	uint64_t va, bytes;	      /* as the graph has it; of MISSING as it was found */
	struct lien_wire_found found; /* .bytes 0: nothing */
};

struct lien_reread;

int lien_reread_new(struct lien_reread **out);
void lien_reread_free(struct lien_reread *reread);

/* What the first pass is to look at, in any order; areas may overlap. 0 or -ENOMEM. */
int lien_reread_want(struct lien_reread *reread, uint64_t va, uint64_t bytes, uint32_t kind);
/* Everything that the graph knows of the process's addresses. */
int lien_reread_want_known(struct lien_reread *reread, struct lien_process *process);

/* Begins the pass: releases under way count as touching. Areas are merged and whole steps then. */
int lien_reread_begin(struct lien_reread *reread, struct lien_process *process);
/* Of this pass, until the next call of another function than lien_reread_found(). */
const struct lien_wire_range *lien_reread_ranges(const struct lien_reread *reread, unsigned *count);
int lien_reread_found(
	struct lien_reread *reread, const struct lien_wire_found *found, unsigned count);
/* Every event of the process from the first lien_reread_begin() on. */
int lien_reread_touched(struct lien_reread *reread, const struct lien_event *event);
/* Compares. 1: another pass is needed, 0: it was the last one; -ENOMEM. */
int lien_reread_end(struct lien_reread *reread, struct lien_process *process);

/* The differences that count, by address; and how many were still open when passes ran out. */
const struct lien_difference *lien_reread_differences(
	const struct lien_reread *reread, unsigned *count);
unsigned lien_reread_unstable(const struct lien_reread *reread);
/* Has it mapped what is no memory of cuMemCreate's (a multicast object)? */
bool lien_reread_strange(const struct lien_reread *reread);
/* Mappings and plain memory that the first pass found. */
unsigned lien_reread_mappings(const struct lien_reread *reread);

/*
 * Makes up the events that make the graph what the driver says, and tells them; they carry
 * LIEN_EVENT_FOUND and times from now_ns on. What is unmapped and was not mapped elsewhere is taken
 * for released. An allocation that nobody knew belongs to the process if it cannot have come from
 * another one; else it is an import whose owner is not known, and the process stays incomplete
 * (LIEN_INCOMPLETE_SHARE). -ENOMEM.
 */
int lien_reread_repair(const struct lien_reread *reread, struct lien_graph *graph,
	struct lien_process *process, uint64_t now_ns, lien_emit_fn *tell, void *context);
/* Tells the devices of plain memory that the graph does not know. */
void lien_reread_learn(const struct lien_reread *reread, struct lien_process *process,
	uint64_t now_ns, lien_emit_fn *tell, void *context);

#endif
