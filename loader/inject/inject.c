// SPDX-License-Identifier: BSD-2-Clause
#include "loader/inject/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/clock.h>
#include "loader/inject/inject_internal.h"
#include "loader/discover/timeout.h"

#define TRIES	    3
#define CLEAR_UP_MS 3000 /* work that has begun may end after the limit */

static int open_process(struct lien_inject *inject)
{
	int err, found;

	if (inject->pidfd >= 0)
		return lien_inject_over(inject) ? lien_inject_fail_gone(inject) : 0;
	inject->pidfd = syscall(SYS_pidfd_open, inject->pid, 0);
	if (inject->pidfd >= 0)
		return 0;
	err = -errno;
	lien_inject_fail(inject, err, "cannot open process %u: %s", inject->pid, strerror(-err));
	if (err == -EMFILE || err == -ENFILE)
		return err;
	/* This check tells threads from processes, for which kernels report various errors. */
	found = lien_inject_check(inject);
	return found ? found : err;
}

static int open_memory(struct lien_inject *inject)
{
	char path[32];

	inject->auxv = lien_inject_auxv(inject->pid);
	snprintf(path, sizeof(path), "/proc/%u/mem", inject->pid);
	inject->mem = open(path, O_RDONLY | O_CLOEXEC);
	if (inject->mem >= 0)
		return 0;
	return lien_inject_over(inject)
		       ? lien_inject_fail_gone(inject)
		       : lien_inject_fail(inject, -errno,
				 "may not open the memory of process %u: %s; run as root, "
				 "or with CAP_SYS_PTRACE (and see kernel.yama.ptrace_scope)",
				 inject->pid, strerror(errno));
}

static void fill_stub(const struct lien_inject *inject, const struct lien_remote *remote,
	uint64_t region, struct lien_stub *stub)
{
	memset(stub, 0, sizeof(*stub));
	stub->pthread_create = inject->pthread_create;
	stub->pthread_detach = inject->pthread_detach;
	stub->dlopen = inject->dlopen;
	stub->dlclose = inject->dlclose;
	stub->dlerror = inject->dlerror;
	stub->errno_location = inject->errno_location;
	stub->munmap = inject->munmap;
	stub->mode = inject->dlopen_mode;
	stub->restore_rt = inject->restore_rt;
	stub->frame = remote->frame + sizeof(uint64_t);
	stub->start = region + LIEN_STUB_LABEL(lien_stub_start);
	stub->region = region;
	stub->region_size = LIEN_STUB_REGION;
	stub->nap[1] = LIEN_STUB_NAP_NS;
	stub->created = -1;
	strcpy(stub->name, LIEN_INJECT_MEMFD);
}

static int fail_region(struct lien_inject *inject, int err, const char *what)
{
	return lien_inject_fail(
		inject, err, "process %u cannot map %s: %s", inject->pid, what, strerror(-err));
}

static int fill_region(struct lien_inject *inject, struct lien_remote *remote, uint64_t region)
{
	size_t code = LIEN_STUB_LABEL(lien_stub_end);
	struct lien_stub stub;
	int err;

	fill_stub(inject, remote, region, &stub);
	err = lien_remote_write(remote, region, lien_stub_code, code);
	return err ? err : lien_remote_write(remote, region + LIEN_STUB_CODE, &stub, sizeof(stub));
}

/* Makes the thread map memory for the code and its data. Returns 0 or -errno. */
static int make_region(
	struct lien_inject *inject, struct lien_remote *remote, uint64_t *region, bool *failed)
{
	long result;
	int err;

	result = lien_remote_syscall(
		remote, failed, SYS_mmap, 0, LIEN_STUB_REGION, PROT_READ | PROT_WRITE);
	if (result < 0)
		return fail_region(inject, result, "memory");
	*region = result;
	err = fill_region(inject, remote, *region);
	if (!err)
		err = lien_remote_syscall(remote, failed, SYS_mprotect, *region, LIEN_STUB_CODE,
			PROT_READ | PROT_EXEC);
	if (!err)
		return 0;
	if (!*failed)
		lien_remote_syscall(remote, failed, SYS_munmap, *region, LIEN_STUB_REGION, 0);
	return fail_region(inject, err, "code");
}

