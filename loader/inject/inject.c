// SPDX-License-Identifier: BSD-2-Clause
/*
 * Chooses the thread and the moment, and carries the injection out. The thread waits in a system
 * call in which no thread waits while it owns a lock that pthread_create() needs: of malloc, of
 * thread stacks, or of the loader's tables. Such calls wait for something external; a futex()
 * qualifies if it is not for a lock. /proc/PID/task/TID/syscall shows such a thread without
 * stopping it; the check is repeated once it is stopped.
 */
#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "loader/inject/inject_internal.h"
#include "loader/text.h"

#define PAGE		4096
#define FRAME_BYTES	20480 /* room that its stack must have */
#define STACK_BYTES	65536 /* range searched for the frame of a handler */
#define ALLOCATOR_BYTES 4096  /* a thread that waits in an allocator was called from nearby */
#define THREADS_MAX	4096
#define LOOK_NS		500000
#define LOOK_NS_MAX	16000000
#define SELF_AT		0x10  /* struct pthread: its own address */
#define TID_AT		0x2d0 /* and the thread's id; since glibc 2.4 */
#define TRIES		3
#define CLEAR_UP_MS	3000 /* work that has begun may end after the limit */

/*
 * Rates a thread that waits in this system call, with these second to fourth arguments. 1: first
 * choice, 3: last, 0: never. All of these calls can be restarted with the remaining time;
 * epoll_wait(), which the kernel ends with EINTR, qualifies only if it waits forever.
 */
