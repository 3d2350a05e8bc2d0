// SPDX-License-Identifier: BSD-2-Clause
/*
 * A liblien-control.so that lies (IMPOSTOR: how), for a test of what the agent believes. Built by
 * users.py.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include <lien/wire.h>

__attribute__((visibility("default"))) struct lien_control_state lien_control_state = {
	.version = LIEN_WIRE_VERSION,
	.agent_fd = -1,
};

static const char *how;
static int own;

static int is(const char *name)
{
	return !strcmp(how, name);
}

static void answer(const struct lien_wire_header *order, unsigned flags, int result,
	const void *body, size_t size)
{
	struct lien_wire_header reply = {.length = sizeof(reply) + size,
		.type = order->type,
		.flags = flags,
		.seq = order->seq,
		.result = result};
	struct iovec parts[2] = {{&reply, sizeof(reply)}, {(void *)body, size}};
	int fds[LIEN_PASS_FDS_MAX], n = is("fds") ? LIEN_PASS_FDS_MAX : 0, i;

	for (i = 0; i < n; i++)
		fds[i] = own;
	if (result)
		strcpy(reply.text, "\x1b[31mred\nand \xff more");
	while (lien_pass_send(own, parts, size ? 2 : 1, fds, n) == -EAGAIN)
		usleep(100);
}

static void obey(const struct lien_wire_header *order)
{
	static struct lien_wire_item
		items[(LIEN_WIRE_MESSAGE_MAX - sizeof(struct lien_wire_header)) /
			sizeof(struct lien_wire_item)];
	struct lien_wire_hello hello = {.version = LIEN_WIRE_VERSION, .items = 1, .bytes = ~0ull};
	unsigned i;

	if (order->type == LIEN_WIRE_HELLO) {
		answer(order, LIEN_WIRE_LAST, 0, &hello, sizeof(hello));
	} else if (order->type == LIEN_WIRE_LIST && is("endless")) {
		for (i = 0; i < 5000; i++)
			answer(order, 0, 0, items, sizeof(items));
	} else if (is("text")) {
		answer(order, LIEN_WIRE_LAST, -EIO, NULL, 0);
	} else if (is("unprepared") && order->type == LIEN_WIRE_PREPARE) {
		close(open(getenv("IMPOSTOR_PATH"), O_CREAT | O_WRONLY, 0644));
	} else if (!is("silent")) {
		answer(order, LIEN_WIRE_LAST, 0, NULL, 0);
	}
}

static void *serve(void *arg)
{
	struct lien_wire_header junk = {.length = sizeof(junk), .flags = LIEN_WIRE_LAST};
	struct iovec part = {&junk, sizeof(junk)};
	char message[LIEN_WIRE_MESSAGE_MAX];
	int fds[LIEN_PASS_FDS_MAX];
	unsigned count;

	(void)arg;
	for (;;) {
		ssize_t n = lien_pass_receive(own, message, sizeof(message), fds, &count,
			is("flood") || is("signals") ? MSG_DONTWAIT : 0);

		if (n > 0)
			obey((void *)message);
		else if (n != -EAGAIN)
			return NULL;
		if (is("flood") || is("signals"))
			lien_pass_send(own, &part, 1, NULL, 0);
	}
}

/* A socket that was connected to somebody who listens. */
static int stranger(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	strcpy(address.sun_path, getenv("IMPOSTOR_PATH"));
	return connect(fd, (void *)&address, sizeof(address)) ? -1 : fd;
}

__attribute__((constructor)) static void load(void)
{
	int pair[2] = {-1, -1};
	struct stat st;
	pthread_t thread;

	how = getenv("IMPOSTOR");
	if (!how)
		return;
	if (is("stranger"))
		pair[0] = stranger();
	else if (is("file"))
		pair[0] = open("/dev/null", O_RDWR);
	else if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		return;
	if (is("signals")) { /* to whom the socket belongs: an agent would make it its own */
		fcntl(pair[0], F_SETSIG, SIGKILL);
		fcntl(pair[0], F_SETFL, O_ASYNC);
	}
	own = pair[1];
	fstat(pair[0], &st);
	lien_control_state.pid = getpid();
	lien_control_state.agent_fd = pair[0];
	lien_control_state.agent_ino = st.st_ino;
	lien_control_state.handler = (uintptr_t)load;
	lien_control_state.signal = SIGKILL;
	lien_control_state.magic = LIEN_WIRE_MAGIC;
	if (own >= 0)
		pthread_create(&thread, NULL, serve, NULL);
}
