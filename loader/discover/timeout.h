/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs work that a job can block indefinitely, because the kernel waits uninterruptibly: for a page
 * of its memory that a file system in user space serves, for the lock of its address space, for a
 * file system of its own. A thread does such work, and is left behind if it takes too long. That
 * thread has its own table of open files, so that it keeps none of the caller's files open when the
 * caller's process ends.
 *
 * A process that was too slow for the third time within 10 s is left alone for a second, then for
 * longer and longer; if that happens to processes of one user too often, all of that user's are. A
 * thread that only lacks a processor gets more time.
 */
#ifndef LIEN_TIMEOUT_H
#define LIEN_TIMEOUT_H

#include <stdbool.h>
#include <stdint.h>

#define LIEN_TIMEOUT_FDS 2

struct lien_timeout_work {
	/* Runs in the thread; may use only the work itself and its descriptors. */
	void (*run)(struct lien_timeout_work *work);
	/* Frees the work, in place of a caller that did not wait or whose work was not run. */
	void (*drop)(struct lien_timeout_work *work);
	/* On entry, copies of the caller's descriptors, which run() closes or keeps; on return,
	 * descriptors that the caller must close. */
	int fds[LIEN_TIMEOUT_FDS];
	unsigned fds_count;
	bool ends_thread;  /* run() leaves something behind that only the thread's end removes */
	unsigned await_ms; /* time to wait while a process that was slow is left alone */
	unsigned more_ms;  /* time that it may take beyond the usual */
	/* Private to timeout.c. */
	bool over; /* done, or abandoned */
	uint32_t pid;
	int tid;
};

/* Returns true: run() has returned, and the caller owns the work. False: it did not finish in time,
 * or was not tried, and the work is gone. pid: the process worked on; 0: the caller's thread runs
 * it. */
bool lien_timeout_run(struct lien_timeout_work *work, uint32_t pid);

/* Limits how long the calling thread waits, each time (1 s by default) and in all from now on (by
 * default not at all). Once that is used up, nothing is tried any more, and no process is blamed.
 */
void lien_timeout_limit(unsigned ms, unsigned all_ms);

/* Ends the idle threads, so that later ones get the privileges that their caller then has. */
void lien_timeout_dismiss(void);

#endif
