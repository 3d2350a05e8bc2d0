/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One offload or restore over several processes, all or nothing. A state machine without threads,
 * sockets or clocks: it sends orders through `send`, is told of replies, deaths and the time, and
 * calls `done` once. So a test can play all processes.
 *
 * Offload: STAGE, GATE, DRAIN, CHECK, SAVE, UNMAP, DROP, each in all processes before the next in
 * any: nothing is dropped anywhere until everything is saved everywhere. What has changed until the
 * job is at rest is staged anew before CHECK. A failure up to SAVE forgets what was staged; a later
 * one puts everything back.
 *
 * Restore: each process lists what it holds, and the processes that share some of it go together;
 * then CREATE, EXPORT and IMPORT run through each process as fast as its partners allow, and FINISH
 * when all have done what they could.
 *
 * Release: each process gives back the part of its host arena that nothing needs.
 *
 * Adoption: GATE, DRAIN, and at rest COUNT; where owners are looked for also MARKS, MARK, LOOK.
 * Then UNMARK, whatever comes, and OPEN.
 */
#ifndef LIEN_TRANSACTION_H
#define LIEN_TRANSACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/wire.h>
#include "agent/reread/adoption.h"
#include "agent/offload/plan.h"

struct lien_transaction;

enum lien_transaction_kind {
	LIEN_TRANSACTION_OFFLOAD,
	LIEN_TRANSACTION_RESTORE,
	LIEN_TRANSACTION_RELEASE, /* host arenas are given back */
	LIEN_TRANSACTION_ADOPTION,
};

/*
 * Each has a `const struct phase lien_phase_...` in a transaction_*.c, which says what processes are
 * asked in it and what follows; which ones a kind goes through, and in what order, stands in phases.c.
 */
#define LIEN_PHASES(X)                                                                             \
	X(STAGE, stage)                                                                            \
	X(GATE, gate) /* holding threads back, if that can be done */                              \
	X(DRAIN, drain)                                                                            \
	X(CHECK, check)                                                                            \
	X(SAVE, save)                                                                              \
	X(UNMAP, unmap)                                                                            \
	X(DROP, drop)                                                                              \
	X(DISCARD, discard) /* undoing what was staged */                                          \
	X(LIST, list)                                                                              \
	X(CREATE, create)                                                                          \
	X(EXPORT, export)                                                                          \
	X(IMPORT, import)                                                                          \
	X(FINISH, finish)                                                                          \
	X(RELEASE, release)                                                                        \
	X(ADOPT_COUNT, adopt_count) /* references */                                               \
	X(MARKS, marks)		    /* telling all of them to all */                               \
	X(MARK, mark)                                                                              \
	X(LOOK, look)                                                                              \
	X(UNMARK, unmark)                                                                          \
	X(OPEN, open)	/* letting them go, when everything is where it was */                     \
	X(ALIVE, alive) /* no phase: those that wait for others hear that we are there */

enum lien_phase {
#define LIEN_PHASE_NUMBER(NAME, name) LIEN_PHASE_##NAME,
	LIEN_PHASES(LIEN_PHASE_NUMBER)
#undef LIEN_PHASE_NUMBER
		LIEN_PHASE_COUNT,
};

const char *lien_phase_name(enum lien_phase phase);
/* The phases that a kind goes through, in order; LIEN_PHASE_COUNT ends them. */
const enum lien_phase *lien_transaction_phases(enum lien_transaction_kind kind);
/* Whether results tell how long it took in each process. */
bool lien_phase_is_timed(enum lien_phase phase);

enum lien_gate_step {
	LIEN_GATE_MAKE, /* calls are counted while they run */
	LIEN_GATE_SHUT, /* no more calls are let in */
	LIEN_GATE_OPEN, /* and gone */
	/* Nothing is changed: does it still hold everybody back since all were at rest? -EAGAIN and
	 * who was not. */
	LIEN_GATE_HOLDS,
};

/* Whom the gate is to let do the call that they are held at. */
typedef void lien_pass_fn(void *to, uint32_t pid, const uint32_t *tids, unsigned count);

