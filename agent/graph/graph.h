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
struct lien_ordinals; /* agent/graph/devices.h */

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

/*
 * Where memory comes from: X(ORIGIN, as views name it, the call that a snapshot tells it by). From
 * ALLOC on it has no handles: it is known by its address, and freed by it. MULTICAST has no memory
 * but what is bound to it; the owner of IMPORT is unknown, for its export was not seen; MANAGED is
 * wherever it was used last; REGISTERED is the application's own host memory, pinned.
 */
/* clang-format off */
#define LIEN_ORIGINS(X) \
	X(CREATE,     "cuMemCreate",       CU_MEM_CREATE) \
	X(IMPORT,     "import",            CU_MEM_IMPORT) \
	X(MULTICAST,  "cuMulticastCreate", CU_MULTICAST_CREATE) \
	X(ALLOC,      "cuMemAlloc",        CU_MEM_ALLOC) \
	X(PITCH,      "cuMemAllocPitch",   CU_MEM_ALLOC_PITCH) \
	X(MANAGED,    "cuMemAllocManaged", CU_MEM_ALLOC_MANAGED) \
	X(POOL,       "cuMemAllocAsync",   CU_MEM_ALLOC_ASYNC) \
	X(HOST,       "cuMemHostAlloc",    CU_HOST_ALLOC) \
	X(REGISTERED, "cuMemHostRegister", CU_HOST_REGISTER)
/* clang-format on */

enum lien_origin {
	LIEN_ORIGIN_NONE,
#define LIEN_ORIGIN_ENUM(origin, text, call) LIEN_ORIGIN_##origin,
	LIEN_ORIGINS(LIEN_ORIGIN_ENUM)
#undef LIEN_ORIGIN_ENUM
		LIEN_ORIGIN_COUNT,
};

/* Of the memory that such a call makes. */
enum lien_origin lien_origin_of(unsigned call);
/* As views name it. */
const char *lien_origin_name(enum lien_origin origin);
/* enum lien_call: what a snapshot tells such memory by. */
unsigned lien_origin_call(enum lien_origin origin);

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
struct lien_holding;
LIST_HEAD(lien_mapping_list, lien_mapping);
TAILQ_HEAD(lien_handle_list, lien_handle);
LIST_HEAD(lien_holding_list, lien_holding);

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
	RB_ENTRY(lien_binding) of_object; /* by the memory's device and the offset */
	LIST_ENTRY(lien_binding) of_memory;
	struct lien_allocation *object, *memory;
	uint64_t number;
	uint64_t offset, bytes; /* in the object */
	uint64_t memory_offset;
	int32_t device;
};
RB_HEAD(lien_binding_tree, lien_binding);

/* There may be a million: the order leaves no holes. */
struct lien_allocation {
	TAILQ_ENTRY(lien_allocation) of_graph; /* lien_graph_first_allocation(), ..._next_...() */
	uint64_t id;			       /* never used again; the graph's are in its order */
	LIST_ENTRY(lien_allocation) of_owner;
	struct lien_process *owner; /* NULL: unknown or dead */
	uint64_t owner_start;
	uint64_t bytes;
	const struct lien_site *site;	   /* that asked for it; NULL: not known */
	LIST_HEAD(, lien_share) shares;	   /* first the one of a restore, if there is one */
	struct lien_holding_list holdings; /* of the processes that have handles or mappings */
	union {
		LIST_HEAD(, lien_binding) bindings; /* the objects that reach it */
		struct lien_binding_tree bound;	    /* multicast: what it reaches */
	};
	struct lien_prop prop; /* by address: only the location, as far as known */
	uint32_t owner_pid;    /* stays when the owner has died; 0: unknown */
	uint32_t comm; /* lien_comm.number: NCCL needs it for that one; 0: none, not known */
	union {
		uint64_t devices; /* multicast: bit n, device n was added */
		struct {
			uint32_t context; /* lien_context.number; 0: not known, or none */
			/* Descriptors given out by cuMemGetHandleForAddressRange. */
			uint32_t dmabufs;
		};
	};
	unsigned exports; /* by the application; restores export again without counting */
	unsigned awaited; /* exported descriptors that nobody has imported yet */
	uint32_t round;	  /* if adopted: see lien_event.adopt; 0: others may have imported it */
	uint16_t let_go;  /* handed out and held no more: its place in graph.let_go, from 1 */
	uint8_t origin;	  /* enum lien_origin */
	bool comm_inferred : 1; /* see lien_event.scope */
	bool found : 1;		/* by asking the driver: it was made before it was watched */
	/* Then: the references that its owner, or an importer, holds are known; */
	bool adopted : 1;
	bool open : 1;	    /* a descriptor that exports it was, somewhere; */
	bool part : 1;	    /* there is more of it than is mapped. */
	bool importing : 1; /* a process takes it in at this moment */
};

