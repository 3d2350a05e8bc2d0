/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a gate holds, as far as the kernel side alone cannot say: bpf/gate.h decides when a thread
 * comes to a call; this says the same afterwards, with what only the graph knows.
 */
#ifndef LIEN_HOLDS_H
#define LIEN_HOLDS_H

#include "agent/core/agent.h"

/* Does the thread unmap, register or close what is away? */
bool lien_holds_away(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held);
/* Does it register or close memory that is not away? The gate holds a range, in which there is
 * other memory, too. */
bool lien_holds_other(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held);
/* Would a gate of the process that is shut like this hold the thread? `all`: it guards more than
 * NCCL's memory. */
bool lien_holds(const struct lien_agent *agent, uint32_t pid, const struct lien_probe_shut *shut,
	bool all, const struct lien_probe_held *held);
/* Does the thread wait for what an earlier transaction has taken away, whatever the present one
 * holds? Nobody can wait for such a thread: all were at rest with it. */
bool lien_holds_from_before(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held);

#endif
