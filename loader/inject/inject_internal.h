/* SPDX-License-Identifier: BSD-2-Clause */
/* What the files of the injection share; inject.h is for everybody else. */
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

/* The library's name in the process: a memfd's may have a slash, and behind it is what
 * lien_library_of() goes by. */
#define LIEN_INJECT_MEMFD "lien/liblien-control.so"

/* Where the process may not be made to call its libc: an allocator's code, the loader's. */
#define LIEN_INJECT_RANGES 16

struct lien_inject_range {
	uint64_t start, end;
	bool allocator;
};

/* One injection, from its beginning to its end. */
struct lien_inject {
	uint32_t pid;
	int library_fd;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC */
	struct lien_inject_result *result;
	char *why;
	size_t why_size;

	int pidfd, mem; /* /proc/PID/mem, of the program that ran when it was opened */
	uint64_t auxv;	/* what tells that program from another one */

	/* Addresses in the process. */
	uint64_t pthread_create, pthread_detach, dlopen, dlclose, dlerror, errno_location, munmap;
	uint64_t syscall_ret; /* a system call instruction with a return behind it */
	uint64_t restore_rt;  /* code that returns from a signal handler */
	uint32_t dlopen_mode;
	struct lien_inject_range unsafe[LIEN_INJECT_RANGES];
	unsigned unsafe_count;
	uint64_t control; /* lien_control_state of a library that is there; 0: none */
	uint64_t again;	  /* its lien_control_again, if it is at its end */
	uint32_t libc_minor;
	uint32_t locked; /* a thread that waited for a lock when it was borrowed; 0: none */
	uint32_t helper; /* the new thread; 0: not known */
};

