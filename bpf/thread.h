/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Threads that make traced calls. A call's arguments are kept from entry to return in a small stack
 * of frames per thread. Frames are matched by stack pointer, which also tells which call is nested
 * in which.
 */
#ifndef LIEN_BPF_THREAD_H
#define LIEN_BPF_THREAD_H

#include "pids.h"
#include "report.h"
#include <lien/thread.h>

/* Registers and stack at a call's first instruction. */
struct arguments {
	__u64 arg[6];
	__u64 sp; /* address of the return address; the seventh argument is above it */
};

/* Key: kernel tid. An entry is deleted when its thread exits. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THREADS_MAX);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

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

/* Returns the record of the calling thread, made at its first traced call. NULL: no room. */
static __noinline struct thread *thread_get(void)
{
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);
	struct task_struct *task;
	__u64 account;
	__u32 pid;

	if (thread)
		return thread;
	task = (void *)bpf_get_current_task();
	pid = leader_pid(task);
	if (!pid)
		return 0;
	account = account_of(task);
	if (share_take(account, SHARE_THREADS)) {
		count_untracked(pid);
		return 0;
	}
	if (bpf_map_update_elem(&threads, &ktid, &no_thread, BPF_NOEXIST)) {
		share_give(account, SHARE_THREADS, 1);
		count_untracked(pid);
		return 0;
	}
	thread = bpf_map_lookup_elem(&threads, &ktid);
	if (!thread)
		return 0;
	thread->pid = pid;
	thread->tid = pid_in_agent(task);
	thread->start = image_of(task);
	thread->account = account;
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

#endif
