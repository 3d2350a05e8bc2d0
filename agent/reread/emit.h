/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Made-up events for the graph: calls that must have been made, because the driver says so. They
 * carry LIEN_EVENT_FOUND, and times that continue from .now_ns. Plain C like the graph.
 */
#ifndef LIEN_EMIT_H
#define LIEN_EMIT_H

#include "agent/graph/graph.h"

typedef void lien_emit_fn(void *context, struct lien_event *event);

struct lien_emitter {
	uint64_t now_ns;
	lien_emit_fn *emit;
	void *context;
};

/* Returns an event without a body. */
struct lien_event lien_emit_event(
	struct lien_emitter *emitter, const struct lien_process *process, unsigned type);
/* `size` as from LIEN_EVENT_SIZE(). */
void lien_emit(struct lien_emitter *emitter, struct lien_event *event, size_t size);
/* Emits a release, with its announcement first. */
void lien_emit_given_back(struct lien_emitter *emitter, struct lien_event *event, size_t size);
/* Releases every reference to it; the handle may be gone afterwards. */
void lien_emit_release_all(struct lien_emitter *emitter, struct lien_handle *handle);
void lien_emit_unmap(struct lien_emitter *emitter, const struct lien_process *process, uint64_t va,
	uint64_t bytes);
void lien_emit_create(struct lien_emitter *emitter, const struct lien_process *process,
	uint64_t handle, uint64_t bytes, const struct lien_prop *prop);
/* `share`: of the export; 0: of unknown owner. */
void lien_emit_import(struct lien_emitter *emitter, const struct lien_process *process,
	uint64_t handle, uint64_t share);
void lien_emit_map(struct lien_emitter *emitter, const struct lien_process *process, uint64_t va,
	uint64_t bytes, uint64_t handle);

#endif
