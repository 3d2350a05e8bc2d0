// SPDX-License-Identifier: BSD-2-Clause
/*
 * Follows the contexts of processes that have, or may have, more than one. For a process known to
 * have one there is nothing more to learn, and following it would cost several traps per
 * collective.
 */
#include "agent/processes/contexts.h"
#include "agent/core/proc.h"

#include <errno.h>
#include <string.h>

#include "agent/core/agent.h"
#include "loader/probes/follow.h"

/* A process that has made its only context current this often, and no other, will hardly make
 * another one. If it does, it is followed from then on. */
#define ENOUGH 1000

#define LOOK_NS 1000000000ull

struct place {
	uint32_t pid;
	int err; /* 0: found */
	char path[512];
};

static int find_driver(const struct lien_maps_entry *entry, void *arg)
{
	struct place *place = arg;

	if (!entry->executable || lien_library_of(entry->path) != LIEN_LIB_CUDA)
		return 0;
	place->err = lien_maps_open_path(place->pid, entry, place->path, sizeof(place->path));
	return !place->err;
}

static void cannot_follow(void *context, uint32_t pid, int err)
{
	(void)context;
	lien_log(4,
		"the contexts of process %u cannot be followed: %s; of memory that it allocates in "
		"several contexts the device may not be known",
		pid, strerror(-err));
}

/* The process was too slow to be read. */
static void follow_later(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = lien_agent_track(agent, process);

	if (tracked)
		tracked->follow_later = true;
}

static void follow(struct lien_agent *agent, struct lien_process *process)
{
	struct place place = {.pid = process->pid, .err = -ENOENT};
	int err = lien_maps_read_code(process->pid, find_driver, &place);

	if (place.err) {
		if (err == -ETIMEDOUT || place.err == -ETIMEDOUT)
			follow_later(agent, process);
		return;
	}
	err = lien_probes_follow(agent->probes, process->pid, process->start, place.path);
	if (!lien_proc_runs(process->pid, process->start))
		lien_probes_unfollow(
			agent->probes, process->pid); /* another process has its pid by now */
	else if (err == -ETIMEDOUT)
		follow_later(agent, process);
	else if (err && err != -ENOENT) /* not probed yet; called again when it is */
		cannot_follow(NULL, process->pid, err);
}

/* Returns true if following the process would reveal nothing new. */
static bool is_learnt(struct lien_agent *agent, uint32_t pid)
{
	struct lien_probe_process known;

	return lien_probes_process(agent->probes, pid, &known) && !known.contexts_many &&
	       known.contexts_set >= ENOUGH;
}

static void look_at(struct lien_agent *agent, struct lien_process *process)
{
	bool followed = lien_probes_is_followed(agent->probes, process->pid);

	if (is_learnt(agent, process->pid) == !followed)
		return;
	if (followed)
		lien_probes_unfollow(agent->probes, process->pid);
	else
		follow(agent, process);
}

/* Is the process due for a check? A process that was too slow is due once more. */
static bool take_due(struct lien_agent *agent, const struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	bool due = lien_probes_is_followed(agent->probes, process->pid) ||
		   (tracked && tracked->follow_later);

	if (tracked)
		tracked->follow_later = false;
	return due;
}

void lien_contexts_event(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process;

	if (!lien_probes_can_follow(agent->probes))
		return;
	switch (event->type) {
	case LIEN_EVENT_LIBRARY:
		if (lien_library_of(event->library.name) != LIEN_LIB_CUDA)
			return;
		break;
	case LIEN_EVENT_PROCESS:
	case LIEN_CALL_CU_CONTEXT_CREATE:
	case LIEN_CALL_CU_CONTEXT_CREATE_V3:
	case LIEN_CALL_CU_CONTEXT_CREATE_V4:
	case LIEN_CALL_CU_CONTEXT_PRIMARY:
		break;
	default:
		return;
	}
	process = lien_graph_process(agent->graph, event->pid);
	if (process && process->start == event->start)
		look_at(agent, process);
}

void lien_contexts_tick(struct lien_agent *agent)
{
	struct lien_process *process;
	uint64_t now = lien_now_ns();

	lien_probes_follow_tick(agent->probes, cannot_follow, NULL);
	if (!lien_probes_can_follow(agent->probes) || now - agent->t_contexts < LOOK_NS)
		return;
	agent->t_contexts = now;
	for (process = lien_graph_first(agent->graph); process; process = lien_graph_next(process))
		if (take_due(agent, process))
			look_at(agent, process);
}

void lien_contexts_resume(struct lien_agent *agent)
{
	struct lien_process *process;

	if (!lien_probes_can_follow(agent->probes))
		return;
	for (process = lien_graph_first(agent->graph); process; process = lien_graph_next(process))
		look_at(agent, process);
}
