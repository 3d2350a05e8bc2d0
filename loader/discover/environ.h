/* SPDX-License-Identifier: BSD-2-Clause */
/* A process's environment as it was when its program began, as far as it says so. */
#ifndef LIEN_ENVIRON_H
#define LIEN_ENVIRON_H

#include <stddef.h>
#include <stdint.h>

/* The text of /proc/PID/environ: strings one behind the other, 1 MiB at most. NULL: it cannot be
 * read. The caller frees. */
char *lien_environ_read(uint32_t pid, size_t *size);

/* The value of a variable, in the text; NULL: it is not set. The text may be NULL. */
const char *lien_environ_variable(const char *text, size_t size, const char *name);

#endif
