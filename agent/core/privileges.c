// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/privileges.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader/probes/uprobe.h"

#define BIT(cap) (1ull << (cap))

/*
 * BPF, PERFMON: programs, maps, uprobes. SYS_PTRACE: memory, mappings and sockets of processes.
 * DAC_READ_SEARCH: libraries in other users' directories. CHECKPOINT_RESTORE: /proc/PID/map_files.
 * SYS_RESOURCE: descriptors in flight between processes beyond the limit of open files.
 */
#define KEPT                                                                                       \
	(BIT(CAP_BPF) | BIT(CAP_PERFMON) | BIT(CAP_SYS_PTRACE) | BIT(CAP_DAC_READ_SEARCH) |        \
		BIT(CAP_CHECKPOINT_RESTORE) | BIT(CAP_SYS_RESOURCE))

struct sets {
	uint64_t effective, permitted, inheritable;
};

static int get(struct sets *sets)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data))
		return -errno;
	sets->effective = data[0].effective | (uint64_t)data[1].effective << 32;
	sets->permitted = data[0].permitted | (uint64_t)data[1].permitted << 32;
	sets->inheritable = 0;
	return 0;
}

static int set(const struct sets *sets)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {
		{sets->effective, sets->permitted, 0},
		{sets->effective >> 32, sets->permitted >> 32, 0},
	};

	return syscall(SYS_capset, &header, data) ? -errno : 0;
}

void lien_privileges_begin(void)
{
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

static int keep(uint64_t kept)
{
	struct sets sets;
	int err, cap;

	/*
	 * Needs CAP_SETPCAP. Without it, a right outside the bounding set cannot be gained either.
	 */
	for (cap = 0; cap < 64 && prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		if (!(kept & BIT(cap)))
			prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	err = get(&sets);
	if (err)
		return err;
	sets.permitted &= kept;
	sets.effective = sets.permitted;
	return set(&sets);
}

int lien_privileges_drop(void)
{
	return keep(KEPT);
}

int lien_privileges_keep_netns(void)
{
	return keep(BIT(CAP_SYS_ADMIN));
}

/* Returns a function's offset in the program's file; 0: not found. */
static uint64_t file_offset(uintptr_t function)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uint64_t start, end, offset, found = 0;
	char line[512];

	while (maps && !found && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64, &start, &end, &offset) ==
				3 &&
			function >= start && function < end)
			found = function - start + offset;
	if (maps)
		fclose(maps);
	return found;
}

int lien_privileges_try_drop(bool multi)
{
	/* of code that has already run */
	const uint64_t offset = file_offset((uintptr_t)lien_privileges_begin);
	struct sets all, fewer;
	int err = get(&all);

	if (err)
		return err;
	fewer = all;
	fewer.effective &= KEPT;
	err = set(&fewer);
	if (err)
		return err;
	if (!(all.effective & BIT(CAP_SYS_ADMIN)) || lien_uprobe_permitted(multi, offset)) {
		err = set(&all); /* for the bounding set */
		return err ? err : lien_privileges_drop();
	}
	err = set(&all);
	if (err)
		return err;
	err = keep(KEPT | BIT(CAP_SYS_ADMIN));
	return err ? err : 1;
}
