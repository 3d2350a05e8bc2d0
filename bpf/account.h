/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Processes and users as the agent sees them. The maps serve all users of the node, and users'
 * processes fill them: each user has a share of each map, so that nobody can fill one up for the
 * others.
 */
#ifndef LIEN_BPF_ACCOUNT_H
#define LIEN_BPF_ACCOUNT_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <lien/probe.h>

#define HASH_MAP(name, entries, key_type, value_type)                                              \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_HASH);                                                   \
		__uint(max_entries, entries);                                                      \
		__type(key, key_type);                                                             \
		__type(value, value_type);                                                         \
	} name SEC(".maps")

/* Pid namespace of the agent: pids are reported in it. */
const volatile __u32 lien_pidns = 0;

/* Identifies the program that a process runs: see lien_event.start. */
static __always_inline __u64 image_of(struct task_struct *task)
{
	__u64 ticks = BPF_CORE_READ(task, group_leader, start_boottime) / LIEN_TICK_NS;
	__u64 execs = 0;

	if (bpf_core_field_exists(task->self_exec_id))
		execs = BPF_CORE_READ(task, group_leader, self_exec_id);
	return LIEN_START(ticks, execs);
}

/* Returns the pid of a task as the agent sees it; 0 for tasks outside the agent's pid namespace. */
static __noinline __u32 pid_in_agent(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	unsigned int level, i, inum;
	struct upid *upid;

	if (!pid)
		return 0;
	level = BPF_CORE_READ(pid, level);
	for (i = 0; i < 8; i++) {
		if (i > level)
			break;
		upid = (void *)pid + bpf_core_field_offset(struct pid, numbers) +
		       i * bpf_core_type_size(struct upid);
		inum = BPF_CORE_READ(upid, ns, ns.inum);
		if (inum == lien_pidns)
			return BPF_CORE_READ(upid, nr);
	}
	return 0;
}

/* Returns the task's tid in its own namespace, the one that the task itself sees. */
static __always_inline __u32 own_tid(struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	struct upid *upid;

	if (!pid)
		return 0;
	upid = (void *)pid + bpf_core_field_offset(struct pid, numbers) +
	       BPF_CORE_READ(pid, level) * bpf_core_type_size(struct upid);
	return BPF_CORE_READ(upid, nr);
}

/* --- users ------------------------------------------------------------------------------------ */

#define ACCOUNT_ROOT	  0
#define ACCOUNT_NAMESPACE (1ull << 32) /* made by root: identified by the namespace's number */
#define NAMESPACES_MAX	  32	       /* the kernel's nesting limit */

/*
 * The account that a process is charged to: a user, or for processes in user namespaces whoever
 * made the outermost of them, however many users are mapped inside.
 */
static __noinline __u64 account_of(struct task_struct *task)
{
	struct user_namespace *ns = BPF_CORE_READ(task, cred, user_ns);
	int level = BPF_CORE_READ(ns, level), i;
	__u32 owner;

	if (!level)
		return BPF_CORE_READ(task, cred, uid.val);
	for (i = 0; i < NAMESPACES_MAX; i++) {
		if (level <= 1)
			break;
		ns = BPF_CORE_READ(ns, parent);
		level--;
	}
	owner = BPF_CORE_READ(ns, owner.val);
	return owner ? owner : ACCOUNT_NAMESPACE | BPF_CORE_READ(ns, ns.inum);
}

/* --- shares ----------------------------------------------------------------------------------- */

/* Sizes of the maps, for all users together. */
#define THREADS_MAX   32768
#define PROCESSES_MAX 16384
#define COMMS_MAX     65536
#define PAIRS_MAX     65536
#define UNMADE_MAX    4096

/* A user's share of a map: an eighth; root's is three quarters. */
#define SHARE_OF_USER(entries) ((entries) / 8)
#define SHARE_OF_ROOT(entries) ((entries) / 4 * 3)

enum share {
	SHARE_THREADS,
	SHARE_PROCESSES,
	SHARE_COMMS,
	SHARE_PAIRS,
	SHARE_UNMADE,
	SHARE_COUNT,
};

/* The size of map `threads` as it was created, and by how many bits those of the others are smaller
 * than above. */
const volatile __u32 lien_threads_max = THREADS_MAX;
const volatile __u32 lien_room_shift = 0;

struct account {
	__u32 used[SHARE_COUNT];
	__u32 exports[2]; /* total ever made, by the job and by restores (sharing.h) */
	__u32 window;	  /* of the ring, in which */
	__u32 reported;	  /* this many bytes were written for the user */
};

/* An LRU map: the least recently used accounts are dropped. A new entry starts at zero, and its
 * counts never fall below that. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct account);
} accounts SEC(".maps");

static const struct account no_account;

static __always_inline __u32 share_max(enum share share, __u64 account)
{
	__u32 entries = share == SHARE_PROCESSES ? PROCESSES_MAX
			: share == SHARE_COMMS	 ? COMMS_MAX
			: share == SHARE_PAIRS	 ? PAIRS_MAX
						 : UNMADE_MAX;

	entries = share == SHARE_THREADS ? lien_threads_max : entries >> lien_room_shift;
	return account == ACCOUNT_ROOT ? SHARE_OF_ROOT(entries) : SHARE_OF_USER(entries);
}

static __always_inline struct account *account_get(__u64 account)
{
	struct account *found = bpf_map_lookup_elem(&accounts, &account);

	if (found)
		return found;
	bpf_map_update_elem(&accounts, &account, &no_account, BPF_NOEXIST);
	return bpf_map_lookup_elem(&accounts, &account);
}

/* Takes one more entry of a map. Returns -1 if the user's share is used up. */
static __always_inline int share_take(__u64 account, enum share share)
{
	struct account *user = account_get(account);

	if (!user)
		return -1;
	if (__sync_fetch_and_add(&user->used[share], 1) < share_max(share, account))
		return 0;
	__sync_fetch_and_add(&user->used[share], -1);
	return -1;
}

static __always_inline void share_give(__u64 account, enum share share, __u32 entries)
{
	struct account *user = bpf_map_lookup_elem(&accounts, &account);

	if (user && user->used[share] >= entries)
		__sync_fetch_and_add(&user->used[share], -entries);
}

#endif
