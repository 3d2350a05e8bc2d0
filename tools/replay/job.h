/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parent's side of a replay: the worker processes, the shares in transit between them, and
 * their progress. Functions return 0 or -errno; the error has then been printed, once.
 */
#ifndef LIEN_REPLAY_JOB_H
#define LIEN_REPLAY_JOB_H

#include <stdio.h>
#include <sys/types.h>

#include "tools/replay/image.h"
#include "tools/replay/wire.h"

enum lien_job_state {
	LIEN_JOB_BUSY,	  /* makes calls, or carries out a command */
	LIEN_JOB_WAITING, /* for a share */
	LIEN_JOB_IDLE,	  /* waits for a command */
	LIEN_JOB_GONE,
};

struct lien_job_worker {
	const struct lien_replay_process *process;
	size_t index; /* of the process in the script */
	struct lien_replay_image *image;
	pid_t pid;
	bool reaped;
	int sock; /* -1: gone */
	enum lien_job_state state;
	uint64_t share;	   /* number of the share that it waits for */
	uint64_t position; /* last seen value of the image's, */
	uint64_t moved;	   /* and when it changed: ms of CLOCK_MONOTONIC */
	struct lien_replay_done done;
	struct lien_replay_checked checked;
};

struct lien_job {
	struct lien_script *script;
	struct lien_job_worker *workers;
	size_t count;
	int timeout_ms;	 /* of every wait */
	bool keep_going; /* when all is replayed, the death of a worker does not end the others */
	bool ready;	 /* everything is replayed */
	bool failed;	 /* something failed, though the job may continue */
};

/* Totals over all workers. */
struct lien_job_totals {
	uint64_t mappings, failed, bytes;
};

/* Starts a worker for each process that called the driver. The caller keeps script. */
int lien_job_start(struct lien_job *job, struct lien_script *script);

/* Waits until every worker has carried out its command. */
int lien_job_wait(struct lien_job *job);

/* Sends the message to every worker, and waits for all. */
int lien_job_tell(struct lien_job *job, const struct lien_replay_message *message);

/* Waits until fd is readable, and watches the workers meanwhile. */
int lien_job_wait_input(struct lien_job *job, int fd);

/* Ends every worker: cleanly, or at once after a failure. */
void lien_job_end(struct lien_job *job, bool orderly);

/* Frees everything that the job owns, except the script. */
void lien_job_free(struct lien_job *job);

/* spawn.c: forks and execs this program as worker `number` of job. -errno. */
int lien_job_spawn(struct lien_job *job, size_t number);

/* spawn.c: waits for its exit for at most timeout_ms. Returns false: still running. */
bool lien_job_reap(struct lien_job_worker *worker, int timeout_ms, int *status);

#endif
