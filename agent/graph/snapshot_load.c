// SPDX-License-Identifier: BSD-2-Clause
/* Loads the parts of a snapshot that belong to one process: see snapshot.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/snapshot.h"

int lien_load_process(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_process *body = &event->state.process;
	unsigned i;

	if (!event->pid || lien_graph_process(graph, event->pid) ||
		body->context >= LIEN_NUMBER_END)
		return -EBADMSG;
	process = lien_process_new(graph, event->pid, event->start);
	if (!process)
		return -ENOMEM;
	process->uid = body->uid;
	process->incomplete = body->incomplete;
	process->cuda = body->cuda;
	process->captured = body->captured;
	process->device_comm = body->device_comm;
	process->next_context = body->context;
	process->t_first = event->t_entry;
	for (i = 0; i < sizeof(process->command) - 1 && body->command[i]; i++)
		process->command[i] = lien_printable(body->command[i]);
	return 0;
}

int lien_load_reservation(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_reservation *reservation = lien_slab_get(&graph->slabs.reservations);

	if (!reservation)
		return -ENOMEM;
	reservation->va = event->state.reservation.va;
	reservation->bytes = event->state.reservation.bytes;
	if (!SPLAY_INSERT(lien_reservation_tree, &process->reservations, reservation))
		return 0;
	lien_slab_put(&graph->slabs.reservations, reservation);
	return -EBADMSG;
}

int lien_load_context(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_context *body = &event->state.context;
	struct lien_context *context;

	(void)graph;
	if (!body->number || body->number >= LIEN_NUMBER_END ||
		lien_context_number(process, body->value))
		return -EBADMSG;
	context = calloc(1, sizeof(*context));
	if (!context)
		return -ENOMEM;
	context->value = body->value;
	context->number = body->number;
	context->device = body->device;
	context->primary = body->primary;
	if (RB_INSERT(lien_context_number_tree, &process->context_numbers, context)) {
		free(context);
		return -EBADMSG;
	}
	RB_INSERT(lien_context_tree, &process->contexts, context);
	lien_load_count(&process->next_context, body->number);
	return 0;
}

int lien_load_pool(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_pool *body = &event->state.pool;
	struct lien_pool *pool = calloc(1, sizeof(*pool));

	(void)graph;
	if (!pool)
		return -ENOMEM;
	pool->value = body->value;
	pool->share = body->share;
	pool->device = body->device;
	pool->imported = body->imported;
	if (!RB_INSERT(lien_pool_tree, &process->pools, pool))
		return 0;
	free(pool);
	return -EBADMSG;
}

int lien_load_capture(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_capture *capture = calloc(1, sizeof(*capture));

	(void)graph;
	if (!capture)
		return -ENOMEM;
	capture->stream = event->state.capture.stream;
	if (!RB_INSERT(lien_capture_tree, &process->captures, capture))
		return 0;
	free(capture);
	return -EBADMSG;
}

/* --- communicators ---------------------------------------------------------------------------- */

static bool makes_comm(unsigned call)
{
	enum lien_kind kind = lien_call_kind(call);

	return kind == LIEN_KIND_comm_init || kind == LIEN_KIND_comm_split ||
	       kind == LIEN_KIND_comm_shrink;
}

int lien_load_comm(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_comm *body = &event->state.comm;
	uint32_t next = graph->next_comm;
	struct lien_comm *comm;

	if (!event->scope || lien_comm_find(process, event->scope) || !body->number ||
		body->number >= LIEN_NUMBER_END || lien_process_comm(process, body->number) ||
		body->parent >= LIEN_NUMBER_END || (event->outer && !makes_comm(event->outer)))
		return -EBADMSG;
	graph->next_comm = body->number - 1;
	comm = lien_comm_new(graph, process, event->scope);
	graph->next_comm = next;
	if (!comm)
		return -ENOMEM;
	lien_load_count(&graph->next_comm, body->number);
	lien_load_count(&graph->next_comm, body->parent);
	comm->made_by = event->outer;
	comm->t_init = event->t_return;
	comm->hash = body->hash;
	comm->parent = body->parent;
	comm->rank = body->rank;
	comm->nranks = body->nranks;
	comm->device = body->device;
	comm->splits = body->splits;
	comm->shrinks = body->shrinks;
	comm->finalized = body->finalized;
	memcpy(comm->id, body->id, sizeof(comm->id));
	return 0;
}

int lien_load_init(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	uint32_t number = event->state.init.number;
	struct lien_init key = {.scope = event->scope};

	if (!(event->scope & LIEN_SCOPE_INIT) || !number || number >= LIEN_NUMBER_END ||
		RB_FIND(lien_init_tree, &process->inits, &key) ||
		lien_process_init(process, number))
		return -EBADMSG;
	lien_load_count(&graph->next_comm, number);
	return lien_init_new(process, event->scope, number);
}

int lien_load_split(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	return lien_split_load(graph, process, &event->state.split);
}

/* The graph marks the spans of a new process for computation. */
int lien_load_registration(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	const struct lien_state_registration *body = &event->state.registration;
	struct lien_comm *comm = body->comm ? lien_process_comm(process, body->comm) : NULL;
	struct lien_registration *registration;

	if (!body->handle || (body->comm && !comm))
		return -EBADMSG;
	registration = calloc(1, sizeof(*registration));
	if (!registration)
		return -ENOMEM;
	registration->number = ++graph->next_registration;
	registration->va = body->va;
	registration->bytes = body->bytes;
	registration->handle = body->handle;
	registration->window = body->window;
	registration->of_gpu = body->of_gpu;
	RB_INSERT(lien_registration_tree, comm ? &comm->registrations : &process->cards,
		registration);
	process->card_spans.known = false;
	return !comm && event->size >= LIEN_EVENT_SIZE(state.registration)
		       ? lien_registration_name(graph, registration, body->card)
		       : 0;
}

/* --- all -------------------------------------------------------------------------------------- */

/* The others are about a process that has a record. */
static bool needs_no_process(unsigned type)
{
	return type == LIEN_STATE_process || type == LIEN_STATE_site ||
	       type == LIEN_STATE_allocation || type == LIEN_STATE_share ||
	       type == LIEN_STATE_binding || type == LIEN_STATE_end;
}

int lien_graph_load(struct lien_graph *graph, const struct lien_event *event)
{
	static lien_load_fn *const loads[LIEN_CALL_MAX] = {
#define LOAD(name, number, least) [number] = lien_load_##name,
		LIEN_STATES(LOAD)
#undef LOAD
	};
	struct lien_process *process = lien_graph_living(graph, event->pid, event->start);

	if (!process && !needs_no_process(event->type))
		return -EBADMSG;
	graph->stats.events++;
	if (process)
		lien_process_earn_visits(process);
	return loads[event->type](graph, process, event);
}

void lien_graph_loaded(struct lien_graph *graph)
{
	struct lien_allocation **all = graph->loading.allocations;
	size_t i;

	if (!all && !graph->loading.sites)
		return; /* with every event but a snapshot's */
	/* One that is freed unbinds others; those are before it, or still count as being imported.
	 */
	for (i = 0; i < graph->loading.allocations_count; i++) {
		all[i]->importing = false;
		lien_allocation_drop_unheld(graph, all[i]);
	}
	free(graph->loading.allocations);
	free(graph->loading.sites);
	memset(&graph->loading, 0, sizeof(graph->loading));
}
