/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_QUIESCE_H
#define LIEN_QUIESCE_H

#include "agent/offload/transaction.h"

/* For struct lien_transaction_ops (not_now). */
const char *lien_quiesce_not_now(void *agent, uint32_t pid);
/* For struct lien_transaction_ops (at_rest); the processes' gates are shut. */
bool lien_quiesce_reached(void *agent, const uint32_t *pids, const bool *busy, unsigned count,
	lien_pass_fn *pass, void *to, char *why, size_t size);

/* For struct lien_transaction_ops (background): communicators on which NCCL may be at work. */
unsigned lien_quiesce_background(void *agent, uint32_t pid, uint64_t *comms, unsigned max);

#endif
