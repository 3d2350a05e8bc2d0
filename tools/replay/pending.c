// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>

#include "tools/replay/pending.h"

#define PENDING_MAX 4096

void lien_replay_pending_init(struct lien_replay_pending *pending)
{
	TAILQ_INIT(&pending->calls);
	pending->count = 0;
}

static void forget(struct lien_replay_pending *pending, struct lien_replay_pending_call *call)
{
	TAILQ_REMOVE(&pending->calls, call, order);
	pending->count--;
	free(call);
}

void lien_replay_pending_clear(struct lien_replay_pending *pending)
{
	while (!TAILQ_EMPTY(&pending->calls))
		forget(pending, TAILQ_FIRST(&pending->calls));
}

int lien_replay_pending_announce(struct lien_replay_pending *pending, const struct lien_event *ev)
{
	struct lien_replay_pending_call *call = calloc(1, sizeof(*call));

	if (!call)
		return -ENOMEM;
	if (pending->count == PENDING_MAX)
		forget(pending, TAILQ_FIRST(&pending->calls));
	call->event = *ev;
	TAILQ_INSERT_TAIL(&pending->calls, call, order);
	pending->count++;
	return 0;
}

bool lien_replay_pending_return(struct lien_replay_pending *pending, const struct lien_event *ev)
{
	struct lien_replay_pending_call *call;
	bool applied;

	TAILQ_FOREACH (call, &pending->calls, order) {
		if (call->event.tid != ev->tid || call->event.t_entry != ev->t_entry ||
			call->event.type != ev->type)
			continue;
		applied = call->applied;
		forget(pending, call);
		return applied;
	}
	return false;
}

uint64_t lien_replay_released_name(const struct lien_event *ev)
{
	switch (ev->type) {
	case LIEN_CALL_CU_MEM_RELEASE:
		return ev->release.handle;
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
		return ev->comm_end.comm;
	case LIEN_CALL_NCCL_DEREGISTER:
	case LIEN_CALL_NCCL_WINDOW_DEREGISTER:
		return ev->reg.handle;
	default:
		return ev->range.va;
	}
}

struct lien_replay_pending_call *lien_replay_pending_find(
	struct lien_replay_pending *pending, unsigned int type, uint64_t name)
{
	struct lien_replay_pending_call *call;
	const struct lien_event *ev;

	TAILQ_FOREACH (call, &pending->calls, order) {
		ev = &call->event;
		if (call->applied || ev->type != type)
			continue;
		if (lien_replay_released_name(ev) == name)
			return call;
		if (type == LIEN_CALL_CU_MEM_UNMAP && name - ev->range.va < ev->range.bytes)
			return call;
	}
	return NULL;
}
