// SPDX-License-Identifier: BSD-2-Clause
#include "control/ask/ask.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <lien/clock.h>
#include <lien/pass_fds.h>

/* --- JSON ------------------------------------------------------------------------------------- */

struct scan {
	const char *at, *end;
	lien_json_fn *fn;
	void *context;
	struct lien_json_piece path[LIEN_JSON_DEPTH];
};

static void skip_space(struct scan *scan)
{
	while (scan->at < scan->end && strchr(" \t\r\n", *scan->at) && *scan->at)
		scan->at++;
}

static int accept_char(struct scan *scan, char c)
{
	skip_space(scan);
	if (scan->at == scan->end || *scan->at != c)
		return 0;
	scan->at++;
	return 1;
}

/* Behind a backslash. Returns the number of characters; 0: no escape. */
static size_t escape(const char *at, const char *end)
{
	size_t i;

	if (at == end || !*at)
		return 0;
	if (*at != 'u')
		return strchr("\"\\/bfnrt", *at) != NULL;
	if (end - at < 5)
		return 0;
	for (i = 1; i < 5; i++)
		if (!isxdigit((unsigned char)at[i]))
			return 0;
	return 5;
}

/* What is between the quotes. */
static int string(struct scan *scan, struct lien_json_piece *piece)
{
	size_t n;

	if (!accept_char(scan, '"'))
		return -EBADMSG;
	piece->at = scan->at;
	while (scan->at < scan->end && *scan->at != '"') {
		if ((unsigned char)*scan->at < ' ')
			return -EBADMSG;
		n = *scan->at == '\\' ? escape(scan->at + 1, scan->end) + 1 : 1;
		if (*scan->at == '\\' && n == 1)
			return -EBADMSG;
		scan->at += n;
	}
	piece->length = scan->at - piece->at;
	return accept_char(scan, '"') ? 0 : -EBADMSG;
}

static size_t digits(struct scan *scan)
{
	const char *from = scan->at;

	while (scan->at < scan->end && isdigit((unsigned char)*scan->at))
		scan->at++;
	return scan->at - from;
}

static int number(struct scan *scan)
{
	const char *from;

	if (scan->at < scan->end && *scan->at == '-')
		scan->at++;
	from = scan->at;
	if (!digits(scan) || (*from == '0' && scan->at - from > 1))
		return -EBADMSG;
	if (scan->at < scan->end && *scan->at == '.') {
		scan->at++;
		if (!digits(scan))
			return -EBADMSG;
	}
	if (scan->at < scan->end && (*scan->at == 'e' || *scan->at == 'E')) {
		scan->at++;
		if (scan->at < scan->end && (*scan->at == '+' || *scan->at == '-'))
			scan->at++;
		if (!digits(scan))
			return -EBADMSG;
	}
	return 0;
}

static int word(struct scan *scan)
{
	static const char *const words[] = {"true", "false", "null"};
	const size_t left = scan->end - scan->at;
	size_t length, i;

	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		length = strlen(words[i]);
		if (left >= length && !memcmp(scan->at, words[i], length)) {
			scan->at += length;
			return 0;
		}
	}
	return -EBADMSG;
}

static int scalar(struct scan *scan, unsigned depth)
{
	struct lien_json_piece piece = {.at = scan->at};
	int err;

	if (*scan->at == '"') {
		err = string(scan, &piece);
	} else {
		err = islower((unsigned char)*scan->at) ? word(scan) : number(scan);
		piece.length = scan->at - piece.at;
	}
	if (!err)
		scan->fn(scan->context, scan->path, depth, &piece);
	return err;
}

static int value(struct scan *scan, unsigned depth);

/* The members of an object, or the elements of an array, and what ends it. */
static int members(struct scan *scan, unsigned depth, char end)
{
	size_t index = 0;
	int err;

	scan->at++;
	if (accept_char(scan, end))
		return 0;
	if (depth == LIEN_JSON_DEPTH)
		return -EBADMSG;
	do {
		scan->path[depth] = (struct lien_json_piece){NULL, index++};
		if (end == '}' && ((skip_space(scan), string(scan, &scan->path[depth])) ||
					  !accept_char(scan, ':')))
			return -EBADMSG;
		err = value(scan, depth + 1);
		if (err)
			return err;
	} while (accept_char(scan, ','));
	return accept_char(scan, end) ? 0 : -EBADMSG;
}

static int value(struct scan *scan, unsigned depth)
{
	skip_space(scan);
	if (scan->at == scan->end)
		return -EBADMSG;
	if (*scan->at == '{' || *scan->at == '[')
		return members(scan, depth, *scan->at == '{' ? '}' : ']');
	return scalar(scan, depth);
}

/* Reads one JSON text, strictly (RFC 8259, numbers as written), without changing or copying it.
 * Returns 0, or -EBADMSG: no JSON, or deeper than LIEN_JSON_DEPTH. `fn` may have been called. */
static int json_scan(const char *text, size_t length, lien_json_fn *fn, void *context)
{
	struct scan scan = {.at = text, .end = text + length, .fn = fn, .context = context};
	int err = value(&scan, 0);

	skip_space(&scan);
	return err || scan.at != scan.end ? -EBADMSG : 0;
}

