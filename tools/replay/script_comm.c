// SPDX-License-Identifier: BSD-2-Clause
/* Applies calls on communicators and registrations. */
#include <errno.h>

#include "tools/replay/build.h"

static struct lien_replay_name *comm_name(struct lien_replay_build *b, uint64_t comm)
{
	return lien_replay_names_find(&b->names, LIEN_REPLAY_NAME_COMM, comm);
}

static int destroy(struct lien_replay_build *b, const struct lien_event *ev)
{
	struct lien_replay_name *name = comm_name(b, ev->comm_end.comm);

	if (!name)
		return lien_replay_skip(b, LIEN_SKIP_UNKNOWN);
	lien_replay_names_pop(&b->names, name);
	return lien_replay_emit(b, ev, LIEN_NO_ALLOCATION);
}

static int init(struct lien_replay_build *b, const struct lien_event *ev)
{
	unsigned int how = LIEN_CALL_NCCL_DESTROY;
	int err;

	if (!ev->comm.comm || ev->flags & LIEN_EVENT_PARTIAL)
		return lien_replay_skip(b, LIEN_SKIP_PARTIAL);
	if (ev->flags & LIEN_EVENT_FOUND && comm_name(b, ev->comm.comm))
		return 0; /* it exists; this call only names it */
	/* A communicator is host memory, whose address can be reused like a handle's value. */
	if (comm_name(b, ev->comm.comm)) {
		if (lien_replay_pending_find(&b->pending, LIEN_CALL_NCCL_ABORT, ev->comm.comm))
			how = LIEN_CALL_NCCL_ABORT;
		err = lien_replay_give_up(b, how, ev->comm.comm, destroy);
		if (err)
			return err;
	}
	if (!lien_replay_names_push(&b->names, LIEN_REPLAY_NAME_COMM, ev->comm.comm, 0, 0, 0))
		return -ENOMEM;
	return lien_replay_emit(b, ev, LIEN_NO_ALLOCATION);
}

static enum lien_replay_name_kind kind_of(const struct lien_event *ev)
{
	return ev->type == LIEN_CALL_NCCL_REGISTER || ev->type == LIEN_CALL_NCCL_DEREGISTER
		       ? LIEN_REPLAY_NAME_REGISTRATION
		       : LIEN_REPLAY_NAME_WINDOW;
}

static int enroll(struct lien_replay_build *b, const struct lien_event *ev)
{
	if (!comm_name(b, ev->reg.comm))
		return lien_replay_skip(b, LIEN_SKIP_UNKNOWN);
	/* NCCL returns success without a handle when it has no use for the buffer. */
	if (ev->reg.handle &&
		!lien_replay_names_push(&b->names, kind_of(ev), ev->reg.handle, 0, ev->reg.comm, 0))
		return -ENOMEM;
	return lien_replay_emit(b, ev, LIEN_NO_ALLOCATION);
}

static int withdraw(struct lien_replay_build *b, const struct lien_event *ev)
{
	struct lien_replay_name *name;

	name = lien_replay_names_find(&b->names, kind_of(ev), ev->reg.handle);
	if (!name || !comm_name(b, ev->reg.comm))
		return lien_replay_skip(b, LIEN_SKIP_UNKNOWN);
	lien_replay_names_pop(&b->names, name);
	return lien_replay_emit(b, ev, LIEN_NO_ALLOCATION);
}

lien_replay_apply lien_replay_comm_call(unsigned int call)
{
	switch (call) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
		return init;
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
		return destroy;
	case LIEN_CALL_NCCL_REGISTER:
	case LIEN_CALL_NCCL_WINDOW_REGISTER:
		return enroll;
	case LIEN_CALL_NCCL_DEREGISTER:
	case LIEN_CALL_NCCL_WINDOW_DEREGISTER:
		return withdraw;
	default:
		return NULL;
	}
}
