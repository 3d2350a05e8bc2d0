/* SPDX-License-Identifier: BSD-2-Clause */
/* `attach`: puts the control library into processes that were started without it, for a client. */
#ifndef LIEN_ATTACH_H
#define LIEN_ATTACH_H

#include "agent/requests.h"

/* Into these processes (none: all of the viewer's that use CUDA and have none); answers when each
 * takes orders or cannot. */
void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count);
/* The same before an offload, for processes that could be moved if they had one. True: the request
 * is taken up again when each has, or cannot; a reference is kept. False: there are none. */
bool lien_attach_before(
	struct lien_client *client, const uint32_t *pids, unsigned count, json_t *request);
/* The client is gone: what has begun goes on. */
void lien_attach_drop(struct lien_attach *attach);
void lien_attach_tick(struct lien_agent *agent);
void lien_attach_stop(struct lien_agent *agent);

#endif
