// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/job.h"

#include <stdlib.h>

#include "agent/graph/array.h"

static struct lien_join_part *part_at(const struct lien_join_job *job, unsigned i)
{
	return (struct lien_join_part *)((char *)job->parts + i * job->kind->part_size);
}

struct lien_process *lien_join_process(
	const struct lien_join_job *job, const struct lien_join_part *part)
{
	return lien_graph_living(job->agent->graph, part->pid, part->start);
}

struct lien_join_part *lien_join_find(const struct lien_join_job *job, uint32_t pid, uint64_t start)
{
	struct lien_join_part *part;
	unsigned i;

	for (i = 0; i < job->count; i++) {
		part = part_at(job, i);
		if (part->pid == pid && part->start == start && !part->done)
			return part;
	}
	return NULL;
}

/* The client is gone. */
static void drop(struct lien_client_job *waited_for)
{
	struct lien_join_job *job = (struct lien_join_job *)waited_for;

	job->client = NULL;
}

struct lien_join_job *lien_join_new(struct lien_client *client, const struct lien_join_kind *kind,
	const uint32_t *pids, unsigned count,
	bool (*wanted)(
		const struct lien_viewer *viewer, const struct lien_process *process, bool named))
{
	struct lien_agent *agent = client->agent;
	const unsigned room = lien_graph_stats(agent->graph)->processes;
	struct lien_join_job *job = calloc(1, kind->job_size);
	struct lien_process *process;
	struct lien_join_part *part;

	if (!job)
		return NULL;
	job->parts = calloc(room + 1, kind->part_size);
	job->processes = json_array();
	if (!job->parts || !job->processes) {
		json_decref(job->processes);
		free(job->parts);
		free(job);
		return NULL;
	}
	job->kind = kind;
	job->agent = agent;
	job->client = client;
	for (process = lien_graph_first(agent->graph); process && job->count < room;
		process = lien_graph_next(process)) {
		if ((count && !lien_pids_have(pids, count, process->pid)) ||
			!wanted(&client->viewer, process, count))
			continue;
		part = part_at(job, job->count++);
		part->pid = process->pid;
		part->start = process->start;
	}
	LIST_INSERT_HEAD(&agent->joins, job, next);
	return job;
}

void lien_join_free(struct lien_join_job *job)
{
	LIST_REMOVE(job, next);
	if (job->client && job->client->job == &job->waited_for)
		job->client->job = NULL;
	if (job->kind->release)
		job->kind->release(job);
	json_decref(job->processes);
	free(job->parts);
	free(job);
}

static void answer_if_done(struct lien_join_job *job)
{
	unsigned i;

	for (i = 0; i < job->count; i++)
		if (!part_at(job, i)->done)
			return;
	if (job->kind->conclude && !job->kind->conclude(job))
		return;
	if (job->client) {
		job->client->job = NULL;
		job->kind->answer(job);
	}
	lien_join_free(job);
}

void lien_join_begin(struct lien_client *client, struct lien_join_job *job)
{
	struct lien_join_part *part;
	unsigned i;

	if (!job) {
		lien_reply_error(client, "out of memory");
		return;
	}
	job->waited_for.drop = drop;
	job->client->job = &job->waited_for;
	job->client->waits = LIEN_WAIT_JOB;
	for (i = 0; i < job->count; i++) {
		part = part_at(job, i);
		job->kind->start(job, part, lien_join_process(job, part));
	}
}

void lien_join_jobs_tick(struct lien_agent *agent)
{
	struct lien_join_job *job, *next;
	struct lien_join_part *part;
	unsigned i;

	LIST_FOREACH_SAFE (job, &agent->joins, next, next) {
		for (i = 0; i < job->count; i++) {
			part = part_at(job, i);
			if (!part->done)
				job->kind->look(job, part, lien_join_process(job, part));
		}
		answer_if_done(job);
	}
}
