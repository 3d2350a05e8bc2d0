// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/trace_moves.h"

#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "tools/text/output.h"

/* A process in which something has been moved. */
struct mover {
	struct mover *next;
	uint32_t pid;
	const char *kind;  /* "offload", "restore"; NULL: nothing is under way */
	const char *phase; /* as lien_phase_name() calls it */
	uint64_t t_last;   /* the return of its last call */
	bool looking;	   /* has asked the driver for handles since, and may only compare */
};

struct lien_trace_moves {
	struct lien_trace *trace;
	struct mover *movers;
	uint64_t count;
};

struct lien_trace_moves *lien_trace_moves_new(struct lien_trace *trace)
{
	struct lien_trace_moves *moves = lien_trace_alloc(sizeof(*moves));

	moves->trace = trace;
	return moves;
}

void lien_trace_moves_free(struct lien_trace_moves *moves)
{
	struct mover *mover;

	while ((mover = moves->movers)) {
		moves->movers = mover->next;
		free(mover);
	}
	free(moves);
}

uint64_t lien_trace_moves_count(const struct lien_trace_moves *moves)
{
	return moves->count;
}

static struct mover *mover_of(struct lien_trace_moves *moves, uint32_t pid)
{
	struct mover *mover;

	for (mover = moves->movers; mover; mover = mover->next)
		if (mover->pid == pid)
			return mover;
	mover = lien_trace_alloc(sizeof(*mover));
	mover->pid = pid;
	mover->next = moves->movers;
	moves->movers = mover;
	return mover;
}

/* Phases lie within their transaction: one track for each process. */
static void add(struct lien_trace_moves *moves, const struct mover *mover, const char *ph,
	const char *name, uint64_t t)
{
	char *id = lien_format("0x%x", mover->pid);

	lien_trace_add(moves->trace, t, LIEN_TRACE_NO_DURATION,
		json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "ph", ph, "cat", "transaction", "id",
			id, "name", name, "pid", (json_int_t)mover->pid, "tid",
			(json_int_t)mover->pid));
	free(id);
}

static void finish(struct lien_trace_moves *moves, struct mover *mover)
{
	if (!mover->kind)
		return;
	add(moves, mover, "e", mover->phase, mover->t_last);
	add(moves, mover, "e", mover->kind, mover->t_last);
	mover->kind = mover->phase = NULL;
}

static void enter(struct lien_trace_moves *moves, struct mover *mover, const char *kind,
	const char *phase, uint64_t t)
{
	if (mover->kind != kind) {
		finish(moves, mover);
		add(moves, mover, "b", kind, t);
		mover->kind = kind;
		moves->count++;
	} else if (mover->phase != phase) {
		add(moves, mover, "e", mover->phase, mover->t_last);
	}
	if (mover->phase != phase)
		add(moves, mover, "b", phase, t);
	mover->phase = phase;
}

static const char offload[] = "offload", restore[] = "restore", unmap[] = "unmap", drop[] = "drop",
		  create[] = "create", export[] = "export", import[] = "import";

/* Owners drop their memory, importers unmap it. */
static const char *unmapped(struct lien_graph *graph, const struct lien_event *event)
{
	struct lien_process *process = lien_graph_process(graph, event->pid);
	const struct lien_mapping *mapping =
		process ? lien_process_mapping(process, event->range.va) : NULL;

	return mapping && mapping->imported ? unmap : drop;
}

/* Returns the phase that the call belongs to; NULL: it may belong to several. */
static const char *phase_of(
	struct lien_graph *graph, const struct lien_event *event, const char **kind)
{
	*kind = restore;
	switch (lien_call_kind(event->type)) {
	case LIEN_KIND_unmap:
		*kind = offload;
		return unmapped(graph, event);
	case LIEN_KIND_create:
		return create;
	case LIEN_KIND_export:
		return export;
	case LIEN_KIND_import:
		return import;
	default:
		*kind = NULL;
		return NULL;
	}
}

void lien_trace_moves_event(
	struct lien_trace_moves *moves, struct lien_graph *graph, const struct lien_event *event)
{
	const bool call = event->flags & LIEN_EVENT_CONTROL && event->t_return &&
			  !LIEN_IS_STATE(event->type) && lien_event_succeeded(event);
	const char *kind, *phase;
	struct mover *mover;

	if (!call)
		return;
	mover = mover_of(moves, event->pid);
	phase = phase_of(graph, event, &kind);
	switch (lien_call_kind(event->type)) {
	case LIEN_KIND_map:
	case LIEN_KIND_access:
	case LIEN_KIND_release:
		if (mover->kind && !mover->looking)
			mover->t_last = event->t_return;
		return;
	case LIEN_KIND_retain:
		mover->looking = true;
		return;
	default:
		break;
	}
	if (!phase)
		return;
	enter(moves, mover, kind, phase, event->t_entry ? event->t_entry : event->t_return);
	mover->t_last = event->t_return;
	mover->looking = false;
}

void lien_trace_moves_end(struct lien_trace_moves *moves)
{
	struct mover *mover;

	for (mover = moves->movers; mover; mover = mover->next)
		finish(moves, mover);
}
