/* SPDX-License-Identifier: BSD-2-Clause */
/* How a program is started with the control library in it. */
#ifndef LIEN_TOOLS_PRELOAD_H
#define LIEN_TOOLS_PRELOAD_H

#include <stddef.h>

#define LIEN_CONTROL_NAME "liblien-control.so"

/*
 * The absolute path of the control library: $LIEN_CONTROL, or next to this program, or in
 * ../lib/lien of that. -ENOENT: it is in none; -EINVAL: LD_PRELOAD can't hold such a path. On
 * failure `path` has the place to name to the user.
 */
int lien_preload_find(char *path, size_t size);

/* Puts it at the front of LD_PRELOAD of this process's environment. Not 0 after a message. */
int lien_preload_set(const char *command);

/*
 * execvp(). When that fails: a message, and the exit code that a shell has for it, 127 or 126.
 */
int lien_preload_exec(const char *command, char **argv);

#endif
