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
	uint64_t va, bytes; /* according to the graph; for MISSING as found */
	enum lien_difference_kind kind;
	struct lien_wire_found found; /* .bytes 0: nothing was found */
};

struct lien_ranges {
	struct lien_wire_range *range;
	unsigned count, room;
};

struct lien_founds {
	struct lien_wire_found *found;
	unsigned count, room;
};

struct lien_differences {
	struct lien_difference *difference;
	unsigned count, room;
};

/* Zeros at first. */
struct lien_reread {
	/* What this pass has to read: merged, and rounded to whole steps. */
	struct lien_ranges wanted;
	/* Results: the differences that count, after the last pass sorted by address, */
	struct lien_differences certain;
	struct lien_differences open; /* those that were open when passes ran out, */
	unsigned mappings; /* and how many mappings and plain memory the first pass found. */
	bool objects;	   /* It has mapped what cuMemCreate did not make (multicast objects), */
	bool own_objects;  /* and some of that may be its own alone. */
	struct lien_founds found; /* What the last pass found, */
	unsigned passes;	  /* and how many have ended. */
	/* For reread.c: */
	bool no_memory;
	struct lien_ranges touched; /* since the previous pass ended */
};

void lien_reread_clear(struct lien_reread *reread);

/* Adds an area for the first pass, in any order; areas may overlap. */
void lien_reread_want(struct lien_reread *reread, uint64_t va, uint64_t bytes, uint32_t kind);
/* Adds every address of the process that the graph knows. */
void lien_reread_want_known(struct lien_reread *reread, struct lien_process *process);
/* Begins a pass over .wanted: releases under way count as touches. */
void lien_reread_begin(struct lien_reread *reread, struct lien_process *process);
void lien_reread_found(
	struct lien_reread *reread, const struct lien_wire_found *found, unsigned count);
/* Call this for every event of the process from the first lien_reread_begin() on. */
void lien_reread_touched(struct lien_reread *reread, const struct lien_event *event);
/* Compares. 1: another pass is needed, 0: it was the last one; -ENOMEM: then or before. */
int lien_reread_end(struct lien_reread *reread, struct lien_process *process);

#endif
