// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/ras_ask.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <lien/clock.h>
#include "loader/discover/untrusted.h"

#define GREET_MS	  2000	/* to connect, and for each short reply */
#define ANSWER_MS	  12000 /* NCCL itself gives up after 10 s */
#define ANSWER_MAX	  (32u << 20)
#define LINE_MAX_BYTES	  128
#define STATE_ESTABLISHED 1
#define STATE_CLOSE_WAIT  8
#define STATE_LISTEN	  10
#define ROWS_MAX	  2000000 /* per table: more connections than a node has */

/* --- the kernel's table of TCP sockets -------------------------------------------------------- */

struct row {
	struct sockaddr_storage local, remote;
	unsigned state;
	uint32_t uid;
};

/* Addresses are hexadecimal words in the machine's byte order. */
static bool read_address(const char *text, unsigned port, struct sockaddr_storage *address)
{
	struct sockaddr_in6 *v6 = (void *)address;
	struct sockaddr_in *v4 = (void *)address;
	uint32_t words[4];
	int n;

	memset(address, 0, sizeof(*address));
	n = sscanf(text, "%8x%8x%8x%8x", &words[0], &words[1], &words[2], &words[3]);
	if (n == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		v4->sin_addr.s_addr = words[0];
		return true;
	}
	if (n != 4)
		return false;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(port);
	memcpy(&v6->sin6_addr, words, sizeof(words));
	return true;
}

static bool read_row(const char *line, struct row *row)
{
	unsigned local_port, remote_port;
	char local[33], remote[33];

	return sscanf(line, "%*u: %32[0-9A-F]:%x %32[0-9A-F]:%x %x %*s %*s %*s %u", local,
		       &local_port, remote, &remote_port, &row->state, &row->uid) == 6 &&
	       read_address(local, local_port, &row->local) &&
	       read_address(remote, remote_port, &row->remote);
}

/* Returns true when fn returned true for a row. */
static bool each_row(
	uint32_t pid, bool v6, bool (*fn)(const struct row *row, void *context), void *context)
{
	char path[48], line[400];
	struct row row;
	unsigned rows = 0;
	bool found = false;
	FILE *table;

	snprintf(path, sizeof(path), "/proc/%u/net/%s", pid, v6 ? "tcp6" : "tcp");
	table = fopen(path, "re");
	while (table && !found && rows++ < ROWS_MAX && fgets(line, sizeof(line), table))
		found = read_row(line, &row) && fn(&row, context);
	if (table)
		fclose(table);
	return found;
}

static uint16_t port_of(const struct sockaddr_storage *address)
{
	return ntohs(address->ss_family == AF_INET
			     ? ((const struct sockaddr_in *)address)->sin_port
			     : ((const struct sockaddr_in6 *)address)->sin6_port);
}

static bool same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;
	const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;

	if (a->ss_family != b->ss_family || port_of(a) != port_of(b))
		return false;
	return a->ss_family == AF_INET
		       ? a4->sin_addr.s_addr == b4->sin_addr.s_addr
		       : !memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr));
}

/* --- the other end ---------------------------------------------------------------------------- */

struct ends {
	struct sockaddr_storage own, other;
	uint32_t uid;
};

static bool is_other_end(const struct row *row, void *context)
{
	const struct ends *ends = context;

	return (row->state == STATE_ESTABLISHED || row->state == STATE_CLOSE_WAIT) &&
	       row->uid == ends->uid && same_address(&row->local, &ends->other) &&
	       same_address(&row->remote, &ends->own);
}

bool lien_tcp_other_end_is(int fd, uint32_t pid, uint32_t uid)
{
	socklen_t own_size, other_size;
	struct ends ends = {.uid = uid};

	own_size = other_size = sizeof(ends.own);
	if (getsockname(fd, (struct sockaddr *)&ends.own, &own_size) ||
		getpeername(fd, (struct sockaddr *)&ends.other, &other_size))
		return false;
	return each_row(pid, ends.own.ss_family == AF_INET6, is_other_end, &ends);
}

/* --- listening sockets ------------------------------------------------------------------------ */

struct listening {
	uint16_t port;
	uint32_t uid;
	struct lien_ras_door *door;
	unsigned count;
	bool others;
};

