/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One offload or restore over several processes, all or nothing. It is a state machine without
 * threads, sockets or clocks: it sends orders through `send`, is called with replies, deaths and
 * the time, and calls `done` once. So a test can play all processes.
 *
 * Offload: STAGE, GATE, DRAIN, CHECK, SAVE, UNMAP, DROP, each in all processes before the next in
 * any: nothing is dropped anywhere until everything is saved everywhere. With other nodes, it waits
 * for them before STAGE, at rest, and in AGREE, after SAVE; a restore in AGREE, before OPEN.
 * Changes up to the moment at which the job is at rest are staged anew before CHECK. A failure up
 * to SAVE discards what was staged; a later one puts everything back.
 *
 * Restore: each process lists what it holds, and the processes that share memory go together. Then
 * CREATE, EXPORT and IMPORT run through each process as fast as its partners allow, and FINISH
 * follows when all have done what they could. In parts (transaction_list.c), all of that is done
 * for one part after the other.
 *
 * Release: each process releases the part of its host arena that nothing needs.
 *
 * Adoption: GATE, DRAIN, and at rest COUNT; where owners are searched for also MARKS, MARK,
 * MARK_UNKNOWN, LOOK. Then always UNMARK, and OPEN.
 */
#ifndef LIEN_TRANSACTION_H
#define LIEN_TRANSACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/wire.h>
#include "agent/nodes/part.h"
#include "agent/reread/adoption.h"
#include "agent/plan/plan.h"

struct lien_transaction;
struct lien_transaction_result;

enum lien_transaction_kind {
	LIEN_TRANSACTION_OFFLOAD,
	LIEN_TRANSACTION_RESTORE,
	LIEN_TRANSACTION_RELEASE, /* releases host arenas */
	LIEN_TRANSACTION_ADOPTION,
	LIEN_TRANSACTION_KINDS,
};

/*
 * Each phase has a `const struct phase lien_phase_...` in a transaction_*.c, which says what
 * processes are asked in it and what follows. transaction.c has the phases of each kind, and their
 * order.
 */
#define LIEN_PHASES(X)                                                                             \
	X(STAGE, stage)                                                                            \
	X(GATE, gate) /* holds threads back, if the kernel can do that */                          \
	X(DRAIN, drain)                                                                            \
	X(CHECK, check)                                                                            \
	X(SAVE, save)                                                                              \
	X(AGREE, agree) /* waits for the other nodes */                                            \
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
	X(MARK_UNKNOWN, mark_unknown) /* what no mark was found in */                              \
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
/* Does the kind have this phase, and do results show how long it took in each process? */
bool lien_phase_is_timed(enum lien_transaction_kind kind, enum lien_phase phase);

enum lien_gate_step {
	/* Begins to make it, so that those of all processes are made at once. Need not succeed:
	 * MAKE says what is wrong. */
	LIEN_GATE_BEGIN,
	LIEN_GATE_MAKE, /* counts calls while they run. -ETIMEDOUT: call again soon */
	/* Lets in no more calls in which ranks may wait for each other. Others go on, so that those
	 * that are behind get there, unless an earlier transaction holds them. May come again after
	 * SHUT. */
	LIEN_GATE_LEVEL,
	LIEN_GATE_SHUT, /* lets no more calls in */
	LIEN_GATE_OPEN, /* lets all calls in, and is removed */
	/* The offload has failed, and memory of an earlier one is away: holds what it held before,
	 * and lets other threads go on. */
	LIEN_GATE_BACK,
	/* Changes nothing: has the gate held every thread since all were at rest? -EAGAIN, and
	 * which thread it has not held. */
	LIEN_GATE_HOLDS,
};

/* Receives the threads that the gate is to let through the call they are held at. */
typedef void lien_pass_fn(void *to, uint32_t pid, const uint32_t *tids, unsigned count);

enum lien_rest {
	LIEN_REST_FAR,	/* somebody is in a call, or others wait for somebody */
	LIEN_REST_NEAR, /* the same, but it will not take long */
	/* Step LEVEL is due again: somebody is held at a call that it does not hold, and must go
	   on. */
	LIEN_REST_UNEVEN,
	LIEN_REST_LEVEL,   /* as far as can be told, nobody waits for a call that is held */
	LIEN_REST_REACHED, /* no thread is in a call that may start work */
};

/* Looks in a row that let in threads of one process alone, call by call (lien_targets_guess()). */
struct lien_singly {
	uint32_t pid;  /* 0: none, or several were */
	unsigned more; /* calls that the last look allowed it besides: twice as many each time */
};

