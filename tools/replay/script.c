// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/graph.h"
#include "tools/replay/build.h"

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
	free(b);
}

static lien_replay_apply apply_of(unsigned int call)
{
	lien_replay_apply apply = lien_replay_memory_call(call);

	if (!apply)
		apply = lien_replay_share_call(call);
	return apply ? apply : lien_replay_comm_call(call);
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
		return 0;
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
	if (!script->builds || lien_graph_new(&script->graph)) {
		free(script->builds);
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
	lien_graph_free(script->graph);
	free(script->processes);
	free(script->allocations);
	free(script->builds);
	free(script);
}
