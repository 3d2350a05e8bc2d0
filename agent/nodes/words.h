/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The messages between the coordinator and the agents of a transaction over several nodes. Each
 * says where its sender stands, not what has changed. So a message that is lost, late or doubled
 * does no harm: the next one makes up for it.
 */
#ifndef LIEN_NODES_WORDS_H
#define LIEN_NODES_WORDS_H

#include <stdbool.h>
#include <stdint.h>

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

#endif
