// SPDX-License-Identifier: BSD-2-Clause
/* The agent's socket: lines in, lines out (docs/protocol.md). */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <lien/pass_fds.h>

#include "agent/graph/named.h"
#include "agent/server/address.h"
#include "agent/server/server.h"

#define LINE_MAX_BYTES	(1u << 20)
#define CLIENTS_MAX	1024
#define CLIENTS_OF_USER 64 /* per user other than root */
#define SENDS_AT_ONCE	8
#define DIGITS		15 /* of real numbers: no 0.085116999999999998 */
#define OUTPUT_MAX_BYTES                                                                           \
	(256u << 20) /* a recorder that falls further behind than this is disconnected */

/* One user's clients, or root's. */
struct lien_user {
	LIST_ENTRY(lien_user) next;
	TAILQ_ENTRY(lien_user) turn;
	bool in_turns;
	struct lien_viewer viewer; /* of one of its clients */
	unsigned clients;
	unsigned answers;		 /* being made by copies of the agent (daemon/requests.h) */
	size_t waiting_bytes;		 /* size of their output buffers */
	TAILQ_HEAD(, lien_client) ready; /* clients that have sent a request */
};

struct lien_server {
	struct lien_source listener;
	struct lien_agent *agent;
	const struct lien_server_calls *calls;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	LIST_HEAD(, lien_client) clients;
	LIST_HEAD(, lien_user) users;
	TAILQ_HEAD(, lien_user) turns;
	unsigned count, recorders;
	bool quiet; /* a client may be in LIEN_WAIT_QUIET */
};

/* --- turns ------------------------------------------------------------------------------------ */

static struct lien_user *user_get(struct lien_server *server, const struct lien_viewer *viewer)
{
	struct lien_user *user;

	LIST_FOREACH (user, &server->users, next)
		if (lien_viewer_same(&user->viewer, viewer))
			return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->viewer = *viewer;
	TAILQ_INIT(&user->ready);
	LIST_INSERT_HEAD(&server->users, user, next);
	return user;
}

static void user_put(struct lien_user *user)
{
	if (user->clients)
		return;
	LIST_REMOVE(user, next);
	free(user);
}

/* Can its next line be handled? */
static bool is_ready(const struct lien_client *client)
{
	return (client->postponed || client->line_end) && !client->waits && !client->recording &&
	       !client->broken;
}

/*
 * A user takes turns while one of the user's clients has a request; all users but root wait until
 * no copy is making an answer.
 */
static void user_turn(struct lien_server *server, struct lien_user *user)
{
	bool wanted = !TAILQ_EMPTY(&user->ready) && !(user->viewer.one_user && user->answers);

	if (wanted == user->in_turns)
		return;
	user->in_turns = wanted;
	if (wanted)
		TAILQ_INSERT_TAIL(&server->turns, user, turn);
	else
		TAILQ_REMOVE(&server->turns, user, turn);
}

static void queue_leave(struct lien_client *client)
{
	if (!client->queued)
		return;
	client->queued = false;
	TAILQ_REMOVE(&client->user->ready, client, turn);
	user_turn(client->agent->server, client->user);
}

static void queue_join(struct lien_client *client)
{
	if (client->queued || !is_ready(client))
		return;
	client->queued = true;
	TAILQ_INSERT_TAIL(&client->user->ready, client, turn);
	user_turn(client->agent->server, client->user);
}

unsigned lien_client_answers(struct lien_client *client, int more)
{
	struct lien_turns *turns = &client->agent->turns;
	struct lien_user *user = client->user;

	user->answers += more;
	turns->answers += more > 0;
	if (user->viewer.one_user && user->answers > turns->most_answers)
		turns->most_answers = user->answers;
	user_turn(client->agent->server, user);
	return user->answers;
}

/* --- clients ---------------------------------------------------------------------------------- */

static void client_close(struct lien_client *client)
{
	if (client->job)
		client->job->drop(client->job);
	queue_leave(client);
	LIST_REMOVE(client, next);
	client->agent->server->count--;
	client->agent->server->recorders -= client->recording;
	json_decref(client->postponed);
	client->user->waiting_bytes -= client->out_room;
	client->user->clients--;
	user_put(client->user);
	/* A copy may share the open file, so closing ours does not remove it from the epoll set. */
	epoll_ctl(client->agent->epoll, EPOLL_CTL_DEL, client->source.fd, NULL);
	close(client->source.fd);
	if (client->passed >= 0)
		close(client->passed);
	free(client->in);
	free(client->out);
	free(client);
}

