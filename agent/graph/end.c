// SPDX-License-Identifier: BSD-2-Clause
/*
 * Ends objects with many parts: a process, an allocation with many exports, a range with many
 * mappings. A patient graph does it in steps.
 */
#include <limits.h>
#include <stdlib.h>

#include "agent/graph/internal.h"

/* --- parts of a process, one at a time -------------------------------------------------------- */

/* Ends one part. Returns false if there is none. */
static bool end_memory(struct lien_graph *graph, struct lien_process *process)
{
	struct lien_reservation *reservation = SPLAY_ROOT(&process->reservations);

	if (!RB_EMPTY(&process->mappings)) {
		lien_mapping_drop(graph, RB_ROOT(&process->mappings));
	} else if (!SPLAY_EMPTY(&process->handles)) {
		lien_handle_drop(graph, SPLAY_ROOT(&process->handles));
	} else if (reservation) {
		SPLAY_REMOVE(lien_reservation_tree, &process->reservations, reservation);
		lien_slab_put(&graph->slabs.reservations, reservation);
	} else {
		return false;
	}
	return true;
}

static bool end_registration(struct lien_process *process)
{
	struct lien_comm *comm = RB_ROOT(&process->comms);
	struct lien_registration_tree *list =
		comm && !RB_EMPTY(&comm->registrations) ? &comm->registrations : &process->cards;

	if (RB_EMPTY(list))
		return false;
	lien_registration_drop(list, RB_ROOT(list));
	return true;
}

static bool end_comm(struct lien_graph *graph, struct lien_process *process)
{
	if (!RB_EMPTY(&process->comms))
		lien_comm_drop(graph, process, RB_ROOT(&process->comms));
	else if (!RB_EMPTY(&process->inits))
		lien_init_drop(process, RB_ROOT(&process->inits));
	else
		return lien_splits_drop_one(graph, process);
	return true;
}

static bool end_context(struct lien_process *process)
{
	struct lien_context *context = RB_ROOT(&process->contexts);
	struct lien_capture *capture = RB_ROOT(&process->captures);
	struct lien_pool *pool = RB_ROOT(&process->pools);

	if (context)
		RB_REMOVE(lien_context_tree, &process->contexts, context);
	if (capture)
		RB_REMOVE(lien_capture_tree, &process->captures, capture);
	if (pool)
		RB_REMOVE(lien_pool_tree, &process->pools, pool);
	free(context);
	free(capture);
	free(pool);
	return context || capture || pool;
}

static bool end_library(struct lien_process *process)
{
	struct lien_pending *pending = TAILQ_FIRST(&process->pending);

	if (!RB_EMPTY(&process->libraries)) {
		lien_library_drop(process, RB_ROOT(&process->libraries));
	} else if (pending) {
		TAILQ_REMOVE(&process->pending, pending, next);
		free(pending);
	} else {
		return false;
	}
	return true;
}

static void disown(struct lien_graph *graph, struct lien_allocation *allocation)
{
	LIST_REMOVE(allocation, of_owner);
	allocation->owner = NULL;
	lien_allocation_drop_unheld(graph, allocation);
}

static bool end_owned(struct lien_graph *graph, struct lien_process *process)
{
	if (LIST_EMPTY(&process->owned))
		return false;
	disown(graph, LIST_FIRST(&process->owned));
	return true;
}

static void end_step(struct lien_graph *graph, struct lien_process *process)
{
	if (end_memory(graph, process) || end_registration(process) || end_comm(graph, process) ||
		end_context(process) || end_library(process) || end_owned(graph, process))
		return;
	TAILQ_REMOVE(&graph->ending, process, of_ending);
	free(process->card_spans.span);
	free(process);
}

void lien_process_end(struct lien_graph *graph, struct lien_process *process)
{
	process->ended = true;
	if (graph->on_process_end)
		graph->on_process_end(graph->on_process_end_context, process);
	RB_REMOVE(lien_process_tree, &graph->processes, process);
	graph->stats.processes--;
	TAILQ_INSERT_TAIL(&graph->ending, process, of_ending);
	lien_graph_finish(graph, graph->patient ? LIEN_AT_ONCE : UINT_MAX);
}

/* --- all parts, in steps ---------------------------------------------------------------------- */

static void free_step(struct lien_graph *graph, struct lien_allocation *allocation)
{
	if (!LIST_EMPTY(&allocation->shares)) {
		lien_share_drop(graph, LIST_FIRST(&allocation->shares));
		return;
	}
	TAILQ_REMOVE(&graph->freed, allocation, of_graph);
	lien_slab_put(&graph->slabs.allocations, allocation);
}

bool lien_graph_unfinished(const struct lien_graph *graph)
{
	return graph->unmapping.process || !TAILQ_EMPTY(&graph->freed) ||
	       !TAILQ_EMPTY(&graph->ending);
}

bool lien_graph_finish(struct lien_graph *graph, unsigned steps)
{
	for (; steps && lien_graph_unfinished(graph); steps--)
		if (graph->unmapping.process)
			lien_graph_unmap_step(graph);
		else if (!TAILQ_EMPTY(&graph->freed))
			free_step(graph, TAILQ_FIRST(&graph->freed));
		else
			end_step(graph, TAILQ_FIRST(&graph->ending));
	return !lien_graph_unfinished(graph);
}

void lien_graph_be_patient(struct lien_graph *graph)
{
	graph->patient = true;
}

void lien_graph_free(struct lien_graph *graph)
{
	struct lien_process *process;

	if (!graph)
		return;
	graph->patient = false;
	lien_graph_loaded(graph);
	while ((process = RB_ROOT(&graph->processes)))
		lien_process_end(graph, process);
	lien_graph_free_let_go(graph);
	lien_graph_free_sets(graph);
	lien_slab_clear(&graph->slabs.allocations);
	lien_slab_clear(&graph->slabs.mappings);
	lien_slab_clear(&graph->slabs.handles);
	lien_slab_clear(&graph->slabs.holdings);
	lien_slab_clear(&graph->slabs.reservations);
	lien_slab_clear(&graph->slabs.shares);
	free(graph);
}
