/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A client's request about several processes: attach, detach, compare. Each process is a part,
 * which ends on its own; when all parts have ended, the client gets its answer. If the client goes
 * away, the parts that have begun go on.
 */
#ifndef LIEN_JOIN_JOB_H
#define LIEN_JOIN_JOB_H

#include "agent/server/client.h"

/* First member of each kind's own part. */
struct lien_join_part {
	uint32_t pid;
	uint64_t start;
	bool done;
};

/* First member of each kind's own job; the rest is zeroed. */
struct lien_join_job {
	struct lien_client_job waited_for;
	LIST_ENTRY(lien_join_job) next;
	const struct lien_join_kind *kind;
	struct lien_agent *agent;
	struct lien_client *client; /* NULL: it has gone away */
	unsigned count;
	void *parts;	   /* of the kind's own structure */
	json_t *processes; /* an empty list, for the answer */
};

struct lien_join_kind {
	size_t job_size, part_size; /* of the kind's structures, which begin with those above */
	/*
	 * start() begins a part; look() runs with each tick until the part is done. process NULL:
	 * it has ended.
	 */
	void (*start)(struct lien_join_job *job, struct lien_join_part *part,
		struct lien_process *process);
	void (*look)(struct lien_join_job *job, struct lien_join_part *part,
		struct lien_process *process);
	/* All parts are done; called with each tick until it returns true: the job has nothing left
	 * to do. May be NULL. */
	bool (*conclude)(struct lien_join_job *job);
	void (*answer)(struct lien_join_job *job);  /* the client is still there */
	void (*release)(struct lien_join_job *job); /* frees the kind's members; may be NULL */
};

/* Makes a job with a part for each wanted process of these (none named: of all). The parts do not
 * begin yet. NULL: out of memory. */
struct lien_join_job *lien_join_new(struct lien_client *client, const struct lien_join_kind *kind,
	const uint32_t *pids, unsigned count,
	bool (*wanted)(
		const struct lien_viewer *viewer, const struct lien_process *process, bool named));
/* Makes the client wait for the job; a tick answers it. job NULL: it is told that memory is short.
 */
void lien_join_begin(struct lien_client *client, struct lien_join_job *job);
void lien_join_free(struct lien_join_job *job);

/* NULL: the process has ended. */
struct lien_process *lien_join_process(
	const struct lien_join_job *job, const struct lien_join_part *part);
/* Returns the job's unfinished part for this process; NULL: none. */
struct lien_join_part *lien_join_find(
	const struct lien_join_job *job, uint32_t pid, uint64_t start);

/* Is the process being detached? (detach.c) */
bool lien_detach_under_way(const struct lien_tracked *tracked);

/* join.c starts, ticks and stops these. The first two start before there are threads, and return 0
 * or -errno. */
int lien_netns_start(struct lien_agent *agent);
int lien_ras_start(struct lien_agent *agent); /* agent->netns is there */
void lien_walks_tick(struct lien_agent *agent);
void lien_join_jobs_tick(struct lien_agent *agent);
void lien_ras_tick(struct lien_agent *agent);
void lien_netns_stop(struct lien_agent *agent);
void lien_ras_stop(struct lien_agent *agent);

#endif
