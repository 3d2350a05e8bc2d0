/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The interface between the loader and the BPF programs besides the events: the probes' cookies,
 * and the maps through which the agent tells the kernel side about control libraries.
 */
#ifndef LIEN_PROBE_H
#define LIEN_PROBE_H

#include <lien/calls.h>

/*
 * Cookie of an attached probe: the call's number, its LIEN_CALL_* flags and the number of the
 * attachment. A file seen through two file systems can be attached twice; a call then hits two
 * probes, and the program drops the hit whose attachment is not the frame's.
 */
#define LIEN_COOKIE(call, flags, attachment)                                                       \
	((unsigned long long)(attachment) << 32 | (unsigned long long)(flags) << 16 | (call))
#define LIEN_COOKIE_CALL(cookie)       ((unsigned int)((cookie)&0xffff))
#define LIEN_COOKIE_FLAGS(cookie)      ((unsigned int)((cookie) >> 16 & 0xffff))
#define LIEN_COOKIE_ATTACHMENT(cookie) ((unsigned int)((cookie) >> 32))

/*
 * How a gated call's arguments name the memory that it accesses or queries; part of the cookie of
 * the gate's probes. Arguments are numbered from 0.
 */
enum lien_touches {
	LIEN_TOUCHES_ANY,	/* unknown: held wherever it works */
	LIEN_TOUCHES_COPY,	/* to 0, from 1, bytes 2 */
	LIEN_TOUCHES_COPY_PEER, /* to 0, from 2, bytes 4 */
	LIEN_TOUCHES_SET_8,	/* at 0; 2 says how many bytes, */
	LIEN_TOUCHES_SET_16,	/* pairs of them, */
	LIEN_TOUCHES_SET_32,	/* or fours */
	LIEN_TOUCHES_RANGE,	/* at 0, bytes 1 */
	LIEN_TOUCHES_RANGE_1,	/* at 1, bytes 2 */
	LIEN_TOUCHES_AT_1,	/* an address: 1, */
	LIEN_TOUCHES_AT_2,	/* 2, */
	LIEN_TOUCHES_AT_3,	/* or 3 */
	/* Names memory by handle, in argument 0, 1 or 3, or in several places. The control library
	 * makes such calls for the application and has already waited by then; a call with handle 0
	 * makes the thread wait. */
	LIEN_TOUCHES_HANDLE_0,
	LIEN_TOUCHES_HANDLE_1,
	LIEN_TOUCHES_HANDLE_3,
	LIEN_TOUCHES_HANDLES,
};

/* Flag in the cookie of a gate's probe: only gates in map `gates_all` hold this call. Gates may
 * share the probes of a file, and one that guards NCCL's memory alone lets the call pass. */
#define LIEN_GATED_ALL 0x2

#define LIEN_CALL_TOUCHES_FLAG(touches) ((touches) << 8)
#define LIEN_CALL_TOUCHES(flags)	((flags) >> 8 & 0xff)
/* Flag of a gated call by which a rank may wait for others: it is held first. */
#define LIEN_CALL_MEETS 0x1

/*
 * Value of map `controls`, key: pid. The kernel side creates it at fork, and when a control library
 * that the agent registered (map `control_files`) is mapped. The agent rewrites it once it knows
 * the process.
 */
struct lien_probe_control {
	unsigned long long text, text_end; /* the control library's code: its calls are marked */
	unsigned long long translate, translate_end; /* except these: calls for the application */
	unsigned long long handler; /* of .signal; the process must have it installed */
	unsigned long long state; /* address of lien_control_state (wire.h); 0: the rest is known */
	long long tag; /* where a thread's tag lies, from its thread pointer; 0: not known */
	unsigned int signal;
	unsigned int wake; /* 0: no; or one of these */
};

#define LIEN_PROBE_WAKE	    1 /* signal the next thread that makes a traced call */
#define LIEN_PROBE_WAKE_ANY 2 /* or makes any other traced call */

/*
 * Value of map `control_files`, key: inode of a copy of the control library. (The key lacks the
 * device because overlay file systems number their devices in more than one way.)
 */
