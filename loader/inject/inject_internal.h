/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files of the injection; everybody else includes inject.h. */
#ifndef LIEN_INJECT_INTERNAL_H
#define LIEN_INJECT_INTERNAL_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/user.h>

#include <lien/clock.h>

#include "loader/discover/status.h"
#include "loader/discover/timeout.h"
#include "loader/inject/inject.h"

/* The library's name in the process. A memfd's name may have a slash; lien_library_of() looks at
 * the part after it. */
#define LIEN_INJECT_MEMFD "lien/liblien-control.so"

/* Ranges where the process must not be made to call its libc: the code of an allocator or the
 * loader. */
#define LIEN_INJECT_RANGES 16

struct lien_inject_range {
	uint64_t start, end;
	bool allocator;
};

/* Functions of the process's libc, by their addresses there. */
struct lien_inject_calls {
	uint64_t pthread_create, pthread_detach, dlopen, dlclose, dlerror, errno_location, munmap;
	uint64_t restore_rt; /* code that returns from a signal handler */
};

/* One injection, with all data of the thread that carries it out. */
struct lien_inject {
	struct lien_timeout_work work;
	uint32_t pid;
	unsigned limit_ms;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC */
	int err;
	struct lien_inject_result result;
	char why[300];

	int pidfd, library_fd;
	int mem;       /* /proc/PID/mem, of the program that ran when it was opened */
	uint64_t auxv; /* distinguishes that program from another one */

	struct lien_inject_calls calls;
	uint64_t syscall_ret; /* a system call instruction followed by a return */
	uint32_t dlopen_mode;
	struct lien_inject_range unsafe[LIEN_INJECT_RANGES];
	unsigned unsafe_count;
	uint64_t control; /* lien_control_state of a library that is present; 0: none */
	uint64_t again;	  /* its lien_control_again; 0: it has none */
	uint32_t libc_minor;
	uint32_t locked; /* a thread that waited for a lock while borrowed; 0: none */
	uint32_t helper; /* the new thread; 0: unknown */
};

static inline bool lien_inject_late(const struct lien_inject *inject)
{
	return lien_clock_ns() > inject->deadline_ns;
}

/* --- inject_check.c --- */
/* Sets the error line for the user and returns err. A later call replaces the line. */
int lien_inject_fail(struct lien_inject *inject, int err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int lien_inject_read(const struct lien_inject *inject, uint64_t address, void *to, size_t size);

/* Returns true if the process has ended. */
bool lien_inject_over(const struct lien_inject *inject);
/* Returns true if the process still runs the program whose memory was opened. */
bool lien_inject_same(const struct lien_inject *inject);
int lien_inject_fail_gone(struct lien_inject *inject);
/* Checks with /proc whether this process may be injected into, and opens its memory. Returns 0 or
 * -errno. */
int lien_inject_open(struct lien_inject *inject);

/* --- inject_libc.c --- */
/* Finds the addresses above. Returns 0 or -errno. */
int lien_inject_find(struct lien_inject *inject);
/* Checks whether the library is there and has its handler; sets inject->control and ->again.
 * Returns 0: no, or it has ended and inject->again restarts it; 1: yes, and inject->again starts
 * its thread, or is 0 if that runs; -errno. */
int lien_inject_present(struct lien_inject *inject);

/* --- remote.c --- */
/* Words to write, and their address. */
struct lien_remote_words {
	uint64_t address;
	const void *from;
	size_t size;
};

/* A thread under our control. Only the thread that seized it may make these calls. */
struct lien_remote {
	const struct lien_inject *inject;
	pid_t tid;
	bool borrowed; /* we use its registers; `before` has its own */
	bool stopped;
	bool group_stop; /* stopped with its process, not by us alone */
	bool trapped;	 /* at a place where the kernel can restart its system call */
	struct user_regs_struct before;
	uint64_t signals;     /* its blocked signals */
	uint64_t frame;	      /* in its stack: restores everything if we are killed */
	uint64_t borrowed_ns; /* time of the borrowing */
	uint64_t deadline_ns; /* its work for us has until then, even if it began late */
	unsigned char xstate[16384];
	size_t xstate_size;
};

/*
 * Stops a thread that waits in a system call. Returns 0; -EAGAIN: it was doing something else, and
 * continues; -EBUSY: its process was stopped; -EPERM; -ESRCH: it has ended; -ETIMEDOUT: it did not
 * stop, and continues when the calling thread ends.
 */
int lien_remote_stop(struct lien_remote *remote, const struct lien_inject *inject, pid_t tid);
/* Takes over its registers. From here on it recovers by itself if we are killed. -EFAULT: its stack
 * has no room, -errno. */
int lien_remote_borrow(struct lien_remote *remote);
/* Makes the thread call a system call without memory arguments. Returns its result, or the error;
 * sets *failed if the thread can no longer be used. */
long lien_remote_syscall(struct lien_remote *remote, bool *failed, long number, uint64_t a0,
	uint64_t a1, uint64_t a2);
/* Makes the thread run code with that stack and r12 = data until the system call that ends before
 * `until`. -EDEADLK: it waits for a lock that nobody releases; -EFAULT: it crashed; -ESRCH,
 * -ETIMEDOUT. */
int lien_remote_run(
	struct lien_remote *remote, uint64_t code, uint64_t stack, uint64_t data, uint64_t until);
/*
 * Writes into the memory of a thread that we have stopped. All writes into a process go through
 * here: to start another program, which may have other privileges, all threads but one must end,
 * and a stopped thread is not written to once it ends. -ESRCH, -EFAULT, -EIO.
 */
int lien_remote_write(struct lien_remote *remote, uint64_t address, const void *from, size_t size);

/* Restores everything, writes these words, if any, and lets the thread go. */
int lien_remote_release(struct lien_remote *remote, const struct lien_remote_words *words);
/* Stops a thread of the process while it writes these words. inner: its number there. -EBUSY: its
 * process is stopped. */
int lien_remote_write_words(const struct lien_inject *inject, pid_t tid, uint32_t inner,
	const struct lien_remote_words *words, unsigned count);

/* --- inject_load.c --- */
/* Borrows a thread that is stopped, makes it start the new one, which has its code and data in
 * *region, and lets it go in any case. -EDEADLK: it waited for a lock, and no trace is left. */
int lien_inject_start(struct lien_inject *inject, struct lien_remote *remote, uint64_t *region);
/* Makes the new thread load the library or, `again`, call inject->again. Returns 0 or -errno. */
int lien_inject_load(struct lien_inject *inject, uint64_t region, bool again);

#endif
