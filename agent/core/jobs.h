/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Slow work (reading files, asking NVML) in threads of its own, so that the agent's own thread
 * never waits.
 */
#ifndef LIEN_JOBS_H
#define LIEN_JOBS_H

#include <bsd/sys/queue.h>
#include <stdint.h>

struct lien_agent;

/* Jobs of different kinds do not wait for each other: NVML may hang, and RAS may not answer. */
enum lien_job_kind {
	LIEN_JOB_NVML,
	LIEN_JOB_OPEN_FILES,
	LIEN_JOB_SYMBOLS,
	LIEN_JOB_MAPPED_FILES,
	LIEN_JOB_REWRITTEN,
	LIEN_JOB_OTHERS,
	LIEN_JOB_IPC_CONNECT,
	LIEN_JOB_RAS,
	LIEN_JOB_INJECT,
	LIEN_JOB_KINDS,
};

struct lien_job {
	enum lien_job_kind kind;
	/* Jobs of one kind for one user run one at a time, in the order of their start. */
	uint32_t user;
	/* Runs in a thread; touches nothing of the agent's except the job. */
	void (*work)(struct lien_job *job);
	/* Runs in the agent's thread afterwards. Not called if the agent ends first. */
	void (*done)(struct lien_agent *agent, struct lien_job *job);
	/* Frees the job, at the end. NULL: free() does. */
	void (*drop)(struct lien_job *job);
	/* Private to jobs.c. */
	TAILQ_ENTRY(lien_job) next;
	struct lien_jobs *jobs;
};

int lien_jobs_start(struct lien_agent *agent);
/*
 * Waits up to a second for the jobs under way. If one takes longer, all are abandoned, with their
 * memory.
 */
void lien_jobs_stop(struct lien_agent *agent);

/* Takes the job over. Returns 0, or -errno: the job has been dropped. */
int lien_job_start(struct lien_agent *agent, struct lien_job *job);
/* Returns how many jobs of a kind have been started whose done() has not been called yet. */
unsigned lien_jobs_pending(const struct lien_agent *agent, enum lien_job_kind kind);

#endif
