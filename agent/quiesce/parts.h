/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which memory a restore in parts brings back next: that of one communicator, or of those that may
 * share some, after the other. Those for which threads wait come first, the longest wait first;
 * then the smallest. From the second part on, each has up to twice as many of them as the one
 * before, so that parts are few; none has both such that threads wait for and others.
 */
#ifndef LIEN_PARTS_H
#define LIEN_PARTS_H

#include "agent/core/agent.h"

/* For struct lien_transaction_ops.next_part. Takes all at once, and says why, where gates cannot
 * tell communicators apart: what came back first would be of no use. */
unsigned lien_parts_next(void *agent, const struct lien_transaction *transaction, unsigned part,
	uint64_t *groups, unsigned max, char *why, size_t size);

#endif
