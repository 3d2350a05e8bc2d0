/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shared by the graph's own files: making and removing its parts. No other file includes this.
 *
 * The files call only those before them, in the order of this header: first what stores, then what
 * applies kinds of calls, then snapshots, and apply.c, which all events reach first.
 */
#ifndef LIEN_GRAPH_INTERNAL_H
#define LIEN_GRAPH_INTERNAL_H

#include <stdlib.h>

#include "agent/graph/graph.h"

/* For comparisons: goes on if the member is the same in a and b. */
#define LIEN_ORDER(member)                                                                         \
	if (a->member != b->member)                                                                \
	return a->member < b->member ? -1 : 1

/* The functions of a tree that one file uses. */
#define LIEN_TREE(tree, type, entry, cmp)                                                          \
	RB_GENERATE_INTERNAL(tree, type, entry, cmp, static __attribute__((unused)))

RB_HEAD(lien_interned_tree, lien_interned);
RB_HEAD(lien_tag_tree, lien_tag);
RB_HEAD(lien_split_tree, lien_split);
RB_HEAD(lien_split_rank_tree, lien_split_member);

/* One rank's request to split the parent. */
struct lien_split_member {
	RB_ENTRY(lien_split_member) by_rank; /* of the parent */
	LIST_ENTRY(lien_split_member) of_process, of_parent;
	struct lien_split *split;
	struct lien_process *process;
	struct lien_comm *comm, *parent; /* NULL: takes no part, or was destroyed */
	int32_t color, key, parent_rank;
};

/* A split under way: its ranks are known once all ranks of the parent have called. */
struct lien_split {
	RB_ENTRY(lien_split) by_id;
	uint8_t id[128]; /* before the color is added */
	unsigned number; /* the parent's nth split */
	int32_t nranks;	 /* of the parent */
	unsigned members_count;
	unsigned known; /* members whose communicator or parent still exists */
	struct lien_split_rank_tree members;
};

/*
 * An allocator for a million objects of one size. It avoids malloc()'s overhead of 8 to 16 bytes
 * per object, and places consecutive objects side by side. A freed object is reused for the next
 * one of that size; memory goes back to the system with the whole slab. Under AddressSanitizer
 * every object comes from malloc(), so that a use after free is caught.
 */
struct lien_slab_chunk;

struct lien_slab {
	size_t size; /* of one object; lien_slab_init() sets it */
	void *put_back;
	struct lien_slab_chunk *chunks;
	size_t used, room; /* bytes of the current chunk */
};

/* `size` must be a multiple of a pointer's size. */
void lien_slab_init(struct lien_slab *slab, size_t size);
/* Returns a zeroed object; NULL: out of memory. */
void *lien_slab_get(struct lien_slab *slab);
void lien_slab_put(struct lien_slab *slab, void *object);
/* Frees all objects. */
void lien_slab_clear(struct lien_slab *slab);

/* Parts that a patient graph removes at once. */
#define LIEN_AT_ONCE 1024

/* Number of let-go allocations that are remembered. */
#define LIEN_LET_GO_MAX 4096

struct lien_graph {
	struct lien_process_tree processes;
	TAILQ_HEAD(lien_allocation_list, lien_allocation) allocations; /* by id */
	bool patient;
	TAILQ_HEAD(, lien_allocation) freed; /* all but their shares are freed */
	TAILQ_HEAD(, lien_process) ending;
	struct {
		struct lien_process *process; /* NULL: no unmap is under way */
		uint64_t va, end;
	} unmapping;
	struct lien_share_tree shares;
	struct lien_interned_tree interned;
	struct lien_tag_tree tags;
	struct lien_split_tree splits;
	struct {
		struct lien_slab allocations, holdings, mappings, handles, reservations, shares;
	} slabs;
	struct lien_graph_stats stats;
	uint64_t next_id, next_registration, next_binding;
	struct lien_allocation **let_go; /* a ring of LIEN_LET_GO_MAX; NULL: not yet needed */
	unsigned next_let_go;
	uint32_t next_comm;
	uint64_t snapshots; /* number of them that were taken */
	/* The allocations, sorted by id, and the sites of the snapshot that is being loaded. */
	struct {
		struct lien_allocation **allocations;
		const struct lien_site **sites;
		unsigned allocations_count, allocations_room, sites_count, sites_room;
	} loading;
	void (*on_process_end)(void *context, struct lien_process *process);
	void *on_process_end_context;
	void (*on_site)(void *context, struct lien_process *, const struct lien_site *);
	void *on_site_context;
};

RB_PROTOTYPE(lien_split_tree, lien_split, by_id, lien_split_cmp);
RB_PROTOTYPE(lien_split_rank_tree, lien_split_member, by_rank, lien_split_rank_cmp);

/* Applies an event; -ENOMEM is the only failure. */
typedef int lien_apply_fn(struct lien_process *process, const struct lien_event *event);
/* For the tables of a file's effects by kind. */
#define LIEN_EFFECT(kind, least, origin) [LIEN_KIND_##kind] = apply_##kind,