static void client_watch(struct lien_client *client)
{
	struct epoll_event event = {
		/* A client with a request here waits to send the next one. */
		.events = (client->ended || client->line_end ? 0 : EPOLLIN) |
			  (client->out_length ? EPOLLOUT : 0),
		.data.ptr = &client->source,
	};

	epoll_ctl(client->agent->epoll, EPOLL_CTL_MOD, client->source.fd, &event);
}

static ssize_t send_some(struct lien_client *client)
{
	struct iovec part = {client->out + client->out_sent, client->out_length - client->out_sent};

	if (client->passed < 0)
		return send(client->source.fd, part.iov_base, part.iov_len,
			MSG_DONTWAIT | MSG_NOSIGNAL);
	part.iov_len = 1;
	errno = -lien_pass_send(client->source.fd, &part, 1, &client->passed, 1);
	if (errno)
		return -1;
	close(client->passed);
	client->passed = -1;
	return 1;
}

/* Sends what the socket takes now; a client that keeps reading gets the rest later. Returns false
 * if the client is gone. */
static bool client_flush(struct lien_client *client)
{
	unsigned sends = 0;
	ssize_t n;

	while (client->out_sent < client->out_length && sends++ < SENDS_AT_ONCE) {
		n = send_some(client);
		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0)
			return false;
		client->out_sent += n;
	}
	/* The rest moves to the front when it is the smaller part. */
	if (client->out_sent > client->out_length / 2) {
		client->out_length -= client->out_sent;
		memmove(client->out, client->out + client->out_sent, client->out_length);
		client->out_sent = 0;
	}
	client_watch(client);
	return true;
}

void lien_reply_write(struct lien_client *client, const void *data, size_t size)
{
	size_t room = client->out_room ? client->out_room : 4096;
	char *grown;

	if (client->broken)
		return;
	while (room < client->out_length + size)
		room *= 2;
	/* Counts one client of root's, or all clients of another user together. */
	if (room != client->out_room &&
		(client->user->viewer.one_user ? client->user->waiting_bytes - client->out_room
					       : 0) +
				room >
			OUTPUT_MAX_BYTES) {
		client->broken = true; /* lien_server_tick() closes it */
		return;
	}
	if (room != client->out_room) {
		grown = realloc(client->out, room);
		if (!grown) {
			client->broken = true;
			return;
		}
		client->out = grown;
		client->user->waiting_bytes += room - client->out_room;
		client->out_room = room;
	}
	memcpy(client->out + client->out_length, data, size);
	client->out_length += size;
	if (client->out_length == size) /* the buffer was empty */
		client_watch(client);
}

void lien_reply_send(struct lien_client *client, json_t *message)
{
	char *text =
		message ? json_dumps(message, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) : NULL;

	if (text) {
		lien_reply_write(client, text, strlen(text));
		lien_reply_write(client, "\n", 1);
	} else {
		client->broken = true;
	}
	free(text);
	json_decref(message);
}

static json_t *failure(const char *error, struct lien_blame blame)
{
	return json_pack("{s:b, s:s, s:s, s:s?, s:o, s:o}", "ok", 0, "error", error, "code",
		lien_causes[blame.cause].code, "remedy", lien_causes[blame.cause].remedy, "process",
		blame.process ? json_integer(blame.process) : json_null(), "holder",
		blame.holder ? json_integer(blame.holder) : json_null());
}

void lien_reply_failure(struct lien_client *client, const char *error, struct lien_blame blame)
{
	json_t *message = failure(error, blame);

	if (message && blame.cause == LIEN_CAUSE_INVALID)
		json_object_set_new(message, "invalid", json_true());
	lien_reply_send(client, message);
}

void lien_reply_error(struct lien_client *client, const char *error)
{
	lien_reply_failure(client, error, (struct lien_blame){LIEN_CAUSE_FAILED, 0, 0});
}

