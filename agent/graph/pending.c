// SPDX-License-Identifier: BSD-2-Clause
/* Releases that were entered and have not returned yet. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

/* At most this many releases are pending at a time. Beyond it, the oldest returns were missed or
 * never happened (longjmp). */
#define PENDING_MAX 1024

static struct lien_pending *pending_take(struct lien_process *process, struct lien_pending *pending)
{
	TAILQ_REMOVE(&process->pending, pending, next);
	process->pending_count--;
	return pending;
}

static bool acquired_by_register(unsigned call)
{
	const enum lien_kind kind = lien_call_kind(call);

	return kind == LIEN_KIND_deregister || kind == LIEN_KIND_deregister_mr;
}

bool lien_release_may_succeed(struct lien_process *process, const struct lien_event *event)
{
	const uint64_t va = event->range.va, bytes = event->range.bytes;
	const struct lien_mapping *first, *last;

	if (event->type != LIEN_CALL_CU_MEM_UNMAP)
		return true;
	first = lien_process_overlap(process, va, bytes);
	last = lien_process_mapping(process, va + bytes - 1);
	return first && last && first->va == va && last->va + last->bytes == va + bytes;
}

/* If several releases are pending that name it, it is one that the driver may have carried out. */
bool lien_pending_apply(struct lien_graph *graph, struct lien_process *process, unsigned call,
	uint64_t name, uint64_t bytes, lien_apply_fn *effect)
{
	const bool patient = graph->patient;
	struct lien_pending *pending, *doubtful = NULL;
	uint64_t at;

	TAILQ_FOREACH (pending, &process->pending, next) {
		if (pending->event.type != call)
			continue;
		/* The name is the first member of every release's body, except for registrations.
		 */
		at = acquired_by_register(call) ? pending->event.reg.handle
						: pending->event.release.handle;
		if (call == LIEN_CALL_CU_MEM_UNMAP
				? name >= at + pending->event.range.bytes || at >= name + bytes
				: at != name)
			continue;
		if (lien_release_may_succeed(process, &pending->event))
			break;
		doubtful = doubtful ? doubtful : pending;
	}
	if (!pending)
		pending = doubtful;
	if (!pending)
		return false;
	pending_take(process, pending);
	graph->patient = false; /* the caller needs the room at once */
	effect(graph, process, &pending->event);
	graph->patient = patient;
	free(pending);
	return true;
}

int lien_pending_call(struct lien_graph *graph, struct lien_process *process,
	const struct lien_event *event, lien_apply_fn *effect)
{
	struct lien_pending *pending;

	if (event->flags & LIEN_EVENT_ENTRY) {
		pending = calloc(1, sizeof(*pending));
		if (!pending)
			return -ENOMEM;
		memcpy(&pending->event, event, event->size);
		TAILQ_INSERT_TAIL(&process->pending, pending, next);
		if (++process->pending_count > PENDING_MAX) {
			free(pending_take(process, TAILQ_FIRST(&process->pending)));
			process->incomplete |= LIEN_INCOMPLETE_LOST;
		}
		return 0;
	}
	TAILQ_FOREACH (pending, &process->pending, next)
		if (pending->event.tid == event->tid && pending->event.t_entry == event->t_entry)
			break;
	if (!pending) {
		/* Already applied when the driver reused the name. If the driver then refused this
		 * call, another one had freed the name. */
		if (!lien_event_succeeded(event))
			lien_graph_odd(graph, process);
		return 0;
	}
	free(pending_take(process, pending));
	return lien_event_succeeded(event) ? effect(graph, process, event) : 0;
}
