/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread that does for the agent what may take long (reading files, asking NVML): the agent's own
 * thread waits for nothing.
 */
#ifndef LIEN_WORKER_H
#define LIEN_WORKER_H

#include <bsd/sys/queue.h>

struct lien_agent;
struct lien_worker;

struct lien_job {
	STAILQ_ENTRY(lien_job) next;
	/* In the worker's thread: must touch nothing of the agent's but what is in the job. */
	void (*work)(struct lien_job *job);
	/* In the agent's thread, afterwards; frees the job. */
	void (*done)(struct lien_agent *agent, struct lien_job *job);
	/* Instead of done(), when the agent ends before. */
	void (*drop)(struct lien_job *job);
};

/* Its thread starts with the first job. */
int lien_worker_new(struct lien_agent *agent, struct lien_worker **out);
/* Waits a second for the job under way; one that takes longer is left behind, with its memory. */
void lien_worker_free(struct lien_worker *worker);

/* Jobs are done in order. 0, or -errno: the job is still the caller's. */
int lien_worker_submit(struct lien_worker *worker, struct lien_job *job);

#endif
