// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/interrupt.h"

#include <stddef.h>
#include <sys/signalfd.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void note(int number)
{
	(void)number;
	interrupted = 1;
}

void lien_interrupt_catch(sigset_t *waiting)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	const struct sigaction action = {.sa_handler = note};
	sigset_t blocked;
	size_t i;

	sigemptyset(&blocked);
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		sigaddset(&blocked, numbers[i]);
		sigaction(numbers[i], &action, NULL);
	}
	sigprocmask(SIG_BLOCK, &blocked, waiting);
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		sigdelset(waiting, numbers[i]);
}

bool lien_interrupted(void)
{
	return interrupted;
}

int lien_interrupt_open(sigset_t *before)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, before);
	return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

bool lien_interrupt_take(int fd)
{
	struct signalfd_siginfo info;

	return read(fd, &info, sizeof(info)) == sizeof(info);
}

void lien_interrupt_close(int fd, const sigset_t *before)
{
	if (fd >= 0)
		close(fd);
	sigprocmask(SIG_SETMASK, before, NULL);
}