bool lien_reply_invalid(struct lien_client *client, const char *format, ...)
{
	char error[LIEN_KNOWN_SIZE];
	va_list args;

	va_start(args, format);
	vsnprintf(error, sizeof(error), format, args);
	va_end(args);
	lien_reply_failure(client, error, (struct lien_blame){LIEN_CAUSE_INVALID, 0, 0});
	return false;
}

void lien_reply_busy(struct lien_client *client, const char *error, struct lien_blame blame)
{
	json_t *message = failure(error, blame);

	if (message)
		json_object_set_new(message, "busy", json_true());
	lien_reply_send(client, message);
}

void lien_reply_result(struct lien_client *client, json_t *result)
{
	if (result && client->viewer.one_user)
		json_object_set_new(result, "only_user", json_integer(client->viewer.uid));
	if (result)
		lien_reply_send(client, json_pack("{s:b, s:o}", "ok", 1, "result", result));
	else
		lien_reply_error(client, "out of memory");
}

void lien_reply_pass(struct lien_client *client, int fd)
{
	if (client->passed >= 0) { /* it asks, and does not read */
		client->broken = true;
		close(fd);
		return;
	}
	client->passed = fd;
	lien_reply_result(client, json_object());
}

/* Takes a line, and sometimes moves the rest to the front to make room. */
static void take_line(struct lien_client *client)
{
	client->in_at += client->line_end;
	client->line_end = client->searched = 0;
	if (client->in_at < LINE_MAX_BYTES / 2 && client->in_at < client->in_length)
		return;
	client->in_length -= client->in_at;
	memmove(client->in, client->in + client->in_at, client->in_length);
	client->in_at = 0;
}

/*
 * Finds the end of the next line, and scans each byte only once. Returns false if the client broke
 * the rules.
 */
static bool find_line(struct lien_client *client)
{
	const char *from = client->in + client->in_at;
	size_t left = client->in_length - client->in_at;
	const char *end = NULL;

	if (!client->line_end && left > client->searched)
		end = memchr(from + client->searched, '\n', left - client->searched);
	client->searched = left;
	if (end)
		client->line_end = end - from + 1;
	if (client->line_end || left < LINE_MAX_BYTES)
		return true;
	if (client->waits)
		return false;
	lien_reply_error(client, "a request is longer than 1 MiB");
	client_flush(client);
	return false;
}

/* The client asks no more, and has its answers. */
static bool is_over(const struct lien_client *client)
{
	return client->ended && !client->waits && !client->postponed && !client->line_end &&
	       !client->out_length;
}

void lien_client_go_on(struct lien_client *client)
{
	client->waits = LIEN_WAIT_NOTHING;
	queue_join(client);
	client_watch(client);
}

void lien_client_postpone(struct lien_client *client, json_t *request, enum lien_wait waits)
{
	client->postponed = json_incref(request);
	client->waits = waits;
	client->attached = waits == LIEN_WAIT_JOB || (waits == LIEN_WAIT_QUIET && client->attached);
	if (waits == LIEN_WAIT_QUIET)
		client->agent->server->quiet = true;
	else
		client->t_asked = 0;
}

void lien_client_record(struct lien_client *client)
{
	client->agent->server->recorders += !client->recording;
	client->recording = true;
}

bool lien_server_has_requests(const struct lien_agent *agent)
{
	return !TAILQ_EMPTY(&agent->server->turns);
}

/*
 * Sets *request to NULL if it is not JSON. Returns false if the client broke the rules with what
 * follows it.
 */
static bool next_request(struct lien_client *client, json_t **request)
{
	*request = client->postponed;
	client->postponed = NULL;
	if (!*request || !client->t_asked)
		client->t_asked = lien_now_ns();
	if (*request)
		return true;
	client->cancelled = client->may_cancel = client->attached = false;
	*request = json_loadb(
		client->in + client->in_at, client->line_end - 1, JSON_REJECT_DUPLICATES, NULL);
	take_line(client);
	/* Finds the next line before this one is handled, which may already answer it. */
	return find_line(client);
}

static struct lien_client *next_client(struct lien_agent *agent)
{
	return TAILQ_FIRST(&TAILQ_FIRST(&agent->server->turns)->ready);
}

