/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The C client of the agent's socket; docs/protocol.md lists the requests. Requests and results are
 * jansson objects. Only one thread may use a client at a time.
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

/* progress is the body of a progress line, borrowed for the duration of the call. */
typedef void (*lien_client_progress_fn)(const json_t *progress, void *arg);

/*
 * path: the agent's socket; NULL means $LIEN_SOCKET, or else LIEN_CLIENT_SOCKET. Does not connect
 * yet. Returns NULL only when out of memory.
 */
struct lien_client *lien_client_new(const char *path);
void lien_client_free(struct lien_client *client);

const char *lien_client_path(const struct lien_client *client);

/* Returns the message of the last failure, valid until the next call; never NULL. */
const char *lien_client_error(const struct lien_client *client);

void lien_client_on_progress(struct lien_client *client, lien_client_progress_fn fn, void *arg);

/*
 * While a call waits, fn is called when fd is readable, and should read it; a result other than 0
 * ends the call with -EINTR. fd -1, the default: none. For signals: signalfd(2).
 */
void lien_client_on_wake(struct lien_client *client, int fd, int (*fn)(void *arg), void *arg);

/* Limits the time that one call may take, connecting included. 0, the default: no limit. */
void lien_client_timeout(struct lien_client *client, unsigned ms);

/*
 * Connects, to find out whether an agent is there; the other calls connect by themselves. -ENOENT,
 * -ECONNREFUSED: nobody listens; -EACCES: no permission.
 */
int lien_client_connect(struct lien_client *client);

/*
 * Sends a request and waits for its reply. request is borrowed. The caller owns *result and must
 * json_decref() it; it may be a JSON null. result may be NULL.
 *
 * -EREMOTEIO: the agent refused or failed, and the message is its own. -EBUSY: the same, but a
 * later attempt may succeed: a job could not be quiesced. -EINVAL: the request is wrong, or names
 * something that does not exist. -ETIMEDOUT. -ECONNRESET: the agent went away. -EPROTO: the reply
 * is malformed. After the last three the next call reconnects.
 */
int lien_client_call(struct lien_client *client, const json_t *request, json_t **result);

/*
 * For use after the reply to `record`, when the stream is no longer JSON. Hands over the connection
 * and the bytes that came with the reply; the caller must close() and free() them. *bytes may be
 * NULL when *size is 0. -ENOTCONN before any successful call.
 */
int lien_client_take_stream(struct lien_client *client, int *fd, void **bytes, size_t *size);

#endif