bool lien_inject_late(const struct lien_inject *inject);
/* Writes the line for the user, returns err. The last one counts. */
int lien_inject_fail(struct lien_inject *inject, int err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
int lien_inject_read(const struct lien_inject *inject, uint64_t address, void *to, size_t size);

/* Has the process ended? */
bool lien_inject_over(const struct lien_inject *inject);
/* Does it still run the program whose memory was opened? */
bool lien_inject_same(const struct lien_inject *inject);
int lien_inject_fail_gone(struct lien_inject *inject);

/* inject_check.c: may this process be injected into, as far as /proc tells? 0 or -errno. */
int lien_inject_check(struct lien_inject *inject);
/* A number of /proc/PID/task/TID/status in base 10 or 16; the last of a list. tid 0: the process.
 * -1: there is none. */
long long lien_status_of(uint32_t pid, uint32_t tid, const char *field, int base);

/* inject_libc.c: finds the addresses above. 0 or -errno. */
int lien_inject_find(struct lien_inject *inject);
/* Finds the library, if it is mapped: inject->control and ->again. 0 or -errno. */
int lien_inject_find_control(struct lien_inject *inject);

struct lien_stub;

/* What is to be written where. */
struct lien_remote_words {
	uint64_t address;
	const void *from;
	size_t size;
};

/* inject_load.c: is the library there, and has it started? 0 no, or it is at its end: then
 * inject->again is what begins it; 1 yes, -errno. */
int lien_inject_present(struct lien_inject *inject);
/* Has the new thread load it, or call inject->again. 0 or -errno. */
int lien_inject_load(struct lien_inject *inject, uint64_t region);
int lien_inject_again(struct lien_inject *inject, uint64_t region);
/* Until the new thread is that far. -ESRCH, -ETIMEDOUT. */
int lien_inject_wait_for(
	struct lien_inject *inject, uint64_t region, uint32_t step, struct lien_stub *stub);
/* It was not that far in time: it stops if it has not begun. Returns err. */
int lien_inject_give_up(
	struct lien_inject *inject, uint64_t region, const struct lien_stub *stub, int err);
/* Writes these for the new thread, which has to have said its number. -ESRCH, -ETIMEDOUT. */
int lien_inject_write_words(struct lien_inject *inject, const struct lien_stub *stub,
	const struct lien_remote_words *words, unsigned count);
/* Until the new thread has taken its memory away, and ended. */
void lien_inject_see_off(
	struct lien_inject *inject, uint64_t region, const struct lien_stub *stub, uint32_t last);
/* A thread of the process by the number that it has there; 0: none. */
uint32_t lien_inject_thread_of(const struct lien_inject *inject, uint32_t inner);


/* A thread under our control. All calls are for the thread that seized it. */
struct lien_remote {
	const struct lien_inject *inject;
	pid_t tid;
	bool borrowed; /* its registers are ours; `before` has its own */
	bool stopped;
	bool group_stop; /* with its process, not for us alone */
	bool trapped;	 /* it is where the kernel can restart its system call */
	struct user_regs_struct before;
	uint64_t signals;     /* it blocks */
	uint64_t frame;	      /* in its stack: brings back everything if we are killed */
	uint64_t borrowed_ns; /* since when */
	uint64_t deadline_ns; /* what it does for us has its time, also if it was late */
	unsigned char xstate[16384];
	size_t xstate_size;
};

/*
 * Stops a thread that waits in a system call. 0; -EAGAIN: it was doing something else, and goes on
 * with it; -EBUSY: its process was stopped; -EPERM; -ESRCH: it has ended; -ETIMEDOUT: it did not
 * stop, and goes on when the calling thread ends.
 */
int lien_remote_stop(struct lien_remote *remote, const struct lien_inject *inject, pid_t tid);
/* Takes its registers. From here on it comes back by itself should we be killed. -EFAULT: it has no
 * room in its stack, -errno. */
int lien_remote_borrow(struct lien_remote *remote);
/* remote_frame.c: as the kernel would have for a handler, had it restarted the system call before.
 * Says where in remote->frame. -E2BIG, -EFAULT: no room in the stack. */
int lien_remote_write_frame(struct lien_remote *remote);
/* Has it make a system call, without memory: the result, or what went wrong with it; in *failed
 * whether it is no longer to be spoken to. */
long lien_remote_syscall(struct lien_remote *remote, bool *failed, long number, uint64_t a0,
	uint64_t a1, uint64_t a2);
/* Has it run code with that stack and r12 = data until the system call that ends before `until`.
 * -EDEADLK: it waits for a lock that nobody gives back; -EFAULT: it crashed; -ESRCH, -ETIMEDOUT. */
int lien_remote_run(
	struct lien_remote *remote, uint64_t code, uint64_t stack, uint64_t data, uint64_t until);
/*
 * Writes into the memory of a thread that is stopped for us. Everything that is written into a
 * process is written so: to start another program, one that may have other rights, all of its
 * threads but one have to end, and one that is stopped is not written to any more once it ends.
 * -ESRCH, -EFAULT, -EIO.
 */
int lien_remote_write(struct lien_remote *remote, uint64_t address, const void *from, size_t size);

/* Gives everything back, writes these words, if there are any, and lets it go. */
int lien_remote_release(struct lien_remote *remote, const struct lien_remote_words *words);
/* Stops a thread of the process for as long as it takes to write these. inner: its number there.
 * -EBUSY: its process is stopped. */
int lien_remote_write_words(const struct lien_inject *inject, pid_t tid, uint32_t inner,
	const struct lien_remote_words *words, unsigned count);

/*
 * inject_point.c: is a thread to be borrowed that waits in this system call, with these second to
 * fourth arguments? 1: first choice, 3: last, 0: never. They can all be restarted with the time
 * that is left; epoll_wait(), which the kernel ends with EINTR, only if it waits for ever.
 */
int lien_inject_choice(long number, uint64_t a1, uint64_t a2, uint64_t a3);
/* Stops one of the process's threads where it may call its libc. 0 or -errno; of -ESRCH the caller
 * says the line. */
int lien_inject_stop(struct lien_inject *inject, struct lien_remote *remote);

/* inject_stub.c: the code that the process runs, and what that works with. */
enum lien_stub_step {
	LIEN_STUB_READY = 1, /* the memfd is open, or err says why not */
	LIEN_STUB_DONE,	     /* dlopen() has returned, or was not called */
};

enum lien_stub_word {
	LIEN_STUB_GO = 1,   /* load it; at the end: keep it */
	LIEN_STUB_STOP = 2, /* do not; at the end: close it again */
};

struct lien_stub {
	uint64_t pthread_create, pthread_detach, dlopen, dlclose, dlerror, errno_location, munmap;
	uint64_t restore_rt, frame; /* of the borrowed thread */
	uint64_t start;		    /* of the new thread's code */
	uint64_t region, region_size;
	uint64_t nap[2]; /* struct timespec */
	uint64_t handle; /* from here on: what comes out */
	uint64_t error;	 /* text of dlerror() */
	uint64_t thread; /* pthread_t */
	int32_t created; /* of pthread_create(); -1: not yet */
	int32_t fd;	 /* memfd, or -errno */
	uint32_t tid;	 /* as the process sees it */
	uint32_t step;	 /* enum lien_stub_step */
	uint32_t word;	 /* from us, when READY: enum lien_stub_word */
	uint32_t last;	 /* from us, when DONE: the same */
	uint32_t left;	 /* from us: the borrowed thread has left this memory */
	uint32_t mode;	 /* for dlopen() */
	char path[48], name[32];
};

#define LIEN_STUB_CODE                                                                             \
	4096		     /* bytes at the region's beginning that are code; the rest is memory  \
			      */
#define LIEN_STUB_SIZE 65536 /* of which all but the first bytes are a stack */

#define LIEN_STUB_REGION	    (LIEN_STUB_CODE + LIEN_STUB_SIZE)
#define LIEN_STUB_AT(region, field) ((region) + LIEN_STUB_CODE + offsetof(struct lien_stub, field))
#define LIEN_STUB_NAP_NS	    200000

/* Labels in the code, counted from its beginning. */
#define LIEN_STUB_LABEL(label) ((uintptr_t)(label) - (uintptr_t)lien_stub_code)

extern const unsigned char lien_stub_code[], lien_stub_start[], lien_stub_created[],
	lien_stub_end[];

/* Of the file's "GNU C Library (...) stable release version 2.36.": 36. 0: it is another one. */
uint32_t lien_inject_libc_minor(const char *image, size_t size);

#endif
