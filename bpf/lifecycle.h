/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Start, exec and exit of processes, and the libraries that they map. */
#ifndef LIEN_BPF_LIFECYCLE_H
#define LIEN_BPF_LIFECYCLE_H

#include "gate.h"
#include "sharing.h"

/* The process is gone or has become another program. */
static __always_inline void process_end(struct task_struct *task, __u16 type)
{
	__u32 pid = leader_pid(task);
	struct lien_probe_process *process;
	struct lien_event event;
	__u32 entered;
	__u64 account;

	bpf_map_delete_elem(&controls, &pid);
	bpf_map_delete_elem(&followed, &pid);
	gate_end(pid);
	process = bpf_map_lookup_elem(&processes, &pid);
	if (!process)
		return;
	account = process->account;
	entered = process->entered;
	__builtin_memset(&event, 0, sizeof(event));
	event.type = type;
	event.pid = event.tid = pid;
	event.start = process->start;
	event.t_entry = event.t_return = bpf_ktime_get_ns();
	nccl_forget(pid, process);
	bpf_map_delete_elem(&lost, &pid);
	bpf_map_delete_elem(&contexts, &pid);
	if (!bpf_map_delete_elem(&processes, &pid) && !entered)
		share_give(account, SHARE_PROCESSES, 1);
	emit(&event, LIEN_EVENT_HEADER, account);
}

SEC("raw_tp/sched_process_exec")
int lien_exec(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 ktid = (__u32)bpf_get_current_pid_tgid(), old = (__u32)ctx->args[1];

	/* In an exec by another thread than the first, that thread takes over the first one's
	 * tid. */
	thread_forget(old);
	thread_forget(ktid);
	process_end((void *)ctx->args[0], LIEN_EVENT_EXEC);
	return 0;
}

#define SIGNAL_GROUP_EXIT 4

SEC("raw_tp/sched_process_exit")
int lien_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)ctx->args[0];
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);

	/* A thread exits in the middle of a call, while the process continues. */
	if (thread && !(BPF_CORE_READ(task, signal, flags) & SIGNAL_GROUP_EXIT))
		frames_left(thread, ~0ull);
	if (thread) {
		gate_leave(thread);
		gate_leave_group(thread);
		thread_forget(ktid);
	}
	if (!BPF_CORE_READ(task, signal, live.counter))
		process_end(task, LIEN_EVENT_EXIT);
	return 0;
}

/* A child has its parent's libraries, but not the thread that served them. A thread works for the
 * communicator that its maker makes. */
SEC("raw_tp/sched_process_fork")
int lien_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *child = (void *)ctx->args[1];
	struct lien_probe_control control, *of_parent;
	struct lien_probe_process process = {};
	__u32 pid;

	if (BPF_CORE_READ(child, pid) != BPF_CORE_READ(child, tgid))
		return scope_inherit(child);
	pid = leader_pid((void *)ctx->args[0]);
	of_parent = pid ? bpf_map_lookup_elem(&controls, &pid) : 0;
	pid = pid_in_agent(child);
	if (!of_parent || !pid)
		return 0;
	control = *of_parent;
	control.wake = LIEN_PROBE_WAKE;
	process.start = image_of(child);
	process.account = account_of(child);
	if (process_add(pid, &process))
		bpf_map_update_elem(&controls, &pid, &control, BPF_ANY);
	return 0;
}

#define PROT_EXEC 4

static __always_inline int starts(const char *name, const char *with, int n)
{
	int i;

	for (i = 0; i < n; i++)
		if (name[i] != with[i])
			return 0;
	return 1;
}

/*
 * Does not wait for the agent: the program may make all its calls before the agent looks. For an
 * unknown copy of the library there is no layout; such a copy makes no calls of its own until the
 * agent finds it, so all its calls belong to the application.
 */
