/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The records of a snapshot. A call's record says what changed; these say what is. A snapshot is
 * the beginning of every recording, and the whole of a journal that was shortened.
 *
 * Order. First each process, with its libraries (LIEN_EVENT_LIBRARY) and what it has by itself;
 * then each allocation, with its site before it, if that is new, and its shares behind it; then
 * handles, mappings and registrations, bindings, and the end. Announcements of releases that are
 * under way (LIEN_EVENT_ENTRY) follow. A record refers only to what is before it.
 *
 * The header of a record: .pid and .start are the process's, and an allocation's are those of its
 * owner, which may have ended (.pid 0: not known). Some bodies have no room for all, see there. The
 * header's other members are 0.
 *
 * Numbers of allocations, communicators and contexts are the graph's own. They are never reused,
 * and a snapshot keeps them.
 */
#ifndef LIEN_STATE_H
#define LIEN_STATE_H

#include <lien/types.h>

/* clang-format off */
/*
 * A row: X(name, number, least bytes). The name is that of the body, of the function that loads the
 * record (agent/graph/snapshot.c, snapshot_memory.c), of the fields that are shown
 * (tools/cli/event_text.c), and of the record in `lien events`, after "state-". Never reuse or
 * renumber a row.
 */
/* What a process has by itself. */
#define LIEN_PROCESS_STATES(X) \
	X(process,      176, LIEN_EVENT_SIZE(state.process)) \
	X(reservation,  177, LIEN_EVENT_SIZE(state.reservation)) \
	X(context,      178, LIEN_EVENT_SIZE(state.context)) \
	X(pool,         179, LIEN_EVENT_SIZE(state.pool)) \
	X(capture,      180, LIEN_EVENT_SIZE(state.capture)) \
	X(comm,         181, LIEN_EVENT_SIZE(state.comm)) \
	X(init,         182, LIEN_EVENT_SIZE(state.init)) \
	X(split,        183, LIEN_EVENT_SIZE(state.split))
/* Memory, and what holds it. */
#define LIEN_MEMORY_STATES(X) \
	X(site,         184, LIEN_EVENT_SIZE(state.site)) \
	X(allocation,   185, offsetof(struct lien_event, state.allocation.tag_uid)) \
	X(share,        186, LIEN_EVENT_SIZE(state.share)) \
	X(handle,       187, offsetof(struct lien_event, state.handle.raw_to)) \
	X(mapping,      188, offsetof(struct lien_event, state.mapping.access)) \
	X(registration, 189, offsetof(struct lien_event, state.registration.card)) \
	X(binding,      190, LIEN_EVENT_SIZE(state.binding))
#define LIEN_STATES(X) \
	LIEN_PROCESS_STATES(X) LIEN_MEMORY_STATES(X) \
	X(end,          191, LIEN_EVENT_SIZE(state.end))
/* clang-format on */

enum lien_state {
	LIEN_STATE_FIRST = 176,
#define LIEN_STATE_ENUM(name, number, least) LIEN_STATE_##name = (number),
	LIEN_STATES(LIEN_STATE_ENUM)
#undef LIEN_STATE_ENUM
		LIEN_STATE_LAST = LIEN_STATE_end,
};

#define LIEN_IS_STATE(type) ((type) >= LIEN_STATE_FIRST && (type) <= LIEN_STATE_LAST)

struct lien_state_process { /* header: .t_entry: when its first driver call was entered, or 0 */
	__lien_u32 uid;
	__lien_u32 incomplete;	/* LIEN_INCOMPLETE_* */
	__lien_u32 cuda;	/* 1: it has or may have made a driver call */
	__lien_u32 captured;	/* 1: it has captured a CUDA graph */
	__lien_u32 context;	/* the last number that a context was given */
	__lien_u32 device_comm; /* 1: it has made a communicator for its kernels */
	char command[16];
};

struct lien_state_reservation {
	__lien_u64 va, bytes;
};

struct lien_state_context {
	__lien_u64 value;
	__lien_u32 number;
	__lien_s32 device;
	__lien_u32 primary;
	__lien_u32 zero;
};

struct lien_state_pool {
	__lien_u64 value;
	__lien_u64 share; /* of the last export, or of the import; 0: neither */
	__lien_s32 device;
	__lien_u32 imported;
};

struct lien_state_capture { /* under way */
	__lien_u64 stream;
};

/* Header: .scope: its address; .outer: the call that made it, or 0; .t_return: when it was ready */
struct lien_state_comm {
	__lien_u64 hash;
	__lien_u32 number, parent;
	__lien_s32 rank, nranks, device;
	__lien_u32 splits, shrinks;
	__lien_u32 finalized;
	__lien_u8 id[128];
};