/* Connects to a socket that listens everywhere through the loopback device. */
static void make_door(struct lien_ras_door *door, const struct sockaddr_storage *address)
{
	struct sockaddr_in6 *v6 = (void *)&door->address;
	struct sockaddr_in *v4 = (void *)&door->address;

	door->address = *address;
	door->size = address->ss_family == AF_INET ? sizeof(*v4) : sizeof(*v6);
	if (address->ss_family == AF_INET && v4->sin_addr.s_addr == INADDR_ANY)
		v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (address->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
		v6->sin6_addr = in6addr_loopback;
}

static bool take_door(const struct row *row, void *context)
{
	struct listening *listening = context;
	struct lien_ras_door door;
	unsigned i;

	if (row->state != STATE_LISTEN || port_of(&row->local) != listening->port)
		return false;
	listening->others |= row->uid != listening->uid;
	if (row->uid != listening->uid)
		return false;
	make_door(&door, &row->local);
	for (i = 0; i < listening->count; i++)
		if (same_address(&listening->door[i].address, &door.address))
			return false; /* all processes of the user share it */
	listening->door[listening->count++] = door;
	return listening->count == LIEN_RAS_DOORS_MAX;
}

unsigned lien_ras_doors(uint32_t pid, uint32_t uid, uint16_t port,
	struct lien_ras_door doors[LIEN_RAS_DOORS_MAX], bool *others)
{
	struct listening listening = {.port = port, .uid = uid, .door = doors};

	if (!each_row(pid, false, take_door, &listening))
		each_row(pid, true, take_door, &listening);
	*others = listening.others;
	return listening.count;
}

/* --- the process and its node ----------------------------------------------------------------- */

bool lien_ras_port_of(uint32_t pid, uint16_t *port)
{
	size_t size;
	char *text = lien_environ_read(pid, &size);
	const char *enable = lien_environ_variable(text, size, "NCCL_RAS_ENABLE"),
		   *address = lien_environ_variable(text, size, "NCCL_RAS_ADDR"),
		   *colon = address ? strrchr(address, ':') : NULL;
	int32_t number = colon ? lien_ras_number(colon + 1) : -1;
	bool on = !enable || strcmp(enable, "0");

	*port = number > 0 && number <= UINT16_MAX ? number : LIEN_RAS_PORT;
	free(text);
	return on;
}

static unsigned add_v4(int fd, struct lien_ras_host *hosts)
{
	struct ifreq interfaces[LIEN_RAS_ADDRESS_MAX];
	struct ifconf list = {.ifc_len = sizeof(interfaces), .ifc_req = interfaces};
	unsigned i, count = 0;

	if (ioctl(fd, SIOCGIFCONF, &list) || list.ifc_len < 0)
		return 0;
	for (i = 0; i < list.ifc_len / sizeof(interfaces[0]); i++) {
		const struct sockaddr_in *address = (const void *)&interfaces[i].ifr_addr;

		if (address->sin_family != AF_INET)
			continue;
		hosts[count] = (struct lien_ras_host){.family = 4};
		memcpy(hosts[count++].address, &address->sin_addr, 4);
	}
	return count;
}

static unsigned add_v6(uint32_t pid, struct lien_ras_host *hosts, unsigned count)
{
	char path[48], line[200];
	unsigned byte, i;
	FILE *table;

	snprintf(path, sizeof(path), "/proc/%u/net/if_inet6", pid);
	table = fopen(path, "re");
	while (table && count < LIEN_RAS_ADDRESS_MAX && fgets(line, sizeof(line), table)) {
		hosts[count] = (struct lien_ras_host){.family = 6};
		for (i = 0; i < 16 && sscanf(line + 2 * i, "%2x", &byte) == 1; i++)
			hosts[count].address[i] = byte;
		count += i == 16;
	}
	if (table)
		fclose(table);
	return count;
}

unsigned lien_ras_own_addresses(
	int fd, uint32_t pid, struct lien_ras_host hosts[LIEN_RAS_ADDRESS_MAX])
{
	return add_v6(pid, hosts, add_v4(fd, hosts));
}

/* --- a question ------------------------------------------------------------------------------- */

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
