/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `detach`: makes control libraries leave their process, for a client. Their code stays mapped and
 * does nothing. The kernel side goes on watching the process. Until it is attached again by name
 * (`attach`), no offload attaches it (lien_process.detached).
 */
#ifndef LIEN_DETACH_H
#define LIEN_DETACH_H

#include "agent/core/agent.h"

/* Is the process being detached? */
bool lien_detach_under_way(const struct lien_tracked *tracked);

#endif
