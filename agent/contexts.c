// SPDX-License-Identifier: BSD-2-Clause
/*
 * Which processes' contexts are followed: those that have several, and those of which it is not
 * known yet. Of a process with one context everything is known without, and following it would cost
 * several traps for each collective.
 */
#include "agent/contexts.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "loader/follow.h"

/* So often a process made its only context current, and no other: it will hardly have another one.
 * Should it, it is followed from then on. */
#define ENOUGH 1000

#define LOOK_NS 1000000000ull

#define CLOSE_STACK 65536

struct lien_contexts {
	uint64_t t_looked;
};

static void *close_link(void *fd)
{
	close((int)(intptr_t)fd);
	return NULL;
}

/* Each in a thread of its own: those that wait for the kernel together wait for one grace period.
 */
void lien_contexts_close(int fd)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err = pthread_attr_init(&attr);

	if (!err) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attr, CLOSE_STACK);
		err = pthread_create(&thread, &attr, close_link, (void *)(intptr_t)fd);
		pthread_attr_destroy(&attr);
	}
	if (err)
		close(fd);
}

static void unfollow(struct lien_agent *agent, uint32_t pid)
{
	int fd = lien_probes_unfollow(agent->probes, pid);

	if (fd >= 0)
		lien_contexts_close(fd);
}

struct place {
	uint32_t pid;
	bool found;
	char path[512];
};

static int find_driver(const struct lien_maps_entry *entry, void *arg)
{
	struct place *place = arg;

	if (!entry->executable || lien_library_of(entry->path) != LIEN_LIB_CUDA ||
		lien_maps_open_path(place->pid, entry, place->path, sizeof(place->path)))
		return 0;
	place->found = true;
	return 1;
}

static void follow(struct lien_agent *agent, const struct lien_process *process)
{
	struct place place = {.pid = process->pid};
	int err;

	lien_maps_read(process->pid, find_driver, &place);
	if (!place.found)
		return;
	err = lien_probes_follow(agent->probes, process->pid, process->start, place.path);
	if (lien_watch_start_of(process->pid) != process->start)
		unfollow(agent, process->pid); /* another one has its number by now */
	else if (err)
		lien_log(4,
			"the contexts of process %u cannot be followed: %s; of memory that it "
			"allocates in several contexts the device may not be known",
			process->pid, strerror(-err));
}

/* Nothing that happens in it would tell more than is known. */
static bool is_settled(struct lien_agent *agent, uint32_t pid)
{
	struct lien_probe_process known;

	return lien_probes_process(agent->probes, pid, &known) && !known.contexts_many &&
	       known.contexts_set >= ENOUGH;
}

static void look_at(struct lien_agent *agent, const struct lien_process *process)
{
	bool followed = lien_probes_is_followed(agent->probes, process->pid);

	if (is_settled(agent, process->pid) == !followed)
		return;
	if (followed)
		unfollow(agent, process->pid);
	else
		follow(agent, process);
}

void lien_contexts_event(struct lien_agent *agent, const struct lien_event *event)
{
	const struct lien_process *process;

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

	if (!lien_probes_followed_count(agent->probes) || now - agent->contexts->t_looked < LOOK_NS)
		return;
	agent->contexts->t_looked = now;
	for (process = lien_graph_first(agent->graph); process; process = lien_graph_next(process))
		if (lien_probes_is_followed(agent->probes, process->pid))
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

void lien_contexts_process_end(struct lien_agent *agent, const struct lien_process *process)
{
	if (agent->contexts && agent->probes)
		unfollow(agent, process->pid);
}

int lien_contexts_start(struct lien_agent *agent)
{
	agent->contexts = calloc(1, sizeof(*agent->contexts));
	return agent->contexts ? 0 : -ENOMEM;
}

void lien_contexts_stop(struct lien_agent *agent)
{
	struct lien_contexts *contexts = agent->contexts;

	agent->contexts = NULL; /* those that are followed stay so for the next agent */
	free(contexts);
}
