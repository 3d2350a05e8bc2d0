// SPDX-License-Identifier: BSD-2-Clause
#include "tools/replay/build.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/graph.h"

#define LIBNCCL "libnccl.so"

uint32_t lien_replay_op_flags(struct lien_replay_build *b, const struct lien_event *ev)
{
	struct lien_process *process = lien_graph_living(b->script->graph, b->pid, b->start);
	const struct lien_library_map *map;

	if (lien_event_library(ev->type) == LIEN_LIB_NCCL ||
		lien_event_library(ev->outer) == LIEN_LIB_NCCL)
		return LIEN_OP_NCCL;
	map = process ? lien_process_library(process, ev->caller) : NULL;
	return map && !strncmp(map->file->text, LIBNCCL, strlen(LIBNCCL)) ? LIEN_OP_NCCL : 0;
}

int lien_replay_emit(struct lien_replay_build *b, const struct lien_event *ev, uint64_t allocation)
{
	struct lien_replay_process *process = b->process;
	struct lien_replay_op *op;
	size_t room;
	void *more;

	if (process->count == LIEN_REPLAY_OPS_MAX)
		return -E2BIG;
	if (process->count == process->room) {
		room = process->room ? process->room * 2 : 64;
		more = reallocarray(process->ops, room, sizeof(*process->ops));
		if (!more)
			return -ENOMEM;
		process->ops = more;
		process->room = room;
	}
	op = &process->ops[process->count++];
	memset(op, 0, sizeof(*op));
	memcpy(&op->event, ev, ev->size);
	op->allocation = allocation;
	op->flags = lien_replay_op_flags(b, ev);
	op->record = b->script->records;
	process->nccl |= op->flags & LIEN_OP_NCCL;
	return 0;
}

int lien_replay_skip(struct lien_replay_build *b, enum lien_replay_skip why)
{
	b->script->skipped[why]++;
	return 0;
}

int lien_replay_give_up(
	struct lien_replay_build *b, unsigned int type, uint64_t name, lien_replay_apply release)
{
	struct lien_replay_pending_call *call = lien_replay_pending_find(&b->pending, type, name);
	struct lien_event ev = {.size = sizeof(ev), .type = type, .pid = b->pid, .start = b->start};
	size_t before = b->process->count;
	int err;

	if (call) {
		call->applied = true;
		ev = call->event;
	} else if (type == LIEN_CALL_CU_MEM_RELEASE) {
		ev.release.handle = name;
	} else if (lien_event_library(type) == LIEN_LIB_NCCL) {
		ev.comm_end.comm = name;
	} else {
		ev.range.va = name;
	}
	if (type == LIEN_CALL_CU_MEM_UNMAP && !call)
		ev.range.bytes = lien_replay_space_mapping(&b->space, name, 1)->bytes;
	err = release(b, &ev);
	for (; !err && before < b->process->count; before++) {
		b->script->inferred += !call && !(b->process->ops[before].flags & LIEN_OP_INFERRED);
		b->process->ops[before].flags |= LIEN_OP_INFERRED;
	}
	return err;
}
