/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compares how far the ranks of a job on several nodes are. Each node reports what its own ranks
 * have begun, and is told what ranks on other nodes have begun in the groups that it has ranks in.
 * From both it computes its targets (agent/targets).
 *
 * Pure; no function takes more than n log n steps for n entries. Errors: -ENOMEM, and -EINVAL for
 * JSON that is not as docs/protocol.md says.
 */
#ifndef LIEN_NODES_COMPARE_H
#define LIEN_NODES_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

/* The name of a group, which each node computes from NCCL's id. */
struct lien_node_group {
	uint64_t half[2];
};

struct lien_node_group lien_node_group_of(const uint8_t *id, size_t size);

/* Transfers with another rank that have begun. */
struct lien_node_pair {
	uint32_t peer; /* its rank */
	uint64_t sends, receives;
};

/* A process on one of its communicators. */
struct lien_node_standing {
	struct lien_node_group group;
	int32_t rank;	      /* -1: not known */
	bool counted;	      /* the counts can be compared with others of the same `since` */
	uint64_t since;	      /* they start at: 0: the making of the group; else this rest */
	uint64_t collectives; /* that have begun */
	struct lien_node_pair *pairs;
	unsigned pairs_count, pairs_room;
	/* The group was made by a split, and all ranks of the parent are needed to find the rank:
	 */
	bool placed;
	struct lien_node_group split;
	int32_t split_nranks;	/* ranks of the parent, on all nodes */
	unsigned split_members; /* and on this node */
	int32_t key, parent_rank;
};

struct lien_node_report {
	struct lien_node_standing *standings;
	unsigned count, room;
	bool busy;    /* a process is busy, or may be */
	bool unnamed; /* there are communicators without a standing */
};

/* A group that has ranks on this node and on others. */
struct lien_others_group {
	struct lien_node_group group;
	bool counted;	      /* the ranks on all nodes count from the same beginning: */
	uint64_t collectives; /* the most that a rank on another node has begun */
};

/* Transfers that a rank on another node has begun with one on this node. */
struct lien_others_pair {
	struct lien_node_group group;
	uint32_t rank; /* on the other node */
	uint32_t peer; /* on this node */
	uint64_t sends, receives;
};

/* The rank of a process on this node, worked out from the reports of all nodes. */
struct lien_others_rank {
	struct lien_node_group group;
	int32_t parent_rank, rank;
};

/* Groups, pairs and ranks together. Each takes at most 100 bytes of JSON, and a request at most
 * 1 MiB (docs/protocol.md). */
#define LIEN_NODE_OTHERS_MAX 10000

/* What a node has to know of the others. */
struct lien_node_others {
	bool busy;    /* a process on another node is busy, or may be */
	bool counted; /* the other nodes' counts show which of their ranks are behind */
	/* Groups are sorted by name, pairs by group and ranks, ranks by group and parent rank: */
	struct lien_others_group *groups;
	unsigned groups_count, groups_room;
	struct lien_others_pair *pairs;
	unsigned pairs_count, pairs_room;
	struct lien_others_rank *ranks;
	unsigned ranks_count, ranks_room;
};

/* Returns a standing to be filled in, or NULL: out of memory. */
struct lien_node_standing *lien_node_report_add(struct lien_node_report *report);
/* Adds calls that have begun with a peer. Peers may come in any order. 0, -ENOMEM. */
int lien_node_standing_pair(
	struct lien_node_standing *standing, uint32_t peer, bool receives, uint64_t calls);
void lien_node_report_clear(struct lien_node_report *report);
/*
 * Fills in others[i] for each report; the caller clears them, also after an error. In the reports
 * it fills in ranks that follow from the places of all. -E2BIG: node *too_many would have to know
 * more than LIEN_NODE_OTHERS_MAX.
 */
int lien_node_compare(struct lien_node_report *reports, unsigned count,
	struct lien_node_others *others, int *too_many);
void lien_node_others_clear(struct lien_node_others *others);
/* Returns NULL if no rank on another node is in the group. */
const struct lien_others_group *lien_node_others_group(
	const struct lien_node_others *others, const struct lien_node_group *group);
/* Returns the first of the group's pairs; *count: how many there are. */
const struct lien_others_pair *lien_node_others_pairs(const struct lien_node_others *others,
	const struct lien_node_group *group, unsigned *count);
/* Returns what rank `rank` on another node has begun with rank `peer` on this one; NULL: nothing.
 */
const struct lien_others_pair *lien_node_others_pair(const struct lien_node_others *others,
	const struct lien_node_group *group, uint32_t rank, uint32_t peer);
/* Returns -1 if it is not known. */
int32_t lien_node_others_rank(const struct lien_node_others *others,
	const struct lien_node_group *group, int32_t parent_rank);

/* These return NULL when out of memory. */
json_t *lien_node_report_json(struct lien_node_report *report);
json_t *lien_node_others_json(const struct lien_node_others *others);
/* These overwrite *report and *others, which can be cleared even after an error. -E2BIG: more than
 * LIEN_NODE_OTHERS_MAX. */
int lien_node_report_read(struct lien_node_report *report, const json_t *json);
int lien_node_others_read(struct lien_node_others *others, const json_t *json);

#endif
