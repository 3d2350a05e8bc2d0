/* SPDX-License-Identifier: BSD-2-Clause */
/* The requests that clients may send (docs/protocol.md). */
#ifndef LIEN_REQUESTS_H
#define LIEN_REQUESTS_H

#include <jansson.h>

#include "agent/server/client.h"

/* Answers a request (NULL: not JSON), or begins work that is answered later. */
void lien_request(struct lien_client *client, json_t *request);
/* The transaction that the client waits for has ended. */
void lien_request_done(struct lien_client *client);

/* status.c: returns the answer; NULL: out of memory. */
json_t *lien_agent_status(struct lien_agent *agent, const struct lien_viewer *viewer);
/* The part of it about the host arenas of all processes together. */
json_t *lien_agent_host(struct lien_agent *agent);
/* metrics.c: returns the answer; NULL: out of memory. */
json_t *lien_agent_metrics(struct lien_agent *agent, const struct lien_viewer *viewer);
/*
 * comms.c: returns the answer (NULL: out of memory); and the number of communicators that the
 * kernel side counts.
 */
json_t *lien_agent_comms(struct lien_agent *agent, const struct lien_viewer *viewer);
unsigned lien_agent_comms_counted(struct lien_agent *agent);

#endif
