/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests that are one transaction: when every rank of a job asks for the same offload or restore,
 * the first one begins it and all get its result (docs/protocol.md, `together`).
 */
#ifndef LIEN_TOGETHER_H
#define LIEN_TOGETHER_H

#include <jansson.h>

#include "agent/server/client.h"

/* Checks the members `together` and `wait`. Returns false after an error reply. */
bool lien_together_read(struct lien_client *client, json_t *request);
/*
 * Returns true if an equal request has begun the transaction under way, and the client now waits
 * for its end; or if the request has been answered with the result that its token has.
 */
bool lien_together_join(struct lien_client *client, json_t *request);
/* Notes that this request begins a transaction, unless one is under way. lien_together_none(): it
 * did not begin after all. */
void lien_together_begin(struct lien_client *client, json_t *request);
/* There is nothing to move. Answers with the result of the last transaction if that is the reason,
 * or else with `result`, which it takes over. */
void lien_together_nothing(struct lien_client *client, json_t *request, json_t *result);
void lien_together_none(struct lien_agent *agent);
/* The transaction has ended; call this once, before its clients get their answers. */
void lien_together_ended(struct lien_agent *agent);
/* Returns the result of the transaction that has just ended, borrowed; NULL: it has failed, for any
 * reason but that all of the memory stays. */
json_t *lien_together_result(struct lien_agent *agent);
void lien_together_free(struct lien_agent *agent);

#endif
