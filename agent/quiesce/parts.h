/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which memory a restore in parts brings back next: one communicator's after the other, or that of
 * several together if they may share some. Those for which threads wait come first, the longest
 * wait first; then the smallest. From the second part on, each has up to twice as many of them as
 * the one before, so that parts are few; no part mixes those that threads wait for with others.
 */
#ifndef LIEN_PARTS_H
#define LIEN_PARTS_H

#include "agent/core/agent.h"

/* For struct lien_transaction_ops.next_part. Takes all at once, and says why, where gates cannot
 * tell communicators apart: what came back first would be of no use. */
unsigned lien_parts_next(void *agent, const struct lien_transaction_result *result,
	uint64_t *groups, unsigned max, char *why, size_t size);

#endif
