/* SPDX-License-Identifier: BSD-2-Clause */
/* The devices of a reply (its members gpus and nvml), for humans. */
#ifndef LIEN_TOOLS_GPUS_H
#define LIEN_TOOLS_GPUS_H

#include <stdbool.h>
#include <sys/types.h>

#include <jansson.h>

/* Prints a table of the GPUs: what is used, free and there, as nvidia-smi has it, and the processes
 * of the list `processes` (as in `ps`) that have memory there. Prints nothing where neither is
 * known. */
void lien_print_gpus(const json_t *result);

/* Returns a new list of what the driver itself has on the devices for the processes of an offload's
 * result: what NVML says, without what the graph explains. null: NVML gives no figure. `mem`: the
 * answer with `explain`, or NULL. */
json_t *lien_unexplained_of(const json_t *result, const json_t *mem);
/* Prints the sum of that list, under the title unless it is NULL. */
void lien_print_unexplained(const char *title, const json_t *unexplained);

/* Prints each process's use of each device, for one process or for all (pid 0). */
void lien_print_explained(const json_t *result, pid_t pid);

#endif
