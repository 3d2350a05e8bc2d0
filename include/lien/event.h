/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Events that the kernel side reports to the agent: one record per traced call or process event.
 * `lien record` writes the same records. All integers are little-endian; the layout is pinned
 * below.
 *
 * Order. Records reach the agent in the order in which they were made, and a call's record is made
 * when it returns. Two threads can free a name and receive it again before the first one's record
 * is made, so a call that gives something back also announces itself at entry (LIEN_EVENT_ENTRY):
 * an acquire of a name that is still live applies the pending release first, and the late return,
 * which carries the same (tid, t_entry), is then a no-op.
 *
 * Times are CLOCK_MONOTONIC nanoseconds; pids and tids are those of the agent's pid namespace.
 */
#ifndef LIEN_EVENT_H
#define LIEN_EVENT_H

#include <lien/calls.h>
#include <lien/state.h>
#include <lien/types.h>

/* lien_event.type: a number of enum lien_call or enum lien_state, or one of these. */
enum lien_event_type {
	LIEN_EVENT_PROCESS = 1, /* first sight of a process that uses CUDA: body .process */
	LIEN_EVENT_EXEC,	/* the process became another program: everything it held is gone */
	LIEN_EVENT_EXIT,	/* the process ended */
	LIEN_EVENT_LIBRARY,	/* the process mapped a file as executable: body .library */
	LIEN_EVENT_LOST,	/* events of this process were lost (ring full): body .lost */
	LIEN_EVENT_END,		/* recordings only: the recording was closed cleanly */
	LIEN_EVENT_PROP,	/* the driver was asked for properties of memory: body .property */
	LIEN_EVENT_REREAD,	/* the process is now as the driver describes it: body .reread */
	LIEN_EVENT_INCOMPLETE,	/* from the agent: why a process is incomplete: body .incomplete */
	LIEN_EVENT_ADOPT,	/* findings about memory older than the agent: body .adopt */
};

#define LIEN_EVENT_ENTRY   0x1 /* announcement of a releasing call; .result is not set */
#define LIEN_EVENT_CONTROL 0x2 /* the control library called, not the application */
#define LIEN_EVENT_PARTIAL 0x4 /* an argument could not be read; the body has zeroes there */
/*
 * Only in recordings of version 2, whose snapshots were calls. An export: it has already been
 * imported. A communicator: .comm has its final rank and id; .key is the number of communicators
 * split off it, .excluded the number shrunk from it; .t_return is 0 if its creation was not seen.
 */
#define LIEN_EVENT_IMPORTED 0x8
/* .comm.nranks of such a split: not the communicator, but its part in a split that other members of
 * the parent have not called yet. .excluded is the index of the split among the parent's. */
#define LIEN_COMM_AWAITED (-2)
/* .scope is a guess: see there. */
#define LIEN_EVENT_INFERRED 0x10
/* Synthesized for a call that was not seen, because the driver says that it must have happened. For
 * a communicator (LIEN_CALL_NCCL_INIT_RANK), because NCCL's RAS names it: lien_comm_found_id() then
 * makes .comm.id, and facts already known about it stay. */
#define LIEN_EVENT_FOUND 0x20

/* The application called through the control library (control/driver/translate.h), and may know the
 * record's handles by other values. */
#define LIEN_EVENT_TRANSLATED 0x40
/* An announcement in a snapshot: events were lost since, and its return may have been among them */
#define LIEN_EVENT_DOUBTFUL 0x80

/* lien_event.scope of calls made while a communicator is created: it has no address yet. The
 * remaining bits are .t_entry of the call that creates it. */
#define LIEN_SCOPE_INIT 0x8000000000000000ull

/* Reasons why a process is incomplete. */
#define LIEN_INCOMPLETE_LATE  0x1  /* it may have called before it was watched */
#define LIEN_INCOMPLETE_LOST  0x2  /* events of it were lost */
#define LIEN_INCOMPLETE_ODD   0x4  /* an event did not fit the known state */
#define LIEN_INCOMPLETE_SHARE 0x8  /* an import whose export was not seen */
#define LIEN_INCOMPLETE_ARGS  0x10 /* an argument could not be read */
#define LIEN_INCOMPLETE_NCCL  0x20 /* communicators may have been made before NCCL was probed */
#define LIEN_INCOMPLETE_CARDS 0x40 /* memory may have been registered with network cards unseen */
/* The process ran before it was watched, and has been adopted since: its mappings and their owners
 * are known. Anything else it may have (handles without a mapping, reservations) is not. */
