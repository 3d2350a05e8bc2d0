// SPDX-License-Identifier: BSD-2-Clause
#include "agent/processes/watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/core/jobs.h"
#include "agent/processes/probing.h"
#include "loader/discover/file_state.h"
#include "loader/discover/libraries.h"
#include "loader/discover/untrusted.h"
#include "loader/probes/calls.h"
#include "loader/probes/code.h"

#define LOOK_NS 1000000000ull

struct look {
	struct lien_job job;
	uint32_t pid;
	uint64_t start;
	bool found;
	char path[256]; /* of the file, as the process names it */
};

/* Where the calls of a file are: processes mostly map the same one. The thread's. */
struct known {
	struct lien_file_state file;
	uint64_t offsets[LIEN_CALL_PLACES_MAX];
	unsigned count;
};

static int find_places(
	struct known *known, const struct stat *st, int fd, enum lien_library library)
{
	struct lien_call_places places;
	unsigned i;
	int err;

	if (known->count && lien_file_state_is(&known->file, st))
		return 0;
	known->count = 0;
	err = lien_calls_look_up(&places, fd, library);
	if (err)
		return err;
	for (i = 0; i < places.count; i++)
		if (places.places[i].offset != UINT64_MAX)
			known->offsets[known->count++] = places.places[i].offset;
	known->file = lien_file_state_of(st);
	return 0;
}

static int check_file(const char *path, enum lien_library library, uint32_t pid)
{
	static struct known known[LIEN_LIB_COUNT];
	struct stat st;
	int fd, err;

	fd = lien_untrusted_open(path, &st);
	if (fd < 0)
		return fd;
	err = find_places(&known[library], &st, fd, library);
	if (!err)
		err = lien_code_check(fd, known[library].offsets, known[library].count, pid);
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

static void looked(struct lien_agent *agent, struct lien_job *job)
{
	const struct look *look = (struct look *)job;
	const struct lien_process *process = lien_graph_process(agent->graph, look->pid);

	if (look->found && process && process->start == look->start) {
		lien_agent_set_incomplete(
			agent, process, process->incomplete | LIEN_INCOMPLETE_REWRITTEN);
		lien_log(4,
			"process %u has rewritten functions of %s in its memory: their calls are "
			"not seen",
			process->pid, look->path);
	}
}

/* Returns the first one to look at, from there on; NULL: there is none. */
static struct lien_process *first_due(struct lien_process *process)
{
	while (process &&
		(RB_EMPTY(&process->libraries) || process->incomplete & LIEN_INCOMPLETE_REWRITTEN))
		process = lien_graph_next(process);
	return process;
}

void lien_rewritten_tick(struct lien_agent *agent)
{
	const uint64_t now = lien_now_ns();
	struct lien_process *process;
	struct look *look;

	if (lien_jobs_pending(agent, LIEN_JOB_REWRITTEN) || now - agent->rewritten.t_look < LOOK_NS)
		return;
	/* They take turns, in the order of the graph. */
	process = lien_graph_process(agent->graph, agent->rewritten.pid);
	process = process ? first_due(lien_graph_next(process)) : NULL;
	if (!process)
		process = first_due(lien_graph_first(agent->graph));
	look = process ? calloc(1, sizeof(*look)) : NULL;
	if (!look)
		return;
	look->job = (struct lien_job){
		.kind = LIEN_JOB_REWRITTEN, .work = look_at_process, .done = looked};
	look->pid = process->pid;
	look->start = process->start;
	agent->rewritten.pid = process->pid;
	agent->rewritten.t_look = now;
	lien_job_start(agent, &look->job);
}