/* A job that is being brought to rest. What a look leaves as it is lasts until the next one. */
struct lien_resting {
	const uint32_t *pids; /* sorted */
	const bool *busy;     /* for each process: one of its devices is, if they were asked: */
	bool unasked;	      /* they were not: any may be busy */
	bool counted;	      /* result: counts show who is behind */
	/* Result: devices are to be asked in the way that keeps nobody from launching, but would
	 * spoil a capture. Either it spoils none, because all that have begun are known; or
	 * somebody may have to launch work, whatever the counts say: some have graphs, whose
	 * collectives nobody counts; or a thread may be in a group of NCCL's that nobody saw begin,
	 * whose calls start with its end. */
	bool launches;
	bool begins;	     /* result: a thread is, or is let, in a call that begins a capture */
	bool idle;	     /* result: threads of a process are held whose devices are all idle */
	const bool *working; /* and: NCCL is, in threads of its own (non-blocking communicators) */
	unsigned count;
	bool disbelieved;      /* counts that show who is behind have led nowhere */
	bool levelling;	       /* the gates have taken step LEVEL, and not yet SHUT */
	uint64_t ns;	       /* since then, the last time */
	unsigned levels;       /* how often they have, before that */
	uint64_t round_ns;     /* since they were asked whether they are busy */
	unsigned passes;       /* threads that were let in; at_rest adds to it */
	unsigned guesses;      /* how often threads were let in on suspicion; at_rest adds to it */
	unsigned busy_guesses; /* those among them of threads of busy processes */
	struct lien_singly singly; /* at_rest keeps it up to date */
	lien_pass_fn *pass;	   /* takes the threads that others wait for, with this: */
	void *to;
	char *why;    /* buffer: unless at rest, who is waited for */
	uint32_t who; /* the process that this names; 0: none */
	size_t size;
};

#define LIEN_REMEDY 48

struct lien_transaction_ops {
	/* Sends one order; copies body and fds before it returns. The reply comes through
	 * lien_transaction_reply(). -errno: the process cannot be reached. */
	int (*send)(void *context, uint32_t pid, const struct lien_wire_header *order,
		const void *body, const int *fds, unsigned fds_count);
	/* silent writes why a process has not answered, as a clause; "": nobody knows. cancel drops
	 * an order that has not been sent yet. Both may be NULL. */
	void (*silent)(void *context, uint32_t pid, char *why, size_t size);
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
	/* Is this process stopped, so that it takes no orders, and what lets it go on? NULL: none
	 * is. */
	bool (*stopped)(void *context, uint32_t pid, char remedy[static LIEN_REMEDY]);
	/*
	 * Performs a step at a process's gate. NULL: no thread can be held back. 0, or -errno and
	 * why.
	 */
	int (*gate)(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size);
	/* Lists communicators of the process on which NCCL may be at work in the background, to be
	 * asked whether they are idle. Fills at most `max`, returns the count. NULL: there are
	 * none. */
	unsigned (*background)(void *context, uint32_t pid, uint64_t *comms, unsigned max);
	/* Lists handles that the process may have got without its control library; the library must
	 * not know their values as names of other memory. The transaction frees the list. -ENOMEM.
	 * NULL: there are none. */
	int (*raw)(void *context, uint32_t pid, struct lien_wire_raw **list, unsigned *count);
	/* Returns the library of the process that has such a handle. */
	const char *(*raw_to)(void *context, uint32_t pid, uint64_t handle);
	/* Called when a process has staged: it has `none` of its devices' primary contexts to copy
	 * with. May be NULL. */
	void (*no_context)(void *context, uint32_t pid, bool none);
	/* Looks at the processes, and lets those threads in that others wait for. Never returns
	 * LIEN_REST_REACHED while `levelling`. */
	enum lien_rest (*at_rest)(void *context, struct lien_resting *resting);
	/* Called when these are at rest: all calls that they have begun are done. The pids are
	 * sorted. May be NULL. */
	void (*rested)(void *context, const uint32_t *pids, unsigned count);
	/* Called when all are at rest. 0: what is to be moved is unchanged; 1: *plan is the new
	 * plan, valid until the transaction ends; -EINPROGRESS: ask again, if they still are;
	 * other -errno, why and whose. NULL: unchanged. */
	int (*replan)(void *context, const struct lien_plan **plan, struct lien_blame *blame,
		char *why, size_t size);
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
	/*
	 * A restore in parts: fills in the groups of the part that comes next, at most `max`, and
	 * returns their number; 0: everything that is left comes together, and why, if there should
	 * have been more parts. `result`: .parts before this one, .groups of the restore, and the
	 * processes that take part or may.
	 */
	unsigned (*next_part)(void *context, const struct lien_transaction_result *result,
		uint64_t *groups, unsigned max, char *why, size_t size);
	/* A part is over in all processes, but for what has failed in those that the result so far
	 * calls failed: threads that wait for nothing else can go on. */
	void (*part_back)(void *context, const struct lien_transaction *transaction);
	/* Is there a process that may hold what has this token (or team) as this one does, and has
	 * not yet said what it holds? NULL: there is none. */
	bool (*unheard)(void *context, uint32_t pid, uint64_t token);
	/* May it go on, as far as other nodes are concerned? Each time that something may have
	 * changed it is asked again. NULL: there are no other nodes. */
	enum lien_go_on (*may_go_on)(void *context, enum lien_point point);
	/* May this process take part in a transaction of this client? NULL: any may. */
	bool (*allowed)(void *context, uint32_t pid);
	uint64_t (*now_ns)(void *context);
	/* Returns the node's number for a device, or -1. NULL: it has none. */
	int (*gpu)(void *context, const uint8_t uuid[16]);
	/* How many exported descriptors may wait here for their importers: before more are asked
	 * for, these have to be taken. One process's come together, however many. 0: no limit. */
	unsigned fds_max;
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
	struct lien_blame blame;
	char text[400];
	char undo_text[200]; /* further text: why the undo failed, or what is lost */
	bool lost;	     /* restore: some memory is gone for good, */
	bool only_lost;	     /* and everything else is back */
	bool only_aside;     /* restore: it failed only because of lien_transaction_set_aside() */
	/* a restore of everything succeeded: no process holds anything any more */
	bool all_back;
	bool chosen;		/* a restore for some groups: it says nothing about the rest */
	const uint64_t *groups; /* these; none: all */
	unsigned groups_count;
	bool rolled_back; /* failed half-way, and everything was put back */
	bool undo_failed; /* failed half-way, and not everything could be put back */
	uint64_t ns;
	uint64_t gate_ns; /* offload: from the start until its calls could be held */
	uint64_t rest_ns; /* offload: from the start until the job was at rest */
	/* Restore in parts: from the start until the first part was back and its threads could go
	 * on (0: it has failed), how many there were, and why no more: "": there is no reason. */
	uint64_t first_ns;
	unsigned parts;
	char undivided[160];
	uint64_t pause_ns; /* adoption: time that threads were held */
	uint64_t match_ns; /* part of that in which owners were searched for */
	uint64_t bytes, discarded, verified;
	/* On the way to rest: threads that were let in for one call, and how often on suspicion. */
	unsigned passes, guesses;
	const struct lien_transaction_process *processes;
	unsigned processes_count;
};