struct lien_probe_layout {
	unsigned long long text_offset; /* of the executable segment in the file */
	long long state; /* lien_control_state, relative to the mapping of that segment */
};

/* lien_control_state.magic and .version (wire.h). */
#define LIEN_PROBE_CONTROL_MAGIC   0x6c69656e43544c31ull
#define LIEN_PROBE_CONTROL_VERSION 11

/*
 * Distinguishes programs that ran under the same pid: the start time of the process, in clock ticks
 * of 1/100 s as in /proc/PID/stat, and the number of its exec calls, as the kernel counts them.
 */
#define LIEN_TICK_NS		 10000000ull
#define LIEN_START(ticks, execs) ((unsigned long long)(execs) << 48 | (ticks))
#define LIEN_START_TICKS(start)	 ((start) & ((1ull << 48) - 1))

/* A record of the iterator over processes: the program that each one runs, and its account. */
struct lien_probe_image {
	unsigned int pid, zero;
	unsigned long long start; /* LIEN_START() */
	unsigned long long account;
};

/* Value of lien_probe_process.account when the user cannot be determined (bpf/account.h). */
#define LIEN_ACCOUNT_UNKNOWN (2ull << 32)

/* Value of map `processes`, key: pid. */
struct lien_probe_process {
	unsigned long long start;   /* LIEN_START() */
	unsigned long long account; /* user whose share of the maps its entries count against */
	unsigned int announced;	    /* its first call was seen, or it may have called before */
	unsigned int whole;	    /* its first call was seen, so all its contexts are known */
	unsigned int comms;	    /* number of its entries in map `traffic` */
	unsigned int unmade;	    /* communicators ever requested that had no address yet */
	unsigned long long scope;   /* lien_event.scope of the last NCCL call that it entered */
	unsigned int contexts_many; /* it created another context, or made another one current */
	unsigned int contexts_set;  /* number of times a context was made current */
	/* Facts that a gate needs to know before it can be used: */
	unsigned int untracked;	  /* calls by threads for which map `threads` had no room */
	unsigned int uncounted;	  /* 1: collectives or transfers for which there was no room */
	unsigned int nonblocking; /* 1: NCCL continues calls that have already returned */
	unsigned int entered; /* 1: by the agent; takes nothing of its user's share of processes */
	unsigned long long context; /* the first one that it created; 0: none */
};

/*
 * Value of map `followed`, key: pid. A process with one context needs no following: all its
 * allocations are in it. For other processes the kernel side knows which context is current in each
 * thread that was seen to change it since.
 */
struct lien_probe_followed {
	unsigned long long start;
	unsigned long long t_since; /* CLOCK_MONOTONIC ns */
};

/* Key of map `shares`: an open file in the kernel. */
struct lien_probe_share {
	unsigned long long file, private_data;
	/* The kernel may reuse the address of a closed file. These fields tell the two files apart,
	 * unless the driver opened both and they have the same private data: the new file is then
	 * taken for the export, and its memory stays. */
	unsigned long long inode;
	unsigned int device, mode;
};

struct lien_probe_export {
	unsigned long long number;
	unsigned int control; /* exported for a restore by the control library, which closes it */
	/* One more than there were references to the file in all of the kernel when the iterator
	 * over open files ran last; 0: it has not run since. */
	unsigned int counted;
};

/* A record of the iterator over open files, for one that was exported, or is the driver of
 * GPUDirect Storage. */
#define LIEN_PROBE_STORAGE 0
struct lien_probe_open_file {
	unsigned long long share;
	unsigned int pid, fd;
};

/*
 * Value of map `traffic`: the calls of a process on one communicator, counted at entry, so failed
 * calls count too. The first call creates the entry; it is deleted when the communicator or the
 * process ends.
 */
struct lien_probe_comm {
	unsigned long long comm;
	unsigned int pid, zero;
};

struct lien_probe_traffic {
	unsigned long long calls[LIEN_TRAFFIC_KINDS]; /* index: call - LIEN_TRAFFIC_FIRST */
	unsigned long long bytes;		      /* according to the arguments: count x type */
	unsigned long long t_last;		      /* CLOCK_MONOTONIC ns */
};