static int fail_create(struct lien_inject *inject, int err, int created)
{
	uint32_t pid = inject->pid;

	if (err == -ETIMEDOUT)
		return lien_inject_fail(
			inject, err, "process %u was too slow to start a thread: try again", pid);
	if (err == -EDEADLK)
		return lien_inject_fail(inject, err,
			"a thread of process %u waits for a lock of its libc: try again", pid);
	if (err)
		return lien_inject_fail(inject, err,
			"process %u could not start a thread: %s; start it with `lien run`", pid,
			strerror(-err));
	return lien_inject_fail(inject, -created,
		"process %u has no room for another thread (%s): raise its limit of processes "
		"(ulimit -u), of memory (ulimit -v) or its cgroup's pids.max",
		pid, strerror(created));
}

/*
 * Makes the thread start the new one, and restores its registers in any case. -EDEADLK: it waited
 * for a lock, and no trace is left.
 */
static int start_thread(
	struct lien_inject *inject, struct lien_remote *remote, uint64_t *region, bool *failed)
{
	struct lien_stub stub = {.created = -1};
	int err;

	err = make_region(inject, remote, region, failed);
	if (err)
		return err;
	err = lien_remote_run(remote, *region, *region + LIEN_STUB_REGION, *region + LIEN_STUB_CODE,
		*region + LIEN_STUB_LABEL(lien_stub_created));
	*failed = err && err != -EDEADLK && err != -EFAULT;
	if (!*failed && lien_inject_read(inject, *region + LIEN_STUB_CODE, &stub, sizeof(stub)))
		err = -EFAULT;
	if (!*failed && (stub.tid || !stub.created)) /* the new thread runs: it needs that memory */
		return 0;
	if (!*failed)
		lien_remote_syscall(remote, failed, SYS_munmap, *region, LIEN_STUB_REGION, 0);
	return fail_create(inject, err, stub.created);
}

/* Borrows one thread and returns it. Returns 0 if the new thread runs. */
static int borrow(struct lien_inject *inject, uint64_t *region)
{
	struct lien_inject_result *result = inject->result;
	struct lien_remote *remote = calloc(1, sizeof(*remote));
	const uint32_t left = 1;
	struct lien_remote_words words = {.from = &left, .size = sizeof(left)};
	bool failed = false;
	int err;

	if (!remote)
		return lien_inject_fail(inject, -ENOMEM, "out of memory");
	err = lien_inject_stop(inject, remote);
	if (err)
		goto out;
	if (!lien_inject_same(inject)) {
		err = lien_inject_fail_gone(inject);
	} else {
		err = lien_remote_borrow(remote);
		if (err)
			lien_inject_fail(inject, err,
				"a thread of process %u has no room in its stack: try again",
				inject->pid);
	}
	if (!err)
		err = start_thread(inject, remote, region, &failed);
	words.address = LIEN_STUB_AT(*region, left);
	if ((failed || lien_remote_release(remote, err ? NULL : &words)) && !err)
		err = lien_inject_fail_gone(inject);
	result->thread = remote->tid;
	result->pause_ns = lien_clock_ns() - remote->borrowed_ns;
out:
	free(remote);
	return err;
}

/* Tries several times if threads wait for locks. Returns 0 if the new thread runs. */
static int start(struct lien_inject *inject, uint64_t *region)
{
	int err = -EDEADLK;

	for (int tries = 0; tries < TRIES; tries++) {
		err = borrow(inject, region);
		if (err != -EDEADLK || lien_inject_late(inject))
			break;
		inject->locked = inject->result->thread;
	}
	return err;
}

