/* SPDX-License-Identifier: BSD-2-Clause */
/* Requests that are transactions, and what these wait for (docs/protocol.md). */
#ifndef LIEN_MOVE_H
#define LIEN_MOVE_H

#include <jansson.h>

#include "agent/server/client.h"

void lien_offload_request(struct lien_client *client, json_t *request);
void lien_restore_request(struct lien_client *client, json_t *request);
/* Cancels the offload that the same user has under way, or that is about to begin. */
void lien_cancel_request(struct lien_client *client, json_t *request);
/* The transaction that the client waits for has ended. */
void lien_request_done(struct lien_client *client);
void lien_arena_request(struct lien_client *client, json_t *request);
/* A message of a transaction's coordinator to this node's part of it. */
void lien_coordinate_request(struct lien_client *client, json_t *request);

/* A user cannot know of a transaction that the agent or another user has started, so the request is
 * handled after it; so is one that asks for that. Returns true if the request was postponed. */
bool lien_move_postpone(struct lien_client *client, json_t *request);
/* Returns true if the request was postponed until the list of open files is as new as it. */
bool lien_move_wait_for_files(struct lien_client *client, json_t *request);

#endif