uint64_t *lien_server_mark(struct lien_agent *agent)
{
	return &next_client(agent)->mark;
}

void lien_server_request(struct lien_agent *agent)
{
	struct lien_client *client = next_client(agent);
	struct lien_user *user = client->user;
	json_t *request;
	bool good;

	queue_leave(client);
	if (user->in_turns) { /* others first */
		TAILQ_REMOVE(&agent->server->turns, user, turn);
		TAILQ_INSERT_TAIL(&agent->server->turns, user, turn);
	}
	good = next_request(client, &request);
	client->agent->server->calls->request(client, request);
	json_decref(request);
	if (!good || client->broken || !client_flush(client) || is_over(client)) {
		client_close(client);
		return;
	}
	queue_join(client);
}

static bool client_read(struct lien_client *client)
{
	ssize_t n;

	if (client->in_length == LINE_MAX_BYTES && client->in_at) {
		client->in_length -= client->in_at;
		memmove(client->in, client->in + client->in_at, client->in_length);
		client->in_at = 0;
	}
	n = recv(client->source.fd, client->in + client->in_length,
		LINE_MAX_BYTES - client->in_length, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n < 0)
		return false;
	client->ended = !n;
	client->in_length += n;
	if (!find_line(client))
		return false;
	queue_join(client);
	return true;
}

static void client_ready(struct lien_source *source, uint32_t events)
{
	struct lien_client *client =
		(void *)((char *)source - __builtin_offsetof(struct lien_client, source));

	if ((events & EPOLLIN && !client_read(client)) || events & (EPOLLHUP | EPOLLERR) ||
		client->broken || !client_flush(client) || is_over(client))
		client_close(client);
}

/* Somebody with many user ids could take all places. Closes the oldest idle connection of a user
 * who has the most. */
static void make_room(struct lien_server *server)
{
	struct lien_client *client, *most = NULL;

	LIST_FOREACH (client, &server->clients, next)
		if (client->viewer.one_user && !client->queued && !client->postponed &&
			!client->waits && !client->recording && !client->out_length &&
			(!most || client->user->clients >= most->user->clients))
			most = client;
	if (most)
		client_close(most);
}

/*
 * Gets the client's user from the kernel. Returns false if that user has too many clients already.
 */
static bool identify(struct lien_server *server, struct lien_client *client)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(client->source.fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		return false;
	client->viewer.uid = peer.uid;
	client->viewer.pid = peer.pid;
	client->viewer.one_user = peer.uid && peer.uid != geteuid();
	if (client->viewer.one_user && server->count >= CLIENTS_MAX)
		make_room(server);
	client->user = user_get(server, &client->viewer);
	return client->user &&
	       (!client->viewer.one_user ||
		       (client->user->clients < CLIENTS_OF_USER && server->count < CLIENTS_MAX));
}

static void listener_ready(struct lien_source *source, uint32_t events)
{
	struct lien_server *server =
		(void *)((char *)source - __builtin_offsetof(struct lien_server, listener));
	struct lien_client *client;
	int fd;

	(void)events;
	fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	client = calloc(1, sizeof(*client));
	if (client)
		client->source =
			(struct lien_source){.fd = fd, .ready = client_ready, .name = "client"};
	if (!client || !identify(server, client) || !(client->in = malloc(LINE_MAX_BYTES))) {
		if (client && client->user)
			user_put(client->user);
		free(client);
		close(fd);
		return;
	}
	client->agent = server->agent;
	client->passed = -1;
	client->user->clients++;
	server->count++;
	LIST_INSERT_HEAD(&server->clients, client, next);
	if (lien_agent_watch(server->agent, &client->source, EPOLLIN))
		client_close(client);
}

int lien_server_start(
	struct lien_agent *agent, const char *path, const struct lien_server_calls *calls)
{
	struct lien_server *server;
	int fd, err = lien_address_listen(path, &fd);

	if (err)
		return err;
	server = calloc(1, sizeof(*server));
	if (!server) {
		close(fd);
		unlink(path);
		return -ENOMEM;
	}
	server->agent = agent;
	server->calls = calls;
	server->listener =
		(struct lien_source){.fd = fd, .ready = listener_ready, .name = "listener"};
	strcpy(server->path, path);
	LIST_INIT(&server->clients);
	LIST_INIT(&server->users);
	TAILQ_INIT(&server->turns);
	agent->server = server;
	return lien_agent_watch(agent, &server->listener, EPOLLIN);
}

