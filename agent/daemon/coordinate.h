/* SPDX-License-Identifier: BSD-2-Clause */
/* Serves the coordinator of a transaction over several nodes (docs/protocol.md, `coordinate`). */
#ifndef LIEN_COORDINATE_H
#define LIEN_COORDINATE_H

#include "agent/server/client.h"

/* Reads the member `coordinate`, and prepares for the transaction that the request is about to
 * begin. Returns false after an error reply. */
bool lien_coordinate_begin(struct lien_client *client, json_t *request, bool restore);
/* The request has been served. `none`: it began no transaction. */
void lien_coordinate_begun(struct lien_agent *agent, bool none);
/* Takes the coordinator's word, and replies with the state of this node's part. */
void lien_coordinate_request(struct lien_client *client, json_t *request);

#endif
