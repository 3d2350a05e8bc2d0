/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files of re-reading. No other file includes this. */
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
	unsigned passes; /* passes that have ended */
	unsigned mappings;
	bool objects;	  /* found mappings that are not memory, */
	bool own_objects; /* and some of what no descriptor can be made of */
	struct lien_ranges wanted;
	struct lien_ranges touched; /* since the previous pass ended */
	struct lien_founds found;   /* by this pass */
	struct lien_founds plain;   /* by the first pass */
	struct lien_differences open, certain;
};

int lien_ranges_add(struct lien_ranges *ranges, uint64_t va, uint64_t bytes, uint32_t kind);
/* Sorts by kind and address, and joins areas that touch each other. */
void lien_ranges_merge(struct lien_ranges *ranges);
/*
 * Both take merged ranges. Is va in a range of that kind? Does any range have a byte of [va, va +
 * bytes)?
 */
bool lien_ranges_have(const struct lien_ranges *ranges, uint64_t va, uint32_t kind);
bool lien_ranges_touch(const struct lien_ranges *ranges, uint64_t va, uint64_t bytes);

int lien_founds_add(struct lien_founds *founds, const struct lien_wire_found *found);
/*
 * Sorts by kind and address, and drops duplicates: memory that reaches into two ranges is found
 * twice.
 */
void lien_founds_sort(struct lien_founds *founds);
/* Expects sorted ones. NULL: nothing was found there. */
const struct lien_wire_found *lien_founds_at(
	const struct lien_founds *founds, uint64_t va, uint32_t kind);

#endif