int lien_json_is(const struct lien_json_piece *piece, const char *text)
{
	return piece->at && piece->length == strlen(text) &&
	       !memcmp(piece->at, text, piece->length);
}

uint64_t lien_json_number(const struct lien_json_piece *value)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < value->length; i++) {
		if (!isdigit((unsigned char)value->at[i]) || sum > (UINT64_MAX - 9) / 10)
			return 0;
		sum = 10 * sum + (value->at[i] - '0');
	}
	return sum;
}

void lien_json_copy(const struct lien_json_piece *value, char *to, size_t size)
{
	size_t i, n = 0, more;
	char c;

	for (i = 0; i < value->length && n + 1 < size; i++) {
		c = value->at[i];
		if (c == '\\') {
			more = escape(value->at + i + 1, value->at + value->length);
			c = more == 1 && strchr("\"\\/", value->at[i + 1]) ? value->at[i + 1] : ' ';
			i += more;
		}
		to[n++] = (unsigned char)c < ' ' || c == 0x7f ? '?' : c;
	}
	to[n] = '\0';
}

/* --- the agent -------------------------------------------------------------------------------- */

#define SOCKET	   "/run/lien/agent.sock"
#define CONNECT_MS 5000
#define AGAIN_US   10000
#define LINE_MAX   (4u << 20) /* a longer answer is taken for what its beginning says */

struct connection {
	int fd;
	uint64_t end_ns;
	char *line; /* what has been received */
	size_t size, room;
};

__attribute__((format(printf, 4, 5))) static int fail(
	struct lien_asked *asked, int err, const char *code, const char *format, ...)
{
	va_list args;

	snprintf(asked->code, sizeof(asked->code), "%s", code);
	va_start(args, format);
	vsnprintf(asked->text, sizeof(asked->text), format, args);
	va_end(args);
	return err;
}

static const char *socket_path(void)
{
	const char *path = getenv("LIEN_SOCKET");

	return path && path[0] ? path : SOCKET;
}

/* Returns false when the time is over. */
static int wait_for(struct connection *connection, short what)
{
	struct pollfd ready = {.fd = connection->fd, .events = what};
	uint64_t now;

	while ((now = lien_clock_ns()) < connection->end_ns)
		if (poll(&ready, 1, (connection->end_ns - now) / 1000000 + 1) > 0)
			return 1;
	return 0;
}

/* A socket that has no room in its queue now may have some soon. */
static int reach(int fd, const struct sockaddr_un *name)
{
	const uint64_t end = lien_clock_ns() + CONNECT_MS * 1000000ull;

	while (connect(fd, (const void *)name, sizeof(*name))) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (lien_clock_ns() > end)
			return -ETIMEDOUT;
		usleep(AGAIN_US);
	}
	return 0;
}

/* In a folder where anyone can make files, anyone may listen. */
static int is_agent(int fd)
{
	struct ucred agent;
	socklen_t size = sizeof(agent);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &agent, &size) &&
	       (!agent.uid || agent.uid == geteuid());
}

static int begin(struct connection *connection, struct lien_asked *asked)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	const char *path = socket_path();
	int err = -ENAMETOOLONG;

	connection->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (connection->fd < 0)
		return fail(asked, -ECONNREFUSED, "no-agent", "no socket: %s", strerror(errno));
	if (strlen(path) < sizeof(name.sun_path)) {
		memcpy(name.sun_path, path, strlen(path));
		err = reach(connection->fd, &name);
	}
	if (!err && !is_agent(connection->fd))
		return fail(asked, -ECONNREFUSED, "no-agent",
			"%s is served by neither root nor you; refusing to trust it", path);
	if (!err)
		return 0;
	return fail(asked, -ECONNREFUSED, "no-agent", "no agent answers at %s: %s%s", path,
		strerror(-err),
		err == -ENOENT || err == -ECONNREFUSED
			? " (start one, `lien agent`, or name its socket in LIEN_SOCKET)"
			: "");
}

static int send_all(struct connection *connection, const char *text, struct lien_asked *asked)
{
	size_t left = strlen(text);
	ssize_t n;

	while (left) {
		n = send(connection->fd, text, left, MSG_NOSIGNAL);
		if (n > 0) {
			text += n;
			left -= n;
		} else if (n < 0 && errno == EAGAIN) {
			if (!wait_for(connection, POLLOUT))
				return fail(asked, -ETIMEDOUT, "no-answer",
					"the agent does not read requests");
		} else if (n < 0 && errno != EINTR) {
			return fail(asked, -ECONNREFUSED, "no-agent", "the agent has hung up");
		}
	}
	return 0;
}

static int grow(struct connection *connection)
{
	size_t room = connection->room ? 2 * connection->room : 16384;
	char *grown;

	if (connection->size < connection->room)
		return 0;
	grown = realloc(connection->line, room);
	if (!grown)
		return -ENOMEM;
	connection->line = grown;
	connection->room = room;
	return 0;
}

