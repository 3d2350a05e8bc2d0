// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "agent/core/privileges.h"

#define WAIT_S 2

struct lien_netns {
	pthread_mutex_t lock; /* of the next question and its answer */
	int fd;		      /* to the helper */
	pid_t helper;
	uint64_t own; /* number of the agent's namespace */
	bool broken;  /* an answer came too late once: later ones may belong to older questions */
};

/* A message is a number, which is an address family or -errno, and perhaps a descriptor. */
static int send_number(int to, int number, int fd)
{
	const struct iovec part = {&number, sizeof(number)};

	return lien_pass_send(to, &part, 1, &fd, fd >= 0);
}

/* Sets *fd to -1 if none came. Returns false if the other end is closed or too slow. */
static bool receive_number(int from, int *number, int *fd)
{
	int fds[LIEN_PASS_FDS_MAX];
	unsigned count;
	ssize_t n = lien_pass_receive(from, number, sizeof(*number), fds, &count, 0);

	*fd = count ? fds[--count] : -1;
	while (count)
		close(fds[--count]);
	return n == sizeof(*number);
}

static int open_socket(int family)
{
	int type = family == AF_UNIX ? SOCK_SEQPACKET : SOCK_STREAM;
	int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? -errno : fd;
}

static void serve(int fd)
{
	int family, namespace, made;

	while (receive_number(fd, &family, &namespace)) {
		made = setns(namespace, CLONE_NEWNET) ? -errno : open_socket(family);
		if (send_number(fd, made < 0 ? made : 0, made))
			break;
		if (made >= 0)
			close(made);
		if (namespace >= 0)
			close(namespace);
	}
}

static void __attribute__((noreturn)) be_helper(int fd, pid_t agent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	prctl(PR_SET_NAME, "lien-netns", 0, 0, 0);
	signal(SIGINT, SIG_IGN); /* a terminal sends it to all; the agent decides */
	signal(SIGTERM, SIG_IGN);
	/* Close the agent's pipes too: a reader that waits for EOF waits for the agent. */
	if (fd != 0)
		dup2(fd, 0);
	syscall(SYS_close_range, 1, ~0u, 0);
	if (!lien_privileges_keep_netns() && getppid() == agent)
		serve(0);
	_exit(0);
}

uint64_t lien_netns_of(uint32_t pid)
{
	struct stat status;
	char path[48];

	snprintf(path, sizeof(path), "/proc/%u/ns/net", pid);
	return stat(path, &status) ? 0 : status.st_ino;
}

int lien_netns_start(struct lien_netns **out)
{
	const struct timeval limit = {.tv_sec = WAIT_S};
	struct lien_netns *netns;
	pid_t agent = getpid();
	int pair[2], err;

	netns = calloc(1, sizeof(*netns));
	if (!netns)
		return -ENOMEM;
	pthread_mutex_init(&netns->lock, NULL);
	netns->own = lien_netns_of(agent);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		err = -errno;
		free(netns);
		return err;
	}
	netns->helper = fork();
	if (!netns->helper)
		be_helper(pair[1], agent);
	err = netns->helper < 0 ? -errno : 0;
	close(pair[1]);
	netns->fd = pair[0];
	setsockopt(netns->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(netns->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (err) {
		close(netns->fd);
		free(netns);
		return err;
	}
	*out = netns;
	return 0;
}

void lien_netns_stop(struct lien_netns *netns)
{
	if (!netns)
		return;
	shutdown(netns->fd, SHUT_RDWR);
	waitpid(netns->helper, NULL, 0);
}

static int ask_helper(struct lien_netns *netns, int namespace, int family)
{
	int number, fd,
		err = netns->broken ? -ETIMEDOUT : send_number(netns->fd, family, namespace);

	if (err)
		return err;
	if (!receive_number(netns->fd, &number, &fd)) {
		netns->broken = true;
		return -ETIMEDOUT;
	}
	return fd >= 0 ? fd : number < 0 ? number : -EPROTO;
}

int lien_netns_socket(struct lien_netns *netns, uint32_t pid, int family)
{
	char path[48];
	int namespace, fd;

	snprintf(path, sizeof(path), "/proc/%u/ns/net", pid);
	namespace = open(path, O_RDONLY | O_CLOEXEC);
	if (namespace < 0)
		return -errno;
	if (lien_netns_of(pid) == netns->own) {
		close(namespace);
		return open_socket(family);
	}
	pthread_mutex_lock(&netns->lock);
	fd = ask_helper(netns, namespace, family);
	pthread_mutex_unlock(&netns->lock);
	close(namespace);
	return fd;
}
