/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The protocol between agent and control library. When the control thread starts, it makes both
 * ends of a SOCK_SEQPACKET pair in the job's process; the agent takes one with pidfd_getfd(). The
 * agent sends orders. The control thread answers each order with one or more replies, the last of
 * which has LIEN_WIRE_LAST. One order at a time per process. All records are fixed-size and
 * little-endian.
 *
 * The agent finds the pair, and the handler that starts the thread, through `lien_control_state`, a
 * symbol of liblien-control.so that it reads from the process's memory.
 */
#ifndef LIEN_WIRE_H
#define LIEN_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define LIEN_WIRE_VERSION 11
#define LIEN_WIRE_MAGIC	  0x6c69656e43544c31ull /* "lienCTL1" */
/* Replaces the magic after END: the library takes no orders and does nothing until
 * lien_control_again() is called. */
#define LIEN_WIRE_MAGIC_ENDED 0x6c69656e454e4431ull /* "lienEND1" */

/* Published by the control library. The agent reads it from outside and never writes it. */
struct lien_control_state {
	uint64_t magic;
	uint32_t version;
	uint32_t pid; /* getpid() of the thread's process; another value: stale copy after fork */
	uint64_t handler;   /* of the wake-up handler; the agent compares it before it signals */
	uint32_t signal;    /* at which it runs */
	int32_t agent_fd;   /* the agent's end; -1: the thread does not run */
	uint64_t agent_ino; /* inode of that socket, to compare after pidfd_getfd() */
	/* Code that calls the driver for the application, with a frame pointer
	 * (control/driver/translate.h). */
	uint64_t translate, translate_end;
	int64_t tag;   /* where a thread's tag (char *) lies, relative to its thread pointer */
	uint64_t gate; /* the futex at which held threads wait */
};

enum lien_wire_type {
	LIEN_WIRE_HELLO = 1, /* reply body: lien_wire_hello: who you are, what is offloaded */
	LIEN_WIRE_STAGE,     /* body: lien_wire_item[]; flag FIRST clears earlier staged items */
	/* wait until all devices are idle; .arg: limit in ms, 0: not to ask; body: uint64_t[],
	 * each an ncclComm_t that NCCL may still work on in the background. -ETIMEDOUT: something
	 * is still busy */
	LIEN_WIRE_DRAIN,
	LIEN_WIRE_CHECK,   /* compare the staged items with the driver */
	LIEN_WIRE_SAVE,	   /* copy staged allocations to the host arena */
	LIEN_WIRE_UNMAP,   /* unmap and release staged imports */
	LIEN_WIRE_DROP,	   /* unmap and release staged allocations */
	LIEN_WIRE_DISCARD, /* forget items that are staged and not dropped: undoes STAGE and SAVE */
	LIEN_WIRE_CREATE,  /* create, map and fill dropped items; copies may still run */
	LIEN_WIRE_EXPORT,  /* reply: batches of lien_wire_share[] with one fd each */
	LIEN_WIRE_IMPORT,  /* body: lien_wire_share[] with one fd each; flag LAST: last batch */
	LIEN_WIRE_FINISH,  /* body: lien_wire_share[]: imports to forget, because nobody has
			    * their memory any more. With LAST: wait for the copies, then forget
			    * the items. With FILLED: only wait */
	LIEN_WIRE_LIST,	   /* reply: lien_wire_item[] of what is offloaded here, or partly (HERE).
			    * With CHOSEN, body: uint64_t[], .arg2 groups and then tags: only
			    * what has one of the groups, if there are any, and one of the tags, if
			    * there are any */
	LIEN_WIRE_WALK,	   /* body: lien_wire_range[]; .arg: limit in us, capped at
			    * LIEN_WIRE_WALK_US_MAX; reply: lien_wire_found[] */
	LIEN_WIRE_PREPARE, /* grow the host arena by one chunk, unless it has .arg bytes; .arg2:
			    * ordinal of the device that it is for */
	LIEN_WIRE_RELEASE, /* give back the part of the arena that nothing lies in or behind */
	LIEN_WIRE_GATE,	   /* .arg: enum lien_wire_gate; body of PASS: uint32_t tids[] */
	/* For memory older than the agent, while the gate is shut. Bodies and replies:
	 * lien_wire_adopt[]. */
	LIEN_WIRE_COUNT, /* count the references and return the first bytes */
	LIEN_WIRE_MARKS, /* list the marks about to be written; flag FIRST clears the list */
	/* Write this process's marks: those that are OWN; with flag LAST those that are also LOOK,
	 * where nobody has written one before. */
	LIEN_WIRE_MARK,
	LIEN_WIRE_LOOK,	  /* reply: the first bytes of everything that MARKS listed here */
	LIEN_WIRE_UNMARK, /* restore the bytes that the marks replaced, and clear the list */
	/* Leave the process as it was, and end. Refused with -EBUSY, with nothing changed. */
	LIEN_WIRE_END,
};

