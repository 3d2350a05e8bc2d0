/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Work that a job can hold up for as long as it likes, because the kernel waits where no signal
 * ends the wait: for a page of its memory that a file system in user space serves, for the lock of
 * its address space, for a file system of its own. Such work is done by a thread that is left
 * behind when it takes too long. That thread has a table of open files of its own, so that nothing
 * of the caller's stays open with it when the caller's process ends.
 *
 * Nobody is waited for often: a process that was too slow for the third time within 10 s is left
 * alone for a second, then longer and longer, and if that happens to processes of one user too
 * often all of that user's are. A thread that only lacks a processor is waited for longer.
 */
#ifndef LIEN_TIMEOUT_H
#define LIEN_TIMEOUT_H

#include <stdbool.h>
#include <stdint.h>

#define LIEN_TIMEOUT_FDS 2

struct lien_timeout_work {
	/* In the thread: works on nothing but what is in the work, and its descriptors. */
	void (*run)(struct lien_timeout_work *work);
	/* Frees the work, in place of a caller who did not wait, or at whom it came to nothing. */
	void (*drop)(struct lien_timeout_work *work);
	/* Going in, copies of the caller's, which run() closes or keeps; coming out, the caller's
	 * to close. */
	int fds[LIEN_TIMEOUT_FDS];
	unsigned fds_count;
	bool ends_thread; /* run() leaves something that only the thread's end takes away */
	unsigned more_ms; /* that it may take, besides the usual time */
	int state;	  /* the module's own */
};

/* True: run() has returned, and the work is the caller's. False: it has not in time, or was not
 * tried, and the work is gone. pid: the process that is worked on; 0: the caller runs it itself. */
bool lien_timeout_run(struct lien_timeout_work *work, uint32_t pid);

/* How long the calling thread waits, 1 s unless told. */
void lien_timeout_set(unsigned ms);

/* And in all, from now on: once that is used up nothing is tried any more, and no process is to
 * blame. No limit unless told. */
void lien_timeout_allow(unsigned ms);

/* Threads that wait for work end: later ones have the rights that their caller has then. */
void lien_timeout_dismiss(void);

#endif
