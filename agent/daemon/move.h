/* SPDX-License-Identifier: BSD-2-Clause */
/* Requests that are transactions, and what these wait for (docs/protocol.md). */
#ifndef LIEN_MOVE_H
#define LIEN_MOVE_H

#include <jansson.h>

#include "agent/server/client.h"

void lien_offload_request(struct lien_client *client, json_t *request);
void lien_restore_request(struct lien_client *client, json_t *request);
/* The transaction that the client waits for has ended. */
void lien_request_done(struct lien_client *client);
/* A transaction has ended; call this once, before its clients get their answers. */
void lien_together_ended(struct lien_agent *agent);
void lien_together_free(struct lien_agent *agent);
/* The transaction that the client asked for did not begin: replies, and counts it. */
void lien_move_refuse(
	struct lien_client *client, enum lien_transaction_kind kind, const char *error);

/* A user cannot know of a transaction that the agent or another user has started, so the request is
 * handled after it; so is one that asks for that. Returns true if the request was postponed. */
bool lien_move_postpone(struct lien_client *client, json_t *request);
/* Returns true if the request was postponed until the list of open files is as new as it. */
bool lien_move_wait_for_files(struct lien_client *client, json_t *request);

#endif
