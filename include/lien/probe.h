/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the loader and the BPF programs agree on besides the events: the probes' cookies and the
 * maps through which the agent tells the kernel side about control libraries.
 */
#ifndef LIEN_PROBE_H
#define LIEN_PROBE_H

#include <lien/calls.h>

/*
 * Cookie of an attached probe: the call's number, its LIEN_CALL_* flags and the number of the
 * attachment. A file seen through two file systems can be attached twice; of one call's two hits
 * the program drops the one whose attachment is not the frame's.
 */
#define LIEN_COOKIE(call, flags, attachment)                                                       \
	((unsigned long long)(attachment) << 32 | (unsigned long long)(flags) << 16 | (call))
#define LIEN_COOKIE_CALL(cookie)       ((unsigned int)((cookie)&0xffff))
#define LIEN_COOKIE_FLAGS(cookie)      ((unsigned int)((cookie) >> 16 & 0xffff))
#define LIEN_COOKIE_ATTACHMENT(cookie) ((unsigned int)((cookie) >> 32))

/*
 * A call that the gate probes has in its cookie how its arguments say which memory it works on, or
 * asks about. Numbers count arguments from 0.
 */
enum lien_touches {
	LIEN_TOUCHES_ANY,	/* that is not known: held wherever it works */
	LIEN_TOUCHES_COPY,	/* to 0, from 1, bytes 2 */
	LIEN_TOUCHES_COPY_PEER, /* to 0, from 2, bytes 4 */
	LIEN_TOUCHES_SET_8,	/* at 0; 2 says how many bytes, */
	LIEN_TOUCHES_SET_16,	/* pairs of them, */
	LIEN_TOUCHES_SET_32,	/* or fours */
	LIEN_TOUCHES_RANGE,	/* at 0, bytes 1 */
	LIEN_TOUCHES_AT_1,	/* an address: 1, */
	LIEN_TOUCHES_AT_2,	/* 2, */
	LIEN_TOUCHES_AT_3,	/* or 3 */
	/* Names memory by handle, in argument 0, 1 or 3, or in several places. The control library
	 * makes such calls for the application, and has waited by then; but with handle 0 it has
	 * the thread wait. */
	LIEN_TOUCHES_HANDLE_0,
	LIEN_TOUCHES_HANDLE_1,
	LIEN_TOUCHES_HANDLE_3,
	LIEN_TOUCHES_HANDLES,
};

#define LIEN_CALL_TOUCHES_FLAG(touches) ((touches) << 8)
#define LIEN_CALL_TOUCHES(flags)	((flags) >> 8 & 0xff)

/*
 * Value of map `controls`, key: pid. Made by the kernel side when a control library that the agent
 * has told it of (map `control_files`) is mapped, and at fork; written anew by the agent once it
 * knows the process.
 */
struct lien_probe_control {
	unsigned long long text, text_end; /* the control library's code: its calls are marked */
	unsigned long long translate, translate_end; /* not these: calls of the application */
	unsigned long long handler; /* of .signal, as the process must have it installed */
	unsigned long long state; /* address of lien_control_state (wire.h); 0: the rest is known */
	unsigned int signal;
	unsigned int wake; /* 0: no; or one of these */
};

#define LIEN_PROBE_WAKE	    1 /* signal the next thread that makes a traced call */
#define LIEN_PROBE_WAKE_ANY 2 /* or makes any other traced call */

/*
 * Value of map `control_files`, key: inode of a copy of the control library. (Overlay file systems
 * number their devices in more than one way.)
 */
struct lien_probe_layout {
	unsigned long long text_offset; /* in the file, of the executable segment */
	long long state; /* lien_control_state, counted from where that segment is mapped */
};

/* lien_control_state.magic and .version (wire.h). */
#define LIEN_PROBE_CONTROL_MAGIC   0x6c69656e43544c31ull
#define LIEN_PROBE_CONTROL_VERSION 7

/*
 * What tells programs apart that one pid has run: when the process began, in clock ticks of 1/100 s
 * as /proc/PID/stat shows them, and how often it has called exec, as the kernel counts.
 */
#define LIEN_TICK_NS		 10000000ull
#define LIEN_START(ticks, execs) ((unsigned long long)(execs) << 48 | (ticks))
#define LIEN_START_TICKS(start)	 ((start) & ((1ull << 48) - 1))

/* What the iterator over processes reports: which program each one runs, and for whom. */
struct lien_probe_image {
	unsigned int pid, zero;
	unsigned long long start; /* LIEN_START() */
	unsigned long long account;
};

/* lien_probe_process.account where that cannot be found out: no user's (bpf/users.h). */
#define LIEN_ACCOUNT_UNKNOWN (2ull << 32)

