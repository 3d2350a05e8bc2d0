/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Brings a job to rest: decides which held threads go on, and finds when none is in a call. All are
 * members of struct lien_transaction_ops, where their results are described; the agent's one thread
 * calls them.
 */
#ifndef LIEN_QUIESCE_H
#define LIEN_QUIESCE_H

#include "agent/core/agent.h"
#include "agent/transaction/transaction.h"

/* For not_now. */
const char *lien_quiesce_not_now(void *agent, uint32_t pid);
/* For at_rest. The processes' gates must be shut, at least for calls in which ranks meet. */
enum lien_rest lien_quiesce_look(void *agent, struct lien_resting *resting);
/* For rested. */
void lien_quiesce_rested(void *agent, const uint32_t *pids, unsigned count);
/* Forgets the counts of the last rest; `number`: of the rest whose counts will be noted. */
void lien_since_clear(struct lien_tracked *tracked, uint64_t number);
/* For background: lists communicators on which NCCL may be at work. */
unsigned lien_quiesce_background(void *agent, uint32_t pid, uint64_t *comms, unsigned max);

#endif