struct lien_transaction_ops {
	/* Sends one order; body and fds are the callee's to copy before it returns. The order's
	 * reply comes back through lien_transaction_reply(). -errno: the process cannot be reached.
	 */
	int (*send)(void *context, uint32_t pid, const struct lien_wire_header *order,
		const void *body, const int *fds, unsigned fds_count);
	/* What the process is busy with that has not got its order yet; NULL: it has it. And: an
	 * order that it has not got yet is not sent any more. NULL: orders are sent at once. */
	const char *(*busy_with)(void *context, uint32_t pid);
	void (*cancel)(void *context, uint32_t pid);
	/* A phase has begun or a process finished it: for those who watch. */
	void (*progress)(void *context, enum lien_phase phase, unsigned done, unsigned of);
	/* The end, success or not. The transaction may be freed in it. */
	void (*done)(void *context, struct lien_transaction *transaction);
	/* Before a process is drained: NULL, or what it is doing that forbids it ("is capturing
	 * ..."). */
	const char *(*not_now)(void *context, uint32_t pid);
	/* When the process began that has this pid now (LIEN_START()): of one pid, each program is
	 * a process of its own. NULL: 0 for all. */
	uint64_t (*began)(void *context, uint32_t pid);
	/* Does this process run? (start 0: any of that pid.) Known for certain: memory whose owner
	 * does not is given up. */
	bool (*alive)(void *context, uint32_t pid, uint64_t start);
	/* A process's gate. NULL: nobody can be held back. 0, or -errno and why. */
	int (*gate)(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size);
	/* Communicators of the process that NCCL may be at work on in the background: it is to be
	 * asked whether they are idle. Fills at most `max`, returns how many. NULL: there are none.
	 */
	unsigned (*background)(void *context, uint32_t pid, uint64_t *comms, unsigned max);
	/* Handles that the process may have got without its control library, which must not know
	 * their values as names of other memory. The transaction frees the list. -ENOMEM. NULL:
	 * there are none. */
	int (*raw)(void *context, uint32_t pid, struct lien_wire_raw **list, unsigned *count);
	/* The library of the process that has such a handle. */
	const char *(*raw_to)(void *context, uint32_t pid, uint64_t handle);
	/* Is nobody in a call any more that may start work, in none of these processes? Calls pass
	 * for threads that others wait for: those are behind. `busy`: for each process, is a device
	 * of it? If not true: who is waited for. */
	bool (*at_rest)(void *context, const uint32_t *pids, const bool *busy, unsigned count,
		lien_pass_fn *pass, void *to, char *why, size_t size);
	/* All are at rest. 0: what is to be moved is still what was planned; 1: *plan is what it is
	 * now, valid until the transaction's end; -errno and why. NULL: it is as it was. */
	int (*replan)(void *context, const struct lien_plan **plan, char *why, size_t size);
	/* All are at rest: what is to be asked, valid until the transaction's end; answers are put
	 * into it. 0 or -errno and why. */
	int (*adopt)(void *context, struct lien_adoption **adoption, char *why, size_t size);
	/* All has been answered, and still nobody changes anything. NULL: nobody is told. */
	void (*adopted)(void *context);
	/* Can these two have memory in common, other than by their own word? NULL: any can. */
	bool (*may_share)(void *context, uint32_t pid, uint32_t other);
	/* Is there a process that can have memory in common with this one, and has not said yet
	 * what it holds? NULL: all have. */
	bool (*unheard)(void *context, uint32_t pid);
	/* May this process take part for who asked? NULL: any may. */
	bool (*allowed)(void *context, uint32_t pid);
	uint64_t (*now_ns)(void *context);
	/* The number that the node has for a device, or -1. NULL: it has none. */
	int (*gpu)(void *context, const uint8_t uuid[16]);
	/* Duplicates and closes descriptors: -errno or the new one. */
	int (*fd_dup)(int fd);
	void (*fd_close)(int fd);
	void *context;
};

