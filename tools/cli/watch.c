// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/watch.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/interrupt.h"
#include "tools/cli/options.h"
#include "tools/text/json_text.h"

#define CLEAR "\033[H\033[2J" /* the screen, not what has scrolled off it */

int lien_watch(unsigned long seconds, int (*show)(void *context), void *context)
{
	const struct timespec pause = {.tv_sec = seconds};
	bool terminal = isatty(STDOUT_FILENO), first = true;
	sigset_t waiting;
	int code;

	if (!seconds)
		return show(context);
	lien_interrupt_catch(&waiting);
	lien_json_lines();
	do {
		if (terminal)
			fputs(CLEAR, stdout);
		else if (!first && !lien_json_used())
			putchar('\n');
		first = false;
		code = show(context);
		if (fflush(stdout)) /* main() reports it */
			return LIEN_EXIT_FAILURE;
	} while (!code && ppoll(NULL, 0, &pause, &waiting) == 0 && !lien_interrupted());
	return code;
}
