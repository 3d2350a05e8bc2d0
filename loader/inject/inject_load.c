// SPDX-License-Identifier: BSD-2-Clause
/* Loads the library in the new thread, while the application continues. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <lien/wire.h>
#include <lien/clock.h>
#include "loader/inject/inject_internal.h"

#define CLEAR_UP_NS  (1000 * 1000000ull)
#define CHUNK	     65536
#define LISTINGS     8
#define MEMFD_PATH   "/memfd:" LIEN_INJECT_MEMFD
#define LIBRARY_NAME "liblien-control.so"
/* A spelling that no application uses, at least as long as the name that replaces it. */
#define FD_PATH "/proc/self/fd/././"

_Static_assert(sizeof(FD_PATH) >= sizeof(LIBRARY_NAME), "the name fits");

/* The public beginning (<link.h>) of glibc's struct link_map; a dlopen() handle points to it. */
struct link_map_head {
	uint64_t address, name;
};

int lien_inject_present(struct lien_inject *inject)
{
	struct lien_control_state state;
	int err = lien_inject_find_control(inject);

	if (err || !inject->control)
		return err;
	if (lien_inject_read(inject, inject->control, &state, sizeof(state)))
		return lien_inject_fail_gone(inject);
	if (state.magic == LIEN_WIRE_MAGIC_ENDED && state.version == LIEN_WIRE_VERSION &&
		inject->again)
		return 0;
	if (state.magic != LIEN_WIRE_MAGIC && state.magic != LIEN_WIRE_MAGIC_ENDED)
		return lien_inject_fail(inject, -EBUSY,
			"process %u has a control library that has not started: it is being "
			"loaded, or its C library is not glibc",
			inject->pid);
	if (state.version != LIEN_WIRE_VERSION || state.magic == LIEN_WIRE_MAGIC_ENDED)
		return lien_inject_fail(inject, -EPROTO,
			"process %u has a control library of another version (%u, not %u): "
			"restart it",
			inject->pid, state.version, LIEN_WIRE_VERSION);
	return 1;
}

/* Waits until the new thread has reached that step. -ESRCH, -ETIMEDOUT. */
static int wait_for(
	struct lien_inject *inject, uint64_t region, uint32_t step, struct lien_stub *stub)
{
	const struct timespec nap = {.tv_nsec = LIEN_STUB_NAP_NS};

	for (;;) {
		if (lien_inject_over(inject))
			return lien_inject_fail_gone(inject);
		if (lien_inject_read(inject, region + LIEN_STUB_CODE, stub, sizeof(*stub)))
			/* The thread may have stopped waiting for us. */
			return lien_inject_same(inject) ? -ETIMEDOUT
							: lien_inject_fail_gone(inject);
		if (stub->step >= step)
			return 0;
		if (lien_inject_late(inject))
			return -ETIMEDOUT;
		nanosleep(&nap, NULL);
	}
}

static uint32_t look_for_thread(const struct lien_inject *inject, uint32_t inner)
{
	struct dirent *entry;
	uint32_t tid, found = 0;
	char path[32];
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%u/task", inject->pid);
	tasks = opendir(path);
	while (tasks && !found && (entry = readdir(tasks))) {
		tid = strtoul(entry->d_name, NULL, 10);
		if (tid && lien_status_of(inject->pid, tid, "NSpid", 10) == inner)
			found = tid;
	}
	if (tasks)
		closedir(tasks);
	return found;
}

/* Finds a thread of the process by its number there; 0: none. A list read while threads before it
 * end leaves threads out. */
static uint32_t thread_of(const struct lien_inject *inject, uint32_t inner)
{
	uint32_t found = 0;

	if (lien_status_of(inject->pid, inner, "NSpid", 10) == inner)
		return inner;
	for (int tries = 0; tries < LISTINGS && !found; tries++)
		found = look_for_thread(inject, inner);
	return found;
}

/* Writes these words for the new thread, which must have reported its number. -ESRCH,
 * -ETIMEDOUT. */
