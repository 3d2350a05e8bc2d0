// SPDX-License-Identifier: BSD-2-Clause
/*
 * How the control thread comes to be. Loading the library only installs a handler for a real-time
 * signal: no thread (it would break unshare -U, and be lost in forked children), no file. The
 * agent's BPF program sends that signal to a thread that enters a driver call, once there is
 * something to control; the handler then runs at a function's first instruction, where it may do
 * whatever a called function may do. Without an agent nothing ever happens. A library that is put
 * into a live process is opened by a thread made for that, which starts the control thread at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control/control.h"
#include "control/gate.h"
#include "control/translate.h"

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
};

static void *serve(void *arg)
{
	struct place place = *(struct place *)arg;

	free(arg);
	prctl(PR_SET_NAME, "lien-control");
	/* A child of fork() that has the lock of a thread it does not have never gets here. */
	lien_control_serve(place.fd, place.ino);
	return NULL;
}

/* Two sockets and the thread that serves one of them. -1: not now. */
static int start_thread(int pair[2])
{
	struct place *place = malloc(sizeof(*place));
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	if (!place || pthread_attr_init(&attr)) {
		free(place);
		return -1;
	}
	place->fd = pair[1];
	place->ino = lien_control_inode(pair[1]);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&thread, &attr, serve, place);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	if (err)
		free(place);
	return err ? -1 : 0;
}

static void start(void)
{
	struct lien_control_state *state = &lien_control_state;
	const int on = 1;
	int pair[2];

	if (state->agent_fd >= 0 && state->pid == (uint32_t)getpid() &&
		lien_control_inode(state->agent_fd) == state->agent_ino)
		return;
	state->agent_fd = -1;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return;
	pair[0] = raise_fd(pair[0]);
	pair[1] = raise_fd(pair[1]);
	setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)); /* who gives orders */
	if (start_thread(pair)) {
		close(pair[0]);
		close(pair[1]);
		return;
	}
	state->pid = getpid();
	state->agent_ino = lien_control_inode(pair[0]);
	__atomic_store_n(&state->agent_fd, pair[0], __ATOMIC_RELEASE);
}

static void woken(int signal)
{
	static int starting;
	int saved = errno;

	(void)signal;
	if (!__atomic_exchange_n(&starting, 1, __ATOMIC_ACQUIRE)) {
		start();
		__atomic_store_n(&starting, 0, __ATOMIC_RELEASE);
	}
	lien_gate_wait();
	errno = saved;
}

__attribute__((constructor)) static void load(void)
{
	struct sigaction old, action = {.sa_handler = woken, .sa_flags = SA_RESTART};
	int signal;

	/* From the end: programs that use real-time signals start at SIGRTMIN. */
	for (signal = SIGRTMAX - 2; signal > SIGRTMIN; signal--)
		if (!sigaction(signal, NULL, &old) && old.sa_handler == SIG_DFL)
			break;
	if (signal == SIGRTMIN)
		return;
	sigemptyset(&action.sa_mask);
	if (sigaction(signal, &action, NULL))
		return;
	lien_control_state.translate = (uintptr_t)__start_lien_translate;
	lien_control_state.translate_end = (uintptr_t)__stop_lien_translate;
	lien_control_state.signal = signal;
	lien_control_state.handler = (uintptr_t)woken;
	if (syscall(SYS_gettid) != getpid())
		start();
	__atomic_store_n(&lien_control_state.magic, LIEN_WIRE_MAGIC, __ATOMIC_RELEASE);
}