enum lien_wire_gate {
	/* -EBUSY while something is offloaded. Memory that is saved but not dropped belongs to the
	 * application again, as when the agent is silent for too long. */
	LIEN_WIRE_GATE_OPEN,
	/* Signalled threads wait from now on. .arg2: the transaction that begins, while nothing is
	 * staged; or 0. */
	LIEN_WIRE_GATE_SHUT,
	LIEN_WIRE_GATE_PASS,  /* these threads may make the one call at which they are held */
	LIEN_WIRE_GATE_ALIVE, /* no effect but to show that the agent is alive */
};

#define LIEN_WIRE_WALK_US_MAX 1000000
/* Communicators of one process in a DRAIN. */
#define LIEN_WIRE_COMMS_MAX 4096
/* Addresses and sizes are at most this: x86-64 has no larger ones. */
#define LIEN_WIRE_BYTES_MAX (1ull << 57)
/* To an allocation, in one process. Each reference costs a call. */
#define LIEN_WIRE_REFERENCES_MAX 65536
#define LIEN_WIRE_HANDLES	 4

/* Mappings of one process. The agent rejects a process that claims more. */
#define LIEN_WIRE_ITEMS_MAX (1u << 19)

#define LIEN_WIRE_FIRST 0x1
#define LIEN_WIRE_LAST	0x2
/* FINISH, without LAST: wait for the copies, do the comparisons, and forget nothing. */
#define LIEN_WIRE_FILLED 0x4
/* FINISH: other processes may still lack memory exported here, so another EXPORT follows. */
#define LIEN_WIRE_KEEP 0x8
/* SAVE: keep a checksum of the data that arrived in the arena. CREATE and FINISH compare with
 * it. */
#define LIEN_WIRE_VERIFY 0x10
/* LIST, CREATE: also report free memory. In a reply to these: the body is lien_wire_room[]. */
#define LIEN_WIRE_ROOM 0x40
/* STAGE: memory that is not NCCL's is being moved or is away, so calls that pass handles are held,
 * too. WALK: also report cuMemAlloc memory in the areas (kind PLAIN). */
#define LIEN_WIRE_ALL 0x80

/* STAGE, before FIRST: the body is lien_wire_raw[]. -ENOTUNIQ: handle .arg names other memory. */
#define LIEN_WIRE_RAW 0x100

/* DRAIN: no thread captures, or begins to: wait in the call that would invalidate captures, and
 * that keeps no thread from launching what others wait for. */
#define LIEN_WIRE_LAUNCHES 0x200

/* LIST: see there. CREATE, EXPORT, FINISH: only what the last LIST with this flag has chosen. */
#define LIEN_WIRE_CHOSEN     0x400
#define LIEN_WIRE_CHOSEN_MAX 1280 /* groups and tags */

/* Chunks of the arena are multiples of this, so one byte may pin this much. */
#define LIEN_WIRE_ARENA_STEP (16ull << 20)
#define LIEN_WIRE_ARENA_ROUND(size)                                                                \
	(((size) + LIEN_WIRE_ARENA_STEP - 1) & ~(LIEN_WIRE_ARENA_STEP - 1))
#define LIEN_WIRE_ARENA_FLOOR(size) ((size) & ~(LIEN_WIRE_ARENA_STEP - 1))
/* Part of the arena, for reading back data to compare. SAVE with VERIFY reserves it as well. */
#define LIEN_WIRE_ARENA_BOUNCE (8ull << 20)