static int write_words(struct lien_inject *inject, const struct lien_stub *stub,
	const struct lien_remote_words *words, unsigned count)
{
	const struct timespec nap = {.tv_nsec = LIEN_STUB_NAP_NS};
	int err;

	if (!inject->helper)
		inject->helper = thread_of(inject, stub->tid);
	if (!inject->helper)
		return -ESRCH;
	do {
		err = lien_remote_write_words(inject, inject->helper, stub->tid, words, count);
		if (err == -EBUSY)
			nanosleep(&nap, NULL);
	} while (err == -EBUSY && !lien_inject_late(inject));
	return err == -EBUSY ? -ETIMEDOUT : err;
}

/*
 * Takes the file that the process claims is its memfd. The claim may be false; so the file is not
 * reopened with our privileges but used as the process has it open, and must be a memfd with the
 * name that we gave it.
 */
static int take_memfd(struct lien_inject *inject, int fd)
{
	int taken = syscall(SYS_pidfd_getfd, inject->pidfd, fd, 0);
	char path[64], target[64];
	ssize_t n;

	if (taken < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", taken);
	n = readlink(path, target, sizeof(target) - 1);
	target[n < 0 ? 0 : n] = 0;
	if (!strncmp(target, MEMFD_PATH, strlen(MEMFD_PATH)) && fcntl(taken, F_GET_SEALS) >= 0)
		return taken;
	close(taken);
	return -EBADF;
}

static int copy_library(struct lien_inject *inject, int fd)
{
	ssize_t n = 0, written = 0;
	char *bytes;
	off_t at;
	int to, err;

	to = take_memfd(inject, fd);
	if (to < 0)
		return to;
	bytes = malloc(CHUNK);
	err = bytes ? 0 : -ENOMEM;
	for (at = 0; !err; at += n) {
		n = pread(inject->library_fd, bytes, CHUNK, at);
		if (n <= 0)
			break;
		written = pwrite(to, bytes, n, at);
		if (written != n)
			err = written < 0 ? -errno : -ENOSPC;
	}
	if (n < 0)
		err = -errno;
	free(bytes);
	close(to);
	return err;
}

/* The handle's name was a path that will later lead to another file, or to none. */
static void rename_library(struct lien_inject *inject, const struct lien_stub *stub)
{
	struct lien_remote_words words = {.from = LIBRARY_NAME, .size = sizeof(LIBRARY_NAME)};
	struct link_map_head head;
	char name[sizeof(stub->path)];

	if (lien_inject_read(inject, stub->handle, &head, sizeof(head)) ||
		lien_inject_read(inject, head.name, name, strlen(stub->path) + 1) ||
		strcmp(name, stub->path))
		return;
	words.address = head.name;
	write_words(inject, stub, &words, 1);
}

static int fail_load(struct lien_inject *inject, const struct lien_stub *stub)
{
	char text[200] = "";
	ssize_t n = stub->error ? pread(inject->mem, text, sizeof(text) - 1, stub->error) : 0;

	text[n < 0 ? 0 : n] = 0;
	text[strcspn(text, "\n")] = 0;
	for (char *c = text; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return lien_inject_fail(inject, -ENOEXEC, "process %u cannot load the control library: %s",
		inject->pid, *text ? text : "its loader does not say why");
}

static int loaded(struct lien_inject *inject, const struct lien_stub *stub)
{
	int err;

	if (stub->fd < 0)
		return lien_inject_fail(inject, stub->fd == -EMFILE ? -EAGAIN : stub->fd,
			"process %u cannot open another file: %s", inject->pid,
			strerror(-stub->fd));
	if (!stub->handle)
		return fail_load(inject, stub);
	rename_library(inject, stub);
	err = lien_inject_present(inject);
	if (err > 0)
		return 0;
	if (err == -EBUSY || !err)
		return lien_inject_fail(inject, -EAGAIN,
			"the control library has not started in process %u: its C library is not "
			"glibc",
			inject->pid);
	return err;
}

/* Waits until the new thread has unmapped its memory and ended. */
static void see_off(
	struct lien_inject *inject, uint64_t region, const struct lien_stub *stub, uint32_t last)
{
	struct lien_remote_words words = {LIEN_STUB_AT(region, last), &last, sizeof(last)};
	uint64_t end = lien_clock_ns() + CLEAR_UP_NS;
	const struct timespec nap = {.tv_nsec = LIEN_STUB_NAP_NS};
	uint32_t tid;
	char byte;

	write_words(inject, stub, &words, 1);
	tid = inject->helper;
	while (!lien_inject_over(inject) && lien_clock_ns() < end &&
		(!lien_inject_read(inject, region, &byte, 1) ||
			(tid && lien_status_of(inject->pid, tid, "NSpid", 10) == stub->tid)))
		nanosleep(&nap, NULL);
}

/* A library that has begun to serve can no longer be removed, nor one whose state is unknown. */
static bool may_serve(int err)
{
	return err == -EPROTO || err == -EMFILE || err == -ENFILE || err == -ENOMEM;
}

/* Gives up on a thread that was too slow: it stops if it has not begun. Returns err. */
static int give_up(
	struct lien_inject *inject, uint64_t region, const struct lien_stub *stub, int err)
{
	uint32_t go = LIEN_STUB_GO, stop = LIEN_STUB_STOP;
	/* It does not close an fd that may be reused by then; it loads nothing if it has not begun.
	 * Even without these words it ends when it has waited long enough. */
	const struct lien_remote_words words[] = {{LIEN_STUB_AT(region, last), &go, sizeof(go)},
		{LIEN_STUB_AT(region, word), &stop, sizeof(stop)}};

	if (err == -ESRCH)
		return lien_inject_fail_gone(inject);
	write_words(inject, stub, words, stub->word ? 1 : 2);
	return lien_inject_fail(inject, err,
		"the loader of process %u is busy: the control library may be there when it is "
		"done; look again",
		inject->pid);
}

/* Writes the new thread's instructions and reads its answers. */
int lien_inject_load(struct lien_inject *inject, uint64_t region)
{
	uint32_t go = LIEN_STUB_GO, stop = LIEN_STUB_STOP;
	struct lien_stub stub = {.tid = 0};
	struct lien_remote_words words[] = {
		{LIEN_STUB_AT(region, path), stub.path, sizeof(stub.path)},
		{LIEN_STUB_AT(region, word), &go, sizeof(go)}};
	int err, copied = 0;

	err = wait_for(inject, region, LIEN_STUB_READY, &stub);
	if (!err && stub.fd >= 0) {
		snprintf(stub.path, sizeof(stub.path), FD_PATH "%d", stub.fd);
		copied = copy_library(inject, stub.fd);
		if (copied)
			words[1].from = &stop;
		err = write_words(inject, &stub, words, 2);
		if (!err)
			err = wait_for(inject, region, LIEN_STUB_DONE, &stub);
	}
	if (err)
		return give_up(inject, region, &stub, err);
	err = copied ? lien_inject_fail(inject, copied,
			       "cannot give the control library to process %u: %s", inject->pid,
			       strerror(-copied))
		     : loaded(inject, &stub);
	see_off(inject, region, &stub, err && !may_serve(err) ? LIEN_STUB_STOP : LIEN_STUB_GO);
	return err;
}

int lien_inject_again(struct lien_inject *inject, uint64_t region)
{
	uint32_t go = LIEN_STUB_GO;
	struct lien_remote_words words = {LIEN_STUB_AT(region, word), &go, sizeof(go)};
	struct lien_stub stub = {.tid = 0};
	int err;

	err = wait_for(inject, region, LIEN_STUB_READY, &stub);
	if (!err)
		err = write_words(inject, &stub, &words, 1);
	if (!err)
		err = wait_for(inject, region, LIEN_STUB_DONE, &stub);
	if (err)
		return give_up(inject, region, &stub, err);
	if (stub.fd < 0)
		err = lien_inject_fail(inject, stub.fd == -EMFILE ? -EAGAIN : stub.fd,
			"process %u cannot open another file: %s", inject->pid, strerror(-stub.fd));
	else if (!stub.handle)
		err = lien_inject_fail(inject, -EAGAIN,
			"the control library does not start again in process %u", inject->pid);
	see_off(inject, region, &stub, LIEN_STUB_GO);
	return err;
}
