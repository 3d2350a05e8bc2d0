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
	bool finished; /* the present phase (offload), or all of it (restore) */
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
	bool making;			/* the gate of a process could not be made yet; */
	uint64_t t_making;		/* since when */
	bool finishing;			/* a restore: nothing more will be exported or imported */
	bool failing;			/* while something is put back: not by a loss alone */
	bool ended;
	enum lien_phase phase;
	unsigned timeout_ms;
	uint32_t flags; /* of STAGE and SAVE; of CREATE and FINISH */
	uint64_t token_base;
	uint64_t generation; /* of an offload: an undo means its items and no earlier one's */
	uint64_t t_start;
	uint64_t t_shut;     /* adoption: when the gate was */
	uint64_t t_marks;    /* when owners began to be looked for */
	uint64_t t_drain;    /* when the draining began */
	bool untouched_only; /* opening, when all has gone well */
	bool restaged;	     /* at rest, after which nothing changes */
	bool passed;	     /* somebody was let in, before this round of draining */
	bool rested;	     /* before this round of draining nobody was in a call */
	bool waiting;	     /* for the next one, */
	uint64_t t_again;    /* which begins then */
	uint32_t next_seq;
};

int lien_participant_sort(struct participant *participant);
struct lien_wire_item *lien_participant_find(const struct participant *participant, uint64_t token);
int lien_participant_add(
	struct participant *participant, const struct lien_wire_item *items, unsigned count);

/* Makes this process the one that has the pid now. */
void lien_transaction_name(struct lien_transaction *t, unsigned index, uint32_t pid);
/* False, too, if another program has its pid. */
bool lien_transaction_alive(const struct lien_transaction *t, unsigned index);
/* Sends an order; a process that cannot be reached counts as gone. */
void lien_transaction_order(struct lien_transaction *t, unsigned index, enum lien_phase phase,
	uint32_t flags, const void *body, size_t size, const int *fds, unsigned fds_count);
/* Keeps the first failure. An offload stops; a restore goes on, for the others need their memory.
 */
__attribute__((format(printf, 3, 4))) void lien_transaction_fail(
	struct lien_transaction *t, int error, const char *format, ...);
void lien_transaction_end(struct lien_transaction *t);
/* Lets all threads go that are held back, then ends. */
void lien_transaction_open(struct lien_transaction *t);
bool lien_transaction_idle(const struct lien_transaction *t);
void lien_transaction_progress(struct lien_transaction *t);

/* Restore's part (transaction_restore.c). */
void lien_restore_begin(struct lien_transaction *t);
void lien_restore_listed(struct lien_transaction *t);
void lien_restore_reply(struct lien_transaction *t, unsigned index,
	const struct lien_wire_header *reply, const void *body, const int *fds, unsigned fds_count);
void lien_restore_advance(struct lien_transaction *t);

/* Begins a phase in all processes that take part; with no order in those that have nothing to do.
 */
void lien_transaction_phase_begin(struct lien_transaction *t, enum lien_phase phase);

/* Adoption's part (transaction_adopt.c), from the moment when all are at rest. */
void lien_adopt_rest(struct lien_transaction *t);
void lien_adopt_order(struct lien_transaction *t, unsigned index, enum lien_phase phase);
void lien_adopt_reply(struct lien_transaction *t, unsigned index,
	const struct lien_wire_header *reply, const void *body);
void lien_adopt_advance(struct lien_transaction *t);

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
