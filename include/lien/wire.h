/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Agent and control library. Both ends of a SOCK_SEQPACKET pair are made in the job's process when
 * its control thread starts; the agent takes one with pidfd_getfd(). The agent sends orders, the
 * control thread answers each order with one or more replies, the last of which has LIEN_WIRE_LAST.
 * One order at a time per process. All records are fixed-size and little-endian.
 *
 * The agent finds the pair, and the handler that starts the thread, through `lien_control_state`, a
 * symbol of liblien-control.so that it reads from the process's memory.
 */
#ifndef LIEN_WIRE_H
#define LIEN_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define LIEN_WIRE_VERSION 7
#define LIEN_WIRE_MAGIC	  0x6c69656e43544c31ull /* "lienCTL1" */
/* Instead, after END: it takes no orders and does nothing, until lien_control_again is called. */
#define LIEN_WIRE_MAGIC_ENDED 0x6c69656e454e4431ull /* "lienEND1" */

/* Published by the control library; read by the agent from outside, never written by it. */
struct lien_control_state {
	uint64_t magic;
	uint32_t version;
	uint32_t pid; /* getpid() of the thread's process; another value: stale copy after fork */
	uint64_t handler; /* address of the wake-up handler: the agent compares before it signals */
	uint32_t signal;  /* real-time signal the handler is installed for; 0: none was free */
	int32_t agent_fd; /* the agent's end; -1: the thread does not run */
	uint64_t agent_ino; /* inode of that socket, to be compared after pidfd_getfd */
	/* Code that calls the driver for the application, with a frame pointer
	 * (control/driver/translate.h). */
	uint64_t translate, translate_end;
};

enum lien_wire_type {
	LIEN_WIRE_HELLO = 1, /* who are you, what is offloaded: reply body lien_wire_hello */
	LIEN_WIRE_STAGE,   /* body: lien_wire_item[]; .flags FIRST clears what was staged before */
	LIEN_WIRE_DRAIN,   /* wait till all devices are idle; .arg: limit in ms; body: uint64_t[],
			      ncclComm_t that NCCL may be at work on in the background. -ETIMEDOUT:
			      something is busy still */
	LIEN_WIRE_CHECK,   /* compare the staged items with the driver */
	LIEN_WIRE_SAVE,	   /* copy staged allocations to the host arena */
	LIEN_WIRE_UNMAP,   /* unmap and release staged imports */
	LIEN_WIRE_DROP,	   /* unmap and release staged allocations */
	LIEN_WIRE_DISCARD, /* forget what is staged and not dropped: the undo of STAGE and SAVE */
	LIEN_WIRE_CREATE,  /* make, map and fill again what was dropped; copies may still run */
	LIEN_WIRE_EXPORT,  /* reply: batches of lien_wire_share[] with as many fds */
	LIEN_WIRE_IMPORT,  /* body: lien_wire_share[] with as many fds; LAST batch has flag LAST */
	LIEN_WIRE_FINISH,  /* body: lien_wire_share[]: imports to forget, for nobody has their
			      memory any more. With LAST: wait for the copies; then the items are
			      forgotten. With FILLED: only wait */
	LIEN_WIRE_LIST, /* reply: lien_wire_item[] of what is offloaded here, or half so (HERE) */
	LIEN_WIRE_WALK, /* body: lien_wire_range[]; .arg: limit in us, no more than
			   LIEN_WIRE_WALK_US_MAX count; reply: lien_wire_found[] */
	LIEN_WIRE_PREPARE, /* make the host arena larger by one chunk, if it has not .arg bytes;
			      .arg2: ordinal of the device that it is for */
	LIEN_WIRE_RELEASE, /* give back what of the arena nothing lies in or behind */
	LIEN_WIRE_GATE,	   /* .arg: enum lien_wire_gate; of PASS the body: uint32_t tids[] */
	/* Of memory that was there before the agent, while the gate is shut. Bodies and replies:
	 * lien_wire_adopt[]. */
	LIEN_WIRE_COUNT,  /* how many references are held, and what the first bytes are */
	LIEN_WIRE_MARKS,  /* which marks are about to be written; .flags FIRST clears the list */
	LIEN_WIRE_MARK,	  /* write this process's */
	LIEN_WIRE_LOOK,	  /* reply: the first bytes of all that MARKS has named here */
	LIEN_WIRE_UNMARK, /* put back what the marks were written over; the list is cleared */
	/* Leave the process as it was, and end; refused (-EBUSY) with nothing changed. */
	LIEN_WIRE_END,
};

enum lien_wire_gate {
	/* -EBUSY while something is away. What is saved and not dropped is the application's again,
	 * as when the agent is silent for too long. */
	LIEN_WIRE_GATE_OPEN,
	/* Threads that are signalled wait. .arg2: the transaction that begins with it, nothing
	 * being staged; or 0. */
	LIEN_WIRE_GATE_SHUT,
	LIEN_WIRE_GATE_PASS,  /* these threads do the one call that they are held at */
	LIEN_WIRE_GATE_ALIVE, /* changes nothing: the agent is still there */
};

