// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "agent/link.h"

struct lien_link {
	int fd, pidfd;
	uint32_t seq;	    /* of the last order on the wire */
	uint32_t order_seq; /* as its sender numbered it */
	bool under_way;
};

int lien_link_state(
	uint32_t pid, const struct lien_control_place *place, struct lien_control_state *state)
{
	struct iovec local = {state, sizeof(*state)};
	struct iovec remote = {(void *)place->state, sizeof(*state)};
	ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);

	if (n != sizeof(*state))
		return n < 0 ? -errno : -EFAULT;
	if (state->magic != LIEN_WIRE_MAGIC)
		return -EAGAIN;
	return state->version == LIEN_WIRE_VERSION ? 0 : -EPROTO;
}

/* The pid the process itself sees: the last one of NSpid. */
static uint32_t inner_pid(uint32_t pid)
{
	char path[32], line[256];
	uint32_t inner = pid;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, "NSpid:", 6))
			inner = strtoul(strrchr(line, '\t') + 1, NULL, 10);
	if (file)
		fclose(file);
	return inner;
}

static int take_socket(int pidfd, const struct lien_control_state *state)
{
	int fd, type = 0, err, owner;
	socklen_t size = sizeof(type);
	struct stat st;

	fd = syscall(SYS_pidfd_getfd, pidfd, state->agent_fd, 0);
	if (fd < 0)
		return errno == EBADF ? -ESTALE : -errno;
	/* The open file is shared by all who took it, its owner too; a dead one reads as 0. */
	owner = fcntl(fd, F_GETOWN);
	if (owner > 0 && owner != getpid()) {
		close(fd);
		return -EBUSY;
	}
	fcntl(fd, F_SETOWN, getpid());
	err = -ESTALE;
	if (fstat(fd, &st) || (uint64_t)st.st_ino != state->agent_ino || !S_ISSOCK(st.st_mode) ||
		getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_SEQPACKET) {
		close(fd);
		return err;
	}
	return fd;
}

int lien_link_open(struct lien_link **out, uint32_t pid, const struct lien_control_state *state)
{
	struct lien_link *link;
	struct timespec now;
	int pidfd, fd;

	if (state->agent_fd < 0)
		return -EAGAIN;
	if (state->pid != inner_pid(pid))
		return -ESTALE;
	pidfd = syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return -errno;
	fd = take_socket(pidfd, state);
	link = fd < 0 ? NULL : calloc(1, sizeof(*link));
	if (!link) {
		close(pidfd);
		if (fd >= 0)
			close(fd);
		return fd < 0 ? fd : -ENOMEM;
	}
	link->fd = fd;
	link->pidfd = pidfd;
	clock_gettime(CLOCK_REALTIME, &now); /* not where an earlier agent's numbers were */
	link->seq = now.tv_nsec ^ now.tv_sec << 20;
	*out = link;
	return 0;
}

void lien_link_close(struct lien_link *link)
{
	if (!link)
		return;
	close(link->fd);
	close(link->pidfd);
	free(link);
}

int lien_link_fd(const struct lien_link *link)
{
	return link->fd;
}

int lien_link_pidfd(const struct lien_link *link)
{
	return link->pidfd;
}

int lien_link_send(struct lien_link *link, const struct lien_wire_header *order, const void *body,
	const int *fds, unsigned fds_count)
{
	struct lien_wire_header head = *order;
	struct iovec parts[2] = {
		{&head, sizeof(head)}, {(void *)body, order->length - sizeof(head)}};
	int err;

	if (link->under_way)
		return -EBUSY;
	if (!++link->seq)
		link->seq = 1;
	head.seq = link->seq;
	err = lien_pass_send(link->fd, parts, parts[1].iov_len ? 2 : 1, fds, fds_count);
	if (err)
		return err;
	link->order_seq = order->seq;
	link->under_way = true;
	return 0;
}

void lien_link_discard(struct lien_reply *reply)
{
	while (reply->fds_count)
		close(reply->fds[--reply->fds_count]);
}

int lien_link_receive(struct lien_link *link, struct lien_reply *reply)
{
	static union {
		struct lien_wire_header header;
		char bytes[LIEN_WIRE_MESSAGE_MAX];
	} message;
	ssize_t n;

	for (;;) {
		n = lien_pass_receive(link->fd, message.bytes, sizeof(message.bytes), reply->fds,
			&reply->fds_count, MSG_DONTWAIT);
		if (n == -EAGAIN)
			return 0;
		if (n < 0 && n != -EMSGSIZE)
			return n;
		if (!n)
			return -EPIPE;
		if (n >= (ssize_t)sizeof(message.header) && message.header.length == (size_t)n &&
			link->under_way && message.header.seq == link->seq)
			break;
		lien_link_discard(reply);
	}
	reply->header = message.header;
	reply->header.seq = link->order_seq;
	reply->body = message.bytes + sizeof(message.header);
	if (message.header.flags & LIEN_WIRE_LAST)
		link->under_way = false;
	return 1;
}
