// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "loader/probes/close_later.h"
#include "loader/discover/detached.h"

#define STACK	     (8ul << 20) /* the answer is made on it */
#define LIMIT_MS     40
#define PAGES_PER_MS 4096 /* fork() copies more than that */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static enum { NOBODY, IDLE, ASKED, MADE, GIVEN_UP } state = NOBODY;
static void (*run)(void *arg);
static void *run_arg;
static int go[2]; /* a byte says that the copy is wanted */
static pid_t made;

static void copy(void)
{
	char byte;

	close(go[1]);
	while (read(go[0], &byte, 1) != 1)
		if (errno != EINTR)
			_exit(1);
	close(go[0]);
	run(run_arg);
	_exit(1);
}

static void *serve(void *unused)
{
	pid_t pid;

	(void)unused;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (state != ASKED)
			pthread_cond_wait(&changed, &lock);
		pthread_mutex_unlock(&lock);
		pid = fork();
		if (!pid)
			copy();
		made = pid < 0 ? -errno : pid;
		pthread_mutex_lock(&lock);
		if (state == ASKED) {
			state = MADE;
			pthread_cond_broadcast(&changed);
			continue;
		}
		pthread_mutex_unlock(&lock);
		close(go[0]);
		close(go[1]); /* which it waits for */
		if (pid > 0)
			waitpid(pid, NULL, 0);
		lien_close_later_go_on();
		pthread_mutex_lock(&lock);
		state = IDLE;
	}
	return NULL;
}

static int start(void)
{
	pthread_condattr_t attr;
	sigset_t all, old;
	int err;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = lien_detached_start(STACK, serve, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err)
		state = IDLE;
	return -err;
}

/* When to give up waiting: the larger the agent, the later. */
static struct timespec deadline(void)
{
	unsigned long pages = 0, ms;
	FILE *file = fopen("/proc/self/statm", "re");
	struct timespec at;

	if (file && fscanf(file, "%*u %lu", &pages) != 1)
		pages = 0;
	if (file)
		fclose(file);
	ms = LIMIT_MS + pages / PAGES_PER_MS;
	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_nsec += ms % 1000 * 1000000;
	at.tv_sec += ms / 1000 + at.tv_nsec / 1000000000;
	at.tv_nsec %= 1000000000;
	return at;
}

/* With the lock. Nothing of ours changes meanwhile, so a copy that is made by then is of now. */
static pid_t wait_for_copy(void)
{
	const struct timespec until = deadline();

	while (state == ASKED)
		if (pthread_cond_timedwait(&changed, &lock, &until) == ETIMEDOUT &&
			state == ASKED) {
			state = GIVEN_UP;
			return -EAGAIN;
		}
	state = IDLE;
	close(go[0]);
	if (made > 0 && write(go[1], "", 1) != 1)
		kill(made, SIGKILL);
	close(go[1]);
	if (made < 0)
		lien_close_later_go_on();
	return made;
}

pid_t lien_copy(void (*child)(void *arg), void *arg)
{
	pid_t pid;

	pthread_mutex_lock(&lock);
	if (state == NOBODY)
		start();
	if (state != IDLE || pipe2(go, O_CLOEXEC)) {
		pid = state == IDLE ? -errno : -EBUSY;
		pthread_mutex_unlock(&lock);
		return pid;
	}
	run = child;
	run_arg = arg;
	lien_close_later_hold();
	state = ASKED;
	pthread_cond_broadcast(&changed);
	pid = wait_for_copy();
	pthread_mutex_unlock(&lock);
	return pid;
}

bool lien_copy_busy(void)
{
	bool busy;

	pthread_mutex_lock(&lock);
	busy = state == GIVEN_UP;
	pthread_mutex_unlock(&lock);
	return busy;
}
