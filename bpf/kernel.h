/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel's types as far as lien reads them. Offsets are relocated at load time from the running
 * kernel's BTF (CO-RE), so only the members' names and types matter here, and the build machine
 * generates nothing.
 */
#ifndef LIEN_BPF_KERNEL_H
#define LIEN_BPF_KERNEL_H

#include <linux/types.h>
#include <linux/bpf.h>

typedef _Bool bool;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

typedef struct {
	unsigned int val;
} kuid_t;

struct user_namespace {
	struct user_namespace *parent;
	int level;
	kuid_t owner;
	struct ns_common ns;
};

struct cred {
	kuid_t uid;
	struct user_namespace *user_ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
	unsigned int flags;
};

typedef struct {
	unsigned long sig[1];
} sigset_t;

struct sigaction {
	void *sa_handler;
};

struct k_sigaction {
	struct sigaction sa;
};

struct sighand_struct {
	struct k_sigaction action[64];
};

struct super_block {
	__u32 s_dev;
};

struct inode {
	__u32 i_rdev;
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct qstr d_name;
};

struct path {
	struct dentry *dentry;
};

typedef struct {
	long counter;
} atomic_long_t;

struct file_ref { /* a typedef without a tag in the kernel */
	atomic_long_t refcnt;
};

struct file {
	unsigned int f_mode;
	atomic_long_t f_count; /* before Linux 6.13 */
	struct file_ref f_ref; /* since then: one less, and negative when the file is gone */
	struct path f_path;
	struct inode *f_inode;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct seq_file;

struct bpf_map;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 seq_num;
};

struct task_struct;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

struct xol_area {
	unsigned long vaddr;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct mm_struct {
	struct uprobes_state uprobes_state;
};

struct thread_struct {
	unsigned long fsbase;
};

struct task_struct {
	struct mm_struct *mm;
	struct thread_struct thread;
	unsigned int flags;
	int pid, tgid;
	__u64 start_boottime;
	__u64 self_exec_id;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	const struct cred *cred;
	struct files_struct *files;
	struct signal_struct *signal;
	struct sighand_struct *sighand;
	sigset_t blocked;
	char comm[16];
};

#pragma clang attribute pop

/* Registers at a probe, x86-64 (asm/ptrace.h of the kernel's user interface). */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip,
		cs, flags, sp, ss;
};

#endif
