/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph: which process holds which GPU memory, and by what. Built by lien_graph_apply() from
 * events alone; plain C that needs no BPF, no CUDA and no root. Others read the structures below
 * and change nothing. Not thread-safe; the agent is one thread.
 *
 * An allocation lives as long as a handle with references or a mapping of it is known in any
 * process. One that was handed out may come back (an import that is told late, a descriptor that
 * was still open somewhere): the last of these are remembered, and shown to nobody. Names (handles,
 * addresses, communicator pointers) belong to a process and are reused after release; see event.h
 * for how that is kept in order.
 *
 * What the control library did carries LIEN_EVENT_CONTROL: its unmap parks a mapping (the address
 * stays the application's, nothing is behind it), and its map at a parked mapping's address revives
 * it, so that an allocation keeps its number and its owner through offload and restore.
 */
#ifndef LIEN_GRAPH_H
#define LIEN_GRAPH_H

#include <stdbool.h>
#include <stdint.h>
#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>
#include <lien/event.h>

struct lien_graph;
struct lien_ordinals; /* agent/devices.h */

/* Names are interned for the graph's life: equal names are equal pointers. */
struct lien_name {
	RB_ENTRY(lien_name) by_text;
	char text[];
};

/* The places that may reach a mapping; interned like names. Sorted by location. */
struct lien_access_set {
	RB_ENTRY(lien_access_set) by_value;
	unsigned count;
	struct lien_access access[];
};

/* From ALLOC on it has no handles: it is known by its address, and freed by it. */
enum lien_origin {
	LIEN_ORIGIN_CREATE = 1, /* cuMemCreate */
	LIEN_ORIGIN_IMPORT,	/* imported, but its export was not seen: owner unknown */
	LIEN_ORIGIN_MULTICAST,	/* cuMulticastCreate: has no memory but what is bound to it */
	LIEN_ORIGIN_ALLOC,	/* cuMemAlloc */
	LIEN_ORIGIN_PITCH,	/* cuMemAllocPitch */
	LIEN_ORIGIN_MANAGED,	/* cuMemAllocManaged: wherever it was used last */
	LIEN_ORIGIN_POOL,	/* cuMemAllocAsync, cuMemAllocFromPoolAsync */
	LIEN_ORIGIN_HOST,	/* cuMemHostAlloc, cuMemAllocHost: pinned */
	LIEN_ORIGIN_REGISTERED, /* cuMemHostRegister: the application's own, pinned */
};

/* A place in the code that asked for memory; interned for the graph's life. */
struct lien_site {
	RB_ENTRY(lien_site) by_place;
	const struct lien_name *library; /* as allocations name it: "nccl", "torch_cuda" */
	const struct lien_name *file;	 /* "libtorch_cuda.so"; NULL: not in a known mapping */
	uint64_t inode, offset;		 /* of the file, in the file; else 0, the address */
	uint32_t dev_major, dev_minor;
	uint32_t outer; /* enum lien_call: what was called there */
	/* Set by lien_graph_name_site(): the function that has the call; NULL: not known (yet). */
	const struct lien_name *symbol;
	uint64_t into; /* from its beginning to the return address */
};

struct lien_mapping;
struct lien_handle;
LIST_HEAD(lien_mapping_list, lien_mapping);
LIST_HEAD(lien_handle_list, lien_handle);

/* Memory that is named by 64 bytes has a number made of them, with this bit. */
#define LIEN_SHARE_BY_KEY 0x8000000000000000ull

/* One export: what an import's number refers to. */
struct lien_share {
	SPLAY_ENTRY(lien_share) by_number;
	LIST_ENTRY(lien_share) of_allocation;
	struct lien_allocation *allocation;
	uint64_t number;
	unsigned imports;
	uint32_t call; /* enum lien_call: the export */
	int32_t fd;    /* in the exporter, when it was made; -1: none */
	bool control;  /* made by a restore */
	bool has_key;
	bool stale;    /* its key has been given to other memory since */
	uint8_t key[]; /* LIEN_KEY_BYTES if it has one */
};

/* Memory that a multicast object reaches. */
struct lien_binding {
	LIST_ENTRY(lien_binding) of_object, of_memory;
	struct lien_allocation *object, *memory;
	uint64_t offset, bytes; /* in the object */
	uint64_t memory_offset;
};

/* There may be a million: the order leaves no holes. */
struct lien_allocation {
	TAILQ_ENTRY(lien_allocation) of_graph;
	uint64_t id; /* never used again; the graph's are in its order */
	LIST_ENTRY(lien_allocation) of_owner;
	struct lien_process *owner; /* NULL: unknown or dead */
	uint64_t owner_start;
	uint64_t bytes;
	const struct lien_site *site; /* that asked for it; NULL: not known */
	uint64_t devices;	      /* multicast: bit n, device n was added */
	LIST_HEAD(, lien_share) shares;
	struct lien_handle_list handles;
	struct lien_mapping_list mappings;  /* in all processes */
	LIST_HEAD(, lien_binding) bindings; /* multicast: what it reaches; else what reaches it */
	struct lien_prop prop;		    /* by address: only the location, as far as known */
	uint32_t owner_pid;		    /* stays when the owner has died; 0: unknown */
	uint32_t comm;	    /* lien_comm.number: NCCL needs it for that one; 0: none, not known */
	uint32_t context;   /* lien_context.number; 0: not known, or made without one */
	unsigned dmabufs;   /* descriptors given out by cuMemGetHandleForAddressRange */
	unsigned exports;   /* by the application; restores export again without counting */
	uint8_t origin;	    /* enum lien_origin */
	bool comm_inferred; /* see lien_event.scope */
	bool found;	    /* by asking the driver: it was made before it was watched */
	bool adopted;	 /* then: the references that its owner, or an importer, holds are known */
	bool open;	 /* then: a descriptor that exports it was, somewhere */
	bool part;	 /* then: there is more of it than is mapped */
	uint32_t round;	 /* then: see lien_event.adopt; 0: it may be what others imported */
	uint16_t let_go; /* handed out and held no more: its place in graph.let_go, from 1 */
	bool importing;	 /* a process takes it in at this moment */
};

struct lien_handle {
	SPLAY_ENTRY(lien_handle) by_value;
	LIST_ENTRY(lien_handle) of_allocation;
	struct lien_process *process;
	struct lien_allocation *allocation;
	uint64_t value;
	uint32_t references; /* 0: released, but a mapping in this process keeps the name valid */
	/* References that the application got from the driver itself, not through the control
	 * library, which may have renamed the handle (LIEN_EVENT_TRANSLATED). */
	uint32_t raw : 31;
	bool imported : 1;
	const struct lien_name *raw_to; /* the library that was told last, as allocations name it */
};

struct lien_mapping {
	RB_ENTRY(lien_mapping) by_va;
	LIST_ENTRY(lien_mapping) of_allocation;
	struct lien_process *process;
	struct lien_allocation *allocation;
	uint64_t va, bytes, offset;
	const struct lien_access_set *access;
	unsigned opens;	  /* legacy IPC: one address for all openings */
	uint32_t context; /* of these: lien_context.number; 0: not known */
	bool imported;
	bool parked; /* unmapped by the control library: offloaded */
};

struct lien_reservation {
	SPLAY_ENTRY(lien_reservation) by_va;
	uint64_t va, bytes;
};

/* Of a buffer with a communicator, or with a network card. */
struct lien_registration {
	LIST_ENTRY(lien_registration) next;
	uint64_t va, bytes, handle;
	bool window;
	bool of_gpu; /* memory that was known lay there when it was registered, not just the host's
		      */
};
LIST_HEAD(lien_registration_list, lien_registration);

struct lien_comm {
	RB_ENTRY(lien_comm) by_address;
	uint64_t address;
	uint32_t number; /* in the graph; never used again */
	uint32_t parent; /* number of the one that it was split or shrunk from; 0: none */
	/*
	 * Equal in all processes of the group. Of a split or shrunk one it is made of the parent's,
	 * of how many were made of that before, and of the color: all ranks do that in one order.
	 */
	uint8_t id[128];
	int32_t rank, nranks; /* -1: not known (yet: a split's ranks follow from all its members) */
	int32_t device;	      /* -1: not known */
	uint32_t made_by;     /* enum lien_call; 0: seen only when it was used, or found */
	uint64_t hash;	      /* NCCL's name for the group, if its RAS has told it; 0: not known */
	unsigned splits, shrinks;
	uint64_t t_init; /* CLOCK_MONOTONIC ns: when it had been made */
	bool finalized;
	struct lien_registration_list registrations;
};

/* An executable mapping of a file: where calls come from. */
struct lien_library_map {
	RB_ENTRY(lien_library_map) by_start;
	uint64_t start, end, offset, inode, t_mapped;
	uint32_t dev_major, dev_minor;
	const struct lien_name *file; /* last component of the path */
};

/* A release that was entered and has not returned. */
struct lien_pending {
	TAILQ_ENTRY(lien_pending) next;
	struct lien_event event;
	bool doubtful; /* events were lost since: its return may have been one of them */
};

struct lien_pool {
	LIST_ENTRY(lien_pool) next;
	uint64_t value;
	uint64_t share; /* the last export, or the import; 0: neither */
	int32_t device; /* -1: not known */
	bool imported;
};

struct lien_context {
	LIST_ENTRY(lien_context) next;
	uint64_t value;
	uint32_t number; /* in the process; from 1, never used again */
	int32_t device;
	bool primary;
};

/* The call that makes, or made, a communicator: how NCCL's own threads name it. */
struct lien_init {
	LIST_ENTRY(lien_init) next;
	uint64_t scope;
	uint32_t number; /* the communicator's */
};

struct lien_capture {
	LIST_ENTRY(lien_capture) next;
	uint64_t stream;
};

/* Splay trees, whose entries are half as large, where there is one for each of a million mappings
 * and nobody looks for what is near a key. Looking something up changes them. */
SPLAY_HEAD(lien_handle_tree, lien_handle);
RB_HEAD(lien_mapping_tree, lien_mapping);
SPLAY_HEAD(lien_reservation_tree, lien_reservation);
RB_HEAD(lien_comm_tree, lien_comm);
RB_HEAD(lien_library_tree, lien_library_map);
RB_HEAD(lien_process_tree, lien_process);
SPLAY_HEAD(lien_share_tree, lien_share);

/* Of the reasons why a process is not known whole (event.h), what asking the driver mends. */
#define LIEN_INCOMPLETE_REREAD (LIEN_INCOMPLETE_LOST | LIEN_INCOMPLETE_ODD | LIEN_INCOMPLETE_ARGS)

/* Can the process be given orders? Set by the agent; the graph leaves it alone. */
enum lien_control_presence {
	LIEN_CONTROL_NONE,   /* no control library in it */
	LIEN_CONTROL_LOADED, /* loaded, its thread does not run yet */
	LIEN_CONTROL_TAKEN,  /* it obeys another agent */
	LIEN_CONTROL_OTHER,  /* it speaks another version than this agent */
	LIEN_CONTROL_READY,
	LIEN_CONTROL_UNKNOWN, /* nobody has looked: the graph is a recording's */
};

struct lien_process {
	RB_ENTRY(lien_process) by_pid;
	uint32_t pid, uid;
	uint64_t start;
	uint64_t t_first; /* when its first driver call was entered; 0: before it was watched */
	char command[16];
	bool ended;    /* it is being taken out of the graph */
	bool captured; /* a CUDA graph, once: what it launches makes no calls */
	bool cuda; /* made a driver call or may have: false for those that only mapped a library */
	unsigned incomplete;
	enum lien_control_presence presence;
	bool detached; /* by `lien detach`, and not attached since: told by a LIBRARY event without
			  an inode that has the control library's name; and by the agent */
	uint64_t held_bytes, held_items;  /* offloaded by an agent before this one; the agent's */
	uint64_t arena_bytes, arena_used; /* of the host, as its control library said last */
	void *agent;			  /* the agent's, not the graph's */
	const struct lien_ordinals *ordinals; /* NULL: not known; the agent's */
	struct lien_handle_tree handles;
	struct lien_mapping_tree mappings;
	struct lien_reservation_tree reservations;
	struct lien_comm_tree comms;
	struct lien_registration_list cards; /* memory registered with network cards */
	struct lien_library_tree libraries;
	TAILQ_HEAD(, lien_pending) pending;
	unsigned pending_count;
	LIST_HEAD(, lien_capture) captures;
	LIST_HEAD(, lien_pool) pools;
	LIST_HEAD(, lien_context) contexts;
	uint32_t next_context;
	LIST_HEAD(, lien_init) inits;
	LIST_HEAD(, lien_allocation) owned;
};

struct lien_graph_stats {
	uint64_t events, lost, odd;
	uint64_t unmatched_imports; /* that are held, and nobody knows whose they are */
	uint64_t processes, allocations, mappings;
};

int lien_graph_new(struct lien_graph **out);
void lien_graph_free(struct lien_graph *graph);

/* Called before a process is freed, by exit, exec or lien_graph_free(). */
void lien_graph_on_process_end(
	struct lien_graph *graph, void (*fn)(void *context, struct lien_process *), void *context);

/* Called when a place asks for memory for the first time, in the midst of lien_graph_apply(). */
void lien_graph_on_site(struct lien_graph *graph,
	void (*fn)(void *context, struct lien_process *, const struct lien_site *), void *context);
/* Gives a place of this graph its function's name. -ENOMEM. */
int lien_graph_name_site(
	struct lien_graph *graph, const struct lien_site *site, const char *symbol, uint64_t into);

/* Applies one event. -EBADMSG when the record is malformed (the graph is unchanged), -ENOMEM. */
int lien_graph_apply(struct lien_graph *graph, const struct lien_event *event);

const struct lien_graph_stats *lien_graph_stats(const struct lien_graph *graph);

/* Of the last adoption (lien_event.adopt); 0: there was none. */
uint32_t lien_graph_round(const struct lien_graph *graph);

/* NULL when there is none. */
struct lien_process *lien_graph_process(struct lien_graph *graph, uint32_t pid);
/* That very process, and it has not ended. */
struct lien_process *lien_graph_living(struct lien_graph *graph, uint32_t pid, uint64_t start);
struct lien_process *lien_graph_first(struct lien_graph *graph);
struct lien_process *lien_graph_next(struct lien_process *process);
/* The first one with a greater pid. */
struct lien_process *lien_graph_process_after(struct lien_graph *graph, uint32_t pid);
struct lien_allocation *lien_graph_first_allocation(struct lien_graph *graph);
struct lien_allocation *lien_graph_next_allocation(struct lien_allocation *allocation);

/* NULL: no export of that number is known. */
struct lien_share *lien_share_find(struct lien_graph *graph, uint64_t number);

/* Nothing is missing of what it holds, as far as that can be known (LIEN_INCOMPLETE_ADOPTED). */
bool lien_process_whole(const struct lien_process *process);
/* The mapping that contains va. */
struct lien_mapping *lien_process_mapping(struct lien_process *process, uint64_t va);
/* The executable mapping that contains address. */
struct lien_library_map *lien_process_library(struct lien_process *process, uint64_t address);
/*
 * Who made a call: "nccl" if the thread was inside one of NCCL's, else the library (or program)
 * that the outermost traced call returns to, "libc10_cuda.so" as "c10_cuda"; or "unknown".
 */
#define LIEN_CALLER_SIZE 64
void lien_process_caller(
	struct lien_process *process, const struct lien_event *event, char name[LIEN_CALLER_SIZE]);

/* True while the first or the last byte of it is memory that is known. */
bool lien_registration_lies(
	struct lien_process *process, const struct lien_registration *registration);
/* True when the registered range has a byte of the mapping. */
bool lien_registration_touches(
	const struct lien_registration *registration, const struct lien_mapping *mapping);
/* True while anything holds it; false for one that only an export not yet imported may keep alive.
 */
bool lien_allocation_held(const struct lien_allocation *allocation);
/* True when the owner holds it in host memory: no handle and no mapping of it is live. */
bool lien_allocation_offloaded(const struct lien_allocation *allocation);
/* True for what has no handles. */
bool lien_allocation_by_address(const struct lien_allocation *allocation);
/* Who asked for it: a library's or program's name, or "unknown". */
const char *lien_allocation_library(const struct lien_allocation *allocation);
/* NULL when it has been destroyed, or belongs to none. */
struct lien_comm *lien_allocation_comm(const struct lien_allocation *allocation);
/* Which others are of its group is not known. */
bool lien_comm_unnamed(const struct lien_comm *comm);
/* What is known of its group comes from NCCL's RAS: its making was not seen. */
bool lien_comm_is_found(const struct lien_comm *comm);
/* The name of a group that is known by the hashes that NCCL has for it. */
void lien_comm_found_id(uint8_t id[128], uint64_t hash, uint64_t host_hash, uint64_t pid_hash);
/* True for memory of a device, as against the host's (NCCL's HOST_NUMA buffers) and multicast
 * objects, which have none. */
bool lien_allocation_on_device(const struct lien_allocation *allocation);

/* The present state as events, oldest first, as if everything had just been made: applied to an
 * empty graph they give an equal one, but for memory that was handed out by descriptor and is held
 * by nobody now: an import of such a descriptor that comes later is not matched. Stops at the first
 * negative value fn returns, and returns it.
 */
int lien_graph_dump(const struct lien_graph *graph,
	int (*fn)(void *context, const struct lien_event *), void *context);

int lien_handle_cmp(const struct lien_handle *a, const struct lien_handle *b);
int lien_reservation_cmp(const struct lien_reservation *a, const struct lien_reservation *b);
SPLAY_PROTOTYPE(lien_handle_tree, lien_handle, by_value, lien_handle_cmp)
SPLAY_PROTOTYPE(lien_reservation_tree, lien_reservation, by_va, lien_reservation_cmp)
RB_PROTOTYPE(lien_mapping_tree, lien_mapping, by_va, lien_mapping_cmp);
RB_PROTOTYPE(lien_comm_tree, lien_comm, by_address, lien_comm_cmp);
RB_PROTOTYPE(lien_library_tree, lien_library_map, by_start, lien_library_cmp);

#endif
