// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "agent/link/link.h"
#include "loader/discover/detached.h"
#include "loader/discover/status.h"
#include "loader/discover/untrusted.h"

#define DROPPED_AT_ONCE 64
#define STACK		65536

int lien_link_state(
	uint32_t pid, const struct lien_control_place *place, struct lien_control_state *state)
{
	ssize_t n = lien_untrusted_memory(pid, place->state, state, sizeof(*state));

	if (n != sizeof(*state))
		return n < 0 ? (int)n : -EFAULT;
	if (state->magic == LIEN_WIRE_MAGIC_ENDED)
		return -ENOTCONN;
	if (state->magic != LIEN_WIRE_MAGIC)
		return -EAGAIN;
	return state->version == LIEN_WIRE_VERSION ? 0 : -EPROTO;
}

/* Returns the pid that the process itself sees: the last one of NSpid. */
static uint32_t inner_pid(uint32_t pid)
{
	long long inner = lien_status_of(pid, 0, "NSpid", 10);

	return inner < 0 ? pid : inner;
}

/*
 * Locks the process for this agent. Only those who may trace the process may open the file that
 * carries the lock, and the lock goes with its holder. (The owner of the socket, F_SETOWN, would
 * not do: the process could have any signal sent to itself in the agent's name, with F_SETSIG.)
 */
static int lock(uint32_t pid)
{
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/mem", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -ESRCH : -errno;
	if (!flock(fd, LOCK_EX | LOCK_NB))
		return fd;
	close(fd);
	return -EBUSY;
}

/*
 * To close a file of a file system in user space (FUSE), or to stat it, may take as long as its
 * user likes. Exports are devices or memory; this recognizes files in the kernel's own memory
 * without asking a file system.
 */
static bool asks_nobody(int fd)
{
	struct statx st;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st))
		return false;
	switch (st.stx_mode & S_IFMT) {
	case 0: /* anonymous: dma-buf, ... */
	case S_IFCHR:
	case S_IFIFO:
	case S_IFSOCK:
		return true;
	}
	return fcntl(fd, F_GET_SEALS) >= 0; /* tmpfs, memfd */
}

static void *close_one(void *fd)
{
	close((intptr_t)fd);
	return NULL;
}

static void close_any(int fd)
{
	if (asks_nobody(fd) || lien_detached_start(STACK, close_one, (void *)(intptr_t)fd))
		close(fd);
}

/* Is the socket one end of a pair that this very process made? Otherwise it could be any socket
 * that the process has, with somebody at the other end who would take the agent's word for root's.
 */
static bool own_pair(int fd, uint32_t pid, const struct lien_control_state *state)
{
	struct ucred maker = {0};
	socklen_t size = sizeof(int), maker_size = sizeof(maker);
	int type = 0, domain = 0;
	struct stat st;

	return !fstat(fd, &st) && S_ISSOCK(st.st_mode) && (uint64_t)st.st_ino == state->agent_ino &&
	       !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_SEQPACKET &&
	       !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_UNIX &&
	       !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &maker_size) &&
	       (uint32_t)maker.pid == pid;
}

/* The process chooses the number: it may be any file that it has open. */
static int take_socket(int pidfd, uint32_t pid, const struct lien_control_state *state)
{
	int fd = syscall(SYS_pidfd_getfd, pidfd, state->agent_fd, 0);

	if (fd < 0)
		return errno == EBADF ? -ESTALE : -errno;
	if (asks_nobody(fd) && own_pair(fd, pid, state))
		return fd;
	close_any(fd);
	return -ESTALE;
}

bool lien_link_started(uint32_t pid, const struct lien_control_state *state)
{
	return state->agent_fd >= 0 && state->pid == inner_pid(pid);
}

int lien_link_open(struct lien_link **out, uint32_t pid, const struct lien_control_state *state)
{
	struct lien_link *link;
	struct timespec now;
	int err;

	if (state->agent_fd < 0)
		return -EAGAIN;
	if (!lien_link_started(pid, state))
		return -ESTALE;
	link = calloc(1, sizeof(*link));
	if (!link)
		return -ENOMEM;
	link->fd = link->mem = -1;
	link->pidfd = syscall(SYS_pidfd_open, pid, 0);
	err = link->pidfd < 0 ? -errno : 0;
	if (!err) {
		link->fd = take_socket(link->pidfd, pid, state);
		err = link->fd < 0 ? link->fd : 0;
	}
	if (!err) {
		link->mem = lock(pid);
		err = link->mem < 0 ? link->mem : 0;
	}
	if (err) {
		lien_link_close(link);
		return err;
	}
	clock_gettime(CLOCK_REALTIME, &now); /* start away from an earlier agent's numbers */
	link->seq = now.tv_nsec ^ now.tv_sec << 20;
	*out = link;
	return 0;
}

static void waiting_drop(struct lien_waiting *waiting)
{
	while (waiting->fds_count)
		close(waiting->fds[--waiting->fds_count]);
	free(waiting->fds);
	free(waiting->body);
	*waiting = (struct lien_waiting){.asker = LIEN_ASK_NOBODY};
}

