/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Links that put one program on one place of a file (kernel 5.15), for kernels that lack
 * uprobe-multi. They see every process. Making one takes the kernel some 50 us, removing one 100 ms
 * and more: it waits for all that runs in probes and tracepoints, one link at a time.
 */
#ifndef LIEN_UPROBE_SINGLE_H
#define LIEN_UPROBE_SINGLE_H

#include <stdbool.h>
#include <stdint.h>

/* Returns true if the running kernel has links to perf events: they can be pinned, and carry a
 * cookie. */
bool lien_uprobe_single_supported(void);
/*
 * Returns true if the running kernel runs such a program at each hit. Before 6.0, it skips the
 * program while a task that it preempted on the same processor is in a BPF system call. Kernels
 * that preempt no task there are safe.
 */
bool lien_uprobe_single_reliable(void);

/* Returns true if a kernel may take the processor from a task in a system call, as far as is known.
 * version: as uname() gives it; modes: /sys/kernel/debug/sched/preempt ("none (voluntary) full"),
 * empty if it cannot be read. */
bool lien_kernel_preempts(const char *version, const char *modes);

/* Returns the link's fd, or -errno. */
int lien_uprobe_single_attach(
	int program_fd, const char *path, uint64_t offset, uint64_t cookie, bool at_return);

#endif
