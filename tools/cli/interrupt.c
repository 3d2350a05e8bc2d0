// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/interrupt.h"

#include <stddef.h>

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