struct lien_transaction_process {
	uint32_t pid;
	unsigned allocations, imports, mappings;
	uint64_t start;			     /* as ops->began said when it became one of these */
	uint64_t bytes;			     /* moved; release: given back */
	uint64_t discarded;		     /* dropped without being saved */
	uint64_t verified;		     /* restore: compared with what was saved */
	int64_t freed_bytes;		     /* device-wide, by the driver; offload only */
	uint64_t lost_mappings;		     /* restore: of memory that nobody has any more */
	uint64_t phase_ns[LIEN_PHASE_COUNT]; /* as the process measured it */
	bool failed;			     /* restore: something of it is still away */
	bool lends; /* it keeps what others may lack, for a restore to come */
};

struct lien_transaction_result {
	int error; /* 0, or -errno with one line in text */
	char text[400];
	char undo_text[200]; /* after that: why the undo failed, or what is lost */
	bool lost;	     /* restore: some memory is gone for good, */
	bool only_lost;	     /* and all else is back */
	bool all_back;	     /* a restore of everything succeeded: nobody holds anything any more */
	bool rolled_back;    /* it failed half-way and everything was put back */
	bool undo_failed;    /* it failed half-way and not everything could be put back */
	uint64_t ns;
	uint64_t pause_ns; /* adoption: while threads were held back */
	uint64_t match_ns; /* and of that, while owners were looked for */
	uint64_t bytes, discarded, verified;
	const struct lien_transaction_process *processes;
	unsigned processes_count;
};

/* Takes what it needs from the plan, which must have processes. `token_base` is added to every
 * token, so that tokens of different agents do not meet in one process. 0, -ENOMEM. */
int lien_transaction_offload(struct lien_transaction **out, const struct lien_plan *plan,
	uint64_t token_base, unsigned timeout_ms, const struct lien_transaction_ops *ops);
/* `all`: the processes that may hold something offloaded; each has to answer, for what one process
 * holds may be another's. `pids`: those to be restored, none: all. */
int lien_transaction_restore(struct lien_transaction **out, const uint32_t *all, unsigned all_count,
	const uint32_t *pids, unsigned pids_count, unsigned timeout_ms,
	const struct lien_transaction_ops *ops);
int lien_transaction_release(struct lien_transaction **out, const uint32_t *pids,
	unsigned pids_count, const struct lien_transaction_ops *ops);
/* Asks these processes what ops->adopt says. */
int lien_transaction_adopt(struct lien_transaction **out, const uint32_t *pids, unsigned pids_count,
	unsigned timeout_ms, const struct lien_transaction_ops *ops);
/* Before the start: an offload with LIEN_WIRE_VERIFY and LIEN_WIRE_ALL, a restore with
 * LIEN_WIRE_UNVERIFIED. */
void lien_transaction_set(struct lien_transaction *transaction, uint32_t flags);
/* Sends the first orders. Everything may end before this returns. */
void lien_transaction_start(struct lien_transaction *transaction);
void lien_transaction_free(struct lien_transaction *transaction);

/* A reply of a process; descriptors become the transaction's. */
void lien_transaction_reply(struct lien_transaction *transaction, uint32_t pid,
	const struct lien_wire_header *reply, const void *body, const int *fds, unsigned fds_count);
/* It has ended, or (ops->alive) can only not be reached any more. That is noted: what follows from it
 * is done by the next call of another kind, which is to come soon. */
void lien_transaction_gone(struct lien_transaction *transaction, uint32_t pid);
bool lien_transaction_must_react(const struct lien_transaction *transaction);
void lien_transaction_react(struct lien_transaction *transaction);
/* To be called from time to time: ends waits that have lasted too long. */
void lien_transaction_tick(struct lien_transaction *transaction);

const struct lien_transaction_result *lien_transaction_result(
	const struct lien_transaction *transaction);
/* At the end: calls `each` for every mapping of imports that are gone for good. */
void lien_transaction_lost(const struct lien_transaction *transaction,
	void (*each)(void *context, uint32_t pid, uint64_t va), void *context);
enum lien_transaction_kind lien_transaction_kind(const struct lien_transaction *transaction);
/* "offload", "restore", "release", "adoption". */
const char *lien_transaction_kind_name(enum lien_transaction_kind kind);
enum lien_phase lien_transaction_phase(const struct lien_transaction *transaction);

#endif
