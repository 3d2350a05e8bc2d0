/* SPDX-License-Identifier: BSD-2-Clause */
/* Where the control library of a process is, and whether it takes orders. */
#ifndef LIEN_PRESENCE_H
#define LIEN_PRESENCE_H

#include "agent/core/agent.h"

/* Looks for the control library among what the process has mapped, and links to it. */
void lien_presence_look(struct lien_agent *agent, struct lien_process *process);
/* The control library at the known place takes no orders: all driver calls that it makes are the
 * application's. */
void lien_presence_passes_on(struct lien_agent *agent, struct lien_process *process);

#endif