/* The caller owns body and descriptors again when this returns. */
static int wait_for_turn(struct lien_link *link, enum lien_asker asker,
	const struct lien_wire_header *order, const void *body, const int *fds, unsigned fds_count)
{
	struct lien_waiting *waiting = &link->waiting;
	size_t size = order->length - sizeof(*order);

	waiting->header = *order;
	waiting->body = malloc(size + 1);
	waiting->fds = calloc(fds_count + 1, sizeof(*fds));
	if (!waiting->body || !waiting->fds) {
		waiting_drop(waiting);
		return -ENOMEM;
	}
	if (size)
		memcpy(waiting->body, body, size);
	while (waiting->fds_count < fds_count) {
		int copy = fcntl(fds[waiting->fds_count], F_DUPFD_CLOEXEC, 3);
		int err = errno;

		if (copy < 0) {
			waiting_drop(waiting);
			return -err;
		}
		waiting->fds[waiting->fds_count++] = copy;
	}
	waiting->asker = asker;
	return 0;
}

void lien_link_close(struct lien_link *link)
{
	if (!link)
		return;
	waiting_drop(&link->waiting);
	if (link->fd >= 0)
		close(link->fd);
	if (link->pidfd >= 0)
		close(link->pidfd);
	if (link->mem >= 0)
		close(link->mem);
	free(link);
}

bool lien_link_alive(const struct lien_link *link)
{
	struct pollfd ended = {.fd = link->pidfd, .events = POLLIN};

	return !poll(&ended, 1, 0);
}

static int send_now(struct lien_link *link, enum lien_asker asker,
	const struct lien_wire_header *order, const void *body, const int *fds, unsigned fds_count)
{
	struct lien_wire_header head = *order;
	struct iovec parts[2] = {
		{&head, sizeof(head)}, {(void *)body, order->length - sizeof(head)}};
	int err;

	if (!++link->seq)
		link->seq = 1;
	head.seq = link->seq;
	err = lien_pass_send(link->fd, parts, parts[1].iov_len ? 2 : 1, fds, fds_count);
	if (err)
		return err;
	link->order_seq = order->seq;
	link->order = order->type;
	link->asked = asker;
	return 0;
}

int lien_link_send(struct lien_link *link, enum lien_asker asker,
	const struct lien_wire_header *order, const void *body, const int *fds, unsigned fds_count)
{
	bool patient = asker == LIEN_ASK_TRANSACTION || asker == LIEN_ASK_END;

	if (link->waiting.asker)
		return -EBUSY;
	if (!link->asked)
		return send_now(link, asker, order, body, fds, fds_count);
	return patient && asker != link->asked
		       ? wait_for_turn(link, asker, order, body, fds, fds_count)
		       : -EBUSY;
}

int lien_link_next(struct lien_link *link)
{
	struct lien_waiting *waiting = &link->waiting;
	int err;

	if (link->asked || !waiting->asker)
		return 0;
	err = send_now(link, waiting->asker, &waiting->header, waiting->body, waiting->fds,
		waiting->fds_count);
	waiting_drop(waiting);
	return err;
}

void lien_link_cancel(struct lien_link *link, enum lien_asker asker)
{
	if (link->waiting.asker == asker)
		waiting_drop(&link->waiting);
}

void lien_link_discard(struct lien_reply *reply)
{
	while (reply->fds_count)
		close_any(reply->fds[--reply->fds_count]);
}

/* Humans read it, on terminals and in logs. */
static void make_plain(char *text, size_t size)
{
	size_t i;

	for (i = 0; i < size && text[i]; i++)
		if (text[i] < ' ' || text[i] > '~')
			text[i] = '?';
}

static bool all_ask_nobody(const struct lien_reply *reply)
{
	unsigned i;

	for (i = 0; i < reply->fds_count; i++)
		if (!asks_nobody(reply->fds[i]))
			return false;
	return true;
}

int lien_link_receive(struct lien_link *link, struct lien_reply *reply)
{
	static union {
		struct lien_wire_header header;
		char bytes[LIEN_WIRE_MESSAGE_MAX];
	} message;
	unsigned dropped = 0;
	ssize_t n;

	for (;;) {
		bool fds = link->asked && link->order == LIEN_WIRE_EXPORT;

		n = fds ? lien_pass_receive(link->fd, message.bytes, sizeof(message.bytes),
				  reply->fds, &reply->fds_count, MSG_DONTWAIT)
			: lien_pass_receive_plain(
				  link->fd, message.bytes, sizeof(message.bytes), MSG_DONTWAIT);
		if (!fds)
			reply->fds_count = 0;
		if (n == -EAGAIN)
			return 0;
		if (n < 0 && n != -EMSGSIZE)
			return n;
		if (!n)
			return -EPIPE;
		if (n >= (ssize_t)sizeof(message.header) && message.header.length == (size_t)n &&
			all_ask_nobody(reply) && link->asked && message.header.seq == link->seq &&
			message.header.type == link->order)
			break;
		lien_link_discard(reply);
		if (++dropped == DROPPED_AT_ONCE)
			return 0;
	}
	reply->header = message.header;
	make_plain(reply->header.text, sizeof(reply->header.text));
	reply->header.seq = link->order_seq;
	reply->body = message.bytes + sizeof(message.header);
	reply->asker = link->asked;
	if (message.header.flags & LIEN_WIRE_LAST)
		link->asked = LIEN_ASK_NOBODY;
	return 1;
}