static int open_all(struct lien_inject *inject)
{
	int err = open_process(inject);

	if (!err)
		err = lien_inject_check(inject);
	return err ? err : open_memory(inject);
}

static int inject_now(struct lien_inject *inject)
{
	uint64_t region = 0, again;
	int err;

	err = open_all(inject);
	if (!err)
		err = lien_inject_present(inject);
	if (err < 0)
		return err;
	inject->result->present = err;
	again = inject->again;
	if (err && !again)
		return 0;
	err = lien_inject_find(inject);
	if (err)
		return err;
	if (again)
		inject->dlopen = again;
	err = start(inject, &region);
	if (err)
		return err;
	return again ? lien_inject_again(inject, region) : lien_inject_load(inject, region);
}

/* An injection, with all data of the thread that carries it out. */
struct job {
	struct lien_timeout_work work;
	struct lien_inject inject;
	struct lien_inject_result result;
	char why[300];
	unsigned limit_ms;
	bool has_pidfd;
	int err;
};

/* When a thread ends, the kernel releases its tracees, including those that it could not let go. */
static void work(struct lien_timeout_work *work)
{
	struct job *job = (struct job *)work;
	struct lien_inject *inject = &job->inject;
	uint64_t begun = lien_clock_ns();

	inject->deadline_ns = begun + job->limit_ms * 1000000ull;
	inject->pidfd = job->has_pidfd ? work->fds[0] : -1;
	inject->library_fd = work->fds_count > job->has_pidfd ? work->fds[job->has_pidfd] : -1;
	work->fds_count = 0;
	inject->mem = -1;
	job->err = inject_now(inject);
	/* The end of the process explains any failure. Its threads may be gone before it is. */
	if (job->err && inject->mem >= 0 && (job->err == -ESRCH || !lien_inject_same(inject)))
		job->err = lien_inject_fail_gone(inject);
	if (inject->library_fd >= 0)
		close(inject->library_fd);
	if (inject->pidfd >= 0)
		close(inject->pidfd);
	if (inject->mem >= 0)
		close(inject->mem);
	job->result.total_ns = lien_clock_ns() - begun;
}

static void drop(struct lien_timeout_work *work)
{
	free(work);
}

static struct job *job_new(uint32_t pid, int pidfd, int library_fd, unsigned limit_ms)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->work.run = work;
	job->work.drop = drop;
	job->work.ends_thread = true;
	job->work.more_ms = limit_ms + CLEAR_UP_MS;
	job->has_pidfd = pidfd >= 0;
	if (pidfd >= 0)
		job->work.fds[job->work.fds_count++] = pidfd;
	if (library_fd >= 0)
		job->work.fds[job->work.fds_count++] = library_fd;
	job->limit_ms = limit_ms;
	job->inject.pid = pid;
	job->inject.result = &job->result;
	job->inject.why = job->why;
	job->inject.why_size = sizeof(job->why);
	return job;
}

static int run(struct job *job, struct lien_inject_result *result, char *why, size_t size)
{
	uint32_t pid = job->inject.pid;
	int err;

	memset(result, 0, sizeof(*result));
	if (!lien_timeout_run(&job->work, pid)) {
		snprintf(why, size,
			"process %u keeps whoever looks at its memory waiting, as a file system of "
			"its user's could: start it with `lien run`",
			pid);
		return -ETIMEDOUT;
	}
	*result = job->result;
	snprintf(why, size, "%s", job->why);
	err = job->err;
	free(job);
	return err;
}

int lien_inject(uint32_t pid, int pidfd, int library_fd, unsigned limit_ms,
	struct lien_inject_result *result, char *why, size_t size)
{
	struct job *job;

	/* On a busy machine any process is slow at times. */
	lien_timeout_await(pid, limit_ms);
	job = job_new(pid, pidfd, library_fd, limit_ms);
	return job ? run(job, result, why, size) : -ENOMEM;
}