#define LIEN_WIRE_WALK_US_MAX 1000000
/* Of one process, in a DRAIN. */
#define LIEN_WIRE_COMMS_MAX 4096
/* No address and no size is larger: x86-64 has no more. */
#define LIEN_WIRE_BYTES_MAX (1ull << 57)
/* Each is taken by a call of its own. */
#define LIEN_WIRE_REFERENCES_MAX 65536

/* Mappings of one process: what claims to have more away is not believed. */
#define LIEN_WIRE_ITEMS_MAX (1u << 19)

#define LIEN_WIRE_FIRST 0x1
#define LIEN_WIRE_LAST	0x2
/* FINISH, without LAST: wait for the copies, compare what is to be compared, and forget nothing. */
#define LIEN_WIRE_FILLED 0x4
/* FINISH: others may lack what is exported here: it will be asked for again. */
#define LIEN_WIRE_KEEP 0x8
/* SAVE: keep a checksum of what has arrived in the arena. CREATE and FINISH compare with it. */
#define LIEN_WIRE_VERIFY 0x10
/* CREATE, FINISH: do not. */
#define LIEN_WIRE_UNVERIFIED 0x20
/* LIST, CREATE: also say how much room there is; of a reply to these: the body is lien_wire_room[].
 */
#define LIEN_WIRE_ROOM 0x40
/* STAGE: memory of others than NCCL moves, or is away. Calls that pass handles are held, too.
 * WALK: memory of cuMemAlloc that lies in the areas is told as well (kind PLAIN). */
#define LIEN_WIRE_ALL 0x80

/* STAGE, before FIRST: the body is lien_wire_raw[]. -ENOTUNIQ: handle .arg means other memory. */
#define LIEN_WIRE_RAW 0x100

/* Chunks of the arena are multiples of it, so that much may be pinned for a byte. */
#define LIEN_WIRE_ARENA_STEP (16ull << 20)
#define LIEN_WIRE_ARENA_ROUND(size)                                                                \
	(((size) + LIEN_WIRE_ARENA_STEP - 1) & ~(LIEN_WIRE_ARENA_STEP - 1))
/* Of the arena, for reading back what is to be compared. SAVE with VERIFY reserves it as well. */
#define LIEN_WIRE_ARENA_BOUNCE (8ull << 20)

struct lien_wire_header {
	uint32_t length; /* of the message, with this header */
	uint16_t type;
	uint16_t flags;
	uint32_t seq;	/* of the order; replies carry it back; an agent ignores others */
	int32_t result; /* replies: 0, -errno, or a positive CUresult */
	uint64_t arg;	/* STAGE: the transaction; CHECK, SAVE, UNMAP, DROP, DISCARD, CREATE,
			   EXPORT, FINISH: whose items, 0: all;
			   replies: bytes moved, or the address that failed; of FINISH: bytes that
			   were compared; of RELEASE: bytes given back; of WALK: where to go on in
			   the first range that is not done */
	uint64_t arg2;	/* SAVE, DROP: free bytes of the devices used; FINISH: mappings forgotten;
			   WALK: ranges done */
	uint64_t ns;	/* replies: time the order took */
	char text[72];	/* replies with result != 0: what failed, for a human */
	uint64_t arena_bytes; /* last replies: of the host, pinned for the arena; then */
	uint64_t arena_used;  /* up to where it is in use */
};

#define LIEN_WIRE_DEVICES 64

struct lien_wire_hello {
	uint32_t version, pid, tid, uid;
	uint64_t items; /* mappings of what LIST tells */
	uint64_t bytes; /* offloaded here */
	/* What the process may use, by ordinal: as the driver says if it is initialised. */
	uint32_t devices;
	uint32_t multicast; /* so many of them support it */
	uint32_t shut;	    /* its gate is */
	uint32_t here;	    /* so many of .items are HERE: they keep no gate shut */
	uint8_t uuids[LIEN_WIRE_DEVICES][16];
};

#define LIEN_WIRE_OWNED	   0x1 /* this process owns the memory: save, drop, create */
#define LIEN_WIRE_IMPORTED 0x2 /* this process imported it: unmap, import */
#define LIEN_WIRE_SHARED   0x4 /* owned and imported elsewhere: export it on restore */
/* Owned, and not to be saved: it comes back with zeros in it. */
#define LIEN_WIRE_WORTHLESS 0x8
/* Replies to LIST: shared and on the device, but an importer may have let go of it, and needs it
 * exported: the agent was gone before the drop, or a restore could not give it to all. */
#define LIEN_WIRE_HERE 0x10

struct lien_wire_place {
	uint16_t location_type;
	uint16_t location_id;
	uint32_t flags;
};

#define LIEN_WIRE_PLACES 16

