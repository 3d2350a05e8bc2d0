/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One offload or restore over several processes, all or nothing. It is a state machine without
 * threads, sockets or clocks: it sends orders through `send`, is called with replies, deaths and
 * the time, and calls `done` once. So a test can play all processes.
 *
 * Offload: STAGE, GATE, DRAIN, CHECK, SAVE, UNMAP, DROP, each in all processes before the next in
 * any: nothing is dropped anywhere until everything is saved everywhere. Changes up to the moment
 * at which the job is at rest are staged anew before CHECK. A failure up to SAVE discards what was
 * staged; a later one puts everything back.
 *
 * Restore: each process lists what it holds, and the processes that share memory go together. Then
 * CREATE, EXPORT and IMPORT run through each process as fast as its partners allow, and FINISH
 * follows when all have done what they could.
 *
 * Release: each process releases the part of its host arena that nothing needs.
 *
 * Adoption: GATE, DRAIN, and at rest COUNT; where owners are searched for also MARKS, MARK, LOOK.
 * Then always UNMARK, and OPEN.
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
	LIEN_TRANSACTION_RELEASE, /* releases host arenas */
	LIEN_TRANSACTION_ADOPTION,
};

/*
 * Each phase has a `const struct phase lien_phase_...` in a transaction_*.c, which says what
 * processes are asked in it and what follows. phases.c has the phases of each kind, and their
 * order.
 */
#define LIEN_PHASES(X)                                                                             \
	X(STAGE, stage)                                                                            \
	X(GATE, gate) /* holds threads back, if the kernel can do that */                          \
	X(DRAIN, drain)                                                                            \
	X(CHECK, check)                                                                            \
	X(SAVE, save)                                                                              \
	X(UNMAP, unmap)                                                                            \
	X(DROP, drop)                                                                              \
	X(DISCARD, discard) /* undoes what was staged */                                           \
	X(LIST, list)                                                                              \
	X(CREATE, create)                                                                          \
	X(EXPORT, export)                                                                          \
	X(IMPORT, import)                                                                          \
	X(FINISH, finish)                                                                          \
	X(RELEASE, release)                                                                        \
	X(ADOPT_COUNT, adopt_count) /* counts references */                                        \
	X(MARKS, marks)		    /* sends all marks to all processes */                         \
	X(MARK, mark)                                                                              \
	X(LOOK, look)                                                                              \
	X(UNMARK, unmark)                                                                          \
	X(OPEN, open)	/* lets threads go when everything is where it was */                      \
	X(ALIVE, alive) /* not a phase: tells processes that wait for others that we are alive */

enum lien_phase {
#define LIEN_PHASE_NUMBER(NAME, name) LIEN_PHASE_##NAME,
	LIEN_PHASES(LIEN_PHASE_NUMBER)
#undef LIEN_PHASE_NUMBER
		LIEN_PHASE_COUNT,
};

const char *lien_phase_name(enum lien_phase phase);
/* Returns the phases of a kind in order, ended by LIEN_PHASE_COUNT. */
const enum lien_phase *lien_transaction_phases(enum lien_transaction_kind kind);
/* Do results show how long it took in each process? */
bool lien_phase_is_timed(enum lien_phase phase);

enum lien_gate_step {
	LIEN_GATE_MAKE, /* counts calls while they run */
	LIEN_GATE_SHUT, /* lets no more calls in */
	LIEN_GATE_OPEN, /* lets all calls in, and is removed */
	/* Changes nothing: has the gate held every thread since all were at rest? -EAGAIN, and
	 * which thread it has not held. */
	LIEN_GATE_HOLDS,
};

/* Receives the threads that the gate is to let through the call they are held at. */
typedef void lien_pass_fn(void *to, uint32_t pid, const uint32_t *tids, unsigned count);

