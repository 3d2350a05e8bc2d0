// SPDX-License-Identifier: BSD-2-Clause
/* The way to the owner of a legacy IPC handle. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "control/ask/ask.h"
#include "control/plain/ipc.h"

#define ASK_MS 10000

static int connect_here(int fd, const struct lien_plain_handle *handle)
{
	struct sockaddr_un name;
	socklen_t length = lien_plain_socket_name(&name, handle->cookie);
	int err;

	do
		err = connect(fd, (struct sockaddr *)&name, length);
	while (err && errno == EINTR);
	return err ? -errno : 0;
}

/* The agent makes the connection, in the owner's network namespace. */
static int connect_there(const struct lien_plain_handle *handle)
{
	struct lien_asked asked;
	struct sockaddr_un name;
	char request[128];
	int fd, err;

	lien_plain_socket_name(&name, handle->cookie);
	snprintf(request, sizeof(request),
		"{\"op\": \"ipc_connect\", \"socket\": \"%.16s\", \"network\": %u}\n",
		name.sun_path + 1 + strlen(LIEN_PLAIN_PREFIX), handle->network);
	asked = (struct lien_asked){.passed = &fd};
	err = lien_ask(request, ASK_MS, &asked);
	if (err)
		return err == -EREMOTEIO && !strcmp(asked.code, "busy") ? -EAGAIN : -ECONNREFUSED;
	if (fd >= 0 && fcntl(fd, F_SETFL, 0)) { /* it blocks, as one made here does */
		close(fd);
		return -ECONNREFUSED;
	}
	return fd >= 0 ? fd : -ECONNREFUSED;
}

int lien_plain_connect(const struct lien_plain_handle *handle, unsigned often_ms)
{
	const struct timeval often = {.tv_usec = often_ms * 1000};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err;

	if (fd < 0)
		return -errno;
	if (lien_plain_network(fd) == handle->network) {
		err = connect_here(fd, handle);
	} else {
		close(fd);
		fd = connect_there(handle);
		err = fd < 0 ? fd : 0;
	}
	if (!err && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &often, sizeof(often)))
		err = -errno;
	if (err && fd >= 0)
		close(fd);
	return err ? err : fd;
}
