/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_COUNTED_H
#define LIEN_COUNTED_H

#include "agent/core/agent.h"

struct lien_counted;

/*
 * Returns what the kernel side has counted; the caller frees it. On error returns -errno and sets
 * *counted to NULL.
 */
int lien_agent_counted(struct lien_agent *agent, struct lien_counted **counted, size_t *count);

#endif
