/* SPDX-License-Identifier: BSD-2-Clause */
/* Starts programs with the control library in them. */
#ifndef LIEN_TOOLS_PRELOAD_H
#define LIEN_TOOLS_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>

#define LIEN_CONTROL_NAME "liblien-control.so"
#define LIEN_SAVER	  "torch_memory_saver"

/* Finds the directory of this program's file. */
bool lien_own_directory(char *directory, size_t size);

/*
 * Finds the absolute path of the control library: $LIEN_CONTROL, or next to this program, or in
 * ../lib/lien relative to it. -ENOENT: not found; -EINVAL: LD_PRELOAD cannot hold the path. On
 * failure `path` is the place to report to the user.
 */
int lien_preload_find(char *path, size_t size);

/* Prepends it to LD_PRELOAD in this process's environment. With `plain`, the programs' plain memory
 * stays the driver's, unless LIEN_PLAIN says otherwise: recorded and replayed calls are to be what
 * the program made them. With `saver`, torch_memory_saver takes it for its hook. `program`: by the
 * name that execvp() gets; if it cannot have the library in it, says so, and sets nothing. NULL: it
 * is not known. Returns non-zero after a message. */
int lien_preload_set(const char *command, const char *program, bool plain, bool saver);

/* Has it been done, as by `lien run`? */
bool lien_preload_is_set(void);

/* execvp() has failed with `err`: prints a message and returns the shell's exit code for it, 127 or
 * 126. */
int lien_preload_failed(const char *command, const char *name, int err);

#endif
