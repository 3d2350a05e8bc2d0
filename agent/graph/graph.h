/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph: which process holds which GPU memory, and by what. lien_graph_apply() builds it from
 * events alone; it is plain C that needs no BPF, no CUDA and no root. Other modules read the
 * structures below and change nothing. Not thread-safe; the agent is one thread.
 *
 * An allocation lives as long as a handle with references or a mapping of it is known in any
 * process. One that was handed out may come back (an import that is reported late, a descriptor
 * that was still open somewhere), so the graph remembers the last of these, and hides them. Names
 * (handles, addresses, communicator pointers) belong to a process and are reused after release;
 * event.h explains how their order is kept.
 *
 * Events of the control library carry LIEN_EVENT_CONTROL. Its unmap parks a mapping (the address
 * stays the application's, with nothing behind it), and its map at a parked mapping's address
 * revives it, so that an allocation keeps its number and its owner through offload and restore.
 */
#ifndef LIEN_GRAPH_H
#define LIEN_GRAPH_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <lien/event.h>

struct lien_graph;
struct lien_ordinals; /* agent/graph/devices.h */

/*
 * The trees: X(tree without its _tree, type, the member that orders it, entry). Those of
 * LIEN_ORDERED_TREES compare more than one member. Splay trees have entries of half the size. They
 * are used where there is one entry per mapping, of which there may be a million, and no lookup of
 * neighbours. A lookup changes the tree.
 */
/* clang-format off */
#define LIEN_TREES(X) \
	X(lien_process,        lien_process,      pid,     by_pid) \
	X(lien_mapping,        lien_mapping,      va,      by_va) \
	X(lien_comm,           lien_comm,         address, by_address) \
	X(lien_comm_number,    lien_comm,         number,  by_number) \
	X(lien_library,        lien_library_map,  start,   by_start) \
	X(lien_pool,           lien_pool,         value,   by_value) \
	X(lien_context,        lien_context,      value,   by_value) \
	X(lien_context_number, lien_context,      number,  by_number) \
	X(lien_init,           lien_init,         scope,   by_scope) \
	X(lien_init_number,    lien_init,         number,  by_number) \
	X(lien_capture,        lien_capture,      stream,  by_stream)
#define LIEN_ORDERED_TREES(X) \
	X(lien_registration,   lien_registration, handle,  by_handle) \
	X(lien_binding,        lien_binding,      device,  of_object)
#define LIEN_SPLAY_TREES(X) \
	X(lien_share,          lien_share,        number,  by_number) \
	X(lien_handle,         lien_handle,       value,   by_value) \
	X(lien_reservation,    lien_reservation,  va,      by_va)
/* clang-format on */

#define LIEN_TREE_HEAD(tree, type, member, entry) RB_HEAD(tree##_tree, type);
LIEN_TREES(LIEN_TREE_HEAD)
LIEN_ORDERED_TREES(LIEN_TREE_HEAD)
#undef LIEN_TREE_HEAD
#define LIEN_TREE_HEAD(tree, type, member, entry) SPLAY_HEAD(tree##_tree, type);
LIEN_SPLAY_TREES(LIEN_TREE_HEAD)
#undef LIEN_TREE_HEAD

/* The beginning of what is interned: kept once, for the graph's life. Equal ones are equal
 * pointers. The key follows. */
struct lien_interned {
	RB_ENTRY(lien_interned) by_key;
	uint32_t kind, bytes; /* of the key */
};

struct lien_name {
	struct lien_interned interned;
	char text[];
};

/* The locations that may access a mapping; interned. Sorted by location. */
struct lien_access_set {
	struct lien_interned interned;
	unsigned count;
	struct lien_access access[];
};

/*
 * Where memory comes from: X(ORIGIN, name in the views). Snapshots have the number: never reorder
 * or remove a row. From ALLOC on it has no handles: it is known by its address, and freed by it.
 * MULTICAST has only the memory that is bound to it. The owner of IMPORT is unknown, because its
 * export was not seen. MANAGED is wherever it was last used. REGISTERED is the application's own
 * host memory, pinned.
 */
/* clang-format off */
#define LIEN_ORIGINS(X) \
	X(CREATE,     "cuMemCreate") \
	X(IMPORT,     "import") \
	X(MULTICAST,  "cuMulticastCreate") \
	X(ALLOC,      "cuMemAlloc") \
	X(PITCH,      "cuMemAllocPitch") \
	X(MANAGED,    "cuMemAllocManaged") \
	X(POOL,       "cuMemAllocAsync") \
	X(HOST,       "cuMemHostAlloc") \
	X(REGISTERED, "cuMemHostRegister")
/* clang-format on */

enum lien_origin {
	LIEN_ORIGIN_NONE,
#define LIEN_ORIGIN_ENUM(origin, text) LIEN_ORIGIN_##origin,
	LIEN_ORIGINS(LIEN_ORIGIN_ENUM)
#undef LIEN_ORIGIN_ENUM
		LIEN_ORIGIN_COUNT,
};

/* Returns the origin of memory that such a call makes. */
enum lien_origin lien_origin_of(unsigned call);
/* Returns the name that the views use. */
const char *lien_origin_name(enum lien_origin origin);

/* A place in the code that asked for memory; interned. The key ends with .outer. */
struct lien_site {
	struct lien_interned interned;
	const struct lien_name *library; /* as allocations name it: "nccl", "torch_cuda" */
	const struct lien_name *file;	 /* "libtorch_cuda.so"; NULL: not in a known mapping */
	/* inode of the file and offset in it; without a file the offset is the address */
	uint64_t inode, offset;
	uint32_t dev_major, dev_minor;
	uint32_t outer; /* enum lien_call: the function called there */
	/*
	 * Set by lien_graph_name_site(): the function that contains the call; NULL: not known
	 * (yet).
	 */
	const struct lien_name *symbol;
	uint64_t into; /* from the function's beginning to the return address */
	/* Its number in the last snapshot that has it, and which that was. */
	uint32_t number;
	uint64_t snapshot;
};

/* A name that a process gave to memory when it allocated it (include/lien/tag.h). Each user has
 * tags of its own, at most LIEN_TAGS_MAX at a time. */
#define LIEN_TAGS_MAX 64
struct lien_tag {
	RB_ENTRY(lien_tag) by_text;
	uint32_t uid;
	unsigned allocations; /* that have it; it goes with the last one */
	char text[LIEN_TAG_BYTES];
};

struct lien_mapping;
struct lien_handle;
struct lien_holding;
LIST_HEAD(lien_mapping_list, lien_mapping);
TAILQ_HEAD(lien_handle_list, lien_handle);
LIST_HEAD(lien_holding_list, lien_holding);

/* Set in a share number that is a hash of a 64-byte name. */
#define LIEN_SHARE_BY_KEY 0x8000000000000000ull

/* One export: an import's number refers to it. */
struct lien_share {
	SPLAY_ENTRY(lien_share) by_number;
	LIST_ENTRY(lien_share) of_allocation;
	struct lien_allocation *allocation;
	uint64_t number;
	uint64_t made; /* counts from 1 in this graph */
	unsigned imports;
	uint32_t call; /* enum lien_call: the export */
	int32_t fd;    /* in the exporter, when it was made; -1: none */
	bool control;  /* made by a restore */
	bool has_key;
	bool stale;    /* its key has been given to other memory since */
	bool closed;   /* nobody can import it any more */
	uint8_t key[]; /* LIEN_KEY_BYTES if it has one */
};

/* A range of memory bound to a multicast object. */
struct lien_binding {
	RB_ENTRY(lien_binding) of_object; /* ordered by the memory's device and the offset */
	LIST_ENTRY(lien_binding) of_memory;
	struct lien_allocation *object, *memory;
	uint64_t number;
	uint64_t offset, bytes; /* in the object */
	uint64_t memory_offset;
	int32_t device;
};

/* There may be a million of these: the member order avoids padding. */
struct lien_allocation {
	TAILQ_ENTRY(lien_allocation) of_graph; /* lien_graph_first_allocation(), ..._next_...() */
	uint64_t id;			       /* never reused; the graph's list is sorted by it */
	LIST_ENTRY(lien_allocation) of_owner;
	struct lien_process *owner; /* NULL: unknown or dead */
	uint64_t owner_start;
	uint64_t bytes;
	const struct lien_site *site;	   /* code that asked for it; NULL: not known */
	struct lien_tag *tag;		   /* NULL: none, or not known */
	LIST_HEAD(, lien_share) shares;	   /* a restore's share, if there is one, comes first */
	struct lien_holding_list holdings; /* one per process that has handles or mappings */
	union {
		LIST_HEAD(, lien_binding) bindings; /* the objects that reach it */
		struct lien_binding_tree bound;	    /* multicast: what it reaches */
	};
	struct lien_prop prop; /* of memory known by address: only the location, if known */
	uint32_t owner_pid;    /* stays after the owner's death; 0: unknown */
	/* lien_comm.number of the communicator that NCCL needs it for; 0: none or not known */
	uint32_t comm;
	union {
		uint64_t devices; /* multicast: bit n is set if device n was added */
		struct {
			uint32_t context; /* lien_context.number; 0: none or not known */
			/* Descriptors that cuMemGetHandleForAddressRange gave out. */
			uint32_t dmabufs;
		};
	};
	unsigned exports; /* by the application; exports by restores do not count */
	unsigned awaited; /* exported descriptors that nobody has imported yet */
	/* of its adoption: see lien_event.adopt; 0: others may have imported it */
	uint32_t round;
	uint16_t let_go; /* handed out and no longer held: its place in graph.let_go, from 1 */
	uint8_t origin;	 /* enum lien_origin */
	bool comm_inferred : 1; /* see lien_event.scope */
	/* it may have a tag that could not be read, is not printable or was one too many */
	bool tag_unknown : 1;
	/* found by asking the driver: made before its process was watched */
	bool found : 1;
	/* For such memory: the references that its owner, or an importer, holds are known; */
	bool adopted : 1;
	bool open : 1; /* a descriptor that exports it was open somewhere; */
	bool part : 1; /* it is larger than what is mapped of it. */
	/* A process is importing it now, or it comes from a snapshot that is still being loaded. */
	bool importing : 1;
};

/*
 * The part of an allocation that one process has. A job may map or import an allocation as often as
 * it likes, so the sums over all its mappings and handles are kept here.
 */
struct lien_holding {
	LIST_ENTRY(lien_holding) of_allocation;
	struct lien_process *process;
	struct lien_allocation *allocation;
	struct lien_mapping_list mappings;
	struct lien_handle_list handles; /* handles without references come first */
	uint32_t mapped, live;		 /* mappings; mappings that are not parked */
};

struct lien_handle {
	SPLAY_ENTRY(lien_handle) by_value;
	TAILQ_ENTRY(lien_handle) of_holding;
	struct lien_holding *holding;
	uint64_t value;
	uint32_t references; /* 0: released, but a mapping in this process keeps the name valid */
	/* References that the application got from the driver itself, bypassing the control
	 * library, which may have renamed the handle (LIEN_EVENT_TRANSLATED). */
	uint32_t raw : 31;
	bool imported : 1;
	/* the library that got the handle last, named as in allocations */
	const struct lien_name *raw_to;
};

/* RB_ENTRY() without the padding after the color. */
#define LIEN_RB_ENTRY(type)                                                                        \
	struct {                                                                                   \
		struct type *rbe_left, *rbe_right, *rbe_parent;                                    \
		int rbe_color;                                                                     \
	} __attribute__((packed, aligned(4)))

/* There may be a million of these: the member order avoids padding. */
struct lien_mapping {
	LIEN_RB_ENTRY(lien_mapping) by_va;
	bool imported;
	bool parked; /* unmapped by the control library: offloaded */
	bool opened; /* legacy IPC, where all openings share one address */
	LIST_ENTRY(lien_mapping) of_holding;
	struct lien_holding *holding;
	uint64_t va, bytes;
	union { /* lien_mapping_access(), lien_mapping_opens() */
		const struct lien_access_set *access;
		struct {
			uint32_t opens, context; /* lien_context.number; 0: not known */
		};
	};
};

struct lien_reservation {
	SPLAY_ENTRY(lien_reservation) by_va;
	uint64_t va, bytes;
};

/* A buffer registered with a communicator or with a network card. */
struct lien_registration {
	RB_ENTRY(lien_registration) by_handle;
	/* tells registrations apart: NCCL returns one handle for a buffer registered twice */
	uint64_t number;
	uint64_t va, bytes, handle;
	bool window;
	bool of_gpu; /* known memory lay there at registration, not just the host's */
	const struct lien_name *card; /* "mlx5_0"; NULL: not known, or with a communicator */
	const struct lien_name *why;  /* with a known card: lien_mapping_card_keeps() */
};

/* The ranges that registrations cover: disjoint and sorted, computed on demand. */
struct lien_span {
	uint64_t va, end;
	const char *why; /* lien_mapping_card_keeps() */
};
struct lien_spans {
	struct lien_span *span;
	unsigned count, room;
	bool known; /* false: must be recomputed */
};

struct lien_comm {
	RB_ENTRY(lien_comm) by_address;
	RB_ENTRY(lien_comm) by_number;
	uint64_t address;
	uint32_t number; /* unique in the graph; never reused */
	uint32_t parent; /* number of the communicator it was split or shrunk from; 0: none */
	/*
	 * Equal in all processes of the group. For a split or shrunk communicator it is derived
	 * from the parent's id, the number of its earlier splits or shrinks, and the color: all
	 * ranks make these in the same order.
	 */
	uint8_t id[128];
	int32_t rank, nranks; /* -1: not known (yet: a split's ranks need all its members) */
	int32_t device;	      /* -1: not known */
	uint32_t made_by;     /* enum lien_call; 0: first seen in use, or found */
	/* NCCL's name for the group, if its RAS has reported it; 0: not known */
	uint64_t hash;
	unsigned splits, shrinks;
	uint64_t t_init; /* CLOCK_MONOTONIC ns at which it was ready */
	bool finalized;
	struct lien_registration_tree registrations;
	struct lien_split_member *member;	  /* in the split under way that makes it */
	LIST_HEAD(, lien_split_member) splitting; /* it, and not all ranks have called yet */
};

/* An executable mapping of a file: calls come from these. */
struct lien_library_map {
	RB_ENTRY(lien_library_map) by_start;
	uint64_t start, end, offset, inode, t_mapped;
	uint32_t dev_major, dev_minor;
	const struct lien_name *file; /* last component of the path */
};

/* A release that was entered and has not returned. */
struct lien_pending {
	TAILQ_ENTRY(lien_pending) next;
	struct lien_event event; /* the announcement; LIEN_EVENT_DOUBTFUL is set when it applies */
	int (*effect)(struct lien_process *, const struct lien_event *);
};

struct lien_pool {
	RB_ENTRY(lien_pool) by_value;
	uint64_t value;
	uint64_t share; /* of the last export, or of the import; 0: neither */
	int32_t device; /* -1: not known */
	bool imported;
};

struct lien_context {
	RB_ENTRY(lien_context) by_value;
	RB_ENTRY(lien_context) by_number;
	uint64_t value;
	uint32_t number; /* unique in the process; from 1, never reused */
	int32_t device;
	bool primary;
};

/* The call that makes or made a communicator: NCCL's own threads refer to it by that. */
struct lien_init {
	RB_ENTRY(lien_init) by_scope;
	RB_ENTRY(lien_init) by_number;
	uint64_t scope;
	uint32_t number; /* the communicator's */
};

struct lien_capture {
	RB_ENTRY(lien_capture) by_stream;
	uint64_t stream;
};

/* The reasons for being incomplete (event.h) that a re-read from the driver removes. */
#define LIEN_INCOMPLETE_REREAD (LIEN_INCOMPLETE_LOST | LIEN_INCOMPLETE_ODD | LIEN_INCOMPLETE_ARGS)

/* Does the process take orders? The agent sets it; the graph leaves it alone. */
enum lien_control_presence {
	LIEN_CONTROL_NONE,   /* no control library */
	LIEN_CONTROL_LOADED, /* loaded, but its thread does not run yet */
	LIEN_CONTROL_TAKEN,  /* obeys another agent */
	LIEN_CONTROL_OTHER,  /* speaks another protocol version than this agent */
	LIEN_CONTROL_READY,
	LIEN_CONTROL_UNKNOWN, /* not checked: the graph comes from a recording */
};

struct lien_ras_report;

struct lien_process {
	RB_ENTRY(lien_process) by_pid;
	struct lien_graph *graph;
	TAILQ_ENTRY(lien_process) of_ending; /* used instead once it has ended */
	uint32_t pid, uid;
	uint64_t start;
	/* when its first driver call was entered; 0: before the process was watched */
	uint64_t t_first;
	char command[16];
	bool ended;	  /* is being removed from the graph */
	bool captured;	  /* has captured a CUDA graph: what that launches makes no calls */
	bool device_comm; /* has made an ncclDevComm: its kernels work on NCCL's memory themselves
			   */
	bool cuda; /* has or may have made a driver call; false if it only mapped a library */
	unsigned incomplete;
	enum lien_control_presence presence;
	bool detached;	 /* by `lien detach`, and not attached since; set by the agent */
	bool over;	 /* /proc says that it has ended; set by the agent */
	bool joins;	 /* an offload gives it the control library first; set by the agent */
	unsigned parked; /* mappings */
	bool joined;	 /* has had memory away that multicast objects join with others' */
	uint32_t visits; /* visits it may still cost: lien_process_visits() */
	uint64_t held_bytes, held_items; /* offloaded by an earlier agent; set by the agent */
	bool no_context; /* it had no primary context to copy with; set by the agent */
	/* host memory, according to its control library's last reply */
	uint64_t arena_bytes, arena_used;
	/* The call for which its memory came back by itself; set by the agent. */
	const char *used_in;
	void *agent;		     /* owned by the agent, not by the graph */
	uint64_t mark;		     /* the planner's, while it makes a plan (agent/plan/) */
	struct lien_ras_report *ras; /* the agent's (agent/ras); NULL: it was not asked */
	const struct lien_ordinals *ordinals; /* NULL: not known; set and freed by the agent */
	struct lien_handle_tree handles;
	struct lien_mapping_tree mappings;
	struct lien_reservation_tree reservations;
	struct lien_comm_tree comms;
	struct lien_comm_number_tree comm_numbers;
	struct lien_registration_tree cards; /* memory registered with network cards */
	struct lien_spans card_spans;
	struct lien_library_tree libraries;
	TAILQ_HEAD(, lien_pending) pending;
	unsigned pending_count;
	struct lien_capture_tree captures;
	struct lien_pool_tree pools;
	struct lien_context_tree contexts;
	struct lien_context_number_tree context_numbers;
	uint32_t next_context;
	struct lien_init_tree inits;
	struct lien_init_number_tree init_numbers;
	LIST_HEAD(, lien_split_member) splits; /* splits under way in which it takes part */
	LIST_HEAD(, lien_allocation) owned;
};

struct lien_graph_stats {
	uint64_t events, lost, odd;
	uint64_t unmatched_imports; /* still held, with an unknown owner */
	uint64_t processes, allocations, mappings;
	uint64_t shares_made; /* ever: the value of the last one's .made */
	uint32_t round;	      /* of the last adoption (lien_event.adopt); 0: there was none */
};

int lien_graph_new(struct lien_graph **out);
void lien_graph_free(struct lien_graph *graph);

/* Called before a process is freed, by exit, exec or lien_graph_free(). */
void lien_graph_on_process_end(
	struct lien_graph *graph, void (*fn)(void *context, struct lien_process *), void *context);

/* Called during lien_graph_apply() when a place asks for memory for the first time. The process is
 * NULL if the place comes from a snapshot and its process has ended. */
void lien_graph_on_site(struct lien_graph *graph,
	void (*fn)(void *context, struct lien_process *, const struct lien_site *), void *context);
/* Names the function that contains a place of this graph. -ENOMEM. */
int lien_graph_name_site(
	struct lien_graph *graph, const struct lien_site *site, const char *symbol, uint64_t into);

/*
 * Makes the graph patient: an event with a large effect (such as the end of a process with many
 * mappings) takes effect only in part. lien_graph_finish() does the rest, at most `steps` at a
 * time, and returns true when nothing is left. Do not read the graph until then. Applying another
 * event finishes the one before first.
 */
void lien_graph_be_patient(struct lien_graph *graph);
bool lien_graph_unfinished(const struct lien_graph *graph);
bool lien_graph_finish(struct lien_graph *graph, unsigned steps);

/* Applies one event. -EBADMSG: the record is malformed, or one of a snapshot that does not fit into
 * the graph (which is unchanged); -ENOMEM. */
int lien_graph_apply(struct lien_graph *graph, const struct lien_event *event);

const struct lien_graph_stats *lien_graph_stats(const struct lien_graph *graph);

/* NULL: there is no such process. */
struct lien_process *lien_graph_process(struct lien_graph *graph, uint32_t pid);
/* Returns exactly this process, if it has not ended. */
struct lien_process *lien_graph_living(struct lien_graph *graph, uint32_t pid, uint64_t start);
struct lien_process *lien_graph_first(struct lien_graph *graph);
struct lien_process *lien_graph_next(struct lien_process *process);
#define LIEN_FOREACH_PROCESS(process, graph)                                                       \
	for ((process) = lien_graph_first(graph); (process); (process) = lien_graph_next(process))
/* Returns the first process with a greater pid. */
struct lien_process *lien_graph_process_after(struct lien_graph *graph, uint32_t pid);
struct lien_allocation *lien_graph_first_allocation(struct lien_graph *graph);
struct lien_allocation *lien_graph_next_allocation(struct lien_allocation *allocation);
#define LIEN_FOREACH_ALLOCATION(allocation, graph)                                                 \
	for ((allocation) = lien_graph_first_allocation(graph); (allocation);                      \
		(allocation) = lien_graph_next_allocation(allocation))

/* NULL: no export with that number is known. */
struct lien_share *lien_share_find(struct lien_graph *graph, uint64_t number);
/* `open` lists the exports that are open, sorted by number. Marks as closed all others that the
 * graph knew when `made` shares had been made: nobody has a descriptor, so nobody will import them.
 */
void lien_graph_open_exports(
	struct lien_graph *graph, uint64_t made, const uint64_t *open, unsigned count);

/* Is everything that the process holds known, as far as possible (LIEN_INCOMPLETE_ADOPTED)? */
static inline bool lien_process_whole(const struct lien_process *process)
{
	return !(process->incomplete & ~(LIEN_INCOMPLETE_ADOPTED | LIEN_INCOMPLETE_MULTICAST |
					       LIEN_INCOMPLETE_MULTICAST_OWN));
}

/* Returns NULL, or why the process takes no orders: "it has no control library: ...". */
const char *lien_process_takes_no_orders(const struct lien_process *process);
/* Returns the first mapping that has a byte in [va, va + bytes). */
struct lien_mapping *lien_process_overlap(
	struct lien_process *process, uint64_t va, uint64_t bytes);
/* Returns the mapping that contains va. */
static inline struct lien_mapping *lien_process_mapping(struct lien_process *process, uint64_t va)
{
	return lien_process_overlap(process, va, 1);
}

/* Returns the executable mapping that contains address. */
struct lien_library_map *lien_process_library(struct lien_process *process, uint64_t address);
/*
 * Names the caller: "nccl" if the thread was inside one of NCCL's calls, else the library (or
 * program) that the outermost traced call returns to, with "libc10_cuda.so" as "c10_cuda"; or
 * "unknown".
 */
#define LIEN_CALLER_SIZE 64
void lien_process_caller(
	struct lien_process *process, const struct lien_event *event, char name[LIEN_CALLER_SIZE]);

/* Returns true while the first or the last byte of it lies in known memory. */
bool lien_registration_lies(
	struct lien_process *process, const struct lien_registration *registration);
/* Returns NULL, or why the mapping's memory cannot be moved: a registration with a network card
 * covers a byte of it, or there is no memory to find out. The text names the card, and lives as
 * long as the graph. */
const char *lien_mapping_card_keeps(const struct lien_mapping *mapping);
/* Returns what the process has of the allocation; NULL: nothing. */
struct lien_holding *lien_allocation_holding(
	const struct lien_allocation *allocation, const struct lien_process *process);
/* Returns the locations with access; NULL: none, or not known. */
static inline const struct lien_access_set *lien_mapping_access(const struct lien_mapping *mapping)
{
	return mapping->opened ? NULL : mapping->access;
}

/* Returns how often legacy IPC opened it. */
static inline unsigned lien_mapping_opens(const struct lien_mapping *mapping)
{
	return mapping->opened ? mapping->opens : 0;
}

/* Returns true while anything holds it; false if only an export that has not been imported may keep
 * it alive. */
bool lien_allocation_held(const struct lien_allocation *allocation);
/* Returns true when the owner holds it in host memory: no handle and no mapping of it is live. */
bool lien_allocation_offloaded(const struct lien_allocation *allocation);
/* Returns true for memory without handles. */
static inline bool lien_allocation_by_address(const struct lien_allocation *allocation)
{
	return allocation->origin >= LIEN_ORIGIN_ALLOC;
}

/* Returns the name of the library or program that asked for it, or "unknown". */
static inline const char *lien_allocation_library(const struct lien_allocation *allocation)
{
	return allocation->site ? allocation->site->library->text : "unknown";
}

/* May the application work on it without NCCL, although it is NCCL's? NCCL made it for its caller
 * (ncclMemAlloc), or somebody who holds it has an ncclDevComm. */
bool lien_allocation_handed_out(const struct lien_allocation *allocation);
/*
 * The same; where that is not known, what it probably is: "nccl" (*inferred) if another rank of
 * one of its owner's communicators maps it for another device. The program may also have given the
 * memory to NCCL, so nothing that could harm a job may depend on this.
 */
const char *lien_allocation_attributed(const struct lien_allocation *allocation, bool *inferred);
/* Returns its tag. NULL: it has none, or it is not known. */
static inline const char *lien_allocation_tag(const struct lien_allocation *allocation)
{
	return allocation->tag ? allocation->tag->text : NULL;
}

/* Returns false if it may have a tag that is not known, because nobody saw it being made, for
 * example. */
bool lien_allocation_tag_known(const struct lien_allocation *allocation);
/* NULL: the communicator has been destroyed, or there is none. */
struct lien_comm *lien_allocation_comm(const struct lien_allocation *allocation);
/* Returns the number by which answers name its group. */
static inline uint64_t lien_comm_group(const struct lien_comm *comm)
{
	uint64_t magic;

	memcpy(&magic, comm->id, sizeof(magic));
	return magic;
}

/* Returns true when the other members of its group are not known. */
bool lien_comm_unnamed(const struct lien_comm *comm);
/* Returns true when its group is known only from NCCL's RAS: its making was not seen. */
bool lien_comm_is_found(const struct lien_comm *comm);
/* Makes the id of a group that is known by NCCL's hashes for it. */
void lien_comm_found_id(uint8_t id[128], uint64_t hash, uint64_t host_hash, uint64_t pid_hash);
/* Returns true for a device's memory. Host memory (NCCL's HOST_NUMA buffers) and multicast objects
 * are not a device's. */
bool lien_allocation_on_device(const struct lien_allocation *allocation);

/*
 * The viewer: whoever asks. A user sees and moves only the user's own processes, and what these
 * hold of other users' memory (docs/security.md). A viewer learns of other users' holders only that
 * they exist.
 */
struct lien_viewer {
	bool one_user; /* false: root, who sees everything */
	uint32_t uid;
	uint32_t pid; /* of the client, for the log; 0: the agent itself asks */
};

/* Is it the same user? */
static inline bool lien_viewer_same(const struct lien_viewer *a, const struct lien_viewer *b)
{
	return a->one_user == b->one_user && (!a->one_user || a->uid == b->uid);
}

/* viewer NULL: root. process NULL: nobody's process, which only root sees. */
static inline bool lien_viewer_sees(
	const struct lien_viewer *viewer, const struct lien_process *process)
{
	return !viewer || !viewer->one_user || (process && process->uid == viewer->uid);
}

/*
 * Does the viewer see the owner? If the owner has exited or is not known: does the viewer see a
 * holder?
 */
bool lien_viewer_sees_owner(
	const struct lien_viewer *viewer, const struct lien_allocation *allocation);
/* Does the viewer see the owner or any holder? */
bool lien_viewer_sees_part(
	const struct lien_viewer *viewer, const struct lien_allocation *allocation);

/*
 * Takes a snapshot of what the viewer sees (NULL: all). Memory whose owner the viewer does not see
 * has an unknown owner there. Passes the present state to fn, as the records of lien/state.h.
 * Applied to an empty graph they make an equal one, with the same numbers, except for memory that
 * was handed out by descriptor and is held by nobody now: a later import of such a descriptor is
 * not matched. Stops at the first negative value that fn returns, and returns it.
 */
int lien_graph_dump_seen(const struct lien_graph *graph, const struct lien_viewer *viewer,
	int (*fn)(void *context, const struct lien_event *), void *context);
static inline int lien_graph_dump(const struct lien_graph *graph,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	return lien_graph_dump_seen(graph, NULL, fn, context);
}

#define LIEN_TREE_FUNCTIONS(tree, type, member, entry)                                             \
	RB_PROTOTYPE(tree##_tree, type, entry, tree##_cmp)
LIEN_TREES(LIEN_TREE_FUNCTIONS)
LIEN_ORDERED_TREES(LIEN_TREE_FUNCTIONS)
#undef LIEN_TREE_FUNCTIONS
#define LIEN_TREE_FUNCTIONS(tree, type, member, entry)                                             \
	int tree##_cmp(const struct type *a, const struct type *b);                                \
	SPLAY_PROTOTYPE(tree##_tree, type, entry, tree##_cmp)
LIEN_SPLAY_TREES(LIEN_TREE_FUNCTIONS)
#undef LIEN_TREE_FUNCTIONS

/*
 * A split under way: ranks of the parent on other nodes are not known yet. Ranks in the new
 * groups follow from all members of all nodes: by key, then by rank in the parent.
 */
struct lien_split_place {
	const uint8_t *split; /* its id, as long as a group's: equal on all nodes; borrowed */
	int32_t nranks;	      /* of the parent: as many members the split has */
	unsigned members;     /* here */
	int32_t key, parent_rank;
};

/* False: the communicator's rank is known, or what it follows from is not. */
bool lien_split_place(
	const struct lien_process *process, uint64_t comm, struct lien_split_place *place);

static inline struct lien_comm *lien_comm_find(struct lien_process *process, uint64_t address)
{
	return RB_FIND(lien_comm_tree, &process->comms, &(struct lien_comm){.address = address});
}

/* Returns the communicator with that number. NULL: it was destroyed, or is being made. */
static inline struct lien_comm *lien_process_comm(struct lien_process *process, uint32_t number)
{
	return RB_FIND(lien_comm_number_tree, &process->comm_numbers,
		&(struct lien_comm){.number = number});
}

static inline struct lien_handle *lien_handle_find(struct lien_process *process, uint64_t value)
{
	return SPLAY_FIND(
		lien_handle_tree, &process->handles, &(struct lien_handle){.value = value});
}

#endif
