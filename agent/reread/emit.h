/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes up events for the graph: calls that must have been made, because a reading of a process
 * (reread.h) or an adoption (adoption.h) says so. They carry LIEN_EVENT_FOUND, and times that
 * continue from .now_ns. Plain C like the graph.
 */
#ifndef LIEN_EMIT_H
#define LIEN_EMIT_H

#include "agent/reread/adoption.h"
#include "agent/reread/reread.h"

typedef void lien_emit_fn(void *context, struct lien_event *event);

struct lien_emitter {
	uint64_t now_ns;
	lien_emit_fn *emit;
	void *context;
};

/*
 * Brings the graph in line with the driver. Memory that is no longer mapped, and is not mapped
 * elsewhere, is taken as released. An unknown allocation belongs to the process if it cannot have
 * come from another one; else it is an import of unknown owner, and the process stays incomplete
 * (LIEN_INCOMPLETE_SHARE) until an adoption finds out.
 */
void lien_reread_repair(const struct lien_reread *reread, struct lien_graph *graph,
	struct lien_process *process, struct lien_emitter *emitter);
/* Emits the devices of plain memory that the last pass found and the graph does not know. */
void lien_reread_learn(const struct lien_reread *reread, struct lien_process *process,
	struct lien_emitter *emitter);

/* Emits an adoption's answers. A process that has been read is no longer LIEN_INCOMPLETE_LATE. */
void lien_adoption_emit(
	struct lien_adoption *adoption, struct lien_graph *graph, struct lien_emitter *emitter);

#endif