struct lien_wire_header {
	uint32_t length; /* bytes of the message, this header included */
	uint16_t type;
	uint16_t flags;
	uint32_t seq;	/* number of the order; replies carry it, and the agent ignores others */
	int32_t result; /* in replies: 0, -errno, or a positive CUresult */
	uint64_t arg;	/* STAGE: the transaction; CHECK, SAVE, UNMAP, DROP, DISCARD, CREATE,
			 * EXPORT, FINISH: transaction that owns the items, 0: all; replies:
			 * bytes moved, or the address that failed; of FINISH: bytes compared; of
			 * RELEASE: bytes given back; of WALK: where to continue in the first
			 * unfinished range */
	uint64_t arg2;	/* replies: of STAGE: 1: no device has a primary context; DRAIN:
			 * communicators on which NCCL is still at work in threads of its own; SAVE,
			 * DROP: free bytes of the devices used; FINISH: mappings forgotten; WALK:
			 * ranges done */
	uint64_t ns;	/* in replies: time the order took */
	char text[72];	/* in replies with result != 0: what failed, for a human */
	uint64_t arena_bytes; /* last replies: host memory pinned for the arena */
	uint64_t arena_used;  /* and the end of its used part */
};

#define LIEN_WIRE_DEVICES 64

struct lien_wire_hello {
	uint32_t version, pid, tid, uid;
	uint64_t items; /* mappings that LIST will report */
	uint64_t bytes; /* bytes offloaded here */
	/* Devices that the process may use, by ordinal, according to the driver if it is
	 * initialised. */
	uint32_t devices;
	uint32_t multicast; /* how many of them support it */
	uint32_t shut;	    /* the gate is shut */
	uint32_t here;	    /* how many of .items are HERE: they keep no gate shut */
	uint8_t uuids[LIEN_WIRE_DEVICES][16];
};

#define LIEN_WIRE_OWNED	   0x1 /* this process owns the memory: save, drop, create */
#define LIEN_WIRE_IMPORTED 0x2 /* this process imported it: unmap, import */
#define LIEN_WIRE_SHARED   0x4 /* owned and imported elsewhere: export it on restore */
/* Owned, but without contents worth saving: it comes back zeroed. */
#define LIEN_WIRE_WORTHLESS 0x8
/* Replies to LIST: shared and on the device, but an importer may have let go of it and needs it
 * exported: the agent was gone before the drop, or a restore could not give it to all importers. */
#define LIEN_WIRE_HERE 0x10

struct lien_wire_place {
	uint16_t location_type;
	uint16_t location_id;
	uint32_t flags;
};

#define LIEN_WIRE_PLACES 16

/* A handle by which the application knows an allocation. */
struct lien_wire_handle {
	uint64_t value;	     /* the driver's */
	uint32_t references; /* the application's; 0 after it released them all */
	uint32_t zero;
};

/*
 * One mapping (or binding) of one allocation. The mappings of an allocation are adjacent. Of owned
 * memory, the first one (.index 0) maps all of it, and a device may read and write it. If the
 * application has no such mapping, or an importer has none at all, the first one has .va 0 and
 * .places 0: the control library makes it at CHECK, where it likes, and keeps it until the memory
 * is back, or was not moved after all. The fields of the allocation are the same in each.
 */
struct lien_wire_item {
	uint64_t token; /* names the allocation in all processes, and to a later agent */
	uint64_t va, bytes;
	uint64_t allocation_bytes;
	uint32_t flags;
	uint32_t index, mappings;
	uint32_t handles; /* of the process */
	uint32_t prop_type, handle_types, location_type;
	int32_t location_id;
	uint8_t compression, rdma;
	uint16_t usage;
	uint32_t places;
	struct lien_wire_place place[LIEN_WIRE_PLACES];
	uint64_t owner_start; /* the owner's pid and start, as the agent names them */
	uint32_t owner_pid, zero;
	/* With several, restored memory has one that all their values stand for. */
	struct lien_wire_handle handle[LIEN_WIRE_HANDLES];
	/* Not 0: not a mapping but a binding to the multicast object with this handle, of .bytes
	 * bytes from .va of the memory on, at this offset of the object. Never the first one. */
	uint64_t object, object_offset;
	/* Not 0: memory that multicast objects join has this number in all processes. */
	uint64_t team;
	/* Not 0: the group of the communicator that NCCL needs it for, as answers name it. */
	uint64_t group;
	uint64_t tag; /* Not 0: a hash of its tag. */
};

/* A handle that the application may have got from the driver without the control library. */
struct lien_wire_raw {
	uint64_t handle;
	uint32_t certain; /* 0: it may have come through the control library after all */
	uint32_t zero;
};

struct lien_wire_share {
	uint64_t token;
};

/* Limit per FINISH. */
#define LIEN_WIRE_LOST_MAX 256