struct lien_transaction_ops {
	/* Sends one order; copies body and fds before it returns. The reply comes through
	 * lien_transaction_reply(). -errno: the process cannot be reached. */
	int (*send)(void *context, uint32_t pid, const struct lien_wire_header *order,
		const void *body, const int *fds, unsigned fds_count);
	/* busy_with returns what occupies a process that has not got its order yet; NULL: it has
	 * it. cancel drops an order that has not been sent yet. Both NULL: orders are sent at once.
	 */
	const char *(*busy_with)(void *context, uint32_t pid);
	void (*cancel)(void *context, uint32_t pid);
	/* Reports that a phase has begun or that a process has finished it. */
	void (*progress)(void *context, enum lien_phase phase, unsigned done, unsigned of);
	/* Reports the end, success or not. It may free the transaction. */
	void (*done)(void *context, struct lien_transaction *transaction);
	/* Called before a process is drained: returns NULL, or the activity that forbids it ("is
	 * capturing ..."). */
	const char *(*not_now)(void *context, uint32_t pid);
	/* Returns when the process that has this pid now began (LIEN_START()): each program with
	 * the same pid is a process of its own. NULL: 0 for all. */
	uint64_t (*began)(void *context, uint32_t pid);
	/* Does this process run? (start 0: any process with that pid.) The answer must be certain:
	 * the memory of an owner that does not run is given up. */
	bool (*alive)(void *context, uint32_t pid, uint64_t start);
	/*
	 * Performs a step at a process's gate. NULL: no thread can be held back. 0, or -errno and
	 * why.
	 */
	int (*gate)(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size);
	/* Lists communicators of the process on which NCCL may be at work in the background, to be
	 * asked whether they are idle. Fills at most `max`, returns the count. NULL: there are
	 * none. */
	unsigned (*background)(void *context, uint32_t pid, uint64_t *comms, unsigned max);
	/* Lists handles that the process may have got without its control library; that must not
	 * know their values as names of other memory. The transaction frees the list. -ENOMEM.
	 * NULL: there are none. */
	int (*raw)(void *context, uint32_t pid, struct lien_wire_raw **list, unsigned *count);
	/* Returns the library of the process that has such a handle. */
	const char *(*raw_to)(void *context, uint32_t pid, uint64_t handle);
	/* Returns true when no thread of these processes is in a call that may start work.
	 * Otherwise lets in, with `pass`, the threads that others wait for. `busy`: for each
	 * process, whether one of its devices is busy. On false, `why` says who is waited for. */
	bool (*at_rest)(void *context, const uint32_t *pids, const bool *busy, unsigned count,
		lien_pass_fn *pass, void *to, char *why, size_t size);
	/* Called when all are at rest. 0: what is to be moved is unchanged; 1: *plan is the new
	 * plan, valid until the transaction ends; -EINPROGRESS: ask again, if they still are;
	 * other -errno and why. NULL: unchanged. */
	int (*replan)(void *context, const struct lien_plan **plan, char *why, size_t size);
	/* Called when all are at rest. Returns what to ask, valid until the transaction ends; the
	 * answers are put into it. 0 or -errno and why. */
	int (*adopt)(void *context, struct lien_adoption **adoption, char *why, size_t size);
	/* Called when everything has been answered, and still nothing changes. May be NULL. */
	void (*adopted)(void *context);
	/*
	 * Can these two have memory in common, on other evidence than their own word? NULL: any two
	 * can.
	 */
	bool (*may_share)(void *context, uint32_t pid, uint32_t other);
	/* Is there a process that may share memory with this one, and has not yet said what it
	 * holds? NULL: there is none. */
	bool (*unheard)(void *context, uint32_t pid);
	/* May this process take part in a transaction of this client? NULL: any may. */
	bool (*allowed)(void *context, uint32_t pid);
	uint64_t (*now_ns)(void *context);
	/* Returns the node's number for a device, or -1. NULL: it has none. */
	int (*gpu)(void *context, const uint8_t uuid[16]);
	/* Duplicate and close descriptors: -errno or the new one. */
	int (*fd_dup)(int fd);
	void (*fd_close)(int fd);
	void *context;
};

