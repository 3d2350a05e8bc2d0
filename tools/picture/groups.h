/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph reply reduced to what fits on a page: allocations that differ only in address and size
 * become one group. A job of two ranks has a thousand mappings and about ten groups. Where many
 * ranks import from each other, there are still too many; then allocations shared with different
 * processes are grouped as well.
 */
#ifndef LIEN_TOOLS_GRAPH_GROUPS_H
#define LIEN_TOOLS_GRAPH_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

/* Another process that holds members of a group, and how many of them. */
struct lien_peer {
	uint64_t pid, count, bytes;
};

struct lien_group {
	/* Properties that all members share. The reply owns the strings. */
	uint64_t pid;				  /* 0: unknown owner */
	int64_t device;				  /* -1: none, or unknown */
	const char *owner, *tag, *origin, *state; /* tag: "" for none */
	bool alive, exported;
	struct lien_peer *peers;
	unsigned peer_count;

	uint64_t count, bytes;
};

/* The group of an allocation of the reply, and the place of its mappings. */
struct lien_place {
	uint64_t pid, address, bytes;
	unsigned group;
};

struct lien_groups {
	struct lien_group *groups; /* sorted by pid, then largest first */
	unsigned count;
	struct lien_place *places; /* sorted by pid and address */
	size_t place_count;
};

/* Returns 0 or -ENOMEM. The reply must outlive the groups. */
int lien_groups_make(const json_t *reply, struct lien_groups *out);
void lien_groups_free(struct lien_groups *groups);

/* Returns the group of the memory at an address of a process, or -1. */
int lien_groups_at(const struct lien_groups *groups, uint64_t pid, uint64_t address);

#endif
