// SPDX-License-Identifier: BSD-2-Clause
/*
 * Starts the control thread. Loading the library only installs a signal handler: no thread (it
 * would break unshare -U, and be lost in forked children), no file. Once there is something to
 * control, the agent's BPF program sends that signal to a thread that enters a driver call; the
 * handler then runs at a function's first instruction, where it may do whatever a called function
 * may do. Without an agent that never happens. When the library is put into a live process, the
 * thread that opens it starts the control thread at once.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control/orders/control.h"
#include "control/driver/gate.h"
#include "control/driver/thread.h"
#include "control/driver/translate.h"
#include "control/plain/plain.h"
#include "control/tag/tag.h"

/* Out of the way of programs that count their descriptors from below. */
#define FD_FLOOR 900

__attribute__((visibility("default"))) struct lien_control_state lien_control_state = {
	.version = LIEN_WIRE_VERSION,
	.agent_fd = -1,
};

static int raise_fd(int fd)
{
	int raised = fcntl(fd, F_DUPFD_CLOEXEC, FD_FLOOR);

	if (raised < 0)
		return fd;
	close(fd);
	return raised;
}

struct place {
	int fd;
	uint64_t ino;
	uint64_t agent_ino; /* of the other end */
};

static void replace(const struct place *place);

static void *serve(void *arg)
{
	struct place place = *(struct place *)arg;

	free(arg);
	prctl(PR_SET_NAME, "lien-control");
	lien_control_serve(place.fd, place.ino);
	replace(&place);
	return NULL;
}

static int is_served(void)
{
	const struct lien_control_state *state = &lien_control_state;

	return state->agent_fd >= 0 && lien_control_inode(state->agent_fd) == state->agent_ino;
}

/* Makes two sockets, and the thread that serves one of them, unless that is there or cannot be. */
static void start(void)
{
	struct lien_control_state *state = &lien_control_state;
	const int on = 1;
	struct place *place;
	uint64_t agent_ino;
	int pair[2];

	if (state->pid == (uint32_t)getpid() && is_served())
		return;
	state->agent_fd = -1;
	place = malloc(sizeof(*place));
	if (!place || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		free(place);
		return;
	}
	pair[0] = raise_fd(pair[0]);
	pair[1] = raise_fd(pair[1]);
	setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)); /* tells who sends orders */
	agent_ino = lien_control_inode(pair[0]);
	*place = (struct place){pair[1], lien_control_inode(pair[1]), agent_ino};
	if (lien_thread_start(serve, place)) {
		free(place);
		close(pair[0]);
		close(pair[1]);
		return;
	}
	state->pid = getpid();
	state->agent_ino = agent_ino;
	__atomic_store_n(&state->agent_fd, pair[0], __ATOMIC_RELEASE);
}

static void try_to_start(void)
{
	if (__atomic_exchange_n(&lien_starting, 1, __ATOMIC_ACQUIRE))
		return;
	start();
	__atomic_store_n(&lien_starting, 0, __ATOMIC_RELEASE);
}

#define REPLACE_US 100000

/*
 * The application has closed the sockets. Its next call would start another thread; but if all its
 * threads wait at the gate, none makes a call, and nobody else opens the gate.
 */
static void replace(const struct place *place)
{
	struct lien_control_state *state = &lien_control_state;

	if (!lien_gate_is_shut())
		return;
	if (is_served() && state->agent_ino == place->agent_ino)
		close(state->agent_fd);
	while (lien_gate_is_shut() && !is_served()) {
		try_to_start();
		if (!is_served())
			usleep(REPLACE_US); /* too many files or threads */
	}
}

static void woken(void)
{
	try_to_start();
	lien_gate_wait();
}

static int install(bool live)
{
	int err = lien_signal_take(woken, live, &lien_control_state.handler);

	if (err)
		return err;
	lien_control_state.translate = (uintptr_t)__start_lien_translate;
	lien_control_state.translate_end = (uintptr_t)__stop_lien_translate;
	lien_control_state.tag = lien_tag_offset();
	lien_control_state.signal = LIEN_CONTROL_SIGNAL;
	lien_control_state.gate = lien_gate_futex();
	return 0;
}

static void after_in_child(void)
{
	struct lien_control_state *state = &lien_control_state;

	lien_plain_forked();
	memset(__start_lien_zero_in_child, 0,
		__stop_lien_zero_in_child - __start_lien_zero_in_child);
	state->agent_fd = -1;
	/* The thread that was in start() is not in the child. After END starting stays
	 * forbidden. */
	if (__atomic_load_n(&state->magic, __ATOMIC_ACQUIRE) != LIEN_WIRE_MAGIC_ENDED)
		__atomic_store_n(&lien_starting, 0, __ATOMIC_RELEASE);
}

__attribute__((constructor)) static void load(void)
{
	const bool live = syscall(SYS_gettid) != getpid(); /* a thread made to call dlopen() */

	pthread_atfork(NULL, NULL, after_in_child);
	if (install(live))
		return;
	lien_plain_start();
	if (live)
		start();
	else
		lien_driver_keep();
	__atomic_store_n(&lien_control_state.magic, LIEN_WIRE_MAGIC, __ATOMIC_RELEASE);
}

/*
 * Called instead of dlopen() by a thread made for it (loader/inject/inject.h), when the library is
 * already there: it has ended, or waits for a driver call that would wake it. Returns NULL: it can
 * neither be started nor waits.
 */
static void *again(const char *path, int mode)
{
	uint64_t magic = LIEN_WIRE_MAGIC_ENDED;

	(void)path, (void)mode;
	if (!__atomic_compare_exchange_n(
		    &lien_control_state.magic, &magic, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
		if (magic != LIEN_WIRE_MAGIC)
			return NULL;
		try_to_start();
		return &lien_control_state;
	}
	if (install(true)) {
		__atomic_store_n(
			&lien_control_state.magic, LIEN_WIRE_MAGIC_ENDED, __ATOMIC_RELEASE);
		return NULL;
	}
	lien_plain_start();
	start();
	__atomic_store_n(&lien_starting, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&lien_control_state.magic, LIEN_WIRE_MAGIC, __ATOMIC_RELEASE);
	return &lien_control_state;
}

__attribute__((visibility("default"))) void *(*const lien_control_again)(const char *, int) = again;
