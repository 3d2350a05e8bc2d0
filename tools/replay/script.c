// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/graph.h"
#include "agent/journal/recording.h"
#include "tools/replay/build.h"
#include "tools/replay/snapshot.h"

/* libbsd's tree.h uses it and leaves it undefined. */
#ifndef __unused
#define __unused __attribute__((__unused__))
#endif

RB_HEAD(lien_replay_build_tree, lien_replay_build);

/* The processes that are alive at the current record. */
struct lien_replay_builds {
	struct lien_replay_build_tree tree;
};

static int compare(const struct lien_replay_build *a, const struct lien_replay_build *b)
{
	if (a->pid != b->pid)
		return a->pid < b->pid ? -1 : 1;
	return (a->start > b->start) - (a->start < b->start);
}

RB_GENERATE_STATIC(lien_replay_build_tree, lien_replay_build, tree, compare)

static struct lien_replay_build *find(struct lien_script *script, const struct lien_event *ev)
{
	struct lien_replay_build key = {.pid = ev->pid, .start = ev->start};

	return RB_FIND(lien_replay_build_tree, &script->builds->tree, &key);
}

static int begin(
	struct lien_script *script, const struct lien_event *ev, struct lien_replay_build **out)
{
	struct lien_replay_process *process;
	struct lien_replay_build *b;
	void *more;

	if (script->process_count == LIEN_REPLAY_PROCESSES_MAX)
		return -E2BIG;
	more = reallocarray(
		script->processes, script->process_count + 1, sizeof(*script->processes));
	if (!more)
		return -ENOMEM;
	script->processes = more;
	process = calloc(1, sizeof(*process));
	b = calloc(1, sizeof(*b));
	if (!process || !b) {
		free(process);
		free(b);
		return -ENOMEM;
	}
	process->pid = ev->pid;
	process->start = ev->start;
	b->pid = ev->pid;
	b->start = ev->start;
	b->script = script;
	b->process = process;
	b->index = script->process_count;
	lien_replay_names_init(&b->names);
	lien_replay_space_init(&b->space);
	lien_replay_pending_init(&b->pending);
	script->processes[script->process_count++] = process;
	RB_INSERT(lien_replay_build_tree, &script->builds->tree, b);
	*out = b;
	return 0;
}

static void end(struct lien_replay_build *b)
{
	RB_REMOVE(lien_replay_build_tree, &b->script->builds->tree, b);
	lien_replay_names_clear(&b->names);
	lien_replay_space_clear(&b->space);
	lien_replay_pending_clear(&b->pending);
	lien_replay_owners_clear(&b->owners);
	free(b);
}

uint32_t lien_replay_op_flags(struct lien_replay_build *b, const struct lien_event *ev)
{
	return lien_replay_owners_nccl(&b->owners, ev) ? LIEN_OP_NCCL : 0;
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

static lien_replay_apply apply_of(unsigned int call)
{
	lien_replay_apply apply = lien_replay_memory_call(call);

	if (!apply)
		apply = lien_replay_share_call(call);
	return apply ? apply : lien_replay_comm_call(call);
}

int lien_replay_give_up(struct lien_replay_build *b, unsigned int type, uint64_t name)
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
	err = apply_of(type)(b, &ev);
	for (; !err && before < b->process->count; before++) {
		b->script->inferred += !call && !(b->process->ops[before].flags & LIEN_OP_INFERRED);
		b->process->ops[before].flags |= LIEN_OP_INFERRED;
	}
	return err;
}

static int call(
	struct lien_script *script, struct lien_replay_build *b, const struct lien_event *ev)
{
	lien_replay_apply apply = apply_of(ev->type);

	if (ev->flags & LIEN_EVENT_ENTRY)
		return lien_replay_pending_announce(&b->pending, ev);
	/* Also if it failed: it is no longer in progress. */
	if (lien_replay_pending_return(&b->pending, ev))
		return 0;
	if (!lien_event_succeeded(ev)) {
		script->failed++;
		return 0;
	}
	b->process->used = true;
	return apply ? apply(b, ev) : 0;
}

