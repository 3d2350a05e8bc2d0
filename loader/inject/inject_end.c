// SPDX-License-Identifier: BSD-2-Clause
/* A library that is at its end in the process: it is begun again, or taken away. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "loader/inject/inject_internal.h"

#define PAGE	    4096
#define RED_ZONE    128
#define STACK_BYTES 65536 /* in which the library's code would be found */
#define THREADS_MAX 4096
#define LOOK_NS	    1000000
#define ROUNDS	    20 /* then those that do not wait are stopped to be looked at, */
#define ROUNDS_MAX  40 /* so often */

/* --- nobody is in it --------------------------------------------------------------------------
 */

static bool is_ours(const struct lien_inject *inject, uint64_t word)
{
	return word >= inject->library->text && word < inject->library->text_end;
}

/* Neither is it there, nor will it return to it: as a caller, or by a signal's frame. Words that
 * were left on the stack may look as if. */
static bool is_clear(const struct lien_inject *inject, uint64_t pc, uint64_t sp)
{
	uint64_t words[PAGE / sizeof(uint64_t)], first = (sp - RED_ZONE) & ~7ull, at;
	size_t size;

	if (is_ours(inject, pc))
		return false;
	for (at = first; at < sp + STACK_BYTES; at += size) {
		size = PAGE - at % PAGE;
		if (lien_inject_read(inject, at, words, size))
			return at > sp; /* the stack's end */
		for (size_t i = 0; i < size / sizeof(words[0]); i++)
			if (is_ours(inject, words[i]))
				return false;
	}
	return true;
}

static bool is_clear_regs(const struct lien_inject *inject, const struct user_regs_struct *regs)
{
	return is_clear(inject, regs->rip, regs->rsp);
}

static ssize_t read_line(
	const struct lien_inject *inject, pid_t tid, const char *file, char *line, size_t size)
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/task/%d/%s", inject->pid, tid, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, line, size - 1);
	line[n < 0 ? 0 : n] = 0;
	close(fd);
	return n < 0 ? -errno : n;
}

/* For something from outside. One that waits for a page may be half-way into a handler. */
static bool is_interruptible(const struct lien_inject *inject, pid_t tid)
{
	char line[256];
	const char *at =
		read_line(inject, tid, "stat", line, sizeof(line)) > 0 ? strrchr(line, ')') : NULL;

	return at && !strncmp(at, ") S", 3);
}

/* While it waits in one and the same system call. 1: clear, 0: not known, -ESRCH: it has ended. */
static int look_waiting(const struct lien_inject *inject, pid_t tid)
{
	char before[256], after[256];
	unsigned long long sp, pc;
	long number;
	ssize_t n;

	n = read_line(inject, tid, "syscall", before, sizeof(before));
	if (n == -ENOENT || n == -ESRCH)
		return -ESRCH;
	if (n < 0 ||
		sscanf(before, "%ld %*x %*x %*x %*x %*x %*x %llx %llx", &number, &sp, &pc) != 3 ||
		number < 0)
		return 0;
	if (!is_interruptible(inject, tid) || !is_clear(inject, pc, sp))
		return 0;
	n = read_line(inject, tid, "syscall", after, sizeof(after));
	return n > 0 && !strcmp(before, after);
}

static int look_at(const struct lien_inject *inject, pid_t tid, bool stop)
{
	bool clear = false;
	int err = look_waiting(inject, tid);

	if (err || !stop)
		return err;
	err = lien_remote_look(inject, tid, is_clear_regs, &clear);
	/* A thread that ends is not there to be traced, either. */
	if (err == -EPERM && lien_status_of(inject->pid, tid, "VmSize", 10) < 0)
		err = -ESRCH;
	return err ? err : clear;
}

struct tids {
	pid_t list[THREADS_MAX];
	unsigned count;
};

/* Those that come later begin in the application's code. */
static int list_threads(struct lien_inject *inject, struct tids *tids)
{
	struct dirent *entry;
	char path[32];
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%u/task", inject->pid);
	tasks = opendir(path);
	if (!tasks)
		return lien_inject_fail_gone(inject);
	tids->count = 0;
	while ((entry = readdir(tasks)))
		if (entry->d_name[0] != '.' && tids->count < THREADS_MAX)
			tids->list[tids->count++] = atoi(entry->d_name);
	closedir(tasks);
	return tids->count < THREADS_MAX
		       ? 0
		       : lien_inject_fail(inject, -E2BIG, "process %u has more than %d threads",
				 inject->pid, THREADS_MAX);
}