static __always_inline void control_mapped(__u32 pid, const struct lien_event *event)
{
	__u64 inode = event->library.inode;
	struct lien_probe_layout *layout = bpf_map_lookup_elem(&control_files, &inode);
	struct lien_probe_control control = {
		.text = event->library.start,
		.text_end = event->library.start + event->library.length,
		.wake = LIEN_PROBE_WAKE,
	};

	if (!layout) {
		control.translate = control.text;
		control.translate_end = control.text_end;
		bpf_map_update_elem(&controls, &pid, &control, BPF_NOEXIST);
		return;
	}
	if (layout->text_offset != event->library.offset)
		return;
	control.state = event->library.start + layout->state;
	bpf_map_update_elem(&controls, &pid, &control, BPF_ANY);
}

#define SYS_MMAP  9
#define PAGE_SIZE 4096ul

/* mmap()'s arguments, and its number, from the registers of a thread that is leaving the call. */
struct mmap_arguments {
	unsigned long offset, fd, ax, cx, prot, length, di, number;
};

/* True for mmap() that has mapped something. Few other calls return a positive multiple of the page
 * size, so almost every call of the machine ends at the first test. */
static __always_inline int read_mmap(
	struct mmap_arguments *arguments, const struct pt_regs *regs, long result)
{
	if (result <= 0 || (result & (PAGE_SIZE - 1)))
		return 0;
	return !bpf_probe_read_kernel(arguments, sizeof(*arguments), &regs->r9) &&
	       arguments->number == SYS_MMAP;
}

/* The tracepoint of mmap() alone has to be looked up in tracefs, which may not be mounted. */
SEC("raw_tp/sys_exit")
int lien_mmap_exit(struct bpf_raw_tracepoint_args *ctx)
{
	long result = ctx->args[1];
	struct task_struct *task = (void *)bpf_get_current_task();
	struct lien_probe_process process = {};
	struct mmap_arguments arguments;
	struct lien_event event;
	struct file *file;
	__u32 pid, dev;
	int known, ours, cards;

	if (!read_mmap(&arguments, (void *)ctx->args[0], result) || !(arguments.prot & PROT_EXEC) ||
		(__s32)arguments.fd < 0)
		return 0;
	__builtin_memset(&event, 0, sizeof(event));
	event.library.start = result;
	event.library.length = arguments.length;
	event.library.offset = arguments.offset;
	file = file_of_fd((__s32)arguments.fd);
	pid = leader_pid(task);
	if (!file || !pid)
		return 0;
	BPF_CORE_READ_INTO(&event.library.inode, file, f_inode, i_ino);
	dev = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
	event.library.dev_major = dev >> 20;
	event.library.dev_minor = dev & 0xfffff;
	bpf_probe_read_kernel_str(event.library.name, sizeof(event.library.name),
		BPF_CORE_READ(file, f_path.dentry, d_name.name));
	process.start = image_of(task);
	process.account = account_of(task);
	known = bpf_map_lookup_elem(&processes, &pid) != 0;
	ours = starts(event.library.name, "libcuda", 7) ||
	       starts(event.library.name, "libnccl", 7) || starts(event.library.name, "liblien", 7);
	if (!known && ours)
		known = process_add(pid, &process) != 0;
	cards = starts(event.library.name, "libibverbs", 10) ||
		starts(event.library.name, "libmlx5", 7) ||
		starts(event.library.name, "libgdrapi", 9);
	if (!known && !ours && !cards)
		return 0;
	event.type = LIEN_EVENT_LIBRARY;
	event.pid = pid;
	event.tid = pid_in_agent(task);
	event.start = process.start;
	event.t_entry = event.t_return = bpf_ktime_get_ns();
	if (known && starts(event.library.name, "liblien", 7))
		control_mapped(pid, &event);
	if (ours || cards)
		gate_library_mapped(pid);
	emit(&event, LIEN_EVENT_SIZE(library), process.account);
	return 0;
}

#endif
