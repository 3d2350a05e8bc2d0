/* SPDX-License-Identifier: BSD-2-Clause */
/* A move over several nodes that is under way: what lien_nodes_move() and its parts share. */
#ifndef LIEN_TOOLS_NODES_MOVER_H
#define LIEN_TOOLS_NODES_MOVER_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "agent/nodes/compare.h"
#include "agent/nodes/coordinate.h"
#include "tools/cli/nodes.h"
#include "tools/cli/nodes_move.h"

#define LIEN_MOVER_ASKED_MAX 64	  /* words to one node without a reply */
#define LIEN_MOVER_AGAIN_MS  1000 /* between attempts to reach a lost node, or to mend one */
#define LIEN_MOVER_RESULT_MS 2000 /* for a node's result, when it has ended */

/* Connections of `lien node` with its agent. */
enum lien_mover_on {
	LIEN_ON_MOVE = 1, /* waits for the transaction */
	LIEN_ON_WORD,	  /* the coordinator's words */
	LIEN_ON_MEND,	  /* a restore of what was dropped */
};

struct member {
	unsigned node; /* its link */
	json_t *request;
	json_t *result;		/* of its agent; NULL: none (yet) */
	char *error;		/* of its agent; NULL: none */
	bool invalid, answered; /* its error is the user's; its result or error has come */
	bool mending;		/* a restore is under way */
	char *absent;  /* it has planned nothing, and that is not what was meant; NULL: it is */
	bool compared; /* its report has come: */
	struct lien_node_report report;
	json_t *others, *sent;	      /* what ranks elsewhere have begun; the last that was sent */
	struct lien_node_order order; /* the last */
	bool ordered;
	uint64_t asked[LIEN_MOVER_ASKED_MAX]; /* when each was sent, oldest first */
	unsigned asked_count;
	uint64_t t_order, t_begun, t_again; /* when ordered, begun; when to launch again */
	uint64_t t_mend, t_restore;	    /* when to be mended first; the last attempt; 0: none */
	bool unknown; /* whose memory it has dropped is not known, and it cannot be mended */
};

struct mover {
	struct lien_nodes *nodes;
	const struct lien_nodes_move *move;
	struct lien_coordinator coordinator;
	struct lien_coordinator_node *states; /* parallel to the members */
	struct member *members;
	unsigned count;
	int *member_of; /* by link; -1: takes no part */
	char id[20];
	char directory[PATH_MAX];
	unsigned lease_ms;
	bool reports_changed; /* since they were compared */
	bool wrote;	      /* the decision; or: */
	int write_error;
	bool checked;	  /* no node is absent */
	int signals;	  /* lien_interrupt_open() */
	unsigned caught;  /* of them */
	uint64_t busy_ns; /* of its own work */
};

/* Returns the functions for lien_nodes_poll(). They store errors and results in the members, and
 * tell mover->coordinator the state of each node. */
struct lien_nodes_calls lien_nodes_replies(struct mover *mover);
/* Records that a node cannot be reached; why: for the message. */
void lien_nodes_replies_lost(struct mover *mover, unsigned node, const char *why);

/*
 * After a failure that follows the decision, puts back what a node has dropped.
 *
 * Asks a member's agent for a restore of what this offload has dropped; call it as long as the
 * coordinator orders it. It waits for the member's result, which names the processes, and repeats
 * what found the agent busy or lost. Without processes or a selection it asks for nothing, sets
 * member->unknown, and tells the coordinator that the node is not mended.
 */
void lien_nodes_mend(struct mover *mover, struct member *member);

/* Returns the result (docs/protocol.md), which the caller owns. ms: what it took. */
json_t *lien_nodes_result(const struct mover *mover, double ms);
/* Prints what has failed, on which node, how the job stands and what to do, in one line. Returns
 * the exit code. */
int lien_nodes_result_complain(struct mover *mover);

#endif
