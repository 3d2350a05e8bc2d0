// SPDX-License-Identifier: BSD-2-Clause
#include "control/driver/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int lien_thread_start(void *(*fn)(void *), void *arg)
{
	sigset_t all, before;
	pthread_attr_t attr;
	pthread_t thread;
	int err = pthread_attr_init(&attr);

	if (err)
		return err;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&thread, &attr, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return err;
}

/* glibc's sigaction() refuses this signal. The kernel's structure on x86-64. */
struct action {
	void (*handler)(int, siginfo_t *, void *);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

static struct action glibc;
static void (*woken)(void);

static int act(const struct action *now, struct action *before)
{
	return syscall(SYS_rt_sigaction, LIEN_CONTROL_SIGNAL, now, before, sizeof(now->mask));
}

/* Signals of BPF's have no sender (SI_KERNEL); glibc's come from this process (SI_TKILL). */
static void handle(int number, siginfo_t *info, void *context)
{
	int saved = errno;

	if (info->si_code != SI_KERNEL) {
		glibc.handler(number, info, context);
		return;
	}
	woken();
	errno = saved;
}

static void *none(void *arg)
{
	return arg;
}

/* Makes glibc install its handler, which it would otherwise do later, in place of ours: by asking
 * for a thread whose stack nobody has room for. */
static void make_glibc_ready(void)
{
	pthread_attr_t attr;
	pthread_t thread;

	if (pthread_attr_init(&attr))
		return;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (!pthread_attr_setstacksize(&attr, 1ul << 60))
		pthread_create(&thread, &attr, none, NULL);
	pthread_attr_destroy(&attr);
}

static bool is_handler(const struct action *action)
{
	return action->handler != (void *)SIG_DFL && action->handler != (void *)SIG_IGN;
}

int lien_signal_take(void (*fn)(void), bool live, uint64_t *handler)
{
	struct action ours;

	if (!live)
		make_glibc_ready();
	if (act(NULL, &glibc) || !is_handler(&glibc) || glibc.handler == handle)
		return -ENOTSUP;
	woken = fn;
	*handler = (uintptr_t)handle;
	ours = glibc;
	ours.handler = handle;
	/* A thread that is held in the handler must carry out a setuid() of another one, which
	 * keeps the lock that pthread_create() needs until all have. */
	ours.flags |= SA_NODEFER;
	/* Alternate stacks are small, and the handler may have a thread to start. In a live program
	 * that thread is there already; and Go, whose own stacks are smaller still, has set this
	 * flag when it began. */
	if (!live)
		ours.flags &= ~(unsigned long)SA_ONSTACK;
	return act(&ours, NULL) ? -errno : 0;
}

void lien_signal_give_back(void)
{
	struct action now;

	/* glibc's handler ignores what glibc has not sent. */
	if (!act(NULL, &now) && now.handler == handle)
		act(&glibc, NULL);
}
