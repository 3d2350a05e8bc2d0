/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `attach`: makes processes that were started without lien, for a client, like any other. Those
 * that lack the control library get it; of those that ran before they were watched, what they have
 * mapped is read from the driver, and then they are adopted (adoption.h), all together.
 */
#ifndef LIEN_ATTACH_H
#define LIEN_ATTACH_H

#include "agent/server/client.h"

/* These processes (none: all of the viewer's that use CUDA and need it); answers when each has been
 * adopted or cannot be. */
void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count);
/* The same before an offload, for processes that could be moved then. True: go_on is called when
 * each is, or cannot, unless the client is gone; a reference is kept until then. False: there are
 * none. */
bool lien_attach_before(struct lien_client *client, const uint32_t *pids, unsigned count,
	json_t *request, void (*go_on)(struct lien_client *client, json_t *request));
/* The adoption that one of them began has ended. */
void lien_attach_adopted(struct lien_agent *agent, const struct lien_transaction_result *result);
void lien_attach_stop(struct lien_agent *agent);

#endif
