/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the transaction's own files. Nobody else includes this. */
#ifndef LIEN_TRANSACTION_INTERNAL_H
#define LIEN_TRANSACTION_INTERNAL_H

#include "agent/offload/transaction.h"

struct share_in {
	uint64_t token;
	int fd;
};

/* Of an import, in a restore or an undo. */
enum import_state {
	IMPORT_MISSING,
	IMPORT_ARRIVED, /* it is mapped again */
	IMPORT_NAMED,	/* the process is told that it will never be there again, */
	IMPORT_LOST,	/* and has answered */
};

struct participant {
	struct lien_wire_item *items; /* sorted by token and index */
	enum import_state *imports;   /* parallel to them: of first items */
	unsigned named;		      /* so many items have been looked at for what is lost */
	uint32_t lost_owner;	      /* of such a one, */
	bool owner_lives;	      /* which runs, and has it no more */
	unsigned count, room;
	unsigned staged; /* items sent so far; before the first of them, */
	bool staging;
	struct lien_wire_raw *raw; /* all of these */
	unsigned raw_count, raw_sent;
	uint32_t seq;	       /* of the order under way; 0: none */
	enum lien_phase phase; /* of that order */
	uint64_t t_sent;
	bool member;   /* takes part; a restore finds out who does */
	bool gone;     /* dead, or it did not answer */
	bool stuck;    /* it did not answer */
	bool withheld; /* a restore cannot move it now */
	bool finished; /* the present phase; a restore: all of it */
	uint64_t free_before;
	bool created, exported;
	bool filled;			/* its copies have arrived, or failed; */
	bool unfilled;			/* they have failed */
	unsigned part, asked, answered; /* of an adoption, in the present phase: entries */
	bool busy;			/* when it was drained last, and why */
	char busy_text[80];
	struct share_in *shares; /* exports of others that wait to be imported here */
	unsigned shares_count, shares_room;
	unsigned batch;					/* shares in the import under way */
	struct lien_wire_room rooms[LIEN_WIRE_DEVICES]; /* what its devices need, and have */
	unsigned rooms_count;
};

struct lien_transaction {
	struct lien_transaction_ops ops;
	struct lien_transaction_result result;
	struct lien_transaction_process *processes;
	struct participant *participants; /* parallel to processes */
	unsigned count;
	uint32_t *pids; /* restore: those asked for */
	unsigned pids_count;
	enum lien_transaction_kind kind;
	struct lien_adoption *adoption; /* of an adoption, at rest */
	bool restoring;			/* a restore, or an offload that is being undone */
	bool stopping;			/* an offload failed: no new orders, then discard or undo */
	uint64_t t_making;		/* since when gates have been made; 0: not yet */
	bool finishing;			/* a restore: nothing more will be exported or imported */
	bool failing;			/* while something is put back: not by a loss alone */
	bool noted; /* somebody is gone, and nothing has followed from that yet */
	bool ended;
	enum lien_phase phase;
	enum lien_phase entering; /* begins as soon as its enter() lets it; LIEN_PHASE_COUNT: none */
	unsigned timeout_ms;
	uint32_t flags; /* of STAGE and SAVE; of CREATE and FINISH */
	uint64_t token_base;
	uint64_t generation; /* of an offload: an undo means its items and no earlier one's */
	uint64_t t_start;
	uint64_t t_shut;     /* adoption: when the gate was */
	uint64_t t_marks;    /* when owners began to be looked for */
	uint64_t t_drain;    /* when the draining began */
	bool restaged;	     /* at rest, after which nothing changes */
	bool passed;	     /* somebody was let in, before this round of draining */
	bool rested;	     /* before this round of draining nobody was in a call */
	uint64_t t_again;    /* when the next one begins */
	uint32_t next_seq;
};

int lien_participant_sort(struct participant *participant);
struct lien_wire_item *lien_participant_find(const struct participant *participant, uint64_t token);
int lien_participant_add(
	struct participant *participant, const struct lien_wire_item *items, unsigned count);

/* A message that answers an order. The descriptors are closed by the caller. */
struct reply {
	const struct lien_wire_header *header;
	const void *body;
	const int *fds;
	unsigned fds_count;
};

/* A phase: what each process that takes part is asked, and what follows from the answers. All but
 * the name and the type may be left out. */