/* Key of map `pairs`: sends to and receives from one rank; the value is their number. */
struct lien_probe_pair {
	unsigned long long comm;
	unsigned int pid;
	unsigned int peer; /* rank x 2, plus 1 for receives */
};

/*
 * Value of map `allowed`, which has the same keys: how many further calls are let in while the gate
 * is shut. This .peer stands for collectives. The agent writes and deletes entries, the kernel side
 * counts down: before the call itself is counted, in maps `traffic` and `pairs`.
 */
struct lien_probe_allowed {
	long long left;
};

#define LIEN_PROBE_COLLECTIVES 0xffffffffu
#define LIEN_PROBE_OTHERS      0xfffffffeu /* calls in which ranks do not meet, on no communicator */
#define LIEN_PROBE_ALLOWED_MAX 4096

/*
 * Value of map `gates`, key: pid. While the gate is shut (map `shut`), threads that enter a gated
 * call receive the control library's signal, whose handler parks them (control/driver/gate.c)
 * before the call has done anything. The counters below `turn` only grow: each increment means that
 * the gate has a gap, or that the held threads are not all known.
 */
struct lien_probe_gate {
	unsigned long long start;
	unsigned int inside; /* threads seen entering gated calls and still in them, even if held */
	unsigned int turn;   /* number of this gate; marks the threads that it has seen */
	unsigned int
		unheld; /* threads that entered although it was shut: they cannot be signalled */
	unsigned int unheld_tid, unheld_call; /* the last of them */
	unsigned int untracked;		      /* calls not counted in `inside` */
	unsigned int unlisted;		      /* waiting threads that are not in map `held` */
	unsigned int mapped; /* libraries that the process has mapped since the gate was made */
};

/* Value of map `shut`, key: pid. The range contains all memory that is being moved or is away;
 * copies between addresses outside it are let in. `by_comm`: so are calls of NCCL that name a
 * communicator which is not in map `comms_away`, or make one. */
struct lien_probe_shut {
	unsigned long long low, high;
	unsigned int meetings_alone; /* 1: holds calls with LIEN_CALL_MEETS only */
	unsigned int by_comm;
	/* 1: memory is away that nobody uses, as the offload's client has promised. Holds only
	 * unmapping, and calls that name memory by handle. */
	unsigned int trusting;
	/* 1: a transaction is under way. Otherwise a gate that guards NCCL's memory alone lets
	 * captures of graphs begin. */
	unsigned int busy;
};

/* Map `comms_away`, keys as of map `traffic`: communicators whose memory is away. */
#define LIEN_PROBE_COMMS_AWAY_MAX 16384

/* Key of map `held`: a thread that the gate has stopped. */
struct lien_probe_held_key {
	unsigned int pid, tid;
};

struct lien_probe_held {
	unsigned long long comm; /* 0: the call names none */
	unsigned long long t;	 /* CLOCK_MONOTONIC ns */
	unsigned int call;
	unsigned int peer;  /* sends and receives */
	unsigned int flags; /* LIEN_PROBE_HELD_... */
	unsigned int tid;   /* as the process itself sees it */
	/* With LIEN_TOUCHES_RANGE_1: the memory that the call works on. Otherwise the address is
	 * its first argument, and there are 0 bytes. */
	unsigned long long address, bytes;
};

/* It may be in an NCCL group that it opened before the gate was made. */
#define LIEN_PROBE_HELD_UNSURE 0x1
/* The call has LIEN_CALL_MEETS. */
#define LIEN_PROBE_HELD_MEETS 0x2

/* Index of map `counters`. */
enum lien_probe_counter {
	LIEN_COUNTER_LOST = 0,	 /* records without room in the ring, or frames without room */
	LIEN_COUNTER_UNREADABLE, /* arguments that could not be read */
	LIEN_COUNTER_WOKEN,	 /* signals sent to start control threads */
	LIEN_COUNTER_UNCOUNTED,	 /* collectives and transfers without room in the maps, or of
				  * unknown processes */
	LIEN_COUNTER_COUNT,
};

#endif