struct lien_transaction_process {
	uint32_t pid;
	unsigned allocations, imports, mappings;
	uint64_t start;			     /* what ops->began returned when it was added */
	uint64_t bytes;			     /* moved; release: released */
	uint64_t discarded;		     /* dropped without being saved */
	uint64_t verified;		     /* restore: compared with what was saved */
	int64_t freed_bytes;		     /* device-wide, by the driver; offload only */
	uint64_t lost_mappings;		     /* restore: of memory that no process has any more */
	uint64_t phase_ns[LIEN_PHASE_COUNT]; /* as measured by the process */
	bool failed;			     /* restore: part of its memory is still away */
	bool lends; /* keeps memory that others may lack, for a later restore */
};

struct lien_transaction_result {
	int error; /* 0, or -errno with one line in text */
	char text[400];
	char undo_text[200]; /* further text: why the undo failed, or what is lost */
	bool lost;	     /* restore: some memory is gone for good, */
	bool only_lost;	     /* and everything else is back */
	/* a restore of everything succeeded: no process holds anything any more */
	bool all_back;
	bool rolled_back; /* failed half-way, and everything was put back */
	bool undo_failed; /* failed half-way, and not everything could be put back */
	uint64_t ns;
	uint64_t pause_ns; /* adoption: time that threads were held */
	uint64_t match_ns; /* part of that in which owners were searched for */
	uint64_t bytes, discarded, verified;
	const struct lien_transaction_process *processes;
	unsigned processes_count;
};

/* Copies what it needs from the plan, which must have processes. Adds `token_base` to every token,
 * so that tokens of different agents do not collide in one process. 0, -ENOMEM. */
int lien_transaction_offload(struct lien_transaction **out, const struct lien_plan *plan,
	uint64_t token_base, unsigned timeout_ms, const struct lien_transaction_ops *ops);
/* `all`: the processes that may hold something offloaded; each has to answer, because what one
 * process holds may be another's. `pids`: the processes to restore, none: all. */
int lien_transaction_restore(struct lien_transaction **out, const uint32_t *all, unsigned all_count,
	const uint32_t *pids, unsigned pids_count, unsigned timeout_ms,
	const struct lien_transaction_ops *ops);
int lien_transaction_release(struct lien_transaction **out, const uint32_t *pids,
	unsigned pids_count, const struct lien_transaction_ops *ops);
/* Asks these processes what ops->adopt returns. */
int lien_transaction_adopt(struct lien_transaction **out, const uint32_t *pids, unsigned pids_count,
	unsigned timeout_ms, const struct lien_transaction_ops *ops);
/* Call this before the start: an offload takes LIEN_WIRE_VERIFY and LIEN_WIRE_ALL, a restore
 * LIEN_WIRE_UNVERIFIED. */
void lien_transaction_set_flags(struct lien_transaction *transaction, uint32_t flags);
/* Sends the first orders. The transaction may end before this returns. */
void lien_transaction_start(struct lien_transaction *transaction);
void lien_transaction_free(struct lien_transaction *transaction);

/* Handles a process's reply; the transaction takes over the descriptors. */
void lien_transaction_reply(struct lien_transaction *transaction, uint32_t pid,
	const struct lien_wire_header *reply, const void *body, const int *fds, unsigned fds_count);
/* The process has ended, or (ops->alive) can no longer be reached. This only notes it: the next
 * call of another kind acts on it, and must come soon. */
void lien_transaction_gone(struct lien_transaction *transaction, uint32_t pid);
bool lien_transaction_must_react(const struct lien_transaction *transaction);
void lien_transaction_react(struct lien_transaction *transaction);
/* Call this regularly: tells processes that we are alive, and ends waits that have lasted too long.
 * It notes the rest, as above. */
void lien_transaction_tick(struct lien_transaction *transaction);

const struct lien_transaction_result *lien_transaction_result(
	const struct lien_transaction *transaction);
/* Call this at the end: calls `each` for every mapping of an import that is gone for good. */
void lien_transaction_lost(const struct lien_transaction *transaction,
	void (*each)(void *context, uint32_t pid, uint64_t va), void *context);
enum lien_transaction_kind lien_transaction_kind(const struct lien_transaction *transaction);
/* "offload", "restore", "release", "adoption". */
const char *lien_transaction_kind_name(enum lien_transaction_kind kind);
enum lien_phase lien_transaction_phase(const struct lien_transaction *transaction);

#endif
