/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files of re-reading. Nobody else includes this. */
#ifndef LIEN_REREAD_INTERNAL_H
#define LIEN_REREAD_INTERNAL_H

#include "agent/reread/reread.h"

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

struct lien_reread {
	unsigned passes; /* that have ended */
	unsigned mappings;
	bool strange; /* a mapping that is none of memory */
	struct lien_ranges wanted;
	struct lien_ranges touched; /* since the pass before ended */
	struct lien_founds found;   /* by this pass */
	struct lien_founds plain;   /* by the first one */
	struct lien_differences open, certain;
};

int lien_ranges_add(struct lien_ranges *ranges, uint64_t va, uint64_t bytes, uint32_t kind);
/* Sorted by kind and address; areas that touch each other become one. */
void lien_ranges_merge(struct lien_ranges *ranges);
/* These two: of merged ones. Is va in one of the kind? Has an area a byte of [va, va + bytes)? */
bool lien_ranges_have(const struct lien_ranges *ranges, uint64_t va, uint32_t kind);
bool lien_ranges_touch(const struct lien_ranges *ranges, uint64_t va, uint64_t bytes);

int lien_founds_add(struct lien_founds *founds, const struct lien_wire_found *found);
/* By kind and address; one that reached into two ranges was found twice. */
void lien_founds_sort(struct lien_founds *founds);
/* Of sorted ones. NULL: not found there. */
const struct lien_wire_found *lien_founds_at(
	const struct lien_founds *founds, uint64_t va, uint32_t kind);
bool lien_reread_same_prop(
	const struct lien_allocation *allocation, const struct lien_wire_found *found);

/* How the driver can be asked about it: LIEN_WIRE_AREA, LIEN_WIRE_PLAIN; 0: it tells nothing that
 * can be compared (pools, host and managed memory, what was opened by legacy IPC, multicast
 * objects). */
uint32_t lien_reread_kind(const struct lien_mapping *mapping);

#endif
