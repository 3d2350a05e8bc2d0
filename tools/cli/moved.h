/* SPDX-License-Identifier: BSD-2-Clause */
/* What an offload or a restore did, from its result or that of one of its processes. */
#ifndef LIEN_TOOLS_MOVED_H
#define LIEN_TOOLS_MOVED_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

/* Bytes that were moved, with those that were not saved. */
uint64_t lien_moved_bytes(const json_t *result);
/* How much more of a process's GPUs is free now; "-": the driver did not say; the caller frees */
char *lien_freed_text(const json_t *process);

/* The "left" list of mem, offload and restore, memory that cannot be moved, and why: prints a
 * paragraph per reason under the title, largest first; nothing for an empty list: false. */
bool lien_print_left(const char *title, const json_t *left);
/* The "short" list of offload and status, what was moved and is not free: prints a paragraph per
 * GPU under the title, which ends with a colon; nothing for an empty list. */
void lien_print_short(const char *title, const json_t *rows);

/* The "unknown" list of an offload, memory that is not selected because its owner is not known:
 * prints a line for each process, and the commands that move it; nothing for an empty list. */
void lien_print_unknown(const json_t *unknown);

/* Prints the result of an offload or a restore over several nodes. */
void lien_print_nodes_move(const json_t *result, bool restore);

#endif
