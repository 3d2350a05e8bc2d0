/* SPDX-License-Identifier: BSD-2-Clause */
/* What clients may ask (docs/protocol.md). */
#ifndef LIEN_REQUESTS_H
#define LIEN_REQUESTS_H

#include <jansson.h>

#include "agent/server/client.h"

/* Answers a request (NULL: no JSON), or begins what will be answered later. */
void lien_request(struct lien_client *client, json_t *request);
/* The transaction that the client waits for has ended. */
void lien_request_done(struct lien_client *client);

/* status.c: the answer, NULL without memory. */
json_t *lien_agent_status(struct lien_agent *agent, const struct lien_viewer *viewer);
/* A part of it: the host arenas of all processes together. */
json_t *lien_agent_host(struct lien_agent *agent);
/* comms.c: the answer, NULL without memory; and how many communicators the kernel side counts. */
json_t *lien_agent_comms(struct lien_agent *agent, const struct lien_viewer *viewer);
unsigned lien_agent_comms_counted(struct lien_agent *agent);

#endif
