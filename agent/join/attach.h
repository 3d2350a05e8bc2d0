/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `attach`: gives processes that were started without lien the same standing as others, for a
 * client. A process that lacks the control library gets it. For a process that ran before it was
 * watched, its mappings are read from the driver; then all such processes are adopted together
 * (adoption.h).
 */
#ifndef LIEN_ATTACH_H
#define LIEN_ATTACH_H

#include "agent/core/agent.h"

void lien_attach_stop(struct lien_agent *agent);

#endif
