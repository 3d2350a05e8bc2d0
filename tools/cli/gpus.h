/* SPDX-License-Identifier: BSD-2-Clause */
/* The devices of a reply (its members gpus and nvml), for humans. */
#ifndef LIEN_TOOLS_GPUS_H
#define LIEN_TOOLS_GPUS_H

#include <sys/types.h>

#include <jansson.h>

/* Prints the devices that the processes' ordinals stand for: a line for each device on which a
 * process of the list `processes` (as in `ps`) has memory. Prints nothing where that is unknown. */
void lien_print_gpus(const json_t *result);

/* Prints what the driver itself has on the devices for the processes of an offload's result: what
 * NVML says, without what the graph explains. */
void lien_print_unexplained(const json_t *result, const json_t *gpus);

/* Prints each process's use of each device, for one process or for all (pid 0). */
void lien_print_explained(const json_t *result, pid_t pid);

#endif
