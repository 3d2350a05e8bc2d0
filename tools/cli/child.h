/* SPDX-License-Identifier: BSD-2-Clause */
/* Starts a command with the control library in it, and waits for it. */
#ifndef LIEN_TOOLS_CHILD_H
#define LIEN_TOOLS_CHILD_H

#include <signal.h>
#include <sys/types.h>

/*
 * Starts argv with the signal mask `mask`. Returns 0, or, after a message, the exit code for a
 * command that could not be started (127: not found). Call lien_preload_set() before.
 */
int lien_child_start(const char *command, char **argv, const sigset_t *mask, pid_t *pid);

/* Prints a line on stderr unless the wait status is a success. Returns the exit code that passes it
 * on: the program's, or, as shells do, 128 and the signal's number. */
int lien_child_code(const char *command, const char *program, int status);

#endif