/* A device on which memory of this process will be created again. Sent after the items of LIST, and
 * by a CREATE that found too little room on a device. Not sent for a device without a primary
 * context. */
struct lien_wire_room {
	uint32_t device, zero; /* the device's ordinal in the process */
	uint8_t uuid[16];      /* 0: the driver does not report it */
	uint64_t needed;       /* bytes still to be created */
	uint64_t free_bytes;
};

/*
 * Ranges to query from the driver. Mappings begin and end at multiples of 2 MiB, the smallest
 * granularity of any driver, so an area is scanned in steps of that size.
 */
#define LIEN_WIRE_STEP	(2ull << 20)
#define LIEN_WIRE_AREA	1 /* every mapping that has a byte in it */
#define LIEN_WIRE_PLAIN 2 /* the memory without a handle (cuMemAlloc) that begins at .va */

struct lien_wire_range {
	uint64_t va, bytes;
	uint32_t kind;
	uint32_t zero;
};

/*
 * A finding from the driver. The driver cannot report the size of an allocation of which only a
 * part is mapped, the references that the application holds, handles without a mapping, nor whether
 * an allocation was imported.
 */
struct lien_wire_found {
	uint64_t va, bytes;    /* of the mapping or the plain memory; bytes 0: nothing there */
	uint64_t handle;       /* of an area's mapping; equal values in a process are aliases */
	uint32_t kind;	       /* kind of the range in which it was found */
	uint32_t prop_type;    /* 0: mapped, but not from cuMemCreate: a multicast object */
	uint32_t handle_types; /* of a multicast object: 0 if no descriptor can be made of it */
	uint32_t location_type;
	int32_t location_id;
	uint8_t compression, rdma;
	uint16_t usage;
	uint32_t places; /* devices that have access */
	uint32_t zero;
	struct lien_wire_place place[LIEN_WIRE_PLACES];
};

#define LIEN_WIRE_MARK_BYTES 16

#define LIEN_WIRE_ADOPT_COUNT 0x1 /* count its references */
#define LIEN_WIRE_ADOPT_OWN   0x2 /* created here, perhaps, and exported: it gets the mark */
#define LIEN_WIRE_ADOPT_LOOK  0x4 /* perhaps imported: look for a mark */
#define LIEN_WIRE_ADOPT_OPEN                                                                       \
	0x8 /* in replies to LOOK: not mapped, but exported by an open descriptor */
#define LIEN_WIRE_ADOPT_READ_ONLY 0x10 /* no device may write there */
#define LIEN_WIRE_ADOPT_PART	  0x20 /* in replies to COUNT: the allocation is larger */
/* In replies to COUNT: it may have come by a fabric handle, even from another node. */
#define LIEN_WIRE_ADOPT_FABRIC 0x40

/*
 * One allocation, by an address where it is mapped. A list of MARKS also has the marks of other
 * processes, with .va 0: if the owner dies, the importers restore its memory.
 */
struct lien_wire_adopt {
	uint64_t va;
	uint64_t handle;     /* in replies to COUNT, as .references */
	uint32_t references; /* references that the application holds */
	uint32_t device;     /* ordinal of the device whose context reads and writes it */
	uint32_t flags;
	uint32_t steps;			     /* size of the mapping, in LIEN_WIRE_STEP */
	uint8_t bytes[LIEN_WIRE_MARK_BYTES]; /* in replies: found; in MARKS: original */
	uint8_t mark[LIEN_WIRE_MARK_BYTES];
};

/* No message is larger than this or carries more fds. */
#define LIEN_WIRE_MESSAGE_MAX 65536
#define LIEN_WIRE_FDS_MAX     64

_Static_assert(sizeof(struct lien_control_state) == 72, "wire layout");
_Static_assert(sizeof(struct lien_wire_header) == 128, "wire layout");
_Static_assert(sizeof(struct lien_wire_item) == 320, "wire layout");
_Static_assert(sizeof(struct lien_wire_raw) == 16, "wire layout");
_Static_assert(sizeof(struct lien_wire_range) == 24, "wire layout");
_Static_assert(sizeof(struct lien_wire_room) == 40, "wire layout");
_Static_assert(sizeof(struct lien_wire_found) == 184, "wire layout");
_Static_assert(sizeof(struct lien_wire_adopt) == 64, "wire layout");
_Static_assert(sizeof(struct lien_wire_hello) == 1072, "wire layout");

#endif
