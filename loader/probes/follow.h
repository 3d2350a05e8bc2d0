/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Follows the contexts of single processes. The calls that make a context current occur several
 * times per collective (measured: 6.5 times by PyTorch and NCCL), and matter only where a process
 * has several contexts. So only such processes are probed, by links that are bound to one process.
 * Where the kernel has no such links (they came with uprobe-multi, and before 6.10 saw only one
 * thread), all processes are probed.
 */
#ifndef LIEN_FOLLOW_H
#define LIEN_FOLLOW_H

#include "loader/probes/probes.h"

/*
 * Begins to follow a process: from now on, or from a later tick, the kernel side knows which
 * context is current in each thread that changes it. `path` leads to the driver that the process
 * has mapped. Returns 0 also if it is already followed; -errno, as lien_probes_attach().
 */
int lien_probes_follow(struct lien_probes *probes, uint32_t pid, uint64_t start, const char *path);
/* Call periodically, for processes whose probes were not made in time. */
void lien_probes_follow_tick(struct lien_probes *probes,
	void (*failed)(void *context, uint32_t pid, int err), void *context);
/* Stops following a process, alive or not. */
void lien_probes_unfollow(struct lien_probes *probes, uint32_t pid);
/* Returns true if the process is followed, or will be. */
bool lien_probes_is_followed(const struct lien_probes *probes, uint32_t pid);
/* Returns true if the process is followed, with its probes in place. */
bool lien_probes_follows(const struct lien_probes *probes, uint32_t pid);

#endif
