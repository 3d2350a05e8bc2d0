/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The coordinator of an offload or a restore over several nodes: a pure state machine without
 * sockets, files or clocks. The caller passes in the messages of nodes (agent/nodes/part.h), the
 * loss of a node, and the time; the coordinator says what to send to each node.
 *
 * It guarantees, with parts that keep to agent/nodes/part.h:
 * - Nothing is dropped on any node until everything is saved on all: COMMIT comes after all nodes
 *   were READY and the caller has written the decision.
 * - If a node fails or is lost before the decision, all nodes undo the offload. A lost node does so
 *   when its lease has run out.
 * - It decides only while every node's lease is long enough for the decision to be written and to
 *   reach the node; if writing takes longer, the decision is void, and all undo.
 * - If a node has undone after the decision, the others put back what they have dropped.
 * - It ends: every wait has a limit, or is for a node that is heard from and whose agent has limits
 * of its own.
 *
 * One window is left, which no two-phase protocol can close: the decision is written, some
 * nodes have heard of it, and another one is cut off until its lease has run out. That node undoes,
 * and its ranks run on until they wait in a collective for ranks whose memory is away. As long as
 * the coordinator lives, it reaches the node again, learns this, and has the others put their
 * memory back. If it is dead, a restore does so.
 */
#ifndef LIEN_NODES_COORDINATE_H
#define LIEN_NODES_COORDINATE_H

#include <stddef.h>

#include "agent/nodes/part.h"

/* How long a node that is heard from has to put back what it has dropped. */
#define LIEN_NODES_MEND_NS 3600000000000ull

enum lien_coordinator_phase {
	LIEN_COORDINATOR_PLANNING,
	LIEN_COORDINATOR_GOING,	  /* nodes come to rest; a restore: put memory back */
	LIEN_COORDINATOR_HOLDING, /* all nodes have said that they are at rest, and hold */
	LIEN_COORDINATOR_SAVING,
	LIEN_COORDINATOR_DECIDING, /* the caller writes the decision: lien_coordinator_decided() */
	LIEN_COORDINATOR_COMMITTING,
	LIEN_COORDINATOR_UNDOING,
	LIEN_COORDINATOR_MENDING, /* after the decision: nodes put back what they dropped */
	LIEN_COORDINATOR_ENDED,
};

enum lien_coordinator_outcome {
	LIEN_NODES_NONE, /* not ended */
	LIEN_NODES_DONE,
	LIEN_NODES_NOTHING, /* no node had anything to move */
	LIEN_NODES_UNDONE,  /* every node is as before, or will be when its lease has run out */
	LIEN_NODES_MENDED,  /* every node is as before, after some had dropped memory */
	/* Some nodes may not be as before, or a restore has failed on some. */
	LIEN_NODES_PART,
};

struct lien_coordinator_node {
	/* --- results --- */
	struct lien_node_status status;
	bool heard;   /* it has a status */
	bool nothing; /* it has nothing to move and takes no part */
	bool lost;    /* it is needed and cannot be reached */
	bool mended;  /* what it had dropped is back */
	/* --- its own --- */
	bool cut;	   /* it could not be reached, and has not been heard since */
	uint64_t t_status; /* when the last order that it has answered was sent */
	uint64_t t_lost;
};

struct lien_coordinator {
	struct lien_coordinator_node *nodes; /* the caller's, zeroed */
	unsigned count;
	bool restore;
	uint64_t lease_ns;
	enum lien_coordinator_phase phase;
	enum lien_coordinator_outcome outcome;
	int failed;	/* the first node that failed or was lost; -1: none */
	bool cancelled; /* by the user, before any node failed */
	uint64_t round;
	unsigned rounds, reports; /* attempts to hold; changes of reports */
	uint64_t t_phase;	  /* when the phase began */
	uint64_t t_ready;	  /* SAVING: the last time that a node was not ready */
};

/* lease_ns: the lease that the nodes were given. */
void lien_coordinator_begin(struct lien_coordinator *coordinator,
	struct lien_coordinator_node *nodes, unsigned count, bool restore, uint64_t lease_ns,
	uint64_t now_ns);
/* A node says where it stands. sent_ns: when the last order that it had heard by then was sent. */
void lien_coordinator_hear(struct lien_coordinator *coordinator, unsigned node,
	const struct lien_node_status *status, uint64_t sent_ns, uint64_t now_ns);
/* The node has nothing to move. */
void lien_coordinator_nothing(struct lien_coordinator *coordinator, unsigned node, uint64_t now_ns);
/* The node cannot take part. Call this before it has been told to go. */
void lien_coordinator_refuse(struct lien_coordinator *coordinator, unsigned node, uint64_t now_ns);
/* The node cannot be reached. While nodes[node].lost, the caller tries again, and reports the
 * status that the node has then. */
void lien_coordinator_lost(struct lien_coordinator *coordinator, unsigned node, uint64_t now_ns);
/* The node has answered LIEN_WORD_RESTORE: its memory is back, or (false) the restore failed. */
void lien_coordinator_mended(
	struct lien_coordinator *coordinator, unsigned node, bool mended, uint64_t now_ns);
/* DECIDING: a node whose lease will have run out before the decision can reach it; -1: none. */
int lien_coordinator_late(const struct lien_coordinator *coordinator, uint64_t now_ns);
/* The decision is written, or (false) could not be written. Returns true if it counts; otherwise
 * nothing is decided, all undo, and the caller removes what it has written. */
bool lien_coordinator_decided(struct lien_coordinator *coordinator, bool written, uint64_t now_ns);
/* The user cancels. Returns false if it is too late. */
bool lien_coordinator_cancel(struct lien_coordinator *coordinator, uint64_t now_ns);
/* Call this about once a second. */
void lien_coordinator_tick(struct lien_coordinator *coordinator, uint64_t now_ns);
/* Fills in what the node is to be told, now and about once a second. Returns false: nothing. */
bool lien_coordinator_order(
	const struct lien_coordinator *coordinator, unsigned node, struct lien_node_order *order);

#endif