/*
 * What one process has of one allocation. A job may map or import one allocation as often as it
 * likes: what has to be known of all its mappings or handles at once is counted here.
 */
struct lien_holding {
	LIST_ENTRY(lien_holding) of_allocation;
	struct lien_process *process;
	struct lien_allocation *allocation;
	struct lien_mapping_list mappings;
	struct lien_handle_list handles; /* those without references first */
	uint32_t mapped, live;		 /* mappings; those that are not parked */
};

struct lien_handle {
	SPLAY_ENTRY(lien_handle) by_value;
	TAILQ_ENTRY(lien_handle) of_holding;
	struct lien_holding *holding;
	uint64_t value;
	uint32_t references; /* 0: released, but a mapping in this process keeps the name valid */
	/* References that the application got from the driver itself, not through the control
	 * library, which may have renamed the handle (LIEN_EVENT_TRANSLATED). */
	uint32_t raw : 31;
	bool imported : 1;
	const struct lien_name *raw_to; /* the library that was told last, as allocations name it */
};

/* RB_ENTRY() without the hole behind the color. */
#define LIEN_RB_ENTRY(type)                                                                        \
	struct {                                                                                   \
		struct type *rbe_left, *rbe_right, *rbe_parent;                                    \
		int rbe_color;                                                                     \
	} __attribute__((packed, aligned(4)))