void lien_server_stop(struct lien_agent *agent)
{
	struct lien_server *server = agent->server;

	if (!server)
		return;
	/* First, because dropping a client checks whether anybody listens. */
	close(server->listener.fd);
	unlink(server->path);
	while (!LIST_EMPTY(&server->clients)) {
		client_flush(LIST_FIRST(&server->clients)); /* such as the end of a transaction */
		client_close(LIST_FIRST(&server->clients));
	}
	free(server);
	agent->server = NULL;
}

void lien_server_close_inherited(struct lien_agent *agent)
{
	struct lien_client *client;

	close(agent->server->listener.fd);
	LIST_FOREACH (client, &agent->server->clients, next)
		close(client->source.fd);
}

void lien_server_event(struct lien_agent *agent, const struct lien_event *event)
{
	const struct lien_process *process;
	struct lien_client *client;
	int64_t uid = -1;

	if (!agent->server->recorders)
		return;
	process = lien_graph_process(agent->graph, event->pid);
	if (process && process->start == event->start)
		uid = process->uid;
	else if (event->type == LIEN_EVENT_PROCESS)
		uid = event->process.uid;
	LIST_FOREACH (client, &agent->server->clients, next)
		if (client->recording && (!client->viewer.one_user || client->viewer.uid == uid))
			lien_reply_write(client, event, event->size);
}

unsigned lien_server_waiting(const struct lien_agent *agent)
{
	const struct lien_client *client;
	unsigned count = 0;

	LIST_FOREACH (client, &agent->server->clients, next)
		count += client->waits == LIEN_WAIT_TRANSACTION;
	return count;
}

void lien_server_tell(struct lien_agent *agent, json_t *progress)
{
	struct lien_client *client;

	LIST_FOREACH (client, &agent->server->clients, next)
		if (progress && client->waits == LIEN_WAIT_TRANSACTION)
			lien_reply_send(client, json_pack("{s:O}", "progress", progress));
	json_decref(progress);
}

bool lien_server_cancel(struct lien_client *by)
{
	struct lien_client *client;
	bool any = false;

	LIST_FOREACH (client, &by->agent->server->clients, next)
		if (client->user == by->user && client->may_cancel && client->waits &&
			client->postponed)
			any = client->cancelled = true;
	return any;
}

void lien_server_transaction_done(struct lien_agent *agent)
{
	struct lien_client *client;

	agent->server->calls->ended(agent);
	LIST_FOREACH (client, &agent->server->clients, next)
		if (client->waits == LIEN_WAIT_TRANSACTION) {
			agent->server->calls->done(client);
			lien_client_go_on(client);
		}
}

static void resume(struct lien_agent *agent, enum lien_wait waits)
{
	struct lien_client *client;

	LIST_FOREACH (client, &agent->server->clients, next)
		if (client->waits == waits)
			lien_client_go_on(client);
}

void lien_server_resume(struct lien_agent *agent)
{
	resume(agent, LIEN_WAIT_TURN);
}

void lien_server_resume_quiet(struct lien_agent *agent)
{
	agent->server->quiet = false;
	resume(agent, LIEN_WAIT_QUIET);
}

bool lien_server_others_wait(const struct lien_agent *agent,
	bool (*but_not)(const struct lien_agent *agent, const struct lien_viewer *who))
{
	const struct lien_client *client;

	LIST_FOREACH (client, &agent->server->clients, next)
		if (client->waits == LIEN_WAIT_TURN &&
			!lien_viewer_same(&client->viewer, &agent->transaction_of) &&
			!but_not(agent, &client->viewer))
			return true;
	return false;
}

bool lien_server_waits_for_quiet(const struct lien_agent *agent)
{
	return agent->server->quiet;
}

void lien_server_tick(struct lien_agent *agent)
{
	struct lien_client *client, *next;

	lien_server_resume_quiet(agent);
	LIST_FOREACH_SAFE (client, &agent->server->clients, next, next)
		if (client->broken)
			client_close(client);
}