/* Copies what it needs from the plan, which must have processes. Adds `token_base` to every token,
 * so that tokens of different agents do not collide in one process. `flags`: LIEN_WIRE_VERIFY and
 * LIEN_WIRE_ALL. 0, -ENOMEM. */
int lien_transaction_offload(struct lien_transaction **out, const struct lien_plan *plan,
	uint64_t token_base, uint32_t flags, unsigned timeout_ms,
	const struct lien_transaction_ops *ops);
/*
 * A transaction of another kind with these processes: 0, -ENOMEM. Those of a restore are all that
 * may hold something offloaded: each has to answer, because what one holds may be another's. Those
 * of an adoption, whose pids are sorted, are asked what ops->adopt returns.
 */
int lien_transaction_new(struct lien_transaction **out, enum lien_transaction_kind kind,
	const uint32_t *pids, unsigned count, unsigned timeout_ms,
	const struct lien_transaction_ops *ops);
/*
 * Call this before the start of a restore: only what these processes hold, if there are any, and
 * what has one of these groups and one of these tags (lien_plan_tag_hash()), if there are any,
 * comes back. Groups and tags are at most LIEN_WIRE_CHOSEN_MAX. -ENOMEM.
 */
int lien_transaction_choose(struct lien_transaction *transaction, const uint32_t *pids,
	unsigned pids_count, const uint64_t *groups, unsigned groups_count, const uint64_t *tags,
	unsigned tags_count);
/*
 * Call this before the start of a restore: what ops->next_part names comes back first, with all its
 * phases, in all processes, then the next, and in the end all that is left. After a failure, all
 * that is left comes together. Does nothing where no thread can be held back, and with tags.
 */
void lien_transaction_divide(struct lien_transaction *transaction);
/* Call this before the start of a restore: this process is stopped, and stays offloaded with that
 * many others. If nothing else fails, the result says so, and what lets it go on. */
void lien_transaction_set_aside(
	struct lien_transaction *transaction, uint32_t pid, unsigned others, const char *remedy);
