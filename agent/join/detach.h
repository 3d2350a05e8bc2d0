/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `detach`: makes control libraries leave their process, for a client. Their code stays mapped and
 * does nothing. The kernel side goes on watching the process. Until it is attached again by name
 * (`attach`), no offload attaches it (lien_process.detached).
 */
#ifndef LIEN_DETACH_H
#define LIEN_DETACH_H

#include "agent/server/client.h"

/* Detaches these processes (none: all of the viewer's that take orders). Answers when each is
 * detached or has refused; answers with an error at once while a transaction is under way. */
void lien_detach_start(struct lien_client *client, const uint32_t *pids, unsigned count);
/* Is the process being detached? */
bool lien_detach_under_way(const struct lien_tracked *tracked);
/* Handles the last reply to a detach order. May end the link. */
void lien_detach_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);

#endif