struct phase {
	const char *name;	  /* in messages, progress and results */
	enum lien_wire_type type; /* of its orders */
	/* The longest wait: this, and this much for each MiB and item that has to be moved; */
	unsigned limit_ms, limit_ms_per_mib, limit_ms_per_item;
	bool waits_for_rest; /* and as long as the job may take to come to rest. */
	bool timed;	     /* results tell how long it took in each process */
	bool held;	     /* those who have no order hear that we are still there */
	bool gated;	     /* nobody may have come through a gate by its end */
	bool spares_dead;    /* a process that has ended is no failure */
	/* Else it is skipped. */
	bool (*applies)(const struct lien_transaction *t);
	/* Before the first order. False: it has failed, or is to be asked again with the next tick.
	 */
	bool (*enter)(struct lien_transaction *t);
	/* The first order to a process; one without a body if left out. A process that is given
	 * none has finished. */
	void (*order)(struct lien_transaction *t, unsigned index);
	/* What its orders' arguments are; the transaction's generation if left out. */
	void (*arguments)(
		const struct lien_transaction *t, struct lien_wire_header *order, const void *body);
	/* An answer, or a part of one. Left out: with the last one the process has finished. */
	void (*reply)(struct lien_transaction *t, unsigned index, const struct reply *reply);
	/* Before that, if the answer is an error. True: it is none, or has been told. */
	bool (*excuse)(
		struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply);
	/* After any change: gives orders to those who have none, and begins what follows. Left out:
	 * there are none until all have answered; then `next`, or `stop`. */
	void (*step)(struct lien_transaction *t);
	/* Begins what follows; the next phase of the kind if left out. */
	void (*next)(struct lien_transaction *t);
	/* The same after a failure; what the kind does if left out (phases.c). */
	void (*stop)(struct lien_transaction *t);
};

#define LIEN_PHASE_ROW(NAME, name) extern const struct phase lien_phase_##name;
LIEN_PHASES(LIEN_PHASE_ROW)
#undef LIEN_PHASE_ROW

/* phases.c: goes through them. */
void lien_phase_begin(struct lien_transaction *t, enum lien_phase phase);
/* Begins the kind's next phase that applies; after the last one the transaction ends. */
void lien_phase_next(struct lien_transaction *t);
/* All are at rest: what the kind does about it. */
void lien_phase_rest(struct lien_transaction *t);
/* The process has nothing more to do in this phase. */
void lien_phase_finished(struct lien_transaction *t, unsigned index);
/* Sends an order; a process that cannot be reached counts as gone. */
void lien_transaction_order(struct lien_transaction *t, unsigned index, enum lien_phase phase,
	uint32_t flags, const void *body, size_t size, const int *fds, unsigned fds_count);
/* Keeps the first failure. An offload stops; a restore goes on, for the others need their memory.
 */
__attribute__((format(printf, 3, 4))) void lien_transaction_fail(
	struct lien_transaction *t, int error, const char *format, ...);
/* A process takes no further part. */
void lien_transaction_drop_out(struct lien_transaction *t, unsigned index);
void lien_transaction_end(struct lien_transaction *t);
bool lien_transaction_idle(const struct lien_transaction *t);
void lien_transaction_progress(struct lien_transaction *t);

/* transaction.c: its processes. */
int lien_transaction_index(const struct lien_transaction *t, uint32_t pid);
/* Makes this process the one that has the pid now. */
void lien_transaction_name(struct lien_transaction *t, unsigned index, uint32_t pid);
/* False, too, if another program has its pid. */
bool lien_transaction_alive(const struct lien_transaction *t, unsigned index);
int lien_participant_sort(struct participant *participant);
struct lien_wire_item *lien_participant_find(const struct participant *participant, uint64_t token);
int lien_participant_add(
	struct participant *participant, const struct lien_wire_item *items, unsigned count);
/* What a process is to move, instead of what it was before. 0, -ENOMEM, -E2BIG. */
int lien_participant_take(
	struct lien_transaction *t, unsigned index, const struct lien_plan_process *part);

/* transaction_rest.c: the job comes to rest, and goes on. */
/* A step of all gates. 0, -errno: it has failed; -EAGAIN: it is to be tried again. */
int lien_gates_step(struct lien_transaction *t, enum lien_gate_step step);
/* Lets all threads go that are held back, then ends. */
void lien_transaction_open(struct lien_transaction *t);

/* transaction_offload.c: at rest, and a failure before anything was taken away. */
void lien_offload_rest(struct lien_transaction *t);
void lien_offload_discard(struct lien_transaction *t);

/* Is there room for what is to be made again? (transaction_room.c) */
void lien_room_reply(
	struct participant *participant, const struct lien_wire_header *reply, const void *body);
/* Processes for whose memory a device has too little take no part, nor do those who share with
 * them: nothing is made for them. */
void lien_room_check(struct lien_transaction *t);
/* A process found too little: true if it is known where, and told. */
bool lien_room_failed(struct lien_transaction *t, unsigned index);
/* Whether two processes hold parts of the same memory. */
bool lien_restore_related(const struct lien_transaction *t, unsigned from, unsigned to);

#endif