/* --- graph.c --- */
struct lien_process *lien_process_new(struct lien_graph *graph, uint32_t pid, uint64_t start);
/* Processes may report any address. No process has memory from here on. */
#define LIEN_ADDRESS_END (1ull << 63)
/*
 * Cuts a range that begins below LIEN_ADDRESS_END, so that it is not empty and does not exceed
 * that; returns its bytes.
 */
static inline uint64_t lien_range_bytes(uint64_t va, uint64_t bytes)
{
	if (bytes > LIEN_ADDRESS_END - va)
		bytes = LIEN_ADDRESS_END - va;
	return bytes ? bytes : 1;
}

/* Returns the last library that begins below the address. */
struct lien_library_map *lien_library_below(struct lien_process *process, uint64_t address);
static inline void lien_registration_drop(
	struct lien_registration_tree *list, struct lien_registration *registration)
{
	free(RB_REMOVE(lien_registration_tree, list, registration));
}

/* Returns true for a range that is not empty and does not wrap; forged recordings have others. */
static inline bool lien_range_sane(uint64_t va, uint64_t bytes)
{
	return bytes && va + bytes > va;
}

/*
 * One call may concern every mapping of a process, and may be repeated without end. Each event adds
 * LIEN_VISITS_EVENT to the number of mappings that the process's events may visit without removing
 * them, up to a limit. Returns false if none are left; the rest of the event is then dropped, as if
 * it were lost.
 */
#define LIEN_VISITS_EVENT 64
#define LIEN_VISITS_MAX	  (1u << 18)
bool lien_process_visits(struct lien_process *process);
static inline void lien_process_earn_visits(struct lien_process *process)
{
	process->visits += LIEN_VISITS_EVENT;
	if (process->visits > LIEN_VISITS_MAX)
		process->visits = LIEN_VISITS_MAX;
}

/* The driver did something that contradicts what is known of the process. Returns 0, for effects.
 */
int lien_process_odd(struct lien_process *process);

/* --- names.c --- */
/* Names come from the job, which may call itself anything: characters outside ASCII become '?'. */
/* Copies until the text or the room ends, and terminates the copy. */
void lien_copy_printable(char *to, const char *text, size_t room);
const struct lien_name *lien_graph_name(struct lien_graph *graph, const char *text, size_t max);
/* Returns the set with n descriptions laid over base. NULL: out of memory. */
const struct lien_access_set *lien_graph_access(struct lien_graph *graph,
	const struct lien_access_set *base, const struct lien_access *over, unsigned n);
/* Returns the place of the event's outermost call. NULL: out of memory. */
const struct lien_site *lien_process_site(
	struct lien_process *process, const struct lien_event *event);
/* Returns the graph's site with the same members. Its library may be NULL: out of memory before. */
const struct lien_site *lien_graph_intern_site(
	struct lien_graph *graph, struct lien_process *process, const struct lien_site *like);
void lien_graph_free_interned(struct lien_graph *graph);
/* For a library that was mapped before it was found: the places in it that have asked for memory
 * meanwhile are known from now on. */
void lien_process_found_library(struct lien_process *process, const struct lien_library_map *map);
/* Gives the allocation a tag of this user, or marks it if that cannot be one. -ENOMEM. */
int lien_allocation_set_tag(struct lien_graph *graph, struct lien_allocation *allocation,
	uint32_t uid, const char text[LIEN_TAG_BYTES]);
void lien_allocation_drop_tag(struct lien_graph *graph, struct lien_allocation *allocation);

/* --- holding.c --- */
void lien_graph_free_let_go(struct lien_graph *graph);
struct lien_allocation *lien_allocation_new(struct lien_graph *graph, enum lien_origin origin);
void lien_allocation_own(struct lien_allocation *allocation, struct lien_process *process);
struct lien_handle *lien_handle_new(
	struct lien_process *process, struct lien_allocation *allocation, uint64_t value);
/* Sets how many references the application holds. */
void lien_handle_refer(struct lien_handle *handle, uint32_t references);
void lien_handle_drop(struct lien_handle *handle);
/* Returns what the process has of the allocation. Makes the holding if there is none; the caller
 * adds a handle or a mapping. NULL: out of memory. */
struct lien_holding *lien_holding_get(
	struct lien_process *process, struct lien_allocation *allocation);
/* Makes a mapping at a vacated range. NULL: out of memory, or the holding is NULL. */
struct lien_mapping *lien_mapping_new(struct lien_holding *holding, uint64_t va, uint64_t bytes);
void lien_mapping_park(struct lien_mapping *mapping, bool parked);
void lien_mapping_drop(struct lien_mapping *mapping);
/* Moves everything that `from` has to `to`; frees `from`. Not for multicast objects. */
void lien_allocation_merge(
	struct lien_graph *graph, struct lien_allocation *from, struct lien_allocation *to);
