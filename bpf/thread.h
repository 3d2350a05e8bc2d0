/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Processes, and their threads that make traced calls. A call's arguments are kept from entry to
 * return in a small stack of frames per thread. Frames are matched by stack pointer, which also
 * tells which call is nested in which.
 */
#ifndef LIEN_BPF_THREAD_H
#define LIEN_BPF_THREAD_H

#include "report.h"
#include <lien/thread.h>

/* Registers and stack at a call's first instruction. */
struct arguments {
	__u64 arg[6];
	__u64 sp; /* address of the return address; the seventh argument is above it */
};

/* Key: kernel tid. An entry is deleted when its thread exits. */
HASH_MAP(threads, THREADS_MAX, __u32, struct thread);

static const struct thread no_thread;

static __always_inline __u32 leader_pid(struct task_struct *task)
{
	return pid_in_agent(BPF_CORE_READ(task, group_leader));
}

/* Copies the key: before Linux 6.2, an argument of a global function cannot be a key. */
static __always_inline struct lien_probe_process *process_of(const struct thread *thread)
{
	__u32 pid = thread->pid;

	return bpf_map_lookup_elem(&processes, &pid);
}

/* Without room for its thread, a call is lost and a gate cannot count it. */
static __noinline void count_untracked(__u32 pid)
{
	struct lien_probe_process *process = bpf_map_lookup_elem(&processes, &pid);

	count_lost(pid);
	if (process)
		__sync_fetch_and_add(&process->untracked, 1);
}

/* Adds the record of a thread that has none. NULL: no room. */
static __noinline struct thread *thread_add(__u32 ktid, __u64 account)
{
	struct thread *thread;

	if (share_take(account, SHARE_THREADS))
		return 0;
	if (bpf_map_update_elem(&threads, &ktid, &no_thread, BPF_NOEXIST)) {
		share_give(account, SHARE_THREADS, 1);
		return 0;
	}
	thread = bpf_map_lookup_elem(&threads, &ktid);
	if (thread)
		thread->account = account;
	return thread;
}

/* Returns the record of the calling thread, made at its first traced call. NULL: no room. */
static __noinline struct thread *thread_get(void)
{
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);
	struct task_struct *task;
	__u32 pid;

	if (thread)
		return thread;
	task = (void *)bpf_get_current_task();
	pid = leader_pid(task);
	if (!pid)
		return 0;
	thread = thread_add(ktid, account_of(task));
	if (!thread) {
		count_untracked(pid);
		return 0;
	}
	thread->pid = pid;
	thread->tid = pid_in_agent(task);
	thread->start = image_of(task);
	return thread;
}

static __always_inline void thread_forget(__u32 ktid)
{
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);
	__u64 account = thread ? thread->account : 0;

	if (thread && !bpf_map_delete_elem(&threads, &ktid))
		share_give(account, SHARE_THREADS, 1);
}

/*
 * Drops frames below `sp` on the machine stack: those calls were left without a return (longjmp,
 * exceptions), so the driver's result stays unknown. Returns how many frames remain.
 */
static __noinline __u32 frames_left(struct thread *thread, __u64 sp)
{
	__u32 depth = thread->depth, i, unknown = 0;
	struct frame *frame;

	for (i = 0; i < FRAMES; i++) {
		if (!depth || depth > FRAMES)
			break;
		frame = &thread->frame[(depth - 1) & (FRAMES - 1)];
		if (frame->sp >= sp)
			break;
		unknown |= !(frame->flags & LIEN_CALL_FRAME);
		depth--;
	}
	if (unknown)
		count_lost(thread->pid);
	return depth;
}

/* Returns the address that a probed return puts in place of the return address on the stack. A
 * function that begins with it there was reached by a tail jump from a traced one. */
static __noinline __u64 trampoline(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return bpf_core_field_exists(struct xol_area, vaddr)
		       ? BPF_CORE_READ(task, mm, uprobes_state.xol_area, vaddr)
		       : 0;
}

static __always_inline struct lien_event *event_init(struct thread *thread, __u16 type)
{
	struct lien_event *event = &thread->event;

	__builtin_memset(event, 0, sizeof(*event));
	event->type = type;
	event->pid = thread->pid;
	event->tid = thread->tid;
	event->start = thread->start;
	return event;
}

/* --- processes -------------------------------------------------------------------------------- */

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
