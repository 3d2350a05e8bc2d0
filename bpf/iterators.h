// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Iterators, run on the agent's request: open files that are exported GPU memory, with their
 * processes, and how often each is referred to at all; the program that each process runs; and
 * threads that no gate can hold.
 */
#ifndef LIEN_BPF_ITERATORS_H
#define LIEN_BPF_ITERATORS_H

#include "lifecycle.h"

static long count_references(struct bpf_map *map, struct lien_probe_share *key,
	struct lien_probe_export *export, void *arg)
{
	(void)map;
	(void)arg;
	export->counted = references_to(key) + 1;
	return 0;
}

/* Is it the driver of GPUDirect Storage, a device /dev/nvidia-fsN? */
static __always_inline int is_storage(const struct file *file)
{
	char name[10] = {};

	if (!BPF_CORE_READ(file, f_inode, i_rdev))
		return 0;
	bpf_probe_read_kernel_str(
		name, sizeof(name), BPF_CORE_READ(file, f_path.dentry, d_name.name));
	return starts(name, "nvidia-fs", 9);
}

SEC("iter/task_file")
int lien_files(struct bpf_iter__task_file *ctx)
{
	struct lien_probe_open_file found = {};
	struct task_struct *task = ctx->task;
	struct lien_probe_share key = {};
	struct file *file = ctx->file;
	struct lien_probe_export *known;

	if (!ctx->meta->seq_num)
		bpf_for_each_map_elem(&shares, count_references, 0, 0);
	if (!task || file_key(&key, file))
		return 0;
	known = bpf_map_lookup_elem(&shares, &key);
	if (known ? known->control : !is_storage(file))
		return 0;
	found.share = known ? known->number : LIEN_PROBE_STORAGE;
	found.pid = pid_in_agent(BPF_CORE_READ(task, group_leader));
	found.fd = ctx->fd;
	if (found.pid)
		bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

SEC("iter/task")
int lien_images(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct lien_probe_image found = {};

	if (!task || BPF_CORE_READ(task, group_leader) != task)
		return 0;
	found.pid = pid_in_agent(task);
	found.start = image_of(task);
	found.account = account_of(task);
	if (found.pid)
		bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

/* Threads that run none of the program's code: they end, or work for the kernel (io_uring). */
#define PF_EXITING     0x00000004
#define PF_IO_WORKER   0x00000010
#define PF_USER_WORKER 0x00004000

SEC("iter/task")
int lien_unheld(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct lien_probe_control *control;
	struct lien_probe_held_key found;

	if (!task || BPF_CORE_READ(task, flags) & (PF_EXITING | PF_IO_WORKER | PF_USER_WORKER))
		return 0;
	found.pid = leader_pid(task);
	if (!found.pid || !bpf_map_lookup_elem(&gates, &found.pid))
		return 0;
	control = bpf_map_lookup_elem(&controls, &found.pid);
	if (control && takes_signal(control, task))
		return 0;
	found.tid = pid_in_agent(task);
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

#endif
