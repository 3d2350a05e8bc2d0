/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the control library of a process, and whether it takes orders. */
#ifndef LIEN_PRESENCE_H
#define LIEN_PRESENCE_H

#include "agent/core/agent.h"

/* Looks for the control library in the process's mappings, and links to it. */
void lien_presence_look(struct lien_agent *agent, struct lien_process *process);
/* The control library at the known place takes no orders: every driver call that it makes is the
 * application's. */
void lien_presence_passes_on(struct lien_agent *agent, struct lien_process *process);

#endif
