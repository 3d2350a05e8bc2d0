/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the transaction's own files. No other file includes this. */
#ifndef LIEN_TRANSACTION_INTERNAL_H
#define LIEN_TRANSACTION_INTERNAL_H

#include "agent/transaction/transaction.h"

struct share_in {
	uint64_t token;
	int fd;
};

/* State of an import, in a restore or an undo. */
enum import_state {
	IMPORT_MISSING,
	IMPORT_ARRIVED, /* mapped again */
	IMPORT_NAMED,	/* the process has been told that it will never come back, */
	IMPORT_LOST,	/* and has answered */
};

/* Sorted, each once. */
struct numbers {
	uint64_t *number;
	unsigned count;
};

struct participant {
	struct lien_wire_item *items; /* sorted by token and index */
	enum import_state *imports;   /* parallel to items; valid for first items */
	struct numbers tokens, teams; /* of its memory */
	unsigned named;		      /* items checked so far for lost memory */
	uint32_t lost_owner;	      /* owner of a lost item, */
	bool owner_lives;	      /* which runs, but no longer has it */
	unsigned count, room;
	unsigned staged; /* items sent so far; before the first item, */
	bool staging;
	struct lien_wire_raw *raw; /* all of these are sent */
	unsigned raw_count, raw_sent;
	uint32_t seq;	       /* of the order under way; 0: none */
	enum lien_phase phase; /* phase of that order */
	uint64_t t_sent;
	bool member;   /* takes part; for a restore this is found out */
	bool involved; /* in parts: it took part in one */
	struct lien_transaction_process
		before; /* in parts: what the parts before this one have moved */
	bool gone;	/* dead, or it did not answer */
	bool stuck;	/* it did not answer */
	bool withheld;	/* a restore cannot move it now */
	bool finished;	/* with the current phase; in a restore: with all */
	uint64_t free_before;
	bool created, exported;
	bool exporting; /* that order is under way */
	unsigned
		imports_of; /* others' imports of its memory: descriptors that its exports become */
	bool uncreated;	    /* some memory could not be made */
	bool filled;	    /* its copies have arrived or failed */
	bool unfilled;	    /* its copies have failed */
	unsigned part, asked, answered; /* adoption: entries in the current phase */
	bool busy;			/* result of the last drain, and the reason */
	char busy_text[80];
	bool working;		 /* NCCL was, in threads of its own */
	struct share_in *shares; /* other processes' exports, to be imported here */
	unsigned shares_count, shares_room;
	unsigned batch;					/* shares in the current import */
	struct lien_wire_room rooms[LIEN_WIRE_DEVICES]; /* what its devices need and have */
	unsigned rooms_count;
};

/* Does it take part, as far as it still can? */
static inline bool lien_participant_active(const struct participant *participant)
{
	return participant->member && !participant->gone;
}