/* Sends the first orders. The transaction may end before this returns. */
void lien_transaction_start(struct lien_transaction *transaction);
void lien_transaction_free(struct lien_transaction *transaction);

/* Handles a process's reply; the transaction takes over the descriptors. */
void lien_transaction_reply(struct lien_transaction *transaction, uint32_t pid,
	const struct lien_wire_header *reply, const void *body, const int *fds, unsigned fds_count);
/* The process has ended, or (ops->alive) can no longer be reached. This only notes it: the next
 * call of another kind acts on it, and must come soon. */
void lien_transaction_gone(struct lien_transaction *transaction, uint32_t pid);
/* Returns true while gates are made and the job is brought to rest: then each tick may bring it
 * nearer. */
bool lien_transaction_is_resting(const struct lien_transaction *transaction);
/* Is it an offload that has been waiting for its processes for that long, and has saved nothing
 * yet?
 */
bool lien_transaction_hesitates(const struct lien_transaction *transaction, uint64_t ns);
/* Ends an offload early: what was moved is put back. `error`: -ECANCELED; -EBUSY: as if the job had
 * not come to rest in time. Returns false if it is too late, or not an offload; the transaction
 * reacts later (see below). */
bool lien_transaction_cancel(struct lien_transaction *transaction, int error, const char *why);
/* Makes the transaction ask ops->may_go_on again when it reacts (see below). */
void lien_transaction_wake(struct lien_transaction *transaction);
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

/*
 * Memory that an offload has dropped and that the driver does not report as free: something that
 * lien does not see holds it, or another program has allocated meanwhile (the driver's figures are
 * the whole GPU's). Up to 2 MiB for each process count as what the driver takes for itself.
 */
#define LIEN_SHORTFALLS 16

/* Processes whose memory was on one GPU; one by itself where that is not known, or was on several.
 */
struct lien_shortfall {
	uint32_t pid; /* the first of them */
	unsigned processes;
	uint64_t dropped; /* bytes */
	uint64_t missing; /* bytes of these that are not free */
};

struct lien_shortfalls {
	struct lien_shortfall row[LIEN_SHORTFALLS];
	unsigned count; /* the first ones, if there are more */
	uint64_t t_ns;	/* when the offload ended; 0: none has had any */
};

/* Fills *found, but for t_ns, from an offload that succeeded. */
void lien_shortfalls_find(struct lien_shortfalls *found, struct lien_graph *graph,
	const struct lien_plan *plan, const struct lien_transaction_result *result);

/*
 * What all transactions since the agent's start add up to: how they ended, how long they took, what
 * was refused and why. Numbers only, of the whole node.
 */
#define LIEN_OUTCOMES(X)                                                                           \
	X(DONE, done)                                                                              \
	X(REFUSED, refused)	    /* nothing was moved */                                        \
	X(ROLLED_BACK, rolled_back) /* an offload: everything was put back */                      \
	X(FAILED, failed)	    /* not everything is where it should be */

enum lien_outcome {
#define LIEN_OUTCOME_NUMBER(NAME, name) LIEN_OUTCOME_##NAME,
	LIEN_OUTCOMES(LIEN_OUTCOME_NUMBER)
#undef LIEN_OUTCOME_NUMBER
		LIEN_OUTCOME_COUNT,
};

#define LIEN_BUCKETS 13

/* The buckets' upper bounds in seconds, ascending; one more bucket has the rest. */
extern const double lien_bucket_bounds[LIEN_BUCKETS];

struct lien_histogram {
	uint64_t buckets[LIEN_BUCKETS + 1]; /* each without those below it */
	uint64_t count, ns;
};

struct lien_totals {
	uint64_t ended[LIEN_TRANSACTION_KINDS][LIEN_OUTCOME_COUNT];
	uint64_t refused[LIEN_TRANSACTION_KINDS][LIEN_CAUSE_COUNT];
	uint64_t bytes[LIEN_TRANSACTION_KINDS]; /* moved, or released */
	/* of those that were done: */
	struct lien_histogram duration[LIEN_TRANSACTION_KINDS];
	/* in the process that took the longest */
	struct lien_histogram phase[LIEN_TRANSACTION_KINDS][LIEN_PHASE_COUNT];
	struct lien_histogram rest; /* of offloads: until the job was at rest */
};

/* Counts a transaction that has ended. */
void lien_totals_ended(struct lien_totals *totals, const struct lien_transaction *transaction);
/* Counts a request that was refused before a transaction was made for it. */
void lien_totals_refused(
	struct lien_totals *totals, enum lien_transaction_kind kind, enum lien_cause cause);

#endif