/* 0, or -errno: none is to be stopped any more. */
static int look_at_all(struct lien_inject *inject, struct tids *tids, bool stop)
{
	unsigned i, left = 0;
	int found;

	for (i = 0; i < tids->count; i++) {
		found = look_at(inject, tids->list[i], stop);
		if (found < 0 && found != -ESRCH)
			return lien_inject_fail(inject, found,
				"a thread of process %u cannot be looked at: %s", inject->pid,
				strerror(-found));
		if (!found)
			tids->list[left++] = tids->list[i];
	}
	tids->count = left;
	return 0;
}

static int wait_for_last(struct lien_inject *inject)
{
	const struct timespec nap = {.tv_nsec = LIEN_STUB_NAP_NS};

	while (inject->library->thread && lien_inject_thread_of(inject, inject->library->thread)) {
		if (lien_inject_over(inject))
			return lien_inject_fail_gone(inject);
		if (lien_inject_late(inject))
			return lien_inject_fail(inject, -ETIMEDOUT,
				"the control thread of process %u does not end", inject->pid);
		nanosleep(&nap, NULL);
	}
	return 0;
}

int lien_inject_clear(struct lien_inject *inject)
{
	const struct timespec nap = {.tv_nsec = LOOK_NS};
	struct tids *tids = malloc(sizeof(*tids));
	int err = tids ? wait_for_last(inject) : -ENOMEM, round;

	if (!err)
		err = list_threads(inject, tids);
	for (round = 0; !err && round < ROUNDS_MAX; round++) {
		err = look_at_all(inject, tids, round >= ROUNDS);
		if (err || !tids->count)
			break;
		nanosleep(&nap, NULL);
	}
	if (!err && tids->count)
		err = lien_inject_fail(inject, -EBUSY,
			"thread %d of process %u may be in the control library", tids->list[0],
			inject->pid);
	free(tids);
	return err;
}

/* --- what the new thread does ------------------------------------------------------------------
 */

int lien_inject_again(struct lien_inject *inject, uint64_t region)
{
	uint32_t go = LIEN_STUB_GO;
	struct lien_remote_words words = {LIEN_STUB_AT(region, word), &go, sizeof(go)};
	struct lien_stub stub = {.tid = 0};
	int err;

	err = lien_inject_wait_for(inject, region, LIEN_STUB_READY, &stub);
	if (!err)
		err = lien_inject_tell(inject, &stub, &words, 1);
	if (!err)
		err = lien_inject_wait_for(inject, region, LIEN_STUB_DONE, &stub);
	if (err)
		return lien_inject_give_up(inject, region, &stub, err);
	if (stub.fd < 0)
		err = lien_inject_fail(inject, stub.fd == -EMFILE ? -EAGAIN : stub.fd,
			"process %u cannot open another file: %s", inject->pid, strerror(-stub.fd));
	else if (!stub.handle)
		err = lien_inject_fail(inject, -EAGAIN,
			"process %u has no real-time signal left for the control library",
			inject->pid);
	lien_inject_see_off(inject, region, &stub, LIEN_STUB_GO);
	return err;
}

int lien_inject_unload(struct lien_inject *inject, uint64_t region)
{
	uint32_t stop = LIEN_STUB_STOP; /* load nothing */
	struct lien_remote_words words = {LIEN_STUB_AT(region, word), &stop, sizeof(stop)};
	struct lien_stub stub = {.tid = 0};
	int err;

	err = lien_inject_wait_for(inject, region, LIEN_STUB_READY, &stub);
	if (!err)
		err = lien_inject_tell(inject, &stub, &words, 1);
	if (!err)
		err = lien_inject_wait_for(inject, region, LIEN_STUB_DONE, &stub);
	if (err)
		return lien_inject_give_up(inject, region, &stub, err);
	lien_inject_see_off(inject, region, &stub, LIEN_STUB_STOP);
	err = lien_inject_find_control(inject);
	if (!err && inject->control)
		err = lien_inject_fail(inject, -EBUSY,
			"process %u keeps the control library: something else has opened it",
			inject->pid);
	return err;
}