/*
 * One mapping of one allocation. The mappings of an allocation follow each other, the first one
 * (.index 0) maps all of it. What belongs to the allocation is the same in each.
 */
struct lien_wire_item {
	uint64_t token; /* names the allocation in all processes and to a later agent */
	uint64_t va, bytes;
	uint64_t allocation_bytes;
	uint32_t flags;
	uint32_t index, mappings;
	uint32_t references; /* that the application holds to the handle: 0 after it released it */
	uint32_t prop_type, handle_types, location_type;
	int32_t location_id;
	uint8_t compression, rdma;
	uint16_t usage;
	uint32_t places;
	struct lien_wire_place place[LIEN_WIRE_PLACES];
	uint64_t owner_start; /* the owner's pid and start, as the agent names it */
	uint32_t owner_pid, zero;
};

/* A handle that the application may have got from the driver without the control library. */
struct lien_wire_raw {
	uint64_t handle;
	uint32_t certain; /* 0: perhaps through the control library after all */
	uint32_t zero;
};

struct lien_wire_share {
	uint64_t token;
};

/* In one FINISH. */
#define LIEN_WIRE_LOST_MAX 256

/* A device on which memory of this process is to be made again. Told after what is listed, and by a
 * CREATE for which a device had too little. Without a primary context nothing is told. */
struct lien_wire_room {
	uint32_t device, zero; /* its ordinal in the process */
	uint8_t uuid[16];      /* 0: the driver does not tell */
	uint64_t needed;       /* bytes that are not there yet */
	uint64_t free_bytes;
};

/*
 * What the driver is asked about. Mappings begin and end at multiples of 2 MiB, the smallest
 * granularity that drivers have, so an area need be looked at in such steps only.
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
 * What the driver says is there. It cannot be asked for the size of an allocation of which only a
 * part is mapped, for the references that the application holds, for handles without a mapping, nor
 * whether an allocation was imported.
 */
struct lien_wire_found {
	uint64_t va, bytes; /* of the mapping, or of the plain memory; bytes 0: there is none */
	uint64_t handle;    /* of an area's; equal values in a process are aliases */
	uint32_t kind;	    /* of the range that it was found for */
	uint32_t prop_type; /* 0: no memory of cuMemCreate's, but mapped: a multicast object */
	uint32_t handle_types, location_type;
	int32_t location_id;
	uint8_t compression, rdma;
	uint16_t usage;
	uint32_t places; /* devices that have access */
	uint32_t zero;
	struct lien_wire_place place[LIEN_WIRE_PLACES];
};

#define LIEN_WIRE_MARK_BYTES 16

#define LIEN_WIRE_ADOPT_COUNT 0x1 /* its references are to be counted */
#define LIEN_WIRE_ADOPT_OWN   0x2 /* made here, and may have been handed out: it gets the mark */
#define LIEN_WIRE_ADOPT_LOOK  0x4 /* may have been imported: which mark is there? */
#define LIEN_WIRE_ADOPT_OPEN                                                                       \
	0x8 /* of LOOK's reply: no mapping, but what an open descriptor exports */
#define LIEN_WIRE_ADOPT_READ_ONLY 0x10 /* no device may write there */
#define LIEN_WIRE_ADOPT_PART	  0x20 /* of COUNT's reply: there is more of it than is mapped there */

/*
 * One allocation, by an address where it is mapped. In a list of MARKS: also what others write,
 * with .va 0, for memory whose owner dies is put right by those who imported it.
 */
struct lien_wire_adopt {
	uint64_t va;
	uint64_t handle;     /* of COUNT's reply, as .references */
	uint32_t references; /* that the application holds */
	uint32_t device;     /* by whose context it is read and written: an ordinal */
	uint32_t flags;
	uint32_t steps;			     /* how large the mapping is, in LIEN_WIRE_STEP */
	uint8_t bytes[LIEN_WIRE_MARK_BYTES]; /* of replies: what is there; of MARKS: what was */
	uint8_t mark[LIEN_WIRE_MARK_BYTES];
};

/* A message never exceeds this, nor carries more fds. */
#define LIEN_WIRE_MESSAGE_MAX 65536
#define LIEN_WIRE_FDS_MAX     64

_Static_assert(sizeof(struct lien_control_state) == 56, "wire layout");
_Static_assert(sizeof(struct lien_wire_header) == 128, "wire layout");
_Static_assert(sizeof(struct lien_wire_item) == 216, "wire layout");
_Static_assert(sizeof(struct lien_wire_raw) == 16, "wire layout");
_Static_assert(sizeof(struct lien_wire_range) == 24, "wire layout");
_Static_assert(sizeof(struct lien_wire_room) == 40, "wire layout");
_Static_assert(sizeof(struct lien_wire_found) == 184, "wire layout");
_Static_assert(sizeof(struct lien_wire_adopt) == 64, "wire layout");
_Static_assert(sizeof(struct lien_wire_hello) == 1072, "wire layout");

#endif
