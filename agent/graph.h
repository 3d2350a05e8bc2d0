/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph: which process holds which GPU memory, and by what. Built by lien_graph_apply() from
 * events alone; plain C that needs no BPF, no CUDA and no root. Others read the structures below
 * and change nothing. Not thread-safe; the agent is one thread.
 *
 * An allocation lives as long as a handle with references or a mapping of it is known in any
 * process. Names (handles, addresses, communicator pointers) belong to a process and are reused
 * after release; see event.h for how that is kept in order.
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

enum lien_origin {
	LIEN_ORIGIN_CREATE = 1, /* cuMemCreate */
	LIEN_ORIGIN_ALLOC,	/* cuMemAlloc: no handle, one mapping */
	LIEN_ORIGIN_IMPORT,	/* imported, but its export was not seen: owner unknown */
};

struct lien_mapping;
struct lien_handle;
LIST_HEAD(lien_mapping_list, lien_mapping);
LIST_HEAD(lien_handle_list, lien_handle);

/* One export: what an import's number refers to. */
struct lien_share {
	RB_ENTRY(lien_share) by_number;
	LIST_ENTRY(lien_share) of_allocation;
	struct lien_allocation *allocation;
	uint64_t number;
	unsigned imports;
	bool control; /* made by a restore */
};

struct lien_allocation {
	RB_ENTRY(lien_allocation) by_id;
	uint64_t id; /* never used again */
	enum lien_origin origin;
	LIST_ENTRY(lien_allocation) of_owner;
	struct lien_process *owner; /* NULL: unknown or dead */
	uint32_t owner_pid;	    /* stays when the owner has died; 0: unknown */
	uint64_t owner_start;
	uint64_t bytes;
	struct lien_prop prop;		 /* origin ALLOC: only the location, as far as known */
	const struct lien_name *library; /* that asked for it */
	uint32_t outer;			 /* event.h: the outermost call, and where it was made */
	uint64_t caller;
	unsigned exports; /* by the application; restores export again without counting */
	LIST_HEAD(, lien_share) shares;
	struct lien_handle_list handles;
	struct lien_mapping_list mappings; /* in all processes */
};

struct lien_handle {
	RB_ENTRY(lien_handle) by_value;
	LIST_ENTRY(lien_handle) of_allocation;
	struct lien_process *process;
	struct lien_allocation *allocation;
	uint64_t value;
	uint32_t references; /* 0: released, but a mapping in this process keeps the name valid */
	bool imported;
};

struct lien_mapping {
	RB_ENTRY(lien_mapping) by_va;
	LIST_ENTRY(lien_mapping) of_allocation;
	struct lien_process *process;
	struct lien_allocation *allocation;
	uint64_t va, bytes, offset;
	const struct lien_access_set *access;
	bool imported;
	bool parked; /* unmapped by the control library: offloaded */
};

struct lien_reservation {
	RB_ENTRY(lien_reservation) by_va;
	uint64_t va, bytes;
};

/* Of a buffer with a communicator, or with a network card. */
struct lien_registration {
	LIST_ENTRY(lien_registration) next;
	uint64_t va, bytes, handle;
	bool window;
};
LIST_HEAD(lien_registration_list, lien_registration);

struct lien_comm {
	RB_ENTRY(lien_comm) by_address;
	uint64_t address;
	uint8_t id[128];
	int32_t rank, nranks;
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
};

struct lien_capture {
	LIST_ENTRY(lien_capture) next;
	uint64_t stream;
};

RB_HEAD(lien_handle_tree, lien_handle);
RB_HEAD(lien_mapping_tree, lien_mapping);
RB_HEAD(lien_reservation_tree, lien_reservation);
RB_HEAD(lien_comm_tree, lien_comm);
RB_HEAD(lien_library_tree, lien_library_map);
RB_HEAD(lien_allocation_tree, lien_allocation);
RB_HEAD(lien_process_tree, lien_process);
RB_HEAD(lien_share_tree, lien_share);

