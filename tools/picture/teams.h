/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The communicators of the graph reply. Frameworks make many over the same ranks: those become one
 * team, so that a picture has an edge per rank and not one per rank and communicator.
 */
#ifndef LIEN_TOOLS_GRAPH_TEAMS_H
#define LIEN_TOOLS_GRAPH_TEAMS_H

#include <stdint.h>

#include <jansson.h>

/* One rank of one communicator. The reply owns the strings. */
struct lien_member {
	const char *group;
	uint64_t pid, rank, nranks;
	const json_t *registrations;
};

struct lien_communicator {
	const struct lien_member *members;
	unsigned member_count;
	unsigned team; /* the first communicator with the same ranks, or its own number */
};

struct lien_teams {
	struct lien_member *members; /* sorted by group and pid */
	struct lien_communicator *communicators;
	unsigned count;
};

/* Returns 0 or -ENOMEM. The reply must outlive the teams. */
int lien_teams_make(const json_t *reply, struct lien_teams *out);
void lien_teams_free(struct lien_teams *teams);

#endif