/* Makes a share with the same members, except for those that link it. NULL: out of memory. */
struct lien_share *lien_share_copy(struct lien_graph *graph, struct lien_allocation *allocation,
	const struct lien_share *like, const uint8_t *key);
/* Returns the share's allocation, which an import is about to hold again. */
struct lien_allocation *lien_share_taken(struct lien_graph *graph, struct lien_share *share);
/* Can it be imported, and has not been? */
bool lien_share_awaited(const struct lien_share *share);
void lien_share_drop(struct lien_graph *graph, struct lien_share *share);
/* Drops the share of the previous restore: it has been imported, and closed. */
void lien_share_drop_control(struct lien_graph *graph, struct lien_allocation *allocation);
/* Adds a binding with the same members, except for those that link it. -ENOMEM. */
int lien_binding_new(struct lien_graph *graph, const struct lien_binding *like);
void lien_reservation_drop(struct lien_process *process, struct lien_reservation *reservation);
void lien_binding_drop(struct lien_graph *graph, struct lien_binding *binding);
/* Frees an allocation that nothing holds, unless an import of it may still be reported. */
void lien_allocation_drop_unheld(struct lien_graph *graph, struct lien_allocation *allocation);

/* --- release.c --- */
/*
 * The entry or the return of a call that releases: it has its effect when it returns. The
 * announcement keeps the effect. -ENOMEM.
 */
int lien_pending_call(
	struct lien_process *process, const struct lien_event *event, lien_apply_fn *effect);
/*
 * The driver gives out a name that still exists, so a release of it that was entered must have
 * happened. Applies the first such release; its late return will find nothing pending. Returns
 * false if there is none.
 */
bool lien_pending_apply(
	struct lien_process *process, enum lien_kind kind, uint64_t name, uint64_t bytes);
/* Removes the next mapping of the range that is being unmapped. */
void lien_graph_unmap_step(struct lien_graph *graph);
/* Removes whatever has a name that the driver has just given out again. */
void lien_handle_vacate(struct lien_process *process, uint64_t value);
/* A retain of the mapping's memory returned the name of other memory. */
void lien_retain_contradicts(struct lien_process *process, const struct lien_event *event);
/* Removes whatever is in a range that a call has just filled. Returns false if that is too much. */
bool lien_range_vacate(struct lien_process *process, uint64_t va, uint64_t bytes);
/* 0: no such context, or not known. */
uint32_t lien_context_number(struct lien_process *process, uint64_t value);
extern lien_apply_fn *const lien_release_effects[LIEN_KIND_COUNT];

/* --- comm.c --- */
/* A process ends: drops one communicator, or what there is of one that is being made. Returns false
 * if there is none left. */
bool lien_comms_drop_one(struct lien_process *process);
/* Loads the part of one rank in a split under way. */
int lien_split_load(struct lien_process *process, const struct lien_state_split *body);
/* Makes a communicator of which only the address is known. NULL: out of memory. */
struct lien_comm *lien_comm_new(struct lien_process *process, uint64_t address);
/* Returns the communicator's number for an event's scope; 0: none is known. */
uint32_t lien_comm_of_scope(struct lien_process *process, uint64_t scope);
/* -ENOMEM. */
int lien_init_new(struct lien_process *process, uint64_t scope, uint32_t number);
extern lien_apply_fn *const lien_comm_effects[LIEN_KIND_COUNT];

/* --- registration.c --- */
/* Names the card, if its name is not empty. Returns 0 or -ENOMEM. */
int lien_registration_name(struct lien_graph *graph, struct lien_registration *registration,
	const char card[LIEN_CARD_BYTES]);
extern lien_apply_fn *const lien_register_effects[LIEN_KIND_COUNT];

/* --- memory.c --- */
/* Counts the reference that the event's caller got. -ENOMEM. */
int lien_handle_take(struct lien_handle *handle, const struct lien_event *event);
/* Makes memory that the event's caller asked for, which owns it unless it is an import: for which
 * communicator and with which tag. NULL: out of memory. */
struct lien_allocation *lien_allocation_asked(struct lien_process *process,
	const struct lien_event *event, enum lien_origin origin, uint64_t bytes);
extern lien_apply_fn *const lien_memory_effects[LIEN_KIND_COUNT];

/* --- share.c --- */
/* Returns the share number of a 64-byte name; the call says what kind of name it is. */
uint64_t lien_share_number(unsigned call, const uint8_t *key);
extern lien_apply_fn *const lien_share_effects[LIEN_KIND_COUNT];

/* --- snapshot.c --- */
/*
 * Loads one record of a snapshot. -EBADMSG: it contradicts itself or the graph, or refers to
 * something that is not there, so nothing was changed; -ENOMEM. The first other event ends the
 * loading (lien_graph_loaded()).
 */
int lien_graph_load(struct lien_graph *graph, const struct lien_event *event);
void lien_graph_loaded(struct lien_graph *graph);

#endif
