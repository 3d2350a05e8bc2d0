/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sends and receives a message with open files over a unix socket. Inline, because the agent and
 * the control library both need it and otherwise share no code. No function here blocks.
 */
#ifndef LIEN_PASS_FDS_H
#define LIEN_PASS_FDS_H

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define LIEN_PASS_FDS_MAX 64

union lien_pass_room {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(LIEN_PASS_FDS_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
};

/* Returns 0; -EAGAIN: the other end does not read; -ETOOMANYREFS: this user has as many files in
 * flight as it may have: retry when some have arrived; -EPIPE; -errno. The caller keeps its
 * files. */
static inline int lien_pass_send(
	int socket, const struct iovec *parts, unsigned count, const int *fds, unsigned fds_count)
{
	struct msghdr msg = {.msg_iov = (struct iovec *)parts, .msg_iovlen = count};
	union lien_pass_room room;

	if (fds_count > LIEN_PASS_FDS_MAX)
		return -E2BIG;
	if (fds_count) {
		memset(&room, 0, sizeof(room));
		msg.msg_control = &room;
		msg.msg_controllen = CMSG_SPACE(fds_count * sizeof(int));
		room.header.cmsg_level = SOL_SOCKET;
		room.header.cmsg_type = SCM_RIGHTS;
		room.header.cmsg_len = CMSG_LEN(fds_count * sizeof(int));
		memcpy(CMSG_DATA(&room.header), fds, fds_count * sizeof(int));
	}
	return sendmsg(socket, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Returns the message's length, 0 at end of stream; -EAGAIN: no message; -EMSGSIZE: the message was
 * larger than the buffer, or had more files than fit. Files that did arrive are in fds even then,
 * and the caller must close them. sender: the sending process according to the kernel, if the
 * socket has SO_PASSCRED; may be NULL. */
static inline ssize_t lien_pass_receive_from(int socket, void *buffer, size_t size, int *fds,
	unsigned *fds_count, struct ucred *sender, int flags)
{
	struct iovec part = {buffer, size};
	union lien_pass_room room;
	struct msghdr msg = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &room,
		.msg_controllen = sizeof(room),
	};
	struct cmsghdr *cmsg;
	ssize_t n;

	*fds_count = 0;
	do
		n = recvmsg(socket, &msg, flags | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	for (cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg))
		if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_CREDENTIALS) {
			if (sender)
				memcpy(sender, CMSG_DATA(cmsg), sizeof(*sender));
		} else if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS) {
			*fds_count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(cmsg), *fds_count * sizeof(int));
		}
	return msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EMSGSIZE : n;
}

static inline ssize_t lien_pass_receive(
	int socket, void *buffer, size_t size, int *fds, unsigned *fds_count, int flags)
{
	return lien_pass_receive_from(socket, buffer, size, fds, fds_count, NULL, flags);
}

/* Receives a message without files. The kernel drops any files that come along; this process never
 * has to close them. -EMSGSIZE: the message was larger than the buffer, or had files. */
static inline ssize_t lien_pass_receive_plain(int socket, void *buffer, size_t size, int flags)
{
	struct iovec part = {buffer, size};
	struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t n;

	do
		n = recvmsg(socket, &msg, flags);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EMSGSIZE : n;
}

#endif
