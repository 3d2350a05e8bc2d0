/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the graph's own files: making and removing its parts. Nobody else includes this. */
#ifndef LIEN_GRAPH_INTERNAL_H
#define LIEN_GRAPH_INTERNAL_H

#include "agent/graph.h"

RB_HEAD(lien_name_tree, lien_name);
RB_HEAD(lien_access_tree, lien_access_set);

struct lien_graph {
	struct lien_process_tree processes;
	struct lien_allocation_tree allocations;
	struct lien_share_tree shares;
	struct lien_name_tree names;
	struct lien_access_tree access_sets;
	struct lien_graph_stats stats;
	uint64_t next_id;
	void (*on_process_end)(void *context, struct lien_process *process);
	void *on_process_end_context;
};

RB_PROTOTYPE(lien_process_tree, lien_process, by_pid, lien_process_cmp);
RB_PROTOTYPE(lien_allocation_tree, lien_allocation, by_id, lien_allocation_cmp);
RB_PROTOTYPE(lien_share_tree, lien_share, by_number, lien_share_cmp);

/* Names come from the job, which may call itself anything: what is no ASCII is shown as '?'. */
char lien_printable(char c);
const struct lien_name *lien_graph_name(struct lien_graph *graph, const char *text, size_t max);
/* The set with n descriptions laid over base. NULL: out of memory. */
const struct lien_access_set *lien_graph_access(struct lien_graph *graph,
	const struct lien_access_set *base, const struct lien_access *over, unsigned n);
void lien_graph_free_sets(struct lien_graph *graph);

struct lien_process *lien_process_new(struct lien_graph *graph, uint32_t pid, uint64_t start);
/* Drops all it holds; allocations that others still hold stay. */
void lien_process_end(struct lien_graph *graph, struct lien_process *process);

struct lien_allocation *lien_allocation_new(struct lien_graph *graph, enum lien_origin origin);
void lien_allocation_own(struct lien_allocation *allocation, struct lien_process *process);
struct lien_handle *lien_handle_new(
	struct lien_process *process, struct lien_allocation *allocation, uint64_t value);
void lien_handle_drop(struct lien_graph *graph, struct lien_handle *handle);
struct lien_mapping *lien_mapping_new(struct lien_graph *graph, struct lien_process *process,
	struct lien_allocation *allocation, uint64_t va, uint64_t bytes);
void lien_mapping_drop(struct lien_graph *graph, struct lien_mapping *mapping);
/* Moves everything that `from` has to `to`; frees `from`. */
void lien_allocation_merge(
	struct lien_graph *graph, struct lien_allocation *from, struct lien_allocation *to);
/* NULL: out of memory. There must be no export of that number. */
struct lien_share *lien_share_new(
	struct lien_graph *graph, struct lien_allocation *allocation, uint64_t number);
/* Those of the restore before this one: each has been imported, and closed. */
void lien_shares_drop_control(struct lien_graph *graph, struct lien_allocation *allocation);

void lien_comm_drop(struct lien_process *process, struct lien_comm *comm);

/* The first mapping (reservation) that has a byte in [va, va + bytes). */
struct lien_mapping *lien_process_overlap(
	struct lien_process *process, uint64_t va, uint64_t bytes);

/* An event's effect; -ENOMEM is the only failure. */
typedef int lien_apply_fn(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event);

lien_apply_fn lien_graph_apply_release;
lien_apply_fn lien_graph_apply_unmap;
lien_apply_fn lien_graph_apply_free;
lien_apply_fn lien_graph_apply_address_free;
lien_apply_fn lien_graph_apply_create;
lien_apply_fn lien_graph_apply_alloc;
lien_apply_fn lien_graph_apply_retain;
lien_apply_fn lien_graph_apply_reserve;
lien_apply_fn lien_graph_apply_map;
lien_apply_fn lien_graph_apply_access;
lien_apply_fn lien_graph_apply_export;
lien_apply_fn lien_graph_apply_import;
lien_apply_fn lien_graph_apply_comm_end;
lien_apply_fn lien_graph_apply_deregister;
lien_apply_fn lien_graph_apply_comm_init;
lien_apply_fn lien_graph_apply_register;
lien_apply_fn lien_graph_apply_property;
lien_apply_fn lien_graph_apply_reread;
lien_apply_fn lien_graph_apply_capture_begin;
lien_apply_fn lien_graph_apply_capture_end;

/* The driver did something that does not fit what is known of the process. */
void lien_graph_odd(struct lien_graph *graph, struct lien_process *process);

/*
 * A name is being acquired that still lives: a release of it that was entered must have happened.
 * Applies the first such release; its late return will find nothing pending. False: there is none.
 */
bool lien_graph_apply_pending(struct lien_graph *graph, struct lien_process *process, unsigned call,
	uint64_t name, uint64_t bytes);

#endif
