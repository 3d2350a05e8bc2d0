/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The value of map `threads`: what the kernel side keeps of a thread that makes traced calls. A new
 * agent of another build uses the map only if this is the same.
 */
#ifndef LIEN_THREAD_H
#define LIEN_THREAD_H

#include <lien/event.h>

#ifndef LIEN_BPF
#include <linux/types.h>
#endif

#define FRAMES	 4
#define CONTEXTS 4
#define GIVEN	 2

struct frame {
	__u64 sp; /* at entry: address of the return address */
	__u64 t_entry;
	__u64 caller;
	__u64 arg[6];
	__u32 call;
	__u32 attachment;
	__u32 flags; /* LIEN_CALL_* */
	__u32 control;
	__u32 given;	  /* thread.given[given - 1] belongs to this call; 0: none */
	__u32 translated; /* the control library makes this call for the application */
	__u64 share;	  /* import: the matching export, determined at entry */
};

/* A call's input in memory that may change until the call returns. */
struct given {
	__u8 bytes[128];
};

struct thread {
	__u32 pid, tid;
	__u64 start;
	__u64 account;
	__u32 announced;
	__u32 depth;
	__u64 context[CONTEXTS]; /* stack of pushed contexts; the last one is current */
	__u32 contexts;
	__u64 t_context; /* time of the last change that was seen */
	/* The last call that was probed at entry only, to recognize it when it is probed twice. */
	__u32 quick_call, quick_attachment;
	__u64 quick_sp;
	__u64 scope; /* of the NCCL call that it entered last */
	/* It has entered none: it was made inside of a call that makes this communicator. */
	__u32 scope_sure, zero;
	/* The last collective or transfer: the place of its return address, and the address. That
	 * word does not change before the call returns. */
	__u64 last_sp, last_caller;
	__u64 t_counted;    /* when a collective or transfer of it was last counted */
	__u64 t_gate;	    /* when the gate saw it last */
	__u64 gate_sp;	    /* the gated call that it is in; 0: none */
	__u32 gate_call;    /* number of that call */
	__u32 gate_turn;    /* the gate that has seen the thread */
	__u32 group;	    /* NCCL groups that it has opened, as seen by the gate */
	__u32 group_calls;  /* calls in them that were let in */
	__u32 group_known;  /* it has no other open group */
	__u32 group_inside; /* it counts as inside until it has closed them */
	struct frame frame[FRAMES];
	struct given given[GIVEN];
	struct lien_event event; /* under construction: too large for the stack */
};

#endif