struct lien_transaction {
	struct lien_transaction_ops ops;
	struct lien_transaction_result result;
	struct lien_transaction_process *processes;
	struct participant *participants; /* parallel to processes */
	unsigned count;
	uint32_t *pids; /* restore: the requested processes */
	unsigned pids_count;
	uint32_t aside; /* restore: a stopped process, which does not take part; 0: there is none */
	unsigned aside_others; /* that do not take part with it */
	char aside_remedy[LIEN_REMEDY];
	uint64_t *chosen; /* restore: the groups and tags of what comes back; none: all */
	unsigned tags_count;
	bool divided;	     /* restore: in parts, */
	bool together;	     /* of which one has failed: the rest comes together */
	uint64_t *part;	     /* what this one brings back; none: the last part, all that is left */
	unsigned part_count; /* of it */
	uint64_t *parted;    /* groups of this part and of those before */
	unsigned parted_count, parted_room;
	enum lien_transaction_kind kind;
	const struct kind *rules;	   /* of that kind */
	const struct phase *const *phases; /* by their numbers */
	struct lien_adoption *adoption;	   /* of an adoption, once at rest */
	bool restoring;			   /* a restore, or the undo of an offload */
	bool stopping;	   /* an offload failed: no new orders; then discard or undo */
	uint64_t t_making; /* since when gates are being made; 0: not yet */
	bool finishing;	   /* restore: no more exports and imports */
	bool failing;	   /* a failure other than a loss while memory is put back */
	bool noted; /* a process is gone or time has passed, and nothing has followed from that yet
		     */
	bool ended;
	enum lien_phase phase;
	enum lien_phase entering; /* begins when its enter() allows it; LIEN_PHASE_COUNT: none */
	unsigned timeout_ms;
	uint32_t flags; /* offload: for STAGE and SAVE; restore: for CREATE and FINISH */
	uint64_t token_base;
	uint64_t generation; /* of an offload: an undo covers its items and no earlier ones */
	uint64_t t_start;
	uint64_t t_shut;   /* adoption: when the gate was shut */
	uint64_t t_marks;  /* when the search for owners began */
	uint64_t t_drain;  /* when draining began */
	uint64_t t_round;  /* when this round of it began */
	bool replanned;	   /* at rest, something else was to be moved than planned */
	bool restaged;	   /* staged at rest, after which nothing changes */
	unsigned round_ms; /* how long the next round of draining waits for the devices */
	struct lien_resting resting;
	uint64_t t_level; /* the last step LEVEL */
	bool rested;	  /* no thread was in a call before this round of draining */
	bool ask;	  /* this round asks the devices, */
	bool launches;	  /* and somebody may have to launch work meanwhile */
	bool doubtful;	  /* the counts that show who is behind do not prove it any more */
	uint64_t t_moved; /* when somebody was let in last, or the gates took a step */
	uint64_t t_again; /* when the next round begins */
	uint32_t next_seq;
};

/* A message that answers an order. The caller closes the descriptors. */
struct reply {
	const struct lien_wire_header *header;
	const void *body;
	size_t size;
	const int *fds;
	unsigned fds_count;
};

/* A phase: what it asks of each participant, and what follows from the answers. Every member but
 * the name and the type may be left out. */
struct phase {
	const char *name;	  /* in messages, progress and results */
	enum lien_wire_type type; /* of its orders */
	/* The longest wait: a base, plus time for each MiB and item to be moved; */
	unsigned limit_ms, limit_ms_per_mib, limit_ms_per_item;
	bool waits_for_rest; /* plus the time that the job may take to come to rest. */
	bool timed;	     /* results show how long it took in each process */
	bool held;	     /* processes without an order are told that we are alive */
	bool gated;	     /* no thread may have come through a gate by its end */
	bool spares_dead;    /* a process that has ended is not a failure */
	bool may_fail;	     /* nor is an answer that is an error */
	/* Returns false if the phase is to be skipped. */
	bool (*applies)(const struct lien_transaction *t);
	/* Called before the first order. False: failed, or to be called again with the next tick.
	 */
	bool (*enter)(struct lien_transaction *t);
	/* Gives a process its first order; by default one without a body. A process that gets none
	 * has finished. */
	void (*order)(struct lien_transaction *t, unsigned index);
	/* Called when all have been given theirs. */
	void (*ordered)(struct lien_transaction *t);
	/* Sets the arguments of its orders; by default the transaction's generation. */
	void (*arguments)(const struct lien_transaction *t, enum lien_phase phase,
		struct lien_wire_header *order, const void *body);
	/* Handles a part of an answer, the last one included. */
	void (*part)(struct lien_transaction *t, unsigned index, const struct reply *reply);
	/* Handles the end of an answer. By default it finishes the process, unless the transaction
	 * is in another phase by now: threads are let in, and told that we are alive, in several.
	 */
	void (*reply)(
		struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply);
	/*
	 * Called first if the answer is an error. True: it is not a failure, or has been reported.
	 */
	bool (*excuse)(
		struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply);
	/* Called after any change: gives orders to idle processes, and begins what follows. By
	 * default nothing happens until all have answered; then `next` or `stop`. */
	void (*step)(struct lien_transaction *t);
	/* Begins what follows; by default the next phase of the kind. */
	void (*next)(struct lien_transaction *t);
	/* What follows a failure; 0: what the kind says. */
	enum lien_phase stop;
};

