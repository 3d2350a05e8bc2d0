/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The map of exported files. */
#ifndef LIEN_BPF_EXPORTS_H
#define LIEN_BPF_EXPORTS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <lien/probe.h>

/* For the exports of jobs, plus half as many for those of restores. */
#define EXPORTS_MAX	131072
#define EXPORTS_ALL_MAX (EXPORTS_MAX / 2 * 3)

/* Maps exported files to their exports. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EXPORTS_ALL_MAX);
	__type(key, struct lien_probe_share);
	__type(value, struct lien_probe_export);
} shares SEC(".maps");

#define MODE_READ_WRITE 3 /* FMODE_READ, FMODE_WRITE */

/* Returns -1 if there is no file. */
static __always_inline int file_key(struct lien_probe_share *key, const struct file *file)
{
	key->file = (__u64)file;
	key->private_data = file ? (__u64)BPF_CORE_READ(file, private_data) : 0;
	key->inode = file ? BPF_CORE_READ(file, f_inode, i_ino) : 0;
	key->device = file ? BPF_CORE_READ(file, f_inode, i_sb, s_dev) : 0;
	key->mode = file ? BPF_CORE_READ(file, f_mode) & MODE_READ_WRITE : 0;
	return file ? 0 : -1;
}

/* Returns how many references there are to a file; 0: it has been closed. */
static __always_inline __u64 references_to(const struct lien_probe_share *key)
{
	const struct file *file = (const struct file *)key->file;
	struct lien_probe_share now = {};
	long count;

	/* The kernel may have given the address to another file, or the page to something else. */
	if (file_key(&now, file) || now.private_data != key->private_data ||
		now.inode != key->inode || now.device != key->device || now.mode != key->mode)
		return 0;
	if (bpf_core_field_exists(file->f_ref))
		count = BPF_CORE_READ(file, f_ref.refcnt.counter) + 1;
	else
		count = BPF_CORE_READ(file, f_count.counter);
	return count > 0 ? count : 0;
}

#endif
