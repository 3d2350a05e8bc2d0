/* SPDX-License-Identifier: BSD-2-Clause */
/* The rows of `mem`, with and without an aspect: what makes one, and what is counted in it. */
#ifndef LIEN_VIEWS_MEM_ROWS_H
#define LIEN_VIEWS_MEM_ROWS_H

#include "agent/graph/graph.h"

/* Rows differ in any of these. Has no padding: it is compared as bytes. Strings are interned. */
struct lien_mem_key {
	uint64_t id[2]; /* what the row is about; of a device, its UUID if it is identified */
	const char *kind, *owner, *tag;
	uint32_t pid;
	int32_t device; /* else the ordinal in process `pid`; -1: not known, or host memory */
	uint32_t identified, inferred;
};

struct lien_mem_row {
	struct lien_mem_key key;
	const struct lien_allocation *sample; /* the first one */
	struct lien_process *process;	      /* by rank; NULL: it has ended */
	uint64_t allocations, mappings, bytes, frees, offloaded, inferred;
	char *text;
};

/* A hash table of row numbers, counted from 1; it is never more than half full. */
struct lien_mem_rows {
	struct lien_mem_row *row;
	unsigned *place;
	unsigned count, room;
	bool by_device; /* a row for each device */
};

/* Finds the row, or adds it. NULL: out of memory. May move the rows. */
struct lien_mem_row *lien_mem_row(struct lien_mem_rows *rows, const struct lien_mem_key *key,
	const struct lien_allocation *sample);
/* Counts memory in its owner's row; frees: an offload would free it. */
void lien_mem_row_own(
	struct lien_mem_row *row, const struct lien_allocation *allocation, bool frees);
/* Counts it in the row of another process that maps it. */
void lien_mem_row_import(struct lien_mem_row *row, const struct lien_holding *holding);
void lien_mem_rows_free(struct lien_mem_rows *rows);

#endif
