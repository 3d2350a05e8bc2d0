/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `attach`: gives processes that were started without lien the same standing as others, for a
 * client. A process that lacks the control library gets it. For a process that ran before it was
 * watched, its mappings are read from the driver; then all such processes are adopted together
 * (adoption.h).
 */
#ifndef LIEN_ATTACH_H
#define LIEN_ATTACH_H

#include "agent/server/client.h"

/* Attaches to these processes (none: all of the viewer's that use CUDA and need it). Answers when
 * each has been adopted or cannot be. */
void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count);
/* Does the same before an offload, for processes that it could then move. Returns true if there are
 * any: go_on is called when each is attached or cannot be, unless the client has gone; a reference
 * to the request is kept until then. */
bool lien_attach_before(struct lien_client *client, const uint32_t *pids, unsigned count,
	json_t *request, void (*go_on)(struct lien_client *client, json_t *request));
/* Ends the adoption that an attach began. */
void lien_attach_adopted(struct lien_agent *agent, const struct lien_transaction_result *result);
void lien_attach_stop(struct lien_agent *agent);

#endif
