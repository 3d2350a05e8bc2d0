// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "tools/replay/wire.h"

static int wait_for(int sock, short events, int timeout_ms)
{
	struct pollfd pfd = {.fd = sock, .events = events};
	int n;

	do
		n = poll(&pfd, 1, timeout_ms);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n ? 0 : -ETIMEDOUT;
}

int lien_replay_send(int sock, const struct lien_replay_message *message, int fd, int timeout_ms)
{
	struct iovec part = {.iov_base = (void *)message, .iov_len = sizeof(*message)};
	int err;

	for (;;) {
		err = lien_pass_send(sock, &part, 1, &fd, fd >= 0);
		if (!err)
			return 0;
		if (err == -ECONNRESET)
			return -EPIPE;
		/* Too many fds in flight for an ordinary user: the parent is receiving them. */
		if (err == -ETOOMANYREFS && timeout_ms > 0) {
			usleep(10000);
			timeout_ms -= 10;
			continue;
		}
		if (err != -EAGAIN && err != -EINTR)
			return err;
		err = wait_for(sock, POLLOUT, timeout_ms);
		if (err)
			return err;
	}
}

int lien_replay_receive(int sock, struct lien_replay_message *message, int *fd, int timeout_ms)
{
	int fds[LIEN_PASS_FDS_MAX], err;
	unsigned count;
	ssize_t n;

	*fd = -1;
	err = wait_for(sock, POLLIN, timeout_ms);
	if (err)
		return err;
	n = lien_pass_receive(sock, message, sizeof(*message), fds, &count, 0);
	if (n == sizeof(*message) && count <= 1) {
		*fd = count ? fds[0] : -1;
		return 0;
	}
	while (count)
		close(fds[--count]);
	if (!n || n == -ECONNRESET)
		return -EPIPE;
	if (n == -EMSGSIZE) /* the message has a fixed size, so this means too many files */
		return -EMFILE;
	return n < 0 ? n : -EBADMSG;
}