int lien_script_add(struct lien_script *script, const struct lien_event *ev)
{
	int err = 0;

	script->records++;
	if (LIEN_IS_STATE(ev->type))
		return lien_replay_snapshot_add(script, ev);
	if (ev->type != LIEN_EVENT_LIBRARY) /* snapshots have these, too */
		err = lien_replay_snapshot_end(script);
	return err ? err : lien_script_take(script, ev);
}

int lien_script_take(struct lien_script *script, const struct lien_event *ev)
{
	struct lien_replay_build *b = find(script, ev);
	int err;

	if (ev->flags & LIEN_EVENT_CONTROL) {
		script->control++;
		return 0;
	}
	switch (ev->type) {
	case LIEN_EVENT_END:
	case LIEN_EVENT_INCOMPLETE:
		return 0;
	case LIEN_EVENT_LOST:
		script->lost += ev->lost.count;
		return 0;
	case LIEN_EVENT_EXEC:
	case LIEN_EVENT_EXIT:
		if (b) {
			b->process->ended = true;
			end(b);
		}
		return 0;
	}
	if (!b) {
		err = begin(script, ev, &b);
		if (err)
			return err;
	}
	switch (ev->type) {
	case LIEN_EVENT_PROCESS:
		memcpy(b->process->comm, ev->process.comm, sizeof(b->process->comm));
		return 0;
	case LIEN_EVENT_LIBRARY:
		return lien_replay_owners_add(&b->owners, ev);
	default:
		return call(script, b, ev);
	}
}

/* Records the part that each owner can still write at the end. */
static void note_rewritable(struct lien_replay_build *b)
{
	struct lien_replay_allocation *allocation;
	struct lien_replay_mapping *m;

	TAILQ_FOREACH (m, &b->space.mappings, order) {
		if (m->allocation == LIEN_NO_ALLOCATION)
			continue;
		allocation = &b->script->allocations[m->allocation];
		if (allocation->owner == b->index && lien_replay_mapping_writable(m) &&
			m->offset <= allocation->rewritable &&
			m->offset + m->bytes > allocation->rewritable)
			allocation->rewritable = m->offset + m->bytes;
	}
}

void lien_script_finish(struct lien_script *script)
{
	struct lien_replay_share *share;
	struct lien_replay_build *b;

	while ((b = RB_ROOT(&script->builds->tree))) {
		note_rewritable(b);
		end(b);
	}
	for (share = lien_replay_share_first(&script->shares); share;
		share = lien_replay_share_next(share)) {
		if (share->imports)
			script->processes[share->exporter]->ops[share->op].flags |= LIEN_OP_SHARED;
	}
}

int lien_script_new(struct lien_script **out)
{
	struct lien_script *script = calloc(1, sizeof(*script));

	if (!script)
		return -ENOMEM;
	script->builds = calloc(1, sizeof(*script->builds));
	if (!script->builds) {
		free(script);
		return -ENOMEM;
	}
	script->last_device = -1;
	*out = script;
	return 0;
}

void lien_script_free(struct lien_script *script)
{
	struct lien_replay_build *b;
	size_t i;

	if (!script)
		return;
	while ((b = RB_ROOT(&script->builds->tree)))
		end(b);
	for (i = 0; i < script->process_count; i++) {
		free(script->processes[i]->ops);
		free(script->processes[i]);
	}
	lien_replay_share_clear(&script->shares);
	lien_graph_free(script->snapshot);
	free(script->processes);
	free(script->allocations);
	free(script->builds);
	free(script);
}

int lien_script_load(const char *path, struct lien_script **out, uint64_t *record)
{
	struct lien_recording *rec = NULL;
	struct lien_script *script = NULL;
	struct lien_event ev;
	int err, cut;

	*record = 0;
	err = lien_recording_open(path, &rec);
	if (err)
		return err;
	err = lien_script_new(&script);
	while (!err) {
		++*record;
		err = lien_recording_read(rec, &ev);
		if (err == 1)
			err = lien_script_add(script, &ev);
		else if (!err)
			break;
	}
	/* It was only read, so closing has no error to report. */
	cut = lien_recording_close(rec);
	(void)cut;
	cut = err == -ENODATA ? err : 0;
	if (!err || cut)
		err = lien_replay_snapshot_end(script);
	if (err) {
		lien_script_free(script);
		return err;
	}
	lien_script_finish(script);
	*out = script;
	return cut;
}