static int choose(long number, uint64_t a1, uint64_t a2, uint64_t a3)
{
	switch (number) {
	case SYS_poll:
	case SYS_ppoll:
	case SYS_select:
	case SYS_pselect6:
	case SYS_nanosleep:
	case SYS_clock_nanosleep:
	case SYS_restart_syscall:
	case SYS_read:
	case SYS_recvfrom:
	case SYS_recvmsg:
	case SYS_accept:
	case SYS_accept4:
	case SYS_pause:
	case SYS_rt_sigsuspend:
	case SYS_flock:
		return 1;
	case SYS_futex:
		/* A contended glibc lock has the value 2. */
		if ((a1 & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET)
			return 2;
		return (a1 & FUTEX_CMD_MASK) == FUTEX_WAIT && (uint32_t)a2 != 2 ? 2 : 0;
	case SYS_wait4:
	case SYS_waitid: /* while the thread is traced, its children's exits wake other threads */
		return 3;
	case SYS_epoll_wait:
	case SYS_epoll_pwait:
		return (int32_t)a3 == -1 ? 3 : 0;
	}
	return 0;
}

struct thread {
	pid_t tid;
	int choice;
};

struct threads {
	struct thread list[THREADS_MAX];
	unsigned count, all;
	bool vfork;
};

static void look_at(struct threads *threads, uint32_t pid, pid_t tid)
{
	char path[64], text[256];
	unsigned long long a[4];
	long number;
	int choice;

	snprintf(path, sizeof(path), "/proc/%u/task/%d/syscall", pid, tid);
	if (lien_text_read(path, text, sizeof(text)) == -ENOENT)
		return;
	threads->all++;
	if (sscanf(text, "%ld %llx %llx %llx %llx", &number, &a[0], &a[1], &a[2], &a[3]) != 5)
		return; /* "running" */
	/* The process shares its memory with another during these. */
	threads->vfork |= number == SYS_vfork || number == SYS_clone || number == SYS_clone3;
	choice = choose(number, a[1], a[2], a[3]);
	if (!choice || threads->count == THREADS_MAX)
		return;
	threads->list[threads->count].tid = tid;
	threads->list[threads->count++].choice = choice;
}

static int compare(const void *a, const void *b)
{
	return ((const struct thread *)a)->choice - ((const struct thread *)b)->choice;
}

static int look(uint32_t pid, struct threads *threads)
{
	struct dirent *entry;
	char path[32];
	DIR *tasks;

	threads->count = threads->all = 0;
	threads->vfork = false;
	snprintf(path, sizeof(path), "/proc/%u/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return -ESRCH;
	while ((entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			look_at(threads, pid, atoi(entry->d_name));
	closedir(tasks);
	qsort(threads->list, threads->count, sizeof(threads->list[0]), compare);
	return 0;
}

static bool is_unsafe(const struct lien_inject *inject, uint64_t address, bool allocators)
{
	const struct lien_inject_range *range = inject->unsafe;

	for (; range < inject->unsafe + inject->unsafe_count; range++)
		if ((range->allocator || !allocators) && address >= range->start &&
			address < range->end)
			return true;
	return false;
}

/* Threads that libc did not make, or that share a struct pthread, cannot call it. */
static bool is_libcs(const struct lien_inject *inject, uint64_t self, pid_t tid)
{
	uint64_t own = 0;
	uint32_t id = 0;

	return !lien_inject_read(inject, self + SELF_AT, &own, sizeof(own)) && own == self &&
	       !lien_inject_read(inject, self + TID_AT, &id, sizeof(id)) &&
	       id == lien_status_of(inject->pid, tid, "NSpid", 10);
}

/* Rejects a thread below an allocator that sleeps while it waits for a lock, and one in a signal
 * handler, which may have interrupted malloc(). Stale words on the stack may look like either; then
 * another thread is tried. */
static bool is_free(const struct lien_inject *inject, const struct user_regs_struct *regs)
{
	uint64_t words[PAGE / sizeof(uint64_t)], at = regs->rsp;
	size_t size;

	if (is_unsafe(inject, regs->rip, false) ||
		lien_inject_read(inject, regs->rsp - FRAME_BYTES, words, sizeof(words[0])))
		return false;
	for (; at < regs->rsp + STACK_BYTES; at += size) {
		size = PAGE - at % PAGE;
		if (lien_inject_read(inject, at, words, size))
			return at != regs->rsp;
		for (unsigned i = 0; i < size / sizeof(words[0]); i++) {
			bool near = at + i * sizeof(words[0]) < regs->rsp + ALLOCATOR_BYTES;

			if (words[i] == inject->calls.restore_rt ||
				(near && is_unsafe(inject, words[i], true)))
				return false;
		}
	}
	return true;
}

/* Returns 0; -EAGAIN: try another one, or later. */
static int try_thread(struct lien_inject *inject, struct lien_remote *remote, pid_t tid)
{
	const struct user_regs_struct *regs = &remote->before;
	int err;

	if ((uint32_t)tid == inject->locked)
		return -EAGAIN;
	inject->result.attempts++;
	err = lien_remote_stop(remote, inject, tid);
	/* That thread has ended; the kernel reports it with either of two errors. */
	if (err == -ESRCH || (err == -EPERM && lien_status_of(inject->pid, tid, "VmSize", 10) < 0))
		return -EAGAIN;
	if (err)
		return err;
	if (choose(regs->orig_rax, regs->rsi, regs->rdx, regs->r10) && is_free(inject, regs) &&
		is_libcs(inject, regs->fs_base, tid) &&
		lien_status_of(inject->pid, tid, "Seccomp", 10) <= 0)
		return 0;
	lien_remote_release(remote, NULL);
	return -EAGAIN;
}

static int fail_stop(struct lien_inject *inject, int err)
{
	uint32_t pid = inject->pid;
	char text[16];
	int scope;

	if (err == -EBUSY)
		return lien_inject_fail(inject, err,
			"process %u was stopped meanwhile: let it go on first (kill -CONT %u)", pid,
			pid);
	if (lien_status_of(pid, 0, "TracerPid", 10) > 0)
		return lien_inject_fail(
			inject, -EBUSY, "process %u is traced (a debugger?): end that first", pid);
	if (err != -EPERM)
		return lien_inject_fail(
			inject, err, "cannot stop a thread of process %u: %s", pid, strerror(-err));
	lien_text_read("/proc/sys/kernel/yama/ptrace_scope", text, sizeof(text));
	scope = atoi(text);
	if (scope)
		return lien_inject_fail(inject, err,
			"may not trace process %u: kernel.yama.ptrace_scope is %d; run as root, or "
			"set it to 0",
			pid, scope);
	return lien_inject_fail(inject, err,
		"may not trace process %u: this needs CAP_SYS_PTRACE in its user namespace", pid);
}

/* Stops one of the process's threads at a point where it may call its libc. Returns 0 or -errno; on
 * -ESRCH the caller writes the error line. */
static int stop_thread(struct lien_inject *inject, struct lien_remote *remote)
{
	struct timespec nap = {.tv_nsec = LOOK_NS};
	struct threads threads = {.count = 0};
	int err = -EAGAIN;

	while (err == -EAGAIN) {
		if (lien_inject_over(inject) || look(inject->pid, &threads))
			err = -ESRCH;
		for (unsigned i = 0; i < threads.count && err == -EAGAIN && !threads.vfork; i++)
			err = try_thread(inject, remote, threads.list[i].tid);
		if (err != -EAGAIN)
			break;
		if (lien_inject_late(inject))
			err = -ETIMEDOUT;
		else
			nanosleep(&nap, NULL);
		inject->locked = 0; /* it may have its lock by now */
		/* Do not stop threads too often in vain. */
		if (nap.tv_nsec < LOOK_NS_MAX)
			nap.tv_nsec *= 2;
	}
	if (err == -ETIMEDOUT && threads.vfork)
		lien_inject_fail(inject, err,
			"a thread of process %u is in a vfork() that does not end: try again",
			inject->pid);
	else if (err == -ETIMEDOUT)
		lien_inject_fail(inject, err,
			"none of the %u threads of process %u came to wait where it can be made to "
			"load the library: try again when it is less busy, or start it with `lien "
			"run`",
			threads.all, inject->pid);
	else if (err && err != -ESRCH)
		fail_stop(inject, err);
	return err;
}

/* --- the injection --------------------------------------------------------------------------- */

/* Tries several times if threads wait for locks. Returns 0 if the new thread runs. */
static int start(struct lien_inject *inject, uint64_t *region)
{
	struct lien_remote remote;
	int err = -EDEADLK;

	for (int tries = 0; tries < TRIES && err == -EDEADLK; tries++) {
		err = stop_thread(inject, &remote);
		if (err)
			return err;
		err = lien_inject_start(inject, &remote, region);
		inject->result.thread = inject->locked = remote.tid;
		inject->result.pause_ns = lien_clock_ns() - remote.borrowed_ns;
		if (lien_inject_late(inject))
			break;
	}
	return err;
}

static int inject_now(struct lien_inject *inject)
{
	uint64_t region = 0, again;
	int err;

	err = lien_inject_open(inject);
	if (!err)
		err = lien_inject_present(inject);
	if (err < 0)
		return err;
	inject->result.present = err;
	again = inject->again;
	if (err && !again)
		return 0;
	err = lien_inject_find(inject);
	if (again)
		inject->calls.dlopen = again;
	return err ?: start(inject, &region) ?: lien_inject_load(inject, region, again);
}

/* When a thread ends, the kernel releases its tracees, including those that it could not let go. */
static void work(struct lien_timeout_work *work)
{
	struct lien_inject *inject = (struct lien_inject *)work;
	uint64_t begun = lien_clock_ns();

	inject->deadline_ns = begun + inject->limit_ms * 1000000ull;
	inject->pidfd = work->fds[0];
	inject->library_fd = work->fds[1];
	work->fds_count = 0;
	inject->mem = -1;
	inject->err = inject_now(inject);
	/* The end of the process explains any failure. Its threads may be gone before it is. */
	if (inject->err && inject->mem >= 0 && (inject->err == -ESRCH || !lien_inject_same(inject)))
		inject->err = lien_inject_fail_gone(inject);
	close(inject->library_fd);
	close(inject->pidfd);
	if (inject->mem >= 0)
		close(inject->mem);
	inject->result.total_ns = lien_clock_ns() - begun;
}

static void drop(struct lien_timeout_work *work)
{
	free(work);
}

int lien_inject(uint32_t pid, int pidfd, int library_fd, unsigned limit_ms,
	struct lien_inject_result *result, char *why, size_t size)
{
	struct lien_inject *inject;
	int err;

	inject = calloc(1, sizeof(*inject));
	if (!inject)
		return -ENOMEM;
	inject->work = (struct lien_timeout_work){
		.run = work,
		.drop = drop,
		.fds = {pidfd, library_fd},
		.fds_count = 2,
		.ends_thread = true,
		.await_ms = limit_ms, /* on a busy machine any process is slow at times */
		.more_ms = limit_ms + CLEAR_UP_MS,
	};
	inject->limit_ms = limit_ms;
	inject->pid = pid;
	memset(result, 0, sizeof(*result));
	if (!lien_timeout_run(&inject->work, pid)) {
		snprintf(why, size,
			"process %u keeps whoever looks at its memory waiting, as a file system of "
			"its user's could: start it with `lien run`",
			pid);
		return -ETIMEDOUT;
	}
	*result = inject->result;
	snprintf(why, size, "%s", inject->why);
	err = inject->err;
	free(inject);
	return err;
}
