/* SPDX-License-Identifier: BSD-2-Clause */
/* A process's environment at the start of its program, according to the process. */
#ifndef LIEN_ENVIRON_H
#define LIEN_ENVIRON_H

#include <stddef.h>
#include <stdint.h>

/* Reads /proc/PID/environ: consecutive strings, 1 MiB at most. NULL: unreadable. The caller
 * frees. */
char *lien_environ_read(uint32_t pid, size_t *size);

/* Returns the value of a variable in the text; NULL: not set. The text may be NULL. */
const char *lien_environ_variable(const char *text, size_t size, const char *name);

#endif