/* There may be a million: the order leaves no holes. */
struct lien_mapping {
	LIEN_RB_ENTRY(lien_mapping) by_va;
	bool imported;
	bool parked; /* unmapped by the control library: offloaded */
	bool opened; /* legacy IPC, which gives one address for all openings */
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

/* Of a buffer with a communicator, or with a network card. */
struct lien_registration {
	RB_ENTRY(lien_registration) by_handle;
	uint64_t number; /* NCCL gives one handle for a buffer that is registered twice */
	uint64_t va, bytes, handle;
	bool window;
	bool of_gpu; /* memory that was known lay there when it was registered, not just the host's
		      */
};
RB_HEAD(lien_registration_tree, lien_registration);

/* What registrations cover: disjoint ranges in order, made when they are asked for. */
struct lien_span {
	uint64_t va, end;
};
struct lien_spans {
	struct lien_span *span;
	unsigned count;
	bool known; /* false: to be made again */
};

struct lien_comm {
	RB_ENTRY(lien_comm) by_address;
	RB_ENTRY(lien_comm) by_number;
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
	struct lien_registration_tree registrations;
};

/* An executable mapping of a file: where calls come from. */
struct lien_library_map {
	RB_ENTRY(lien_library_map) by_start;
	RB_ENTRY(lien_library_map) by_place; /* in the file */
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
	RB_ENTRY(lien_pool) by_value;
	uint64_t value;
	uint64_t share; /* the last export, or the import; 0: neither */
	int32_t device; /* -1: not known */
	bool imported;
};

struct lien_context {
	RB_ENTRY(lien_context) by_value;
	RB_ENTRY(lien_context) by_number;
	uint64_t value;
	uint32_t number; /* in the process; from 1, never used again */
	int32_t device;
	bool primary;
};

/* The call that makes, or made, a communicator: how NCCL's own threads name it. */
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

/* Splay trees, whose entries are half as large, where there is one for each of a million mappings
 * and nobody looks for what is near a key. Looking something up changes them. */
SPLAY_HEAD(lien_handle_tree, lien_handle);
RB_HEAD(lien_mapping_tree, lien_mapping);
SPLAY_HEAD(lien_reservation_tree, lien_reservation);
RB_HEAD(lien_comm_tree, lien_comm);
RB_HEAD(lien_comm_number_tree, lien_comm);
RB_HEAD(lien_library_tree, lien_library_map);
RB_HEAD(lien_place_tree, lien_library_map);
RB_HEAD(lien_pool_tree, lien_pool);
RB_HEAD(lien_context_tree, lien_context);
RB_HEAD(lien_context_number_tree, lien_context);
RB_HEAD(lien_init_tree, lien_init);
RB_HEAD(lien_init_number_tree, lien_init);
RB_HEAD(lien_capture_tree, lien_capture);
RB_HEAD(lien_split_comm_tree, lien_split_member);
RB_HEAD(lien_split_parent_tree, lien_split_member);
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
	TAILQ_ENTRY(lien_process) of_ending; /* instead, when it has ended */
	uint32_t pid, uid;
	uint64_t start;
	uint64_t t_first; /* when its first driver call was entered; 0: before it was watched */
	char command[16];
	bool ended;    /* it is being taken out of the graph */
	bool captured; /* a CUDA graph, once: what it launches makes no calls */
	bool cuda; /* made a driver call or may have: false for those that only mapped a library */
	unsigned incomplete;
	enum lien_control_presence presence;
	bool detached; /* by `lien detach`, and not attached since; the agent's */
	bool over;     /* /proc says that it has ended; the agent's */
	unsigned parked;		  /* mappings */
	uint32_t visits;		  /* that it may still cost: lien_process_visits() */
	uint64_t held_bytes, held_items;  /* offloaded by an agent before this one; the agent's */
	uint64_t arena_bytes, arena_used; /* of the host, as its control library said last */
	void *agent;			  /* the agent's, not the graph's */
	const struct lien_ordinals *ordinals; /* NULL: not known; the agent's */
	struct lien_handle_tree handles;
	struct lien_mapping_tree mappings;
	struct lien_reservation_tree reservations;
	struct lien_comm_tree comms;
	struct lien_comm_number_tree comm_numbers;
	struct lien_registration_tree cards; /* memory registered with network cards */
	struct lien_spans card_spans, window_spans;
	struct lien_library_tree libraries;
	struct lien_place_tree places; /* of the libraries */
	TAILQ_HEAD(, lien_pending) pending;
	unsigned pending_count;
	struct lien_capture_tree captures;
	struct lien_pool_tree pools;
	struct lien_context_tree contexts;
	struct lien_context_number_tree context_numbers;
	uint32_t next_context;
	struct lien_init_tree inits;
	struct lien_init_number_tree init_numbers;
	LIST_HEAD(, lien_split_member) splits; /* under way, in which it takes part */
	struct lien_split_comm_tree split_comms;
	struct lien_split_parent_tree split_parents;
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

/*
 * From now on an event whose effect is large (the end of a process with many mappings) has a part
 * of it only, and lien_graph_finish() the rest, in so many steps; true: there is no more. What is
 * in the graph until then is not to be looked at. An event that is applied before finishes it
 * first.
 */
void lien_graph_be_patient(struct lien_graph *graph);
bool lien_graph_unfinished(const struct lien_graph *graph);
bool lien_graph_finish(struct lien_graph *graph, unsigned steps);

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
/* NULL, or why nothing can be ordered of it: "it has no control library: ...". */
const char *lien_process_takes_no_orders(const struct lien_process *process);
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
/* True when a registration with a network card, or an NCCL window, has a byte of the mapping; or
 * when that cannot be known, for lack of memory. */
bool lien_mapping_on_card(const struct lien_mapping *mapping);
bool lien_mapping_in_window(const struct lien_mapping *mapping);
/* What the process has of it; NULL: nothing. */
struct lien_holding *lien_allocation_holding(
	const struct lien_allocation *allocation, const struct lien_process *process);
/* Who may reach it; NULL: nobody, or not known. */
const struct lien_access_set *lien_mapping_access(const struct lien_mapping *mapping);
/* How often it was opened by legacy IPC. */
unsigned lien_mapping_opens(const struct lien_mapping *mapping);
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
RB_PROTOTYPE(lien_comm_number_tree, lien_comm, by_number, lien_comm_number_cmp);
RB_PROTOTYPE(lien_library_tree, lien_library_map, by_start, lien_library_cmp);
RB_PROTOTYPE(lien_registration_tree, lien_registration, by_handle, lien_registration_cmp);
RB_PROTOTYPE(lien_pool_tree, lien_pool, by_value, lien_pool_cmp);
RB_PROTOTYPE(lien_context_tree, lien_context, by_value, lien_context_cmp);
RB_PROTOTYPE(lien_context_number_tree, lien_context, by_number, lien_context_number_cmp);
RB_PROTOTYPE(lien_init_tree, lien_init, by_scope, lien_init_cmp);
RB_PROTOTYPE(lien_capture_tree, lien_capture, by_stream, lien_capture_cmp);
RB_PROTOTYPE(lien_binding_tree, lien_binding, of_object, lien_binding_cmp);

#endif
