/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Events made up for the graph: calls that must have been made, because the driver says so. They
 * carry LIEN_EVENT_FOUND, and times that go on from .now_ns. Plain C like the graph.
 */
#ifndef LIEN_TELL_H
#define LIEN_TELL_H

#include "agent/graph/graph.h"

typedef void lien_tell_fn(void *context, struct lien_event *event);

struct lien_telling {
	uint64_t now_ns;
	lien_tell_fn *tell;
	void *context;
};

/* Without a body. */
struct lien_event lien_tell_event(
	struct lien_telling *telling, const struct lien_process *process, unsigned type);
/* `size`: as of LIEN_EVENT_SIZE(). */
void lien_tell(struct lien_telling *telling, struct lien_event *event, size_t size);
/* A call that gives something back is announced first. */
void lien_tell_given_back(struct lien_telling *telling, struct lien_event *event, size_t size);
/* Every reference to it; the handle may be gone afterwards. */
void lien_tell_release_all(struct lien_telling *telling, struct lien_handle *handle);

#endif
