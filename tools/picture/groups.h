/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph reply, boiled down to what fits on a page: allocations that differ in nothing but
 * address and size become one group. A job of two ranks has a thousand mappings and some ten
 * groups. Where many ranks import from each other that is still too much, and then whom a piece is
 * shared with is no difference either.
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
	/* What its members share. Strings belong to the reply. */
	uint64_t pid;	/* 0: of an unknown owner */
	int64_t device; /* -1: none, or unknown */
	const char *owner, *origin, *state;
	bool alive, exported;
	struct lien_peer *peers;
	unsigned peer_count;

	uint64_t count, bytes;
};

/* Which group an allocation of the reply is in, and where its mappings are. */
struct lien_place {
	uint64_t pid, address, bytes;
	unsigned group;
};

struct lien_groups {
	struct lien_group *groups; /* by pid, then largest first */
	unsigned count;
	struct lien_place *places; /* by pid and address */
	size_t place_count;
};

/* 0 or -ENOMEM. The reply must live as long. */
int lien_groups_make(const json_t *reply, struct lien_groups *out);
void lien_groups_free(struct lien_groups *groups);

/* The group of the memory at an address of a process, or -1. */
int lien_groups_at(const struct lien_groups *groups, uint64_t pid, uint64_t address);

#endif
