/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Has the host room for the arena? It is memory of the job's processes: what the machine has
 * available counts, and the limits of the memory cgroups that each process is in (v2, and v1). What
 * cannot be read sets no limit.
 */
#ifndef LIEN_HOST_H
#define LIEN_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "agent/offload/plan.h"

/* What a process has to get from the host, more than it holds. */
struct lien_host_need {
	uint32_t pid;
	uint64_t bytes;
};

/* Where the kernel's files are; NULL: not there, or not looked for. */
struct lien_host_files {
	const char *proc;	 /* "/proc" */
	char *cgroup2, *cgroup1; /* where these hierarchies are mounted, the latter for memory */
};

/* As they are on this machine; to be given to lien_host_files_free(). */
void lien_host_files_find(struct lien_host_files *files);
void lien_host_files_free(struct lien_host_files *files);

/* 0, or -ENOMEM: they do not all fit; `error` then says in one line what lacks how much. */
int lien_host_check(const struct lien_host_files *files, const struct lien_host_need *needs,
	unsigned count, char *error, size_t error_size);

/* What the arena of a process would have to grow by, to take `bytes` more than it has in use. */
uint64_t lien_host_missing(const struct lien_process *process, uint64_t bytes);

#endif
