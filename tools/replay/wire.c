// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tools/replay/wire.h>

/* Room for one fd. */
union control {
	struct cmsghdr header;
	char room[CMSG_SPACE(sizeof(int))];
};

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
	struct iovec iov = {.iov_base = (void *)message, .iov_len = sizeof(*message)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	union control control = {};
	int err;

	if (fd >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	for (;;) {
		if (sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno == ECONNRESET)
			return -EPIPE;
		if (errno == EINTR)
			continue;
		/* Too many fds under way for an ordinary user: the parent is taking them out. */
		if (errno == ETOOMANYREFS && timeout_ms > 0) {
			usleep(10000);
			timeout_ms -= 10;
			continue;
		}
		if (errno != EAGAIN)
			return -errno;
		err = wait_for(sock, POLLOUT, timeout_ms);
		if (err)
			return err;
	}
}

int lien_replay_receive(int sock, struct lien_replay_message *message, int *fd, int timeout_ms)
{
	struct iovec iov = {.iov_base = message, .iov_len = sizeof(*message)};
	union control control;
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *cmsg;
	ssize_t n;
	int err;

	*fd = -1;
	err = wait_for(sock, POLLIN, timeout_ms);
	if (err)
		return err;
	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? -EPIPE : -errno;
	if (!n)
		return -EPIPE;
	cmsg = CMSG_FIRSTHDR(&msg);
	if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS &&
		cmsg->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(cmsg), sizeof(*fd));
	if (n == (ssize_t)sizeof(*message) && !(msg.msg_flags & (MSG_CTRUNC | MSG_TRUNC)))
		return 0;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	return msg.msg_flags & MSG_CTRUNC ? -EMFILE : -EBADMSG;
}
