/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device addresses of one recorded process: the ranges that it reserved or allocated, the
 * mappings in them, and their addresses in the replaying process. Addresses are recorded ones
 * unless called actual. Ranges do not overlap each other, nor do mappings; ranges passed in have
 * bytes > 0 and do not wrap.
 */
#ifndef LIEN_REPLAY_SPACE_H
#define LIEN_REPLAY_SPACE_H

#include <stdbool.h>
#include <stdint.h>
#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>

#include <lien/event.h>

struct lien_replay_range {
	RB_ENTRY(lien_replay_range) tree;
	TAILQ_ENTRY(lien_replay_range) order;
	uint64_t va, bytes;
	uint64_t actual;
	bool linear;	/* from cuMemAlloc: one mapping covers all of it; otherwise reserved */
	uint32_t flags; /* LIEN_OP_* of the call that made it */
};

struct lien_replay_mapping {
	RB_ENTRY(lien_replay_mapping) tree;
	TAILQ_ENTRY(lien_replay_mapping) order;
	uint64_t va, bytes;
	uint64_t offset;	     /* in its allocation */
	uint64_t allocation;	     /* its number, or LIEN_NO_ALLOCATION */
	uint64_t readable, writable; /* by recorded device: bit 1 << ordinal */
	bool host_readable, host_writable;
	bool linear;
	uint32_t flags;
};

RB_HEAD(lien_replay_range_tree, lien_replay_range);
RB_HEAD(lien_replay_mapping_tree, lien_replay_mapping);
TAILQ_HEAD(lien_replay_range_list, lien_replay_range);
TAILQ_HEAD(lien_replay_mapping_list, lien_replay_mapping);

struct lien_replay_space {
	struct lien_replay_range_tree range_tree;
	struct lien_replay_mapping_tree mapping_tree;
	struct lien_replay_range_list ranges; /* in order of creation */
	struct lien_replay_mapping_list mappings;
};

void lien_replay_space_init(struct lien_replay_space *space);
void lien_replay_space_clear(struct lien_replay_space *space);

/* Adds a range or mapping that must not overlap another. NULL: no memory. */
struct lien_replay_range *lien_replay_space_reserve(struct lien_replay_space *space, uint64_t va,
	uint64_t bytes, uint64_t actual, uint32_t flags);
struct lien_replay_mapping *lien_replay_space_map(struct lien_replay_space *space, uint64_t va,
	uint64_t bytes, uint64_t allocation, uint32_t flags);

void lien_replay_space_unreserve(struct lien_replay_space *space, struct lien_replay_range *range);
void lien_replay_space_unmap(struct lien_replay_space *space, struct lien_replay_mapping *mapping);

/* Returns the lowest with a byte in [va, va + bytes); NULL: none. */
struct lien_replay_range *lien_replay_space_range(
	struct lien_replay_space *space, uint64_t va, uint64_t bytes);
struct lien_replay_mapping *lien_replay_space_mapping(
	struct lien_replay_space *space, uint64_t va, uint64_t bytes);

/* Returns the next one upwards; NULL: none. */
struct lien_replay_mapping *lien_replay_space_above(struct lien_replay_mapping *mapping);

/* Returns the address of va in the replaying process; 0: in no range. */
uint64_t lien_replay_space_actual(struct lien_replay_space *space, uint64_t va);

/* Records the access that the event's set-access call gave to the mapping. */
void lien_replay_mapping_access(struct lien_replay_mapping *mapping, const struct lien_event *ev);

/* Return true if the process may read or write it from some device or the host. */
bool lien_replay_mapping_readable(const struct lien_replay_mapping *mapping);
bool lien_replay_mapping_writable(const struct lien_replay_mapping *mapping);

#endif
