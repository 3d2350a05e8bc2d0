/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gates that hold calls by communicator. If only some communicators' memory is away from a process,
 * the others can be used: their calls pass. That needs certainty about whose memory it is.
 * Communicators that were split or shrunk from each other may share memory, so they are held
 * together; and so is everything if any memory that is away is only attributed by a guess, is not
 * NCCL's, or is not known.
 */
#ifndef LIEN_BY_COMM_H
#define LIEN_BY_COMM_H

#include "agent/core/agent.h"

/* Call this when an offload has succeeded: notes the processes whose moved memory may be several
 * communicators'. */
void lien_by_comm_moved(struct lien_agent *agent);
/* Call this when an offload or a restore has ended: makes the process's gate, if it is shut, hold
 * what it has to, and lets go of threads that it no longer holds. */
void lien_by_comm_set(struct lien_agent *agent, uint32_t pid);
/*
 * For struct lien_transaction_ops.next_part: which memory a restore in parts brings back next. One
 * communicator's after the other, or that of several together if they may share some. Those for
 * which threads wait come first, the longest wait first; then the smallest. From the second part
 * on, each has up to twice as many of them as the one before, so that parts are few; no part mixes
 * those that threads wait for with others. Takes all at once, and says why, where gates cannot tell
 * communicators apart: what came back first would be of no use.
 */
unsigned lien_parts_next(void *agent, const struct lien_transaction_result *result,
	uint64_t *groups, unsigned max, char *why, size_t size);

#endif
