/* SPDX-License-Identifier: BSD-2-Clause */
#include <lien/client.h>

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>

/* A large job's graph has some 10 MiB; this only guards against an endless reply. */
#define REPLY_MAX    ((size_t)1 << 30)
#define READ_SIZE    ((size_t)65536)
#define NEVER	     UINT64_MAX
#define LONG_WAIT_MS 60000 /* then look at the clock again */

struct lien_client {
	char *path;
	int fd;
	unsigned timeout_ms;
	uint64_t deadline; /* of the current call, in ms of CLOCK_MONOTONIC */
	lien_client_progress_fn progress;
	void *progress_arg;
	int wake_fd;
	int (*wake)(void *arg);
	void *wake_arg;
	char *bytes; /* received and not yet consumed */
	size_t used, capacity, searched;
	char *error;
};

struct lien_client *lien_client_new(const char *path)
{
	struct lien_client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	client->fd = client->wake_fd = -1;
	if (!path)
		path = getenv("LIEN_SOCKET");
	client->path = strdup(path && *path ? path : LIEN_CLIENT_SOCKET);
	if (!client->path) {
		free(client);
		return NULL;
	}
	return client;
}

static void disconnect(struct lien_client *client)
{
	if (client->fd >= 0)
		close(client->fd);
	client->fd = -1;
	client->used = client->searched = 0;
}

void lien_client_free(struct lien_client *client)
{
	if (!client)
		return;
	disconnect(client);
	free(client->bytes);
	free(client->error);
	free(client->path);
	free(client);
}

const char *lien_client_path(const struct lien_client *client)
{
	return client->path;
}

const char *lien_client_error(const struct lien_client *client)
{
	return client->error ? client->error : "out of memory";
}

void lien_client_on_progress(struct lien_client *client, lien_client_progress_fn fn, void *arg)
{
	client->progress = fn;
	client->progress_arg = arg;
}

void lien_client_on_wake(struct lien_client *client, int fd, int (*fn)(void *arg), void *arg)
{
	client->wake_fd = fd;
	client->wake = fn;
	client->wake_arg = arg;
}

void lien_client_timeout(struct lien_client *client, unsigned ms)
{
	client->timeout_ms = ms;
}

static int __attribute__((format(printf, 3, 4)))
fail(struct lien_client *client, int err, const char *format, ...)
{
	va_list args;

	free(client->error);
	va_start(args, format);
	if (vasprintf(&client->error, format, args) < 0)
		client->error = NULL;
	va_end(args);
	return err;
}

static void start_clock(struct lien_client *client)
{
	client->deadline = client->timeout_ms ? lien_clock_ms() + client->timeout_ms : NEVER;
}

static int late(struct lien_client *client)
{
	disconnect(client);
	return fail(client, -ETIMEDOUT, "the agent on %s gave no answer within %u ms", client->path,
		client->timeout_ms);
}