/* What is particular to a kind of transaction (transaction.c). */
struct kind {
	const char *name;
	const enum lien_phase *phases; /* in order, ended by LIEN_PHASE_COUNT */
	enum lien_phase abandon;       /* what follows a failure when nothing has been moved */
};

/* phases.c: participants. */
int lien_participant_sort(struct participant *participant);
struct lien_wire_item *lien_participant_find(const struct participant *participant, uint64_t token);
/* 0, -ENOMEM, -E2BIG. */
int lien_participant_add(
	struct participant *participant, const struct lien_wire_item *items, unsigned count);
/* Replaces what a process is to move. 0, -ENOMEM, -E2BIG. */
int lien_participant_take(
	struct lien_transaction *t, unsigned index, const struct lien_plan_process *part);
/* Do they have a number in common? */
bool lien_numbers_meet(const struct numbers *a, const struct numbers *b);
int lien_transaction_index(const struct lien_transaction *t, uint32_t pid);
/* Sets the entry to the process that has the pid now. */
void lien_transaction_name(struct lien_transaction *t, unsigned index, uint32_t pid);
/* Also returns false if another program has its pid. */
bool lien_transaction_alive(const struct lien_transaction *t, unsigned index);

/* phases.c: goes through the phases. */
/* Begins a phase, or the first one after it that applies; after the last one, ends the transaction.
 */
void lien_phase_begin(struct lien_transaction *t, enum lien_phase phase);
void lien_phase_next(struct lien_transaction *t);
/* The process has finished this phase. */
void lien_phase_finished(struct lien_transaction *t, unsigned index);
/* Sends an order; a process that cannot be reached counts as gone. */
void lien_transaction_order_fds(struct lien_transaction *t, unsigned index, enum lien_phase phase,
	uint32_t flags, const void *body, size_t size, const int *fds, unsigned fds_count);
static inline void lien_transaction_order(struct lien_transaction *t, unsigned index,
	enum lien_phase phase, uint32_t flags, const void *body, size_t size)
{
	lien_transaction_order_fds(t, index, phase, flags, body, size, NULL, 0);
}
/* Records the first failure. An offload stops; a restore goes on, because the others need their
 * memory. pid: the process that it is about; 0: none. */
__attribute__((format(printf, 4, 5))) void lien_transaction_fail(
	struct lien_transaction *t, int error, uint32_t pid, const char *format, ...);
/* Takes a process out of the transaction. */
void lien_transaction_drop_out(struct lien_transaction *t, unsigned index);
void lien_transaction_end(struct lien_transaction *t);
bool lien_transaction_idle(const struct lien_transaction *t);
void lien_transaction_progress(struct lien_transaction *t);
/* LIEN_GO_ON_YES without other nodes. */
static inline enum lien_go_on lien_transaction_may_go_on(
	struct lien_transaction *t, enum lien_point point)
{
	return t->ops.may_go_on ? t->ops.may_go_on(t->ops.context, point) : LIEN_GO_ON_YES;
}
/* Performs a step at all gates. 0; -errno: failed; -EAGAIN: try again. */
int lien_gates_step(struct lien_transaction *t, enum lien_gate_step step);

/* transaction_rest.c */
/* Has the kernel make the gates, once, while the job runs on: it takes a grace period of its RCU,
 * one for all. */
void lien_gates_begin(struct lien_transaction *t);

/* transaction_list.c: what a restore brings back, and who takes part. */
/* Returns how many groups and tags a restore is limited to; 0: it is not. */
static inline unsigned lien_transaction_chosen(const struct lien_transaction *t)
{
	return t->result.groups_count + t->tags_count;
}
/* The flag of orders that mean only what LIST has chosen; 0: all is meant. */
uint32_t lien_part_flag(const struct lien_transaction *t);
/* A part is over. Returns true if the next one has begun. */
bool lien_restore_part_over(struct lien_transaction *t);
/* Can the two have memory in common? */
bool lien_restore_may_share(const struct lien_transaction *t, unsigned i, unsigned j);
/* Notes the room that a process reports. */
void lien_room_part(struct lien_transaction *t, unsigned index, const struct reply *reply);
/*
 * A process found too little room. Returns true if it is known where; the failure has then been
 * reported.
 */
bool lien_room_failed(struct lien_transaction *t, unsigned index);

#endif
