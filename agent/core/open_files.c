// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/open_files.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/core/worker.h"

struct list {
	struct lien_files files;
	int err;
	uint64_t t; /* begun; 0: never */
};

struct lien_agent_files {
	struct list last;
	bool reading;
	struct lien_worker *worker; /* of its own: others' jobs may take long */
};

struct reading {
	struct lien_job job;
	const struct lien_probes *probes;
	const struct lien_files *before; /* of the agent; it is not changed meanwhile */
	uint64_t made;			 /* shares of the graph, when it was begun */
	struct list list;
};

static void read_files(struct lien_job *job)
{
	struct reading *reading = (struct reading *)job;
	struct list *list = &reading->list;

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
	struct list before = agent->files->last;
	unsigned i;

	if (!reading->list.err)
		lien_graph_open_exports(
			agent->graph, reading->made, files->exports, files->exports_count);
	for (i = 0; i < files->storage_count; i++)
		note_storage(agent, files->storage[i]);
	agent->files->last = reading->list;
	agent->files->reading = false;
	reading->list = before;
	reading_free(job);
	agent->above->files_read(agent);
}

/* Returns 0 or -errno. */
static int begin(struct lien_agent *agent)
{
	struct reading *reading = calloc(1, sizeof(*reading));
	int err;

	if (!reading)
		return -ENOMEM;
	reading->probes = agent->probes;
	reading->before = &agent->files->last.files;
	reading->made = lien_graph_stats(agent->graph)->shares_made;
	reading->job =
		(struct lien_job){.work = read_files, .done = files_read, .drop = reading_free};
	err = lien_worker_submit(agent->files->worker, &reading->job);
	if (err)
		free(reading);
	return err;
}

int lien_open_files_ask(struct lien_agent *agent, uint64_t since)
{
	struct lien_agent_files *files = agent->files;
	int err;

	if (agent->is_copy || (files->last.t && files->last.t >= since))
		return 0;
	err = files->reading ? 0 : begin(agent);
	if (!err) {
		files->reading = true;
		return -EINPROGRESS;
	}
	lien_files_clear(&files->last.files);
	files->last = (struct list){.err = err, .t = lien_now_ns()};
	return 0;
}

int lien_open_files_last(
	const struct lien_agent *agent, const struct lien_probe_open_file **files, unsigned *count)
{
	const struct list *last = &agent->files->last;

	*files = last->files.open;
	*count = last->files.count;
	return last->err;
}

int lien_open_files_start(struct lien_agent *agent)
{
	agent->files = calloc(1, sizeof(*agent->files));
	return agent->files ? lien_worker_new(agent, &agent->files->worker) : -ENOMEM;
}

void lien_open_files_stop(struct lien_agent *agent)
{
	if (!agent->files)
		return;
	lien_worker_free(agent->files->worker);
	lien_files_clear(&agent->files->last.files);
	free(agent->files);
	agent->files = NULL;
}