/* Returns 0 when fd is ready, -ETIMEDOUT when the time is up, -EINTR when the caller gives up. */
static int wait_for(struct lien_client *client, short events)
{
	struct pollfd pfd[] = {
		{.fd = client->fd, .events = events}, {.fd = client->wake_fd, .events = POLLIN}};

	for (;;) {
		uint64_t now = lien_clock_ms(), left = client->deadline - now;
		int n;

		if (now >= client->deadline)
			return -ETIMEDOUT;
		n = poll(pfd, 2, left < LONG_WAIT_MS ? (int)left : LONG_WAIT_MS);
		if (n > 0 && pfd[0].revents)
			return 0;
		if (n > 0 && client->wake(client->wake_arg))
			return -EINTR;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

static int refused(struct lien_client *client, int err)
{
	struct stat st;

	switch (err) {
	case ENOENT:
	case ECONNREFUSED:
		return fail(client, -err,
			"no agent listens on %s: start one with `lien agent` (as root)",
			client->path);
	case EACCES:
	case EPERM:
		if (!stat(client->path, &st))
			return fail(client, -err,
				"you may not talk to the agent on %s: only uid %u and root may",
				client->path, st.st_uid);
		return fail(client, -err, "you may not talk to the agent on %s: only root may",
			client->path);
	case EAGAIN:
		return late(client);
	default:
		return fail(client, -err, "cannot connect to the agent on %s: %s", client->path,
			strerror(err));
	}
}

/* In a folder where anyone can make files, anyone may listen. */
static int check_agent(struct lien_client *client)
{
	struct ucred agent;
	socklen_t size = sizeof(agent);

	if (getsockopt(client->fd, SOL_SOCKET, SO_PEERCRED, &agent, &size))
		agent.uid = -1;
	if (!agent.uid || agent.uid == geteuid())
		return 0;
	disconnect(client);
	return fail(client, -EPERM,
		"%s is owned by user %u, not by root or you; refusing to trust it", client->path,
		agent.uid);
}

static int connect_now(struct lien_client *client)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int err;

	if (client->fd >= 0)
		return 0;
	if (strlen(client->path) >= sizeof(address.sun_path))
		return fail(client, -ENAMETOOLONG, "the socket's path is longer than %zu bytes: %s",
			sizeof(address.sun_path) - 1, client->path);
	strcpy(address.sun_path, client->path);
	client->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (client->fd < 0)
		return fail(client, -errno, "cannot make a socket: %s", strerror(errno));
	if (client->timeout_ms) {
		/* connect() to a unix socket blocks while the agent's backlog is full. */
		struct timeval limit = {
			client->timeout_ms / 1000, client->timeout_ms % 1000 * 1000};

		setsockopt(client->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	}
	if (!connect(client->fd, (struct sockaddr *)&address, sizeof(address)))
		return check_agent(client);
	err = errno;
	disconnect(client);
	return refused(client, err);
}

int lien_client_connect(struct lien_client *client)
{
	start_clock(client);
	return connect_now(client);
}

static int gone(struct lien_client *client, int err)
{
	disconnect(client);
	if (err == EPIPE)
		err = ECONNRESET;
	return fail(client, -err, "the agent on %s ended the connection: see its log (%s)",
		client->path, strerror(err));
}

static int not_ready(struct lien_client *client, int err)
{
	if (err == -ETIMEDOUT)
		return late(client);
	if (err != -EINTR)
		return gone(client, -err);
	disconnect(client);
	return fail(client, err, "left before the agent on %s had answered", client->path);
}

static int send_all(struct lien_client *client, const char *bytes, size_t size)
{
	while (size) {
		ssize_t n = send(client->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		int err;

		if (n >= 0) {
			bytes += n;
			size -= n;
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return gone(client, errno);
		err = wait_for(client, POLLOUT);
		if (err)
			return not_ready(client, err);
	}
	return 0;
}

static int make_room(struct lien_client *client)
{
	char *grown;

	if (client->capacity - client->used >= READ_SIZE)
		return 0;
	grown = realloc(client->bytes, 2 * client->capacity + READ_SIZE);
	if (!grown)
		return -ENOMEM;
	client->bytes = grown;
	client->capacity = 2 * client->capacity + READ_SIZE;
	return 0;
}

static int receive_some(struct lien_client *client)
{
	ssize_t n;
	int err;

	if (client->used > REPLY_MAX) {
		disconnect(client);
		return fail(client, -EPROTO, "the agent on %s sent a line that is too long",
			client->path);
	}
	if (make_room(client)) {
		disconnect(client);
		return fail(client, -ENOMEM, "out of memory for the reply of the agent on %s",
			client->path);
	}
	err = wait_for(client, POLLIN);
	if (err)
		return not_ready(client, err);
	n = recv(client->fd, client->bytes + client->used, READ_SIZE, MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : gone(client, errno);
	if (!n)
		return gone(client, ECONNRESET);
	client->used += n;
	return 0;
}

static void consume(struct lien_client *client, size_t size)
{
	client->used -= size;
	client->searched = 0;
	memmove(client->bytes, client->bytes + size, client->used);
}

/* Receives the next line of the connection as JSON. */
static int receive_line(struct lien_client *client, json_t **line)
{
	json_error_t error;
	char *end = NULL;
	size_t length;
	int err;

	for (;;) {
		if (client->used > client->searched)
			end = memchr(client->bytes + client->searched, '\n',
				client->used - client->searched);
		if (end)
			break;
		client->searched = client->used;
		err = receive_some(client);
		if (err)
			return err;
	}
	length = end - client->bytes;
	*line = json_loadb(client->bytes, length, 0, &error);
	consume(client, length + 1);
	if (!json_is_object(*line)) {
		json_decref(*line);
		disconnect(client);
		return fail(client, -EPROTO,
			"what answers on %s is not an agent of this version: not a JSON object",
			client->path);
	}
	return 0;
}

/* Returns 1: it was a progress line, wait for the next; 0: *result is set; or -errno. */
static int take_line(struct lien_client *client, const json_t *line, json_t **result)
{
	const json_t *progress = json_object_get(line, "progress");
	const json_t *ok = json_object_get(line, "ok");
	const char *error = json_string_value(json_object_get(line, "error"));

	if (json_is_object(progress)) {
		if (client->progress)
			client->progress(progress, client->progress_arg);
		return 1;
	}
	if (json_is_true(ok)) {
		*result = json_object_get(line, "result");
		if (*result)
			json_incref(*result);
		else
			*result = json_null();
		return 0;
	}
	if (json_is_false(ok) && error) {
		if (json_is_true(json_object_get(line, "busy")))
			return fail(client, -EBUSY, "%s", error);
		return fail(client,
			json_is_true(json_object_get(line, "invalid")) ? -EINVAL : -EREMOTEIO, "%s",
			error);
	}
	disconnect(client);
	return fail(client, -EPROTO,
		"what answers on %s is not an agent of this version: neither \"ok\" nor \"error\"",
		client->path);
}

static int receive_reply(struct lien_client *client, json_t **result)
{
	json_t *line;
	int err;

	do {
		err = receive_line(client, &line);
		if (err)
			return err;
		err = take_line(client, line, result);
		json_decref(line);
	} while (err > 0);
	return err;
}

int lien_client_call(struct lien_client *client, const json_t *request, json_t **result)
{
	json_t *reply = NULL;
	char *text, *line;
	int err;

	start_clock(client);
	err = connect_now(client);
	if (err)
		return err;
	text = json_dumps(request, JSON_COMPACT);
	if (!text || asprintf(&line, "%s\n", text) < 0) {
		free(text);
		return fail(client, -EINVAL, "the request cannot be written as JSON");
	}
	free(text);
	err = send_all(client, line, strlen(line));
	free(line);
	if (!err)
		err = receive_reply(client, &reply);
	if (err)
		return err;
	if (result)
		*result = reply;
	else
		json_decref(reply);
	return 0;
}

int lien_client_take_stream(struct lien_client *client, int *fd, void **bytes, size_t *size)
{
	if (client->fd < 0)
		return fail(client, -ENOTCONN, "not connected to the agent on %s", client->path);
	*fd = client->fd;
	*bytes = client->bytes;
	*size = client->used;
	client->fd = -1;
	client->bytes = NULL;
	client->used = client->searched = client->capacity = 0;
	return 0;
}
