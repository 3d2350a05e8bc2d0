// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Which open files of which processes are exported GPU memory, now: an iterator, run when asked. */
#define LIEN_BPF
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "pids.h"
#include <lien/probe.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* That of trace.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct lien_probe_share);
	__type(value, __u64);
} shares SEC(".maps");

SEC("iter/task_file")
int lien_files(struct bpf_iter__task_file *ctx)
{
	struct lien_probe_open_file found = {};
	struct task_struct *task = ctx->task;
	struct lien_probe_share key = {};
	struct file *file = ctx->file;
	__u64 *number;

	if (!task || !file)
		return 0;
	key.file = (__u64)file;
	key.private_data = (__u64)BPF_CORE_READ(file, private_data);
	key.inode = BPF_CORE_READ(file, f_inode, i_ino);
	key.device = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
	number = bpf_map_lookup_elem(&shares, &key);
	if (!number)
		return 0;
	found.share = *number;
	found.pid = pid_in_agent(BPF_CORE_READ(task, group_leader));
	found.fd = ctx->fd;
	if (found.pid)
		bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}
