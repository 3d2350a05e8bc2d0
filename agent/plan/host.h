/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks whether the host has room for the arena. The arena is memory of the job's processes, so
 * the machine's available memory counts, and the limits of the memory cgroups that each process is
 * in (v2 and v1). A limit that cannot be read is ignored.
 */
#ifndef LIEN_HOST_H
#define LIEN_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "agent/plan/plan.h"

/* The memory that a process needs in addition to what it has. */
struct lien_host_need {
	uint32_t pid;
	uint64_t bytes;
};

/* Paths of the kernel's files; NULL: not there, or not looked for. */
struct lien_host_files {
	const char *proc;	 /* "/proc" */
	char *cgroup2, *cgroup1; /* where these hierarchies are mounted, the v1 one for memory */
};

/* Finds the paths on this machine; free them with lien_host_files_free(). */
void lien_host_files_find(struct lien_host_files *files);
void lien_host_files_free(struct lien_host_files *files);

/*
 * Returns 0, or -ENOMEM if they do not all fit; `error` then says in one line what lacks how much.
 */
int lien_host_check(const struct lien_host_files *files, const struct lien_host_need *needs,
	unsigned count, char *error, size_t error_size);

/* Returns the bytes that the machine and every memory cgroup of the process have left. UINT64_MAX:
 * none of that is known. */
uint64_t lien_host_room(const struct lien_host_files *files, uint32_t pid);

/* Is the process in a memory cgroup with a limit of its own, below what the machine has? */
bool lien_host_limited(const struct lien_host_files *files, uint32_t pid);

/* Returns how many of the `room` bytes make the arenas, which hold `held` bytes, a share of both.
 * It is as if all arenas were in the process's cgroups, so no number of processes fills one up.
 */
static inline uint64_t lien_host_share(uint64_t room, uint64_t held, unsigned percent)
{
	uint64_t share;

	if (room > UINT64_MAX - held)
		return room; /* not known: no limit */
	share = (room + held) / 100 * percent;
	return share > held ? share - held : 0;
}

/* Returns how much the process's arena must grow to hold `bytes` more than it has in use. */
static inline uint64_t lien_host_missing(const struct lien_process *process, uint64_t bytes)
{
	const uint64_t wanted = process->arena_used + bytes;

	return wanted > process->arena_bytes ? LIEN_WIRE_ARENA_ROUND(wanted - process->arena_bytes)
					     : 0;
}

#endif
