/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Processes: first sight, exec, fork, exit. */
#ifndef LIEN_BPF_PROCESS_H
#define LIEN_BPF_PROCESS_H

#include "control.h"

/* Adds an unknown process. NULL: its user's share is used up. */
static __noinline struct lien_probe_process *process_add(
	__u32 pid, const struct lien_probe_process *process)
{
	__u64 account = process->account;

	if (share_take(account, SHARE_PROCESSES))
		return 0;
	if (bpf_map_update_elem(&processes, &pid, process, BPF_NOEXIST))
		share_give(account, SHARE_PROCESSES, 1);
	return bpf_map_lookup_elem(&processes, &pid);
}

/* First sight of a process: complete if the call is cuInit, which precedes all others. */
__noinline int announce(struct thread *thread, __u32 complete)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct lien_probe_process process = {.announced = 1, .whole = complete}, *known;
	struct lien_event *event;
	__u32 pid;

	if (!thread)
		return 0;
	pid = thread->pid;
	thread->announced = 1;
	process.start = thread->start;
	process.account = thread->account;
	known = bpf_map_lookup_elem(&processes, &pid);
	if (known && known->start == thread->start) {
		if (__sync_lock_test_and_set(&known->announced, 1))
			return 0;
		known->whole = complete;
	} else if (known) {
		/* Its pid belonged to another process, whose exit was missed. */
		if (bpf_map_update_elem(&processes, &pid, &process, BPF_EXIST)) {
			count_lost(pid);
			return 0;
		}
	} else if (!process_add(pid, &process)) {
		count_lost(pid);
		return 0;
	}
	event = event_init(thread, LIEN_EVENT_PROCESS);
	event->t_entry = event->t_return = bpf_ktime_get_ns();
	event->process.uid = (__u32)bpf_get_current_uid_gid();
	event->process.complete = complete;
	BPF_CORE_READ_STR_INTO(&event->process.comm, task, group_leader, comm);
	return emit(event, LIEN_EVENT_SIZE(process), thread->account);
}

#endif
