// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/privileges.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
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

static int load(bool multi)
{
	struct bpf_insn program[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.prog_type = BPF_PROG_TYPE_KPROBE;
	attr.expected_attach_type = multi ? LIEN_UPROBE_MULTI_TYPE : 0;
	attr.insns = (uintptr_t)program;
	attr.insn_cnt = sizeof(program) / sizeof(program[0]);
	attr.license = (uintptr_t) "Dual BSD/GPL";
	return syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));
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

static int probe_one(uint64_t offset)
{
	FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "re");
	struct perf_event_attr attr;
	int fd = -1;

	memset(&attr, 0, sizeof(attr));
	attr.size = sizeof(attr);
	attr.disabled = 1;
	attr.config1 = (uintptr_t) "/proc/self/exe";
	attr.config2 = offset;
	if (type && fscanf(type, "%u", &attr.type) == 1)
		fd = syscall(SYS_perf_event_open, &attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
	if (type)
		fclose(type);
	return fd;
}

/* Loads a program that does nothing and attaches it to code of ours that has already run. */
static bool may_attach(bool multi)
{
	const uint64_t offset = file_offset((uintptr_t)lien_privileges_begin), cookie = 0;
	int program = load(multi), fd = -1;

	if (program >= 0)
		fd = multi ? lien_uprobe_multi_attach(
				     program, "/proc/self/exe", &offset, &cookie, 1, false, 0)
			   : probe_one(offset);
	if (program >= 0)
		close(program);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

int lien_privileges_try_drop(bool multi)
{
	struct sets all, fewer;
	int err = get(&all);

	if (err)
		return err;
	fewer = all;
	fewer.effective &= KEPT;
	err = set(&fewer);
	if (err)
		return err;
	if (!(all.effective & BIT(CAP_SYS_ADMIN)) || may_attach(multi)) {
		err = set(&all); /* for the bounding set */
		return err ? err : lien_privileges_drop();
	}
	err = set(&all);
	if (err)
		return err;
	err = keep(KEPT | BIT(CAP_SYS_ADMIN));
	return err ? err : 1;
}
