/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Looks, one process a second, for those that have rewritten functions of CUDA or NCCL in their
 * memory since they were probed (loader/probes/code.h), and marks them LIEN_INCOMPLETE_REWRITTEN:
 * these calls are not seen any more. A thread reads them.
 */
#ifndef LIEN_REWRITTEN_H
#define LIEN_REWRITTEN_H

#include "agent/core/agent.h"

void lien_rewritten_tick(struct lien_agent *agent);

#endif