#define LIEN_INCOMPLETE_ADOPTED 0x80
/* As ADOPTED, and earlier memory that can be exported may be bound to a multicast object, which
 * cannot be queried. */
#define LIEN_INCOMPLETE_MULTICAST 0x100
/* It maps a copy of CUDA or NCCL whose calls are not seen: its user has too many of them, or a
 * process has rewritten it in memory. */
#define LIEN_INCOMPLETE_UNPROBED 0x200
/* As MULTICAST, and so may memory that cannot be exported: an object may be the process's alone. */
#define LIEN_INCOMPLETE_MULTICAST_OWN 0x400
/* It has rewritten functions of CUDA or NCCL in its memory: their calls are not seen, and no probe
 * can be put on them. */
#define LIEN_INCOMPLETE_REWRITTEN 0x800
/* It has had memory held in a way that is not followed (calls of kind `holds`). */
#define LIEN_INCOMPLETE_HELD 0x1000

struct lien_event {
	__lien_u32 size; /* bytes of this record with its body; a multiple of 8 */
	__lien_u16 type;
	__lien_u16 flags;
	__lien_u32 pid;
	__lien_u32 tid;
	__lien_u64 start;    /* identifies the program that the process runs (LIEN_START() of
			      * probe.h); unique together with pid */
	__lien_u64 t_entry;  /* when the call was entered */
	__lien_u64 t_return; /* when it returned; 0 in an announcement */
	__lien_s32 result;   /* CUresult, ncclResult_t; 0 or -1 for ibverbs */
	__lien_u32 outer;    /* enum lien_call: the thread's outermost traced call */
	__lien_u64 caller;   /* return address of that outermost call */
	/*
	 * The communicator that NCCL is working for: its ncclComm_t, or LIEN_SCOPE_INIT and above;
	 * 0: none. Exact when the thread is inside a call that names one. Otherwise (NCCL's own
	 * threads, and calls that only end a group) it is the last one that this thread, or its
	 * process, named, and LIEN_EVENT_INFERRED is set. Meaningful only for calls that NCCL
	 * makes.
	 */
	__lien_u64 scope;
	union {
		struct {
			__lien_u32 uid;
			__lien_u32 complete; /* 1: seen from its cuInit on; 0: may have called
					      * before */
			char comm[16];
		} process;
		struct {
			__lien_u64 start, length, offset; /* of the executable mapping */
			__lien_u64 inode;		  /* 0: nothing is mapped there any more */
			__lien_u32 dev_major, dev_minor;
			char name[64]; /* last component of the path, NUL-terminated, truncated */
		} library;
		struct {
			__lien_u64 count;
		} lost;
		struct {
			__lien_u64 va; /* an address inside one of its mappings */
			struct lien_prop prop;
		} property;
		struct {
			__lien_u32 doubts; /* LIEN_INCOMPLETE_*: unknown even to the driver */
			__lien_u32 zero;
		} reread;
		struct {
			__lien_u32 reasons; /* LIEN_INCOMPLETE_* from now on; 0: complete */
			__lien_u32 zero;
		} incomplete;
		struct {
			__lien_u64 handle;
			__lien_u32 references; /* references that the application holds */
			/* For memory whose exports or owner were not seen: the round of comparison
			 * with all other such memory, from 1; the last one for imports, the first
			 * one otherwise. 0: not compared. */
			__lien_u32 round;
			__lien_u32 open; /* 1: a descriptor that exports it was open then */
			__lien_u32 part; /* 1: it is larger than the mapped part */
		} adopt;
		struct {
			__lien_u64 handle, bytes;
			struct lien_prop prop;
		} create;
		struct {
			__lien_u64 handle;
		} release;
		struct {
			__lien_u64 handle, va;
		} retain;
		struct {
			__lien_u64 va, bytes, align;
		} reserve;
		struct {
			__lien_u64 va, bytes;
		} range; /* address free, unmap; free: bytes is 0 */
		struct {
			__lien_u64 va, bytes, offset, handle;
		} map;
		struct {
			__lien_u64 va, bytes;
			__lien_u32 count; /* entries in .access; the record ends after them */
			__lien_u32 zero;
			struct lien_access access[LIEN_ACCESS_MAX];
		} access;
		struct {
			__lien_u64 handle;
			__lien_u64 share; /* unique number of this export; 0: not matched */
			__lien_u32 handle_type;
			__lien_s32 fd;
			__lien_u8 key[LIEN_KEY_BYTES]; /* fabric handles; else the record ends
							* here */
		} share; /* export and import: an import carries the number of its export */
		struct {
			__lien_u64 va, bytes;
			__lien_u64 pool;    /* cuMemAllocFromPoolAsync; else 0 */
			__lien_u64 context; /* the thread's current one; 0: unknown */
			__lien_s32 device;  /* device of the thread's context; -1: unknown */
			__lien_u32 flags;   /* as passed */
		} alloc; /* calls that allocate memory with an address, host memory included */
		struct {
			__lien_u64 body[5]; /* .create or .alloc */
			/* The thread's tag; a text that cannot be one: it could not be read. The
			 * records of threads without a tag end before it. */
			char tag[LIEN_TAG_BYTES];
		} tagged; /* calls that make memory */
		struct {
			__lien_u64 va;
			__lien_u8 key[LIEN_KEY_BYTES];
			__lien_u64 context; /* IPC open: the thread's; the memory goes with it */
		} key; /* legacy IPC get and open, pool pointer export and import */
		struct {
			__lien_u64 pool;
			__lien_u64 share; /* export, import: as in .share */
			__lien_u32 handle_type;
			__lien_s32 fd;
			__lien_s32 device; /* create */
			__lien_u32 zero;
		} pool;
		struct {
			__lien_u64 handle; /* of the multicast object */
			__lien_u64 offset, bytes;
			__lien_u64 memory;	  /* bind: a handle or an address */
			__lien_u64 memory_offset; /* bind by handle */
			__lien_s32 device;	  /* add, unbind; create: number of devices */
			__lien_u32 zero;
		} multicast;
		struct {
			__lien_u64 va, bytes;
			__lien_u32 handle_type;
			__lien_s32 fd;
		} range_handle;
		struct {
			__lien_u64 context;
			__lien_s32 device;
			__lien_u32 zero;
		} context;
		struct {
			__lien_u64 stream;
		} capture;
		struct {
			__lien_u64 comm;
			__lien_u64 parent;	 /* split, shrink */
			__lien_s32 nranks, rank; /* -1: not among the arguments */
			__lien_s32 device;	 /* device of the thread's context; -1: unknown */
			__lien_s32 color, key;	 /* split */
			__lien_s32 excluded;	 /* shrink: number of ranks */
			/* ncclUniqueId: same bytes, same group. InitAll: generated. Split: zeroes.
			 * Shrink: the first of the excluded ranks, 32 bits each. */
			__lien_u8 id[128];
		} comm;
		struct {
			__lien_u64 comm;
		} comm_end;
		struct {
			__lien_u64 comm, va, bytes, handle;
		} reg; /* deregister: comm and handle only; ibverbs: comm is 0, handle the ibv_mr */
		struct {
			__lien_u64 zero, va, bytes, handle; /* as .reg */
			/* the RDMA device, like "mlx5_0", cut off; "": not known. Absent in
			 * records of earlier agents. */
			char card[LIEN_CARD_BYTES];
		} mr;			     /* ibverbs: register */
		union lien_state_body state; /* enum lien_state */
	};
};

#define LIEN_EVENT_HEADER 64

/* The size of a record whose body is the union's member m. */
#define LIEN_EVENT_SIZE(m) (LIEN_EVENT_HEADER + sizeof(((struct lien_event *)0)->m))

_Static_assert(__builtin_offsetof(struct lien_event, start) == 16, "event layout");
_Static_assert(__builtin_offsetof(struct lien_event, result) == 40, "event layout");
_Static_assert(__builtin_offsetof(struct lien_event, caller) == 48, "event layout");
_Static_assert(__builtin_offsetof(struct lien_event, create) == LIEN_EVENT_HEADER, "event layout");
_Static_assert(LIEN_EVENT_SIZE(create) == __builtin_offsetof(struct lien_event, tagged.tag) &&
		       LIEN_EVENT_SIZE(alloc) == LIEN_EVENT_SIZE(create),
	"event layout");
_Static_assert(__builtin_offsetof(struct lien_event, scope) == 56, "event layout");
_Static_assert(sizeof(struct lien_event) == 232, "event layout");

#endif
