/* SPDX-License-Identifier: BSD-2-Clause */
/* A command that a command of ours starts and waits for, with the control library in it. */
#ifndef LIEN_TOOLS_CHILD_H
#define LIEN_TOOLS_CHILD_H

#include <signal.h>
#include <sys/types.h>

/*
 * Starts argv with the signal mask `mask`. 0, or the exit code for a command that couldn't be
 * started (127: not found), after a message. Call lien_preload_set() before.
 */
int lien_child_start(const char *command, char **argv, const sigset_t *mask, pid_t *pid);

/* One line on stderr unless the wait status is a success. */
void lien_child_warn(const char *command, const char *program, int status);

#endif
