/* SPDX-License-Identifier: BSD-2-Clause */
/* The agent's socket: its clients, and whose turn it is. It does not know the requests. */
#ifndef LIEN_SERVER_H
#define LIEN_SERVER_H

#include "agent/server/client.h"

struct lien_server_calls {
	/* Answers a request (NULL: not JSON), or begins work that is answered later. */
	void (*request)(struct lien_client *client, json_t *request);
	/* The transaction has ended: called once, and then for each client that waits for it. */
	void (*ended)(struct lien_agent *agent);
	void (*done)(struct lien_client *client);
};

/* The caller keeps `calls`. 0, or -errno after a message. */
int lien_server_start(
	struct lien_agent *agent, const char *path, const struct lien_server_calls *calls);
void lien_server_stop(struct lien_agent *agent);
/* In a copy of the agent: closes the sockets, which belong to the agent. */
void lien_server_close_inherited(struct lien_agent *agent);
/* Call this before the graph applies the event, which may end its process. If its process's user is
 * not known, only root's clients get it. */
void lien_server_event(struct lien_agent *agent, const struct lien_event *event);
/* Sends the body of a progress line, which it takes over, to clients that wait for the end of the
 * transaction. */
void lien_server_tell(struct lien_agent *agent, json_t *progress);
/* How many clients wait for the end of the transaction? */
unsigned lien_server_waiting(const struct lien_agent *agent);
/* The transaction has ended: its clients get the answer. */
void lien_server_transaction_done(struct lien_agent *agent);
/* Requests of the same user that wait and have not begun a transaction yet are not carried out.
 * Returns true if there are any. */
bool lien_server_cancel(struct lien_client *by);
/* No transaction is left: requests that wait for the end of one get their turn. */
void lien_server_resume(struct lien_agent *agent);
/* Is one of them another user's than the transaction that is under way, and not one of `but_not`?
 */
bool lien_server_others_wait(const struct lien_agent *agent,
	bool (*but_not)(const struct lien_agent *agent, const struct lien_viewer *who));
/* Does a request wait until no probes are being removed? */
bool lien_server_waits_for_quiet(const struct lien_agent *agent);
/* Handles those requests once more. */
void lien_server_resume_quiet(struct lien_agent *agent);
/* Disconnects clients that do not read what they asked for. */
void lien_server_tick(struct lien_agent *agent);
/* Does a client have a request that can be handled? */
bool lien_server_has_requests(const struct lien_agent *agent);
/* The next request's mark (daemon/run.c). There must be a request. */
uint64_t *lien_server_mark(struct lien_agent *agent);
/* Handles one request: users in turn, and the clients of a user in turn. */
void lien_server_request(struct lien_agent *agent);

#endif