/* The call that makes or made a communicator. Header: .scope: LIEN_SCOPE_INIT and its .t_entry */
struct lien_state_init {
	__lien_u32 number; /* of the communicator */
	__lien_u32 zero;
};

/* The part of one rank in a split that not all ranks have called yet. */
struct lien_state_split {
	__lien_u8 id[128]; /* of the new groups, before the color is added */
	__lien_u32 number; /* the parent's nth split */
	__lien_s32 nranks; /* of the parent */
	__lien_u32 comm;   /* number of the new communicator; 0: takes no part, or destroyed */
	__lien_u32 parent; /* number; 0: destroyed */
	__lien_s32 color, key;
	__lien_s32 parent_rank;
	__lien_u32 zero;
};

/* A place in the code that asked for memory. Header: .outer: the call made there */
struct lien_state_site {
	__lien_u64 inode, offset;
	__lien_u32 dev_major, dev_minor;
	__lien_u32 number; /* in this snapshot, from 1, without gaps */
	__lien_u32 zero;
	char library[64], file[64]; /* file "": not in a known mapping */
};

#define LIEN_STATE_FOUND    0x1 /* made before its process was watched */
#define LIEN_STATE_INFERRED 0x2 /* the communicator is a guess */
#define LIEN_STATE_ADOPTED  0x4
#define LIEN_STATE_OPEN	    0x8
#define LIEN_STATE_PART	    0x10
/* it may have a tag that is not known */
#define LIEN_STATE_TAG_UNKNOWN 0x20

struct lien_state_allocation {
	__lien_u64 id; /* greater than those before */
	__lien_u64 bytes;
	__lien_u64 devices; /* multicast: bit n is set if device n was added */
	struct lien_prop prop;
	__lien_u32 origin; /* enum lien_origin */
	__lien_u32 flags;  /* LIEN_STATE_FOUND to LIEN_STATE_TAG_UNKNOWN */
	__lien_u32 site;   /* number; 0: not known */
	__lien_u32 comm;   /* number of the communicator that NCCL needs it for; 0: none */
	__lien_u32 context;
	__lien_u32 dmabufs, exports;
	__lien_u32 round; /* of its adoption */
	/* Its tag, and whose tag it is. The record ends before it if there is none. */
	__lien_u32 tag_uid, zero;
	char tag[LIEN_TAG_BYTES];
};

#define LIEN_STATE_CONTROL 0x1 /* made by a restore */
#define LIEN_STATE_KEYED   0x2 /* has a key */
#define LIEN_STATE_STALE   0x4 /* its key has been given to other memory since */

struct lien_state_share {
	__lien_u64 allocation; /* id */
	__lien_u64 number;
	__lien_u32 imports;
	__lien_u32 call; /* enum lien_call: the export */
	__lien_s32 fd;
	__lien_u32 flags;
	__lien_u8 key[LIEN_KEY_BYTES];
};

#define LIEN_STATE_IMPORTED 0x1 /* of handles and mappings */
#define LIEN_STATE_PARKED   0x2
#define LIEN_STATE_OPENED   0x4 /* by legacy IPC */
#define LIEN_STATE_ACCESS   0x8 /* access was set */

struct lien_state_handle {
	__lien_u64 allocation;
	__lien_u64 value;
	__lien_u32 references, raw;
	__lien_u32 flags;
	__lien_u32 zero;
	char raw_to[64]; /* the record ends before it if there is none */
};

struct lien_state_mapping {
	__lien_u64 allocation;
	__lien_u64 va, bytes;
	__lien_u32 flags;
	__lien_u32 opens, context; /* opened mappings */
	/* A mapping with more access than fits has further records, which add to it. */
	__lien_u32 count; /* entries in .access; the record ends after them */
	struct lien_access access[LIEN_ACCESS_MAX];
};

struct lien_state_registration {
	__lien_u64 va, bytes, handle;
	__lien_u32 comm; /* number; 0: with a network card */
	__lien_u32 window, of_gpu;
	__lien_u32 zero;
	char card[LIEN_CARD_BYTES]; /* as lien_event.mr; the record may end before it */
};

struct lien_state_binding {
	__lien_u64 object, memory; /* ids */
	__lien_u64 offset, bytes;
	__lien_u64 memory_offset;
	__lien_s32 device;
	__lien_u32 zero;
};

struct lien_state_end { /* the last numbers that were given out */
	__lien_u64 allocation;
	__lien_u32 comm;
	__lien_u32 round;
};

union lien_state_body {
#define LIEN_STATE_BODY(name, number, least) struct lien_state_##name name;
	LIEN_STATES(LIEN_STATE_BODY)
#undef LIEN_STATE_BODY
};

_Static_assert(sizeof(union lien_state_body) == 168, "the event's layout");

#endif
