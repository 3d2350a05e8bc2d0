/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One node's part of a transaction over several nodes: decides how far the node may go, from the
 * words of its coordinator. A pure state machine without sockets or clocks; the agent's transaction
 * asks it at three points.
 *
 * It guarantees:
 * - Nothing is touched before GO.
 * - An offload saves only while it holds: it is at rest, and has let no thread in since the report
 *   that the coordinator compared with those of the other nodes.
 * - An offload drops only after COMMIT, and only if the agent has noted that. After COMMIT it is
 *   never undone by a word or by time.
 * - If its coordinator says nothing for the length of the lease, the part does what is safe on its
 *   own: an offload that is not committed is undone, a restore opens its gates when everything is
 *   back.
 * - Words may be lost, late, doubled or out of order.
 */
#ifndef LIEN_NODES_PART_H
#define LIEN_NODES_PART_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The messages between the coordinator and the agents of a transaction over several nodes. Each
 * says where its sender stands, not what has changed. So a message that is lost, late or doubled
 * does no harm: the next one makes up for it.
 */

/* The states of a node's part of the transaction. */
enum lien_part_state {
	LIEN_PART_PLANNED, /* nothing is touched */
	LIEN_PART_GOING,   /* an offload brings its ranks to rest; a restore puts memory back */
	LIEN_PART_SAVING,  /* all nodes were at rest, and the part saves */
	LIEN_PART_READY,   /* an offload: everything is saved; a restore: everything is back */
	/* An offload drops, whatever happens; a restore opens its gates. */
	LIEN_PART_COMMITTED,
	LIEN_PART_DONE,
	LIEN_PART_UNDOING,
	LIEN_PART_UNDONE, /* as before the transaction */
	LIEN_PART_BROKEN, /* it has failed, and is not as before */
	LIEN_PART_STATES,
};

/* The coordinator's orders to a node. */
enum lien_node_word {
	LIEN_WORD_WAIT, /* touch nothing yet */
	LIEN_WORD_GO,	/* an offload: come to rest; a restore: put memory back */
	/* The same; and let no thread in, if the report is of this version and the part at rest. */
	LIEN_WORD_HOLD,
	LIEN_WORD_SAVE,	  /* all nodes hold */
	LIEN_WORD_COMMIT, /* all nodes are ready, and the decision is written */
	LIEN_WORD_UNDO,
	LIEN_WORD_RESTORE, /* another node has undone after the decision: put memory back */
	LIEN_WORDS,
};

/* coordinator -> node */
struct lien_node_order {
	enum lien_node_word word;
	uint64_t round;	  /* grows with each attempt to hold */
	uint64_t version; /* HOLD: the report that the coordinator has compared */
};

/* node -> coordinator */
struct lien_node_status {
	enum lien_part_state state;
	uint64_t version; /* grows with each change of the report */
	bool at_rest;
	uint64_t round; /* the last order to hold had this */
	bool held;	/* the part holds, in that round */
};

/* The names of docs/protocol.md: "planned", ... and "wait", .... */
const char *lien_part_state_name(enum lien_part_state state);
const char *lien_node_word_name(enum lien_node_word word);
/* Return LIEN_PART_STATES and LIEN_WORDS for any other name, and for NULL. */
enum lien_part_state lien_part_state_of(const char *name);
enum lien_node_word lien_node_word_of(const char *name);

struct lien_part {
	struct lien_node_status status;
	bool restore;		   /* instead of an offload */
	bool expired;		   /* the lease has run out, or the part is late */
	bool late;		   /* it was in one state for LIEN_PART_WAIT_NS */
	bool not_noted;		   /* it undoes because of lien_part_not_noted() */
	uint64_t lease_ns;	   /* how long it waits for a word */
	uint64_t t_heard;	   /* when the last word came */
	enum lien_part_state seen; /* the state at the last tick */
	uint64_t t_seen;	   /* when that state began */
};

/* A part is planned, or ready, no longer than this: no other transaction can begin on its node
 * meanwhile. */
#define LIEN_PART_WAIT_NS 300000000000ull

/* The points at which the transaction asks whether it may go on. */
enum lien_point {
	LIEN_POINT_PLANNED, /* before anything is touched */
	LIEN_POINT_REST,    /* this node is at rest */
	LIEN_POINT_READY,   /* before anything is dropped, or before gates open */
};

enum lien_go_on {
	LIEN_GO_ON_NO,	 /* ask again */
	LIEN_GO_ON_LOOK, /* REST: ask again after a look that may let threads in */
	LIEN_GO_ON_YES,
};

void lien_part_begin(struct lien_part *part, bool restore, uint64_t lease_ns, uint64_t now_ns);
/* The coordinator has sent this order. */
void lien_part_hear(struct lien_part *part, const struct lien_node_order *order, uint64_t now_ns);
/* Time has passed. */
void lien_part_tick(struct lien_part *part, uint64_t now_ns);
enum lien_go_on lien_part_may_go_on(struct lien_part *part, enum lien_point point);
/* This node's report has changed since it was compared; the node is not at rest. */
void lien_part_changed(struct lien_part *part);
/* Must the transaction be cancelled? */
bool lien_part_must_undo(const struct lien_part *part);
/* What LIEN_POINT_READY allows could not be noted, so that a later agent would not know of it.
 * Nothing has been dropped: an offload is undone. A restore goes on. */
void lien_part_not_noted(struct lien_part *part);
/* The transaction has ended. `moved`: it did what it was to do; otherwise `as_before`: nothing is
 * left of it, as always before GO. */
void lien_part_ended(struct lien_part *part, bool moved, bool as_before);
/* Has a part in this state ended, so that no word changes it any more? */
bool lien_part_is_over(enum lien_part_state state);

#endif
