// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/ras_ask.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>

#include "agent/join/ras_tcp.h"

#define GREET_MS       2000  /* to connect, and for each short reply */
#define ANSWER_MS      12000 /* NCCL itself gives up after 10 s */
#define ANSWER_MAX     (32u << 20)
#define LINE_MAX_BYTES 128

static int fail(char problem[LIEN_RAS_PROBLEM], int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(problem, LIEN_RAS_PROBLEM, format, args);
	va_end(args);
	return err;
}

/* 0, or -ETIMEDOUT. */
static int wait_ready(int fd, short events, uint64_t deadline)
{
	struct pollfd poll_fd = {.fd = fd, .events = events};
	uint64_t now;
	int n;

	do {
		now = lien_clock_ms();
		n = now < deadline ? poll(&poll_fd, 1, deadline - now) : 0;
	} while (n < 0 && errno == EINTR);
	return n > 0 ? 0 : -ETIMEDOUT;
}

static int connect_to(int fd, const struct lien_ras_door *door)
{
	int err = 0;
	socklen_t size = sizeof(err);

	if (!connect(fd, (const struct sockaddr *)&door->address, door->size))
		return 0;
	if (errno != EINPROGRESS)
		return -errno;
	err = wait_ready(fd, POLLOUT, lien_clock_ms() + GREET_MS);
	if (!err && getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size))
		return -errno;
	return err > 0 ? -err : err;
}

static int say(int fd, const char *line)
{
	size_t length = strlen(line);

	/* A few bytes on a new connection always fit into its buffer. */
	return send(fd, line, length, MSG_NOSIGNAL) == (ssize_t)length ? 0 : -EPIPE;
}

/* Reads a line without its newline, byte by byte: what follows is for another reader. */
static int hear_line(int fd, char line[LINE_MAX_BYTES])
{
	uint64_t deadline = lien_clock_ms() + GREET_MS;
	size_t n = 0;
	ssize_t got;
	int err;

	while (n < LINE_MAX_BYTES - 1) {
		err = wait_ready(fd, POLLIN, deadline);
		if (err)
			return err;
		got = recv(fd, &line[n], 1, 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (got <= 0)
			return -EPIPE;
		if (line[n] == '\n')
			break;
		n++;
	}
	line[n] = '\0';
	return 0;
}

static int order(int fd, const char *what, char reply[LINE_MAX_BYTES])
{
	int err = say(fd, what);

	return err ? err : hear_line(fd, reply);
}

/* Reads until the connection ends. */
static int hear_all(int fd, char **text, size_t *size)
{
	uint64_t deadline = lien_clock_ms() + ANSWER_MS;
	size_t room = 0;
	char *more;
	ssize_t n;
	int err;

	for (;;) {
		if (*size == room) {
			room = room ? 2 * room : 65536;
			more = room > ANSWER_MAX ? NULL : realloc(*text, room);
			if (!more)
				return room > ANSWER_MAX ? -EFBIG : -ENOMEM;
			*text = more;
		}
		err = wait_ready(fd, POLLIN, deadline);
		if (err)
			return err;
		n = recv(fd, *text + *size, room - *size, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0)
			return n ? -errno : 0;
		*size += n;
	}
}

static int greet(int fd, uint32_t pid, uint32_t uid, const struct lien_ras_door *door,
	char problem[LIEN_RAS_PROBLEM])
{
	char reply[LINE_MAX_BYTES];
	int err = connect_to(fd, door);

	if (err)
		return fail(problem, err, "cannot connect to NCCL's RAS: %s", strerror(-err));
	err = order(fd, "CLIENT PROTOCOL 2\n", reply);
	if (err)
		return fail(problem, err, "who listens on the port of NCCL's RAS does not answer");
	if (strncmp(reply, "SERVER PROTOCOL ", strlen("SERVER PROTOCOL ")))
		return fail(problem, -EPROTO,
			"who listens on the port of NCCL's RAS speaks something else");
	/* The connection is accepted by now; before, the other end had no user. */
	if (!lien_tcp_other_end_is(fd, pid, uid))
		return fail(problem, -EPERM, "the port of NCCL's RAS is served by another user");
	return 0;
}

static int ask(int fd, char problem[LIEN_RAS_PROBLEM])
{
	char reply[LINE_MAX_BYTES];
	int err = order(fd, "SET FORMAT json\n", reply);

	if (!err && strncmp(reply, "OK", 2))
		return fail(problem, -ENOTSUP,
			"NCCL's RAS does not speak JSON, as it does from NCCL 2.28.7 on");
	if (!err)
		err = say(fd, "STATUS\n");
	return err ? fail(problem, err, "NCCL's RAS broke off: %s", strerror(-err)) : 0;
}

int lien_ras_ask(int fd, uint32_t pid, uint32_t uid, const struct lien_ras_door *door,
	struct lien_ras_answer *answer, char problem[LIEN_RAS_PROBLEM])
{
	char *answer_text = NULL;
	size_t size = 0;
	int err, parsed;

	memset(answer, 0, sizeof(*answer));
	err = greet(fd, pid, uid, door, problem);
	if (!err)
		err = ask(fd, problem);
	if (err)
		return err;
	err = hear_all(fd, &answer_text, &size);
	/* An answer that was cut off by the limits is valid up to there. */
	parsed = lien_ras_parse_json(answer_text, size, answer);
	free(answer_text);
	answer->whole &= !err;
	if (err == -ETIMEDOUT && parsed)
		return fail(
			problem, err, "NCCL's RAS did not answer within %d s", ANSWER_MS / 1000);
	return parsed ? fail(problem, parsed, "NCCL's RAS answered what lien does not understand")
		      : 0;
}