/* Returns the length of the first line that was received, without its end; 0: receives more. */
static size_t first_line(struct connection *connection, size_t from)
{
	const char *end = connection->size > from
				  ? memchr(connection->line + from, '\n', connection->size - from)
				  : NULL;

	return end ? (size_t)(end - connection->line) : 0;
}

/* The kernel drops descriptors that nobody has asked for. */
static ssize_t receive(struct connection *connection, const struct lien_asked *asked)
{
	char *at = connection->line + connection->size;
	const size_t room = connection->room - connection->size;
	int fds[LIEN_PASS_FDS_MAX];
	unsigned count;
	ssize_t n;

	if (!asked->passed)
		return recv(connection->fd, at, room, 0);
	n = lien_pass_receive(connection->fd, at, room, fds, &count, 0);
	if (count && *asked->passed < 0)
		*asked->passed = fds[--count];
	while (count)
		close(fds[--count]);
	if (n >= 0)
		return n;
	errno = -n;
	return -1;
}

static int receive_line(struct connection *connection, size_t *length, struct lien_asked *asked)
{
	size_t from = 0;
	ssize_t n;

	while (!(*length = first_line(connection, from))) {
		from = connection->size;
		if (connection->size >= LINE_MAX) {
			*length = connection->size;
			return 0;
		}
		if (grow(connection))
			return fail(asked, -EPROTO, "failed", "out of memory");
		n = receive(connection, asked);
		if (n > 0)
			connection->size += n;
		else if (!n || (errno != EAGAIN && errno != EINTR))
			return fail(asked, -ECONNREFUSED, "no-agent",
				"the agent has hung up; what it has begun goes on or is put back");
		else if (errno == EAGAIN && !wait_for(connection, POLLIN))
			return fail(asked, -ETIMEDOUT, "no-answer",
				"the agent has not answered in time; what it has begun goes on");
	}
	return 0;
}

/* What a line says. */
struct said {
	struct lien_asked *asked;
	int ok, failed, progress;
	char remedy[200];
};

static void take(void *context, const struct lien_json_piece *path, unsigned depth,
	const struct lien_json_piece *value)
{
	struct said *said = context;

	if (!depth)
		return;
	if (lien_json_is(&path[0], "result") && depth > 1 && said->asked->fn)
		said->asked->fn(said->asked->context, path + 1, depth - 1, value);
	if (lien_json_is(&path[0], "progress"))
		said->progress = 1;
	if (depth > 1)
		return;
	if (lien_json_is(&path[0], "ok")) {
		said->ok = lien_json_is(value, "true");
		said->failed = !said->ok;
	} else if (lien_json_is(&path[0], "error")) {
		lien_json_copy(value, said->asked->text, sizeof(said->asked->text));
	} else if (lien_json_is(&path[0], "code")) {
		lien_json_copy(value, said->asked->code, sizeof(said->asked->code));
	} else if (lien_json_is(&path[0], "remedy") && !lien_json_is(value, "null")) {
		lien_json_copy(value, said->remedy, sizeof(said->remedy));
	}
}

static int begins(const struct connection *connection, const char *with)
{
	return connection->size >= strlen(with) && !memcmp(connection->line, with, strlen(with));
}

/* Returns 1 for a line that is no answer. */
static int understand(struct connection *connection, size_t length, struct lien_asked *asked)
{
	struct said said = {.asked = asked};
	size_t end;

	if (length >= LINE_MAX)
		return begins(connection, "{\"ok\": true,")
			       ? 0
			       : fail(asked, -EPROTO, "failed", "the agent's answer is too long");
	if (json_scan(connection->line, length, take, &said))
		return fail(
			asked, -EPROTO, "no-agent", "what answers is not an agent of this version");
	if (said.ok)
		return 0;
	if (!said.failed && said.progress)
		return 1;
	if (!said.failed || !asked->code[0] || !asked->text[0])
		return fail(
			asked, -EPROTO, "no-agent", "what answers is not an agent of this version");
	end = strlen(asked->text);
	if (said.remedy[0])
		snprintf(asked->text + end, sizeof(asked->text) - end, ": %s", said.remedy);
	return -EREMOTEIO;
}

int lien_ask(const char *request, unsigned limit_ms, struct lien_asked *asked)
{
	struct connection connection = {
		.fd = -1, .end_ns = lien_clock_ns() + limit_ms * 1000000ull};
	size_t length;
	int err;

	asked->code[0] = asked->text[0] = '\0';
	if (asked->passed)
		*asked->passed = -1;
	err = begin(&connection, asked);
	if (!err)
		err = send_all(&connection, request, asked);
	while (!err) {
		err = receive_line(&connection, &length, asked);
		if (err)
			break;
		err = understand(&connection, length, asked);
		if (err <= 0)
			break;
		connection.size -= length + 1;
		memmove(connection.line, connection.line + length + 1, connection.size);
		err = 0;
	}
	if (connection.fd >= 0)
		close(connection.fd);
	free(connection.line);
	if (err && asked->passed && *asked->passed >= 0) {
		close(*asked->passed);
		*asked->passed = -1;
	}
	return err;
}
