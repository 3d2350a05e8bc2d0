// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/open_files.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/core/jobs.h"

struct reading {
	struct lien_job job;
	const struct lien_probes *probes;
	const struct lien_files *before; /* of the agent; it is not changed meanwhile */
	uint64_t made;			 /* shares of the graph, when it was begun */
	struct lien_open_files list;
};

static void read_files(struct lien_job *job)
{
	struct reading *reading = (struct reading *)job;
	struct lien_open_files *list = &reading->list;

	list->t = lien_now_ns();
	list->err = lien_files_read(reading->probes, reading->before, &list->files);
}

static void reading_free(struct lien_job *job)
{
	struct reading *reading = (struct reading *)job;

	lien_files_clear(&reading->list.files);
	free(reading);
}

/* Tracing calls would not tell what GPUDirect Storage has pinned: libcufile may be linked into a
 * program, and registers buffers of its own. */
static void note_storage(struct lien_agent *agent, uint32_t pid)
{
	const struct lien_process *process = lien_graph_process(agent->graph, pid);

	if (process && process->cuda && !process->ended)
		lien_agent_set_incomplete(
			agent, process, process->incomplete | LIEN_INCOMPLETE_HELD);
}

static void files_read(struct lien_agent *agent, struct lien_job *job)
{
	struct reading *reading = (struct reading *)job;
	const struct lien_files *files = &reading->list.files;
	struct lien_open_files before = agent->open_files;
	unsigned i;

	if (!reading->list.err)
		lien_graph_open_exports(
			agent->graph, reading->made, files->exports, files->exports_count);
	for (i = 0; i < files->storage_count; i++)
		note_storage(agent, files->storage[i]);
	agent->open_files = reading->list;
	reading->list = before;
	agent->above->files_read(agent);
}

/* Returns 0 or -errno. */
static int begin(struct lien_agent *agent)
{
	struct reading *reading = calloc(1, sizeof(*reading));

	if (!reading)
		return -ENOMEM;
	reading->probes = agent->probes;
	reading->before = &agent->open_files.files;
	reading->made = lien_graph_stats(agent->graph)->shares_made;
	reading->job = (struct lien_job){.kind = LIEN_JOB_OPEN_FILES,
		.work = read_files,
		.done = files_read,
		.drop = reading_free};
	return lien_job_start(agent, &reading->job);
}

int lien_open_files_ask(struct lien_agent *agent, uint64_t since)
{
	struct lien_open_files *last = &agent->open_files;
	int err;

	if (agent->is_copy || (last->t && last->t >= since))
		return 0;
	err = lien_jobs_pending(agent, LIEN_JOB_OPEN_FILES) ? 0 : begin(agent);
	if (!err)
		return -EINPROGRESS;
	lien_files_clear(&last->files);
	*last = (struct lien_open_files){.err = err, .t = lien_now_ns()};
	return 0;
}

int lien_open_files_last(
	const struct lien_agent *agent, const struct lien_probe_open_file **files, unsigned *count)
{
	*files = agent->open_files.files.open;
	*count = agent->open_files.files.count;
	return agent->open_files.err;
}
