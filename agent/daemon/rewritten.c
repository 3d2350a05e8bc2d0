// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/rewritten.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/core/worker.h"
#include "agent/daemon/watch.h"
#include "loader/discover/libraries.h"
#include "loader/discover/untrusted.h"
#include "loader/probes/calls.h"
#include "loader/probes/code.h"

#define LOOK_NS 1000000000ull

struct lien_rewritten {
	struct lien_worker *worker;
	uint32_t pid; /* looked at last */
	uint64_t t_look;
	bool looking;
};

struct look {
	struct lien_job job;
	uint32_t pid;
	uint64_t start;
	bool found;
	char path[256]; /* of the file, as the process names it */
};

static int check_file(const char *path, enum lien_library library, uint32_t pid)
{
	uint64_t offsets[LIEN_CALL_MAX];
	struct lien_call_places places;
	unsigned i, n = 0;
	struct stat st;
	int fd, err;

	fd = lien_untrusted_open(path, &st);
	if (fd < 0)
		return fd;
	err = lien_calls_look_up(&places, fd, library);
	for (i = 0; !err && i < places.count; i++)
		if (places.places[i].offset != UINT64_MAX)
			offsets[n++] = places.places[i].offset;
	if (!err)
		err = lien_code_check(fd, offsets, n, pid);
	close(fd);
	return err;
}

static int look_at_mapping(const struct lien_maps_entry *entry, void *arg)
{
	enum lien_library library = lien_library_of(entry->path);
	struct look *look = arg;
	char path[512];

	if ((library != LIEN_LIB_CUDA && library != LIEN_LIB_NCCL) ||
		lien_maps_open_path(look->pid, entry, path, sizeof(path)))
		return 0;
	look->found = check_file(path, library, look->pid) == -ETXTBSY;
	if (look->found)
		snprintf(look->path, sizeof(look->path), "%s", entry->path);
	return look->found;
}

static void look_at_process(struct lien_job *job)
{
	struct look *look = (struct look *)job;

	lien_maps_read_code(look->pid, look_at_mapping, look);
}

static void drop(struct lien_job *job)
{
	free(job);
}

static void looked(struct lien_agent *agent, struct lien_job *job)
{
	const struct look *look = (struct look *)job;
	const struct lien_process *process = lien_graph_process(agent->graph, look->pid);

	agent->rewritten->looking = false;
	if (look->found && process && process->start == look->start) {
		lien_watch_rewritten(agent, process);
		lien_log(4,
			"process %u has rewritten functions of %s in its memory: their calls are "
			"not seen",
			process->pid, look->path);
	}
	free(job);
}

/* The next one after the last, in the order of the graph; NULL: there is none to look at. */
static const struct lien_process *next(const struct lien_agent *agent)
{
	struct lien_process *process = lien_graph_process(agent->graph, agent->rewritten->pid);
	unsigned rounds = 0;

	for (process = process ? lien_graph_next(process) : NULL; rounds < 2;
		process = lien_graph_next(process)) {
		if (!process) {
			process = lien_graph_first(agent->graph);
			rounds++;
		}
		if (!process)
			return NULL;
		if (rounds < 2 && !RB_EMPTY(&process->libraries) &&
			!(process->incomplete & LIEN_INCOMPLETE_REWRITTEN))
			return process;
	}
	return NULL;
}

void lien_rewritten_tick(struct lien_agent *agent)
{
	struct lien_rewritten *rewritten = agent->rewritten;
	const uint64_t now = lien_now_ns();
	const struct lien_process *process;
	struct look *look;

	if (rewritten->looking || now - rewritten->t_look < LOOK_NS)
		return;
	rewritten->t_look = now;
	process = next(agent);
	look = process ? calloc(1, sizeof(*look)) : NULL;
	if (!look)
		return;
	look->job = (struct lien_job){.work = look_at_process, .done = looked, .drop = drop};
	look->pid = rewritten->pid = process->pid;
	look->start = process->start;
	rewritten->looking = !lien_worker_submit(rewritten->worker, &look->job);
	if (!rewritten->looking)
		free(look);
}

int lien_rewritten_start(struct lien_agent *agent)
{
	agent->rewritten = calloc(1, sizeof(*agent->rewritten));
	return agent->rewritten ? lien_worker_new(agent, &agent->rewritten->worker) : -ENOMEM;
}

void lien_rewritten_stop(struct lien_agent *agent)
{
	if (!agent->rewritten)
		return;
	lien_worker_free(agent->rewritten->worker);
	free(agent->rewritten);
	agent->rewritten = NULL;
}
