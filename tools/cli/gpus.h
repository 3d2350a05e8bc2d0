/* SPDX-License-Identifier: BSD-2-Clause */
/* The devices of a reply (its members gpus and nvml), for humans. */
#ifndef LIEN_TOOLS_GPUS_H
#define LIEN_TOOLS_GPUS_H

#include <sys/types.h>

#include <jansson.h>

/* Which devices the processes' ordinals are: a line for each device that a process of the list
 * `processes` (as in `ps`) has memory of. Nothing where that is not known. */
void lien_print_gpus(const json_t *result);

/* What each process uses of each device, of one process or of all (pid 0). */
void lien_print_explained(const json_t *result, pid_t pid);

#endif
