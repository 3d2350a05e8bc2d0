/* SPDX-License-Identifier: BSD-2-Clause */
/* The file that a command writes its result to, as -o names it. */
#ifndef LIEN_TOOLS_OUT_FILE_H
#define LIEN_TOOLS_OUT_FILE_H

#include <stdbool.h>
#include <stdio.h>

/* Refuses a file that exists, unless forced; pipes and devices are written to. Returns NULL after a
 * message. */
FILE *lien_out_open(const char *command, const char *path, bool force);
/* err: what went wrong before, -errno, or 0. Removes the file if it is not whole. Returns the exit
 * code, after a message. */
int lien_out_close(const char *command, const char *path, FILE *out, int err);

#endif