/* Can the process be given orders? Set by the agent; the graph leaves it alone. */
enum lien_control_presence {
	LIEN_CONTROL_NONE,   /* no control library in it */
	LIEN_CONTROL_LOADED, /* loaded, its thread does not run yet */
	LIEN_CONTROL_TAKEN,  /* it obeys another agent */
	LIEN_CONTROL_READY,
};

struct lien_process {
	RB_ENTRY(lien_process) by_pid;
	uint32_t pid, uid;
	uint64_t start;
	uint64_t t_first; /* when its first driver call was entered; 0: before it was watched */
	char command[16];
	bool ended; /* it is being taken out of the graph */
	bool cuda;  /* made a driver call or may have: false for those that only mapped a library */
	unsigned incomplete;
	enum lien_control_presence presence;
	uint64_t held_bytes, held_items; /* offloaded by an agent before this one; the agent's */
	void *agent;			 /* the agent's, not the graph's */
	struct lien_handle_tree handles;
	struct lien_mapping_tree mappings;
	struct lien_reservation_tree reservations;
	struct lien_comm_tree comms;
	struct lien_registration_list cards; /* memory registered with network cards */
	struct lien_library_tree libraries;
	TAILQ_HEAD(, lien_pending) pending;
	LIST_HEAD(, lien_capture) captures;
	LIST_HEAD(, lien_allocation) owned;
};

struct lien_graph_stats {
	uint64_t events, lost, odd, unmatched_imports;
	uint64_t processes, allocations, mappings;
};

int lien_graph_new(struct lien_graph **out);
void lien_graph_free(struct lien_graph *graph);

/* Called before a process is freed, by exit, exec or lien_graph_free(). */
void lien_graph_on_process_end(
	struct lien_graph *graph, void (*fn)(void *context, struct lien_process *), void *context);

/* Applies one event. -EBADMSG when the record is malformed (the graph is unchanged), -ENOMEM. */
int lien_graph_apply(struct lien_graph *graph, const struct lien_event *event);

const struct lien_graph_stats *lien_graph_stats(const struct lien_graph *graph);

/* NULL when there is none. */
struct lien_process *lien_graph_process(struct lien_graph *graph, uint32_t pid);
struct lien_process *lien_graph_first(struct lien_graph *graph);
struct lien_process *lien_graph_next(struct lien_process *process);
struct lien_allocation *lien_graph_allocation(struct lien_graph *graph, uint64_t id);
struct lien_allocation *lien_graph_first_allocation(struct lien_graph *graph);
struct lien_allocation *lien_graph_next_allocation(struct lien_allocation *allocation);

/* The mapping that contains va. */
struct lien_mapping *lien_process_mapping(struct lien_process *process, uint64_t va);
/* The executable mapping that contains address. */
struct lien_library_map *lien_process_library(struct lien_process *process, uint64_t address);

/* True when the registered range has a byte of the mapping. */
bool lien_registration_touches(
	const struct lien_registration *registration, const struct lien_mapping *mapping);
/* True while anything holds it; false for one that only an export not yet imported may keep alive.
 */
bool lien_allocation_held(const struct lien_allocation *allocation);
/* True when the owner holds it in host memory: no handle and no mapping of it is live. */
bool lien_allocation_offloaded(const struct lien_allocation *allocation);
/* True for memory of a device, as against the host's (NCCL's HOST_NUMA buffers). */
bool lien_allocation_on_device(const struct lien_allocation *allocation);

/* The present state as events, oldest first, as if everything had just been made: applied to an
 * empty graph they give an equal one. Stops at the first negative value fn returns, and returns it.
 */
int lien_graph_dump(const struct lien_graph *graph,
	int (*fn)(void *context, const struct lien_event *), void *context);

RB_PROTOTYPE(lien_handle_tree, lien_handle, by_value, lien_handle_cmp);
RB_PROTOTYPE(lien_mapping_tree, lien_mapping, by_va, lien_mapping_cmp);
RB_PROTOTYPE(lien_reservation_tree, lien_reservation, by_va, lien_reservation_cmp);
RB_PROTOTYPE(lien_comm_tree, lien_comm, by_address, lien_comm_cmp);
RB_PROTOTYPE(lien_library_tree, lien_library_map, by_start, lien_library_cmp);

#endif
