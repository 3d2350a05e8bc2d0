/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Pids and process identities as the agent sees them. */
#ifndef LIEN_BPF_PIDS_H
#define LIEN_BPF_PIDS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <lien/probe.h>

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

#endif
