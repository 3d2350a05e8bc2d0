/* SPDX-License-Identifier: BSD-2-Clause */
/* Host memory for the first offload of a process, pinned in advance. */
#ifndef LIEN_PREPARE_H
#define LIEN_PREPARE_H

#include "agent/core/agent.h"

/* Returns the size of all processes' host arenas, with what is being added to them. */
uint64_t lien_prepare_held(struct lien_agent *agent);
/* Returns the bytes of host memory that an offload of all that the process has would take. */
uint64_t lien_prepare_wanted(const struct lien_process *process);
/* Is nothing pinned in advance there, because it would count towards a memory cgroup with a limit?
 */
bool lien_prepare_excluded(const struct lien_agent *agent, const struct lien_process *process);
/* Handles the last reply to its order. */
void lien_prepare_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);
void lien_prepare_tick(struct lien_agent *agent);

#endif
