/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A client's request about several processes: attach, detach, compare. Each process is a part, which
 * comes to its own end; when all have, the client is answered. If the client goes, what has begun
 * goes on without it.
 */
#ifndef LIEN_JOIN_JOB_H
#define LIEN_JOIN_JOB_H

#include "agent/server/client.h"

/* First member of a kind's own. */
struct lien_join_part {
	uint32_t pid;
	uint64_t start;
	bool done;
};

/* First member of a kind's own, zeroed but for this. */
struct lien_join_job {
	struct lien_client_job waited_for;
	LIST_ENTRY(lien_join_job) next;
	const struct lien_join_kind *kind;
	struct lien_agent *agent;
	struct lien_client *client; /* NULL: gone */
	unsigned count;
	void *parts; /* lien_join_part() */
};

struct lien_join_kind {
	size_t job_size, part_size; /* of what begins with the structs above */
	/* One part; and with each tick until it is done. process: NULL, it has ended. */
	void (*start)(struct lien_join_job *job, struct lien_join_part *part,
		struct lien_process *process);
	void (*look)(struct lien_join_job *job, struct lien_join_part *part,
		struct lien_process *process);
	/* All parts are done, asked with each tick: true, nothing is left to do for the job. NULL:
	 * true. */
	bool (*conclude)(struct lien_join_job *job);
	void (*answer)(struct lien_join_job *job); /* to the client, which is there */
	void (*dropped)(struct lien_join_job *job); /* the client is gone. NULL: nothing */
	void (*release)(struct lien_join_job *job); /* what is the kind's. NULL: nothing */
};

/* With a part for each of these processes (none named: of all) that is wanted. They do not begin
 * yet. NULL: out of memory. */
struct lien_join_job *lien_join_new(struct lien_client *client, const struct lien_join_kind *kind,
	const uint32_t *pids, unsigned count,
	bool (*wanted)(const struct lien_viewer *viewer, const struct lien_process *process,
		bool named));
/* The client waits for it from now on, and is answered by a tick. */
void lien_join_begin(struct lien_join_job *job);
void lien_join_free(struct lien_join_job *job);

struct lien_join_part *lien_join_part(const struct lien_join_job *job, unsigned i);
/* NULL: it has ended. */
struct lien_process *lien_join_process(
	const struct lien_join_job *job, const struct lien_join_part *part);
/* The job's part for this process that is not done; NULL: none. */
struct lien_join_part *lien_join_find(const struct lien_join_job *job, uint32_t pid, uint64_t start);

void lien_join_jobs_tick(struct lien_agent *agent);
void lien_join_jobs_stop(struct lien_agent *agent);

#endif
