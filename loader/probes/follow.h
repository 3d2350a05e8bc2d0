/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Following the contexts of single processes. The calls that make a context current are made
 * several times for each collective (measured: 6.5 times by PyTorch and NCCL), and matter only
 * where a process has several contexts. So they are probed in such processes alone, by links that
 * are bound to one process; where the kernel has no such links (they came with uprobe-multi, and
 * saw one thread only before 6.10), in all of them.
 */
#ifndef LIEN_FOLLOW_H
#define LIEN_FOLLOW_H

#include "loader/probes/probes.h"

/* Can processes be followed one by one? If not, all are, and nothing is to be done. */
bool lien_probes_can_follow(const struct lien_probes *probes);
/*
 * Begins: from now on, or from a tick after this, the kernel side knows which context is current in
 * a thread that changes it. `path` leads to the driver that the process has mapped. 0 also if it is
 * followed; -errno, as lien_probes_attach().
 */
int lien_probes_follow(struct lien_probes *probes, uint32_t pid, uint64_t start, const char *path);
/* To be called now and then, for those for which the probes were not made in time. */
void lien_probes_follow_tick(struct lien_probes *probes,
	void (*failed)(void *context, uint32_t pid, int err), void *context);
/* Ends, of a process that lives or does not. */
void lien_probes_unfollow(struct lien_probes *probes, uint32_t pid);
/* It is, or will be. */
bool lien_probes_is_followed(const struct lien_probes *probes, uint32_t pid);
/* It is: the probes are where they belong. */
bool lien_probes_follows(const struct lien_probes *probes, uint32_t pid);
/* What the kernel side knows of a process; false: nothing. */
bool lien_probes_process(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_process *process);

#endif
