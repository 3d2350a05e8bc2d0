/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The C client of the agent's socket; docs/protocol.md says which requests there are. Requests and
 * results are jansson's objects. One client serves one thread at a time.
 *
 * Calls return 0 or -errno. lien_client_error() then says in one line, for a human, what is wrong
 * and what to do.
 */
#ifndef LIEN_CLIENT_H
#define LIEN_CLIENT_H

#include <stddef.h>

#include <jansson.h>

#define LIEN_CLIENT_SOCKET "/run/lien/agent.sock"

struct lien_client;

/* The body of a progress line, borrowed for the time of the call. */
typedef void (*lien_client_progress_fn)(const json_t *progress, void *arg);

/*
 * path: the agent's socket; NULL: $LIEN_SOCKET, or else LIEN_CLIENT_SOCKET. Does not connect yet.
 * Returns NULL without memory, and for nothing else.
 */
struct lien_client *lien_client_new(const char *path);
void lien_client_free(struct lien_client *client);

const char *lien_client_path(const struct lien_client *client);

/* The last failure, until the next call; never NULL. */
const char *lien_client_error(const struct lien_client *client);

void lien_client_on_progress(struct lien_client *client, lien_client_progress_fn fn, void *arg);

/* The longest that one call may take, connecting included; 0, the default: any time. */
void lien_client_timeout(struct lien_client *client, unsigned ms);

/*
 * Calls connect by themselves; this tells whether an agent is there. -ENOENT, -ECONNREFUSED: none
 * listens; -EACCES: not allowed to.
 */
int lien_client_connect(struct lien_client *client);

/*
 * Sends a request and waits for its reply. request is borrowed. *result is the caller's to
 * json_decref(), and may be a JSON null; result may be NULL.
 *
 * -EREMOTEIO: the agent refused or failed, the message is its own. -EBUSY: so it did, and might not
 * a little later: a job was not brought to rest. -ETIMEDOUT. -ECONNRESET: the
 * agent went away. -EPROTO: the reply is not one. After all but the first the next call connects
 * anew.
 */
int lien_client_call(struct lien_client *client, const json_t *request, json_t **result);

/*
 * After the reply to `record`: what follows is no longer JSON. Hands over the connection and the
 * bytes that came with the reply; both are the caller's to close() and free(). *bytes may be NULL
 * when *size is 0. -ENOTCONN before any successful call.
 */
int lien_client_take_stream(struct lien_client *client, int *fd, void **bytes, size_t *size);

#endif
