/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parent's side of a replay: the worker processes, the shares on their way between them, and
 * whether they get on. Functions return 0 or -errno; what went wrong has been printed then, once.
 */
#ifndef LIEN_REPLAY_JOB_H
#define LIEN_REPLAY_JOB_H

#include <stdio.h>
#include <sys/types.h>

#include <tools/replay/image.h>
#include <tools/replay/wire.h>

enum lien_job_state {
	LIEN_JOB_BUSY,	  /* makes calls, or follows a command */
	LIEN_JOB_WAITING, /* for a share */
	LIEN_JOB_IDLE,	  /* waits for a command */
	LIEN_JOB_GONE,
};

struct lien_job_worker {
	const struct lien_replay_process *process;
	size_t index; /* of it in the script */
	struct lien_replay_image *image;
	pid_t pid;
	bool reaped;
	int sock; /* -1: gone */
	enum lien_job_state state;
	uint64_t share;	   /* number of the one it waits for */
	uint64_t position; /* last seen of the image's, */
	uint64_t moved;	   /* and when: ms of CLOCK_MONOTONIC */
	struct lien_replay_done done;
	struct lien_replay_checked checked;
};

struct lien_job {
	struct lien_script *script;
	struct lien_job_worker *workers;
	size_t count;
	int timeout_ms;	 /* of every wait */
	bool keep_going; /* once all is replayed, the death of a worker does not end the others */
	bool ready;	 /* all is replayed */
	bool failed;	 /* something did, though the job may go on */
};

/* Totals over all workers. */
struct lien_job_totals {
	uint64_t mappings, failed, bytes;
};

/* Starts a worker for each process that called the driver. script stays the caller's. */
int lien_job_start(struct lien_job *job, struct lien_script *script);

/* Waits until every worker has done what it was told. */
int lien_job_settle(struct lien_job *job);

/* Tells every worker, and settles. */
int lien_job_tell(struct lien_job *job, const struct lien_replay_message *message);

/* All verify everything; each worker's first mismatch is printed to out. Mismatches are no error.
 */
int lien_job_verify(struct lien_job *job, struct lien_job_totals *totals, FILE *out);

/* Waits for a line's worth of input on fd while watching the workers. */
int lien_job_wait_input(struct lien_job *job, int fd);

/* Ends every worker, in good order or, after a failure, at once. */
void lien_job_end(struct lien_job *job, bool orderly);

/* Frees what the job holds, but for the script. */
void lien_job_free(struct lien_job *job);

/* One line on stderr about a worker. Returns -EIO. */
int lien_job_complain(const struct lien_job_worker *worker, const char *format, ...)
	__attribute__((__format__(__printf__, 2, 3)));

/* Its end of the socket is closed: says why. 0 when the job goes on without it. */
int lien_job_died(struct lien_job *job, struct lien_job_worker *worker);

/* mailbox.c: an EXPORT with its fd, which it takes over; an IMPORT that asks for a share. */
int lien_job_take_export(struct lien_job *job, const struct lien_replay_message *message, int fd);
int lien_job_take_import(struct lien_job *job, struct lien_job_worker *worker, uint64_t number);

/* spawn.c: forks and execs this program as worker number of job. -errno. */
int lien_job_spawn(struct lien_job *job, size_t number);

/* spawn.c: waits for its exit for at most timeout_ms. False: still running. */
bool lien_job_reap(struct lien_job_worker *worker, int timeout_ms, int *status);

#endif
