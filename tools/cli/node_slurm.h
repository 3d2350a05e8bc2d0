/* SPDX-License-Identifier: BSD-2-Clause */
/* The nodes and the processes of a Slurm job. */
#ifndef LIEN_TOOLS_NODE_SLURM_H
#define LIEN_TOOLS_NODE_SLURM_H

#include <jansson.h>

/* Lists this node's processes whose environment says that they are of the job: those that the
 * caller may read. */
json_t *lien_slurm_pids(const char *job);
/* Returns the names of the job's nodes, separated by commas; the caller frees them. NULL after a
 * message: no such job runs, or there is no Slurm. */
char *lien_slurm_nodes(const char *command, const char *job);

#endif
