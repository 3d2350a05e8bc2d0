/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * From 6.11 on, the return probes of 64-bit processes enter the kernel by a system call of their
 * own (uretprobe, 335) instead of a breakpoint; only the kernel chooses between the two. At first
 * seccomp filters applied to that call: a filter that refuses calls it does not know sends the
 * process to a meaningless address. "seccomp: passthrough uretprobe systemcall without filtering"
 * in 6.14 fixed it, and is in updates of earlier releases.
 */
#ifndef LIEN_URETPROBE_H
#define LIEN_URETPROBE_H

enum lien_uretprobe {
	LIEN_URETPROBE_PASSES,
	LIEN_URETPROBE_FILTERED,
	LIEN_URETPROBE_UNKNOWN, /* filters of our own are not allowed here */
};

/* Tries, in a child, whether a seccomp filter applies to that system call. For kernels from 6.11
 * on: older ones do not have it, and let no unknown call pass. */
enum lien_uretprobe lien_uretprobe_under_filter(void);

#endif
