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

#include "loader/discover/status.h"
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

/* One injection. */
struct lien_inject {
	uint32_t pid;
	int library_fd;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC */
	struct lien_inject_result *result;
	char *why;
	size_t why_size;

	int pidfd, mem; /* /proc/PID/mem, of the program that ran when it was opened */
	uint64_t auxv;	/* distinguishes that program from another one */

	/* Addresses in the process. */
	uint64_t pthread_create, pthread_detach, dlopen, dlclose, dlerror, errno_location, munmap;
	uint64_t syscall_ret; /* a system call instruction followed by a return */
	uint64_t restore_rt;  /* code that returns from a signal handler */
	uint32_t dlopen_mode;
	struct lien_inject_range unsafe[LIEN_INJECT_RANGES];
	unsigned unsafe_count;
	uint64_t control; /* lien_control_state of a library that is present; 0: none */
	uint64_t again;	  /* its lien_control_again; 0: it has none */
	uint32_t libc_minor;
	uint32_t locked; /* a thread that waited for a lock while borrowed; 0: none */
	uint32_t helper; /* the new thread; 0: unknown */
};

/* --- inject_check.c --- */
bool lien_inject_late(const struct lien_inject *inject);
/* Sets the error line for the user and returns err. A later call replaces the line. */
int lien_inject_fail(struct lien_inject *inject, int err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int lien_inject_read(const struct lien_inject *inject, uint64_t address, void *to, size_t size);

/* Returns true if the process has ended. */
bool lien_inject_over(const struct lien_inject *inject);
/* Returns true if the process still runs the program whose memory was opened. */
bool lien_inject_same(const struct lien_inject *inject);
int lien_inject_fail_gone(struct lien_inject *inject);
/* Returns what distinguishes the program that the process runs from others; 0: it has ended. */
uint64_t lien_inject_auxv(uint32_t pid);
/* Checks with /proc whether this process may be injected into. Returns 0 or -errno. */
int lien_inject_check(struct lien_inject *inject);

/* inject_libc.c: finds the addresses above. Returns 0 or -errno. */
int lien_inject_find(struct lien_inject *inject);
/* Finds the library if it is mapped: sets inject->control and ->again. Returns 0 or -errno. */
int lien_inject_find_control(struct lien_inject *inject);

/* Words to write, and their address. */
struct lien_remote_words {
	uint64_t address;
	const void *from;
	size_t size;
};

/* inject_load.c: checks whether the library is there and has its handler. Returns 0: no, or it has
 * ended and inject->again restarts it; 1: yes, and inject->again starts its thread if it has none;
 * -errno. */
int lien_inject_present(struct lien_inject *inject);
/* Makes the new thread load the library, or call inject->again. Returns 0 or -errno. */
int lien_inject_load(struct lien_inject *inject, uint64_t region);
int lien_inject_again(struct lien_inject *inject, uint64_t region);
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
/* Writes a signal frame, as the kernel would for a handler after it had prepared
 * the restart of the system call. Sets remote->frame to its address. -E2BIG, -EFAULT: the stack has
 * no room. */
int lien_remote_write_frame(struct lien_remote *remote);
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

/*
 * inject_point.c: rates a thread that waits in this system call, with these second to fourth
 * arguments. 1: first choice, 3: last, 0: never. All of these calls can be restarted with the
 * remaining time; epoll_wait(), which the kernel ends with EINTR, qualifies only if it waits
 * forever.
 */
int lien_inject_choice(long number, uint64_t a1, uint64_t a2, uint64_t a3);
/* Stops one of the process's threads at a point where it may call its libc. Returns 0 or -errno; on
 * -ESRCH the caller writes the error line. */
int lien_inject_stop(struct lien_inject *inject, struct lien_remote *remote);

/* inject_stub.c: the code that the process runs, and its data. */
enum lien_stub_step {
	LIEN_STUB_READY = 1, /* the memfd is open, or err says why not */
	LIEN_STUB_DONE,	     /* dlopen() has returned, or was not called */
};

enum lien_stub_word {
	LIEN_STUB_GO = 1,   /* load it; at the end: keep it */
	LIEN_STUB_STOP = 2, /* do not load it; at the end: close it again */
};

struct lien_stub {
	uint64_t pthread_create, pthread_detach, dlopen, dlclose, dlerror, errno_location, munmap;
	uint64_t restore_rt, frame; /* of the borrowed thread */
	uint64_t start;		    /* of the new thread's code */
	uint64_t region, region_size;
	uint64_t nap[2]; /* struct timespec */
	uint64_t handle; /* outputs begin here */
	uint64_t error;	 /* text of dlerror() */
	uint64_t thread; /* pthread_t */
	int32_t created; /* result of pthread_create(); -1: not called yet */
	int32_t fd;	 /* memfd, or -errno */
	uint32_t tid;	 /* as the process sees it */
	uint32_t step;	 /* enum lien_stub_step */
	uint32_t word;	 /* from us, after READY: enum lien_stub_word */
	uint32_t last;	 /* from us, after DONE: the same */
	uint32_t left;	 /* from us: the borrowed thread has left this memory */
	uint32_t mode;	 /* for dlopen() */
	char path[48], name[32];
};

#define LIEN_STUB_CODE                                                                             \
	4096 /* bytes of code at the beginning of the region; its data and the stack follow */
#define LIEN_STUB_SIZE 65536 /* struct lien_stub, then a stack */

#define LIEN_STUB_REGION	    (LIEN_STUB_CODE + LIEN_STUB_SIZE)
#define LIEN_STUB_AT(region, field) ((region) + LIEN_STUB_CODE + offsetof(struct lien_stub, field))
#define LIEN_STUB_NAP_NS	    200000

/* Offsets of labels in the code. */
#define LIEN_STUB_LABEL(label) ((uintptr_t)(label) - (uintptr_t)lien_stub_code)

extern const unsigned char lien_stub_code[], lien_stub_start[], lien_stub_created[],
	lien_stub_end[];

/* Parses "GNU C Library (...) stable release version 2.36." in the file: 36. 0: another libc. */
uint32_t lien_inject_libc_minor(const char *image, size_t size);

#endif
