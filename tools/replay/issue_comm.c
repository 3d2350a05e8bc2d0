// SPDX-License-Identifier: BSD-2-Clause
/* Issues NCCL's calls to the stand-in libnccl. */
#include <errno.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "tools/replay/worker.h"

static int judge(struct lien_replay_worker *w, const struct lien_replay_op *op, int result)
{
	return result ? lien_replay_wrong(w, "%s (record %u): stand-in libnccl: ncclResult_t %d",
				lien_call_name(op->event.type), op->record, result)
		      : 0;
}

static int init(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	const struct lien_event *ev = &op->event;
	int nranks = ev->comm.nranks, rank = ev->comm.rank, result;
	struct lien_replay_nccl_id id;
	void *comm = NULL;

	memcpy(id.bytes, ev->comm.id, sizeof(id.bytes));
	if (ev->type == LIEN_CALL_NCCL_INIT_RANK)
		result = lien_replay_nccl.init_rank(&comm, nranks, id, rank);
	else if (ev->type == LIEN_CALL_NCCL_INIT_RANK_CONFIG)
		result = lien_replay_nccl.init_rank_config(&comm, nranks, id, rank, NULL);
	else
		result = lien_replay_nccl.init_rank_scalable(&comm, nranks, rank, 1, &id, NULL);
	if (result)
		return judge(w, op, result);
	return lien_replay_names_push(&w->names, LIEN_REPLAY_NAME_COMM, ev->comm.comm,
		       (uint64_t)comm, 0, op->flags)
		       ? 0
		       : -ENOMEM;
}

static int destroy(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	struct lien_replay_name *name =
		lien_replay_names_find(&w->names, LIEN_REPLAY_NAME_COMM, op->event.comm_end.comm);
	void *comm;

	if (!name)
		return lien_replay_wrong(w, "no such communicator (record %u)", op->record);
	comm = (void *)lien_replay_names_pop(&w->names, name);
	return judge(w, op,
		op->event.type == LIEN_CALL_NCCL_ABORT ? lien_replay_nccl.abort(comm)
						       : lien_replay_nccl.destroy(comm));
}

static enum lien_replay_name_kind kind_of(const struct lien_event *ev)
{
	return ev->type == LIEN_CALL_NCCL_REGISTER || ev->type == LIEN_CALL_NCCL_DEREGISTER
		       ? LIEN_REPLAY_NAME_REGISTRATION
		       : LIEN_REPLAY_NAME_WINDOW;
}

static int enroll(struct lien_replay_worker *w, const struct lien_replay_op *op, void *comm)
{
	const struct lien_event *ev = &op->event;
	uint64_t va = lien_replay_space_actual(&w->space, ev->reg.va);
	void *handle = NULL;
	int result;

	/* Memory that is not in the recording, such as a host buffer: only its address matters. */
	if (!va)
		va = ev->reg.va;
	if (kind_of(ev) == LIEN_REPLAY_NAME_REGISTRATION)
		result = lien_replay_nccl.enroll(comm, (void *)va, ev->reg.bytes, &handle);
	else
		result =
			lien_replay_nccl.window_enroll(comm, (void *)va, ev->reg.bytes, &handle, 0);
	if (result || !ev->reg.handle)
		return judge(w, op, result);
	return lien_replay_names_push(&w->names, kind_of(ev), ev->reg.handle, (uint64_t)handle,
		       ev->reg.comm, op->flags)
		       ? 0
		       : -ENOMEM;
}

static int withdraw(struct lien_replay_worker *w, const struct lien_replay_op *op, void *comm)
{
	const struct lien_event *ev = &op->event;
	struct lien_replay_name *name =
		lien_replay_names_find(&w->names, kind_of(ev), ev->reg.handle);
	void *handle;

	if (!name)
		return lien_replay_wrong(w, "no such registration (record %u)", op->record);
	handle = (void *)lien_replay_names_pop(&w->names, name);
	return judge(w, op,
		kind_of(ev) == LIEN_REPLAY_NAME_REGISTRATION
			? lien_replay_nccl.withdraw(comm, handle)
			: lien_replay_nccl.window_withdraw(comm, handle));
}

int lien_replay_issue_comm(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	struct lien_replay_name *name;
	void *comm;

	if (!w->nccl)
		return 0;
	switch (op->event.type) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
		return init(w, op);
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
		return destroy(w, op);
	}
	name = lien_replay_names_find(&w->names, LIEN_REPLAY_NAME_COMM, op->event.reg.comm);
	if (!name)
		return lien_replay_wrong(w, "no such communicator (record %u)", op->record);
	comm = (void *)lien_replay_name_actual(name);
	return op->event.type == LIEN_CALL_NCCL_REGISTER ||
			       op->event.type == LIEN_CALL_NCCL_WINDOW_REGISTER
		       ? enroll(w, op, comm)
		       : withdraw(w, op, comm);
}
