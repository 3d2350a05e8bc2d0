/* SPDX-License-Identifier: BSD-2-Clause */
/* The agent's socket: who its clients are, and whose turn it is. It knows no request. */
#ifndef LIEN_SERVER_H
#define LIEN_SERVER_H

#include "agent/server/client.h"

struct lien_server_calls {
	/* Answers a request (NULL: no JSON), or begins what will be answered later. */
	void (*request)(struct lien_client *client, json_t *request);
	/* The transaction that the client waits for has ended. */
	void (*done)(struct lien_client *client);
};

/* `calls` stays the caller's. 0, or -errno after a message. */
int lien_server_start(
	struct lien_agent *agent, const char *path, const struct lien_server_calls *calls);
void lien_server_stop(struct lien_agent *agent);
/* In a copy of the agent: closes the sockets, which are the agent's. */
void lien_server_close_inherited(struct lien_agent *agent);
bool lien_server_recording(const struct lien_agent *agent);
/* uid: of its process; NULL: not known, so root's alone. */
void lien_server_event(
	struct lien_agent *agent, const struct lien_event *event, const uint32_t *uid);
void lien_server_progress(
	struct lien_agent *agent, enum lien_phase phase, unsigned done, unsigned of);
/* The transaction has ended: its client gets the answer. */
void lien_server_transaction_done(struct lien_agent *agent);
/* There is none any more: requests that wait for the end of one have their turn. */
void lien_server_resume(struct lien_agent *agent);
/* Does a request that has waited for the end of a transaction wait for its turn? */
bool lien_server_has_postponed(const struct lien_agent *agent);
/* Does one wait until no probes are being taken away? */
bool lien_server_waits_for_quiet(const struct lien_agent *agent);
/* Lets go of clients that do not read what they asked for. */
void lien_server_tick(struct lien_agent *agent);
/* Does a client wait for an answer to its next request? */
bool lien_server_has_requests(const struct lien_agent *agent);
/* Handles one request: users in turn, and the clients of a user in turn. */
void lien_server_request(struct lien_agent *agent);

#endif
