/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How far each rank of a job must go so that all can be stopped: from reports of where they are,
 * the number of calls that each must still make. A rank that is held before a collective which
 * others have begun makes them wait, and their devices stay busy.
 *
 * Pure, and it knows groups by NCCL's id alone: reports of several nodes can be put together. All
 * numbers of calls count from the same call on in all ranks of a group, as long as `counted` says
 * so. Not thread-safe; nothing is kept between two calls.
 */
#ifndef LIEN_TARGETS_H
#define LIEN_TARGETS_H

#include <stdbool.h>
#include <stdint.h>

#define LIEN_TARGETS_GROUP 128 /* bytes of NCCL's id */
/* In groups with more members, or more of them on this node, transfers are not compared: each of
 * the latter is compared with all others. */
#define LIEN_TARGETS_PEERS 256
#define LIEN_TARGETS_HERE  32

struct lien_counts;

/* A process on one of its communicators. */
struct lien_standing {
	/* --- reported --- */
	unsigned process;     /* index in lien_targets.busy */
	uint64_t comm;	      /* names it within the process; 0: some that nobody knows */
	const uint8_t *group; /* LIEN_TARGETS_GROUP bytes; borrowed */
	int32_t rank;	      /* -1: not known; then its transfers are not compared */
	bool counted;	      /* its counts can be compared with those of the group */
	/* its counts are those since a rest (see lien_targets_guess()); the caller's */
	const struct lien_counts *since;
	bool transfers;	      /* it has sent or received */
	bool elsewhere;	      /* on another node: only others are compared with it */
	uint64_t collectives; /* begun: those that are held are not */
	/* --- computed --- */
	/* those of the group, with this one; NULL: not counted */
	struct lien_standing **peers;
	unsigned peers_count, here_count; /* of these: on this node */
	struct lien_held_thread *held;	  /* the first of its threads, by .next */
	uint64_t target; /* collectives that it must begin; at least those it has begun */
	bool lags;	 /* it must begin a collective or a transfer */
};

enum lien_held_at {
	LIEN_HELD_COLLECTIVE,
	LIEN_HELD_SEND,
	LIEN_HELD_RECEIVE,
	/* calls without a count, which may start collectives, or in which ranks meet: graph
	 * launches, making and ending a communicator, windows, signals, ending a group of NCCL's
	 * that nobody saw begin */
	LIEN_HELD_UNCOUNTED,
	LIEN_HELD_OTHER,
};

/* A thread that is held before a call. */
struct lien_held_thread {
	/* --- reported --- */
	unsigned process;
	uint64_t comm; /* 0: the call names none */
	enum lien_held_at at;
	uint32_t peer;	 /* rank; of a send or receive */
	bool meets;	 /* ranks may wait for each other in it: held while they come level, too */
	bool unsure;	 /* it may be in a group that it opened before anybody watched */
	bool stays;	 /* it must not be let in, whoever waits for it */
	uint64_t age_ns; /* since it was held */
	/* --- computed --- */
	struct lien_standing *standing; /* on the communicator of the call; NULL: none */
	struct lien_held_thread *next;	/* of that standing */
	bool let_in;
	bool singly; /* let in, but not on to the next call in which ranks meet */
};

struct lien_targets_process {
	bool lags, lags_where_held, uncounted, held;
};

struct lien_targets {
	struct lien_standing *standings;
	unsigned standings_count;
	struct lien_standing **order; /* room for twice the standings, to sort them */
	struct lien_held_thread *held;
	unsigned held_count;
	struct lien_targets_process *of; /* room for each process */
	/* By process: a device is busy, or a thread is in a call. */
	const bool *busy;
	/* By process: NCCL is at work in threads of its own, on what the process has begun. */
	const bool *working;
	unsigned processes;
	bool guessed; /* earlier in the same transaction, others were let in on a guess */
	/* How long a thread must have been held before lien_targets_guess() lets it in, if its
	 * process is idle, and if it is busy. */
	uint64_t idle_ns, busy_ns;
	/* No count is believed: they show that all are level, although somebody waits. */
	bool disbelieved;
	/* Since .busy was true. A thread that was held later may have given its device work. */
	uint64_t round_ns;
	bool uncounted_elsewhere; /* a count of other nodes is missing */
	/* Results: */
	bool lags;    /* a rank is known to be behind, whether or not a thread of it is held */
	bool counted; /* no count is missing that would show who is behind */
	bool unsure;  /* a thread is held that may be in a group opened before anybody watched */
	/* A thread that is to be let in, and not singly, is held at a call in which ranks do not
	 * meet. Rather than one call at a time, it and its like should go on until it gets to one
	 * in which they do. */
	bool uneven;
	bool guessed_busy; /* threads of busy processes are among those guessed, */
	bool guessed_any;  /* and others than those let in singly */
	/* Returns the number of sends to (or receives from) a rank that have begun on a standing's
	 * communicator, without those that are held. */
	uint64_t (*transfers)(
		void *context, const struct lien_standing *standing, uint32_t peer, bool receives);
	void *context;
};

/* Fills in what is computed of standings and threads; .let_in of the threads on which others are
 * known to wait. Returns true if there are any such threads. The other functions need it. The work
 * grows with what is reported, and no faster. */
bool lien_targets_compute(struct lien_targets *targets);

/*
 * For when nobody is known to be behind, and yet somebody is busy: sets .let_in of those threads
 * that may be behind without a count that shows it, each for one call. Returns true if there are
 * any.
 *
 * A device can also wait for another rank's kernel without NCCL, for a flag that the kernel sets.
 * No count shows that. So if some process is busy and another one idle, the threads of the idle one
 * go on launching, one call at a time: at full speed the two would only change places.
 *
 * Counts since a rest are not quite certain: a rank may have done its part of a call there that
 * others had not begun (the root of a small broadcast, the sender of a small message). So after a
 * long time a thread may be behind whose rank is level by such counts.
 */
bool lien_targets_guess(struct lien_targets *targets);

/*
 * Returns how many calls of a kind a process must still begin on a communicator, after those that
 * are let in now: it can make these without being asked about again. `peer`: of transfers.
 */
uint64_t lien_targets_more(const struct lien_targets *targets, const struct lien_standing *standing,
	enum lien_held_at at, uint32_t peer);

/* Returns the number of its peers with which it may have transfers in common; 0 in a large group.
 */
unsigned lien_targets_pairs(const struct lien_standing *standing);

/* Sets .let_in of all threads at calls in which ranks do not meet. Returns true if there are any.
 */
bool lien_targets_free(struct lien_targets *targets);

/* Returns true if a process has threads that are held, and is not busy: others may wait for it. */
bool lien_targets_idle(const struct lien_targets *targets);

#endif
