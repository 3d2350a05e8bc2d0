/* SPDX-License-Identifier: BSD-2-Clause */
/* --watch: a command's output again and again. */
#ifndef LIEN_TOOLS_WATCH_H
#define LIEN_TOOLS_WATCH_H

/* clang-format off */
#define LIEN_WATCH_OPTION(seconds) \
	{"watch", LIEN_OPTION_EVERY, seconds, "SECONDS", \
		"repeat every second, or every SECONDS, until Ctrl-C", 86400}
/* clang-format on */

/*
 * Calls show() once, or every so many seconds until Ctrl-C, each time on a cleared terminal; with
 * --json, each result is then one line. A failure ends it. Returns the exit code.
 */
int lien_watch(unsigned long seconds, int (*show)(void *context), void *context);

#endif