/* Value of map `processes`, key: pid. */
struct lien_probe_process {
	unsigned long long start;   /* LIEN_START() */
	unsigned long long account; /* whose share of the maps it has its entries from */
	unsigned int announced;	    /* its first call was seen, or it may have called before */
	unsigned int whole;	    /* its first call was seen, so are all its contexts */
	unsigned int comms;	    /* entries that map `traffic` has of it */
	unsigned int unmade; /* communicators that it asked for, without an address yet, ever */
	unsigned long long scope;   /* lien_event.scope of the NCCL call that it entered last */
	unsigned int contexts_many; /* it has made another one, or made another one current */
	unsigned int contexts_set;  /* how often one was seen to be made current */
	/* What a gate must know before it is of use: */
	unsigned int untracked;	  /* calls by threads that found no room in map `threads` */
	unsigned int uncounted;	  /* 1: collectives or transfers that found no room */
	unsigned int nonblocking; /* 1: NCCL goes on with calls that have returned */
	unsigned int entered; /* 1: by the agent; it takes none of its user's share of processes */
	unsigned long long context; /* the first that it made; 0: none */
};

/*
 * Value of map `followed`, key: pid. A process with one context needs no watching: whatever
 * allocates is in it. Of the others it is known which context is current in a thread that has been
 * seen to change it since.
 */
struct lien_probe_followed {
	unsigned long long start;
	unsigned long long t_since; /* CLOCK_MONOTONIC ns */
};

/* Key of map `shares`, whose value is the number of the export: an open file in the kernel. */
struct lien_probe_share {
	unsigned long long file, private_data;
	/* The kernel gives the address of a closed file to another one. These tell the two apart,
	 * unless the driver opened both and they have the same private data: the new file is then
	 * taken for the export, and its memory stays. */
	unsigned long long inode;
	unsigned int device, mode;
};

/* What the iterator over open files tells of one that was exported. */
struct lien_probe_open_file {
	unsigned long long share;
	unsigned int pid, fd;
};

/*
 * Map `traffic`: what a process has asked of a communicator, counted as its calls are entered, so
 * that calls which fail count, too. An entry is made by the first call, and goes when the
 * communicator or the process ends.
 */
struct lien_probe_comm {
	unsigned long long comm;
	unsigned int pid, zero;
};

struct lien_probe_traffic {
	unsigned long long calls[LIEN_TRAFFIC_KINDS]; /* by call - LIEN_TRAFFIC_FIRST */
	unsigned long long bytes;		      /* as the arguments say: count x type */
	unsigned long long t_last;		      /* CLOCK_MONOTONIC ns */
};

/* Map `pairs`: the same of sends to, and receives from, one rank; the value is their number. */
struct lien_probe_pair {
	unsigned long long comm;
	unsigned int pid;
	unsigned int peer; /* rank x 2, and 1 for receives */
};

/*
 * Value of map `gates`, key: pid. While it is shut (map `shut`), threads that enter a gated call
 * are sent the control library's signal, whose handler parks them (control/driver/gate.c) before
 * the call has done anything. The counters below `turn` only grow: each step means that the gate
 * does not hold, or that what it holds is not known.
 */
struct lien_probe_gate {
	unsigned long long start;
	unsigned int inside; /* threads in gated calls, held ones too, of those seen to enter */
	unsigned int turn;   /* of this gate: threads that it has seen are known by it */
	unsigned int
		unheld; /* threads that entered although it was shut: they cannot be signalled */
	unsigned int unheld_tid, unheld_call; /* the last of them */
	unsigned int untracked;		      /* calls that are not counted among those inside */
	unsigned int unlisted;		      /* threads that wait and are not in map `held` */
	unsigned int mapped; /* libraries that the process has mapped since there is the gate */
};

/* Value of map `shut`, key: pid. All that is moved, or away, lies between: copies from and to
 * places outside are let in. */
struct lien_probe_shut {
	unsigned long long low, high;
};

/* Map `held`: a thread that the gate has stopped. */
struct lien_probe_held_key {
	unsigned int pid, tid;
};

struct lien_probe_held {
	unsigned long long comm; /* 0: the call names none */
	unsigned long long t;	 /* CLOCK_MONOTONIC ns */
	unsigned int call;
	unsigned int peer; /* sends and receives */
	unsigned int
		unsure;	  /* it may be in an NCCL group that it opened before there was the gate */
	unsigned int tid; /* as the process itself knows it */
};

/* Index of map `counters`. */
enum lien_probe_counter {
	LIEN_COUNTER_LOST = 0, /* records that found the ring full, or frames that found no room */
	LIEN_COUNTER_UNREADABLE, /* arguments that could not be read */
	LIEN_COUNTER_WOKEN,	 /* signals sent to start control threads */
	LIEN_COUNTER_UNCOUNTED,	 /* collectives and transfers that found no room in the maps, or of
				    processes that are not known */
	LIEN_COUNTER_COUNT,
};

#endif
