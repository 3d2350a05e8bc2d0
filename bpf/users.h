/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The account that a process is charged to: a user, or for processes in user namespaces whoever
 * made the outermost of them, however many users are mapped inside.
 */
#ifndef LIEN_BPF_USERS_H
#define LIEN_BPF_USERS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <lien/probe.h>

#define ACCOUNT_ROOT	  0
#define ACCOUNT_NAMESPACE (1ull << 32) /* made by root: identified by the namespace's number */
#define NAMESPACES_MAX	  32	       /* the kernel's nesting limit */

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

#endif
