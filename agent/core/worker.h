/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread for slow work (reading files, asking NVML), so that the agent's own thread never waits.
 */
#ifndef LIEN_WORKER_H
#define LIEN_WORKER_H

#include <bsd/sys/queue.h>

struct lien_agent;
struct lien_worker;

struct lien_job {
	STAILQ_ENTRY(lien_job) next;
	/* Runs in the worker's thread; touches nothing of the agent's except the job. */
	void (*work)(struct lien_job *job);
	/* Runs in the agent's thread afterwards; frees the job. */
	void (*done)(struct lien_agent *agent, struct lien_job *job);
	/* Called instead of done() if the agent ends first. */
	void (*drop)(struct lien_job *job);
};

/* The worker's thread starts with the first job. */
int lien_worker_new(struct lien_agent *agent, struct lien_worker **out);
/*
 * Waits up to a second for the current job. A job that takes longer is abandoned, with its memory.
 */
void lien_worker_free(struct lien_worker *worker);

/* Jobs run in order. Returns 0, or -errno: the caller still owns the job. */
int lien_worker_submit(struct lien_worker *worker, struct lien_job *job);

#endif
