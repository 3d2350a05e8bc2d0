// SPDX-License-Identifier: BSD-2-Clause
/*
 * Sockets in other network namespaces: for whom else lien asks, and for a process that wants the
 * socket of another one's legacy IPC (control/plain/ipc.h). Such a connection says nothing by
 * itself: whoever asks for it shows the owner a handle over it.
 */
#include "agent/join/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "agent/core/privileges.h"
#include "agent/core/jobs.h"
#include "agent/join/job.h"
#include "agent/join/join.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

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

int lien_netns_start(struct lien_agent *agent)
{
	const struct timeval limit = {.tv_sec = WAIT_S};
	struct lien_netns *netns = agent->netns = calloc(1, sizeof(*netns));
	pid_t own = getpid();
	int pair[2];

	if (!netns)
		return -ENOMEM;
	pthread_mutex_init(&netns->lock, NULL);
	netns->own = lien_netns_of(own);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -errno;
	netns->fd = pair[0];
	netns->helper = fork();
	if (!netns->helper)
		be_helper(pair[1], own);
	close(pair[1]);
	setsockopt(netns->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(netns->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	return netns->helper < 0 ? -errno : 0;
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

/* --- connecting a process, in a thread -------------------------------------------------------- */

#define NAME_DIGITS    16
#define PROCESSES_MAX  4096
#define NAMESPACES_MAX 256

struct connecting {
	struct lien_job job;
	struct lien_client_job waited_for;
	struct lien_client *client; /* NULL: it has gone away */
	struct lien_netns *netns;
	char name[NAME_DIGITS + 1];
	uint32_t network;
	uint32_t *pids; /* of processes that may be the owner */
	unsigned count;
	int fd; /* or -errno */
};

static bool is_in(int fd, uint32_t network)
{
	uint64_t number = 0;
	socklen_t size = sizeof(number);

	return !getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &number, &size) &&
	       (uint32_t)number == network;
}

static int connect_to(int fd, const char *hex)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "lien-ipc-%s", hex);

	return connect(fd, (struct sockaddr *)&name,
		       offsetof(struct sockaddr_un, sun_path) + 1 + length)
		       ? -errno
		       : 0;
}

/* Returns a socket in the network; -ENOENT: no process is in it. */
static int find_network(const struct connecting *connecting)
{
	uint64_t seen[NAMESPACES_MAX], number;
	unsigned count = 0, i, j;
	int fd;

	for (i = 0; i < connecting->count && count < NAMESPACES_MAX; i++) {
		number = lien_netns_of(connecting->pids[i]);
		for (j = 0; j < count && seen[j] != number; j++)
			;
		if (!number || j < count)
			continue;
		seen[count++] = number;
		fd = lien_netns_socket(connecting->netns, connecting->pids[i], AF_UNIX);
		if (fd >= 0 && is_in(fd, connecting->network))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -ENOENT;
}

static void work(struct lien_job *job)
{
	struct connecting *connecting = (struct connecting *)job;
	int err;

	connecting->fd = find_network(connecting);
	if (connecting->fd < 0)
		return;
	err = connect_to(connecting->fd, connecting->name);
	if (!err)
		return;
	close(connecting->fd);
	connecting->fd = err;
}

/* --- in the agent's thread -------------------------------------------------------------------- */

static void drop(struct lien_job *job)
{
	struct connecting *connecting = (struct connecting *)job;

	if (connecting->client)
		connecting->client->job = NULL;
	if (connecting->fd >= 0)
		close(connecting->fd);
	free(connecting->pids);
	free(connecting);
}

static void done(struct lien_agent *agent, struct lien_job *job)
{
	struct connecting *connecting = (struct connecting *)job;
	struct lien_client *client = connecting->client;

	(void)agent;
	if (!client)
		return;
	if (connecting->fd >= 0) {
		lien_reply_pass(client, connecting->fd);
		connecting->fd = -1;
	} else if (connecting->fd == -EAGAIN) {
		lien_reply_busy(client, "the socket has too many connections that wait",
			(struct lien_blame){LIEN_CAUSE_BUSY, 0, 0});
	} else {
		lien_reply_invalid(client, "no process has this socket in this network namespace");
	}
	client->job = NULL;
	connecting->client = NULL;
	lien_client_go_on(client);
}

static void client_gone(struct lien_client_job *waited_for)
{
	struct connecting *connecting =
		(void *)((char *)waited_for - offsetof(struct connecting, waited_for));

	connecting->client = NULL;
}

static int list_processes(struct lien_agent *agent, struct connecting *connecting)
{
	struct lien_process *process;

	connecting->pids = malloc(PROCESSES_MAX * sizeof(*connecting->pids));
	if (!connecting->pids)
		return -ENOMEM;
	for (process = lien_graph_first(agent->graph); process && connecting->count < PROCESSES_MAX;
		process = lien_graph_next(process))
		if (process->cuda && !process->ended)
			connecting->pids[connecting->count++] = process->pid;
	return 0;
}

void lien_ipc_connect_request(struct lien_client *client, json_t *request)
{
	struct lien_agent *agent = client->agent;
	const char *name = json_string_value(json_object_get(request, "socket"));
	json_t *network = json_object_get(request, "network");
	struct connecting *connecting;

	if (!name || strlen(name) != NAME_DIGITS ||
		strspn(name, "0123456789abcdef") != NAME_DIGITS || !json_is_integer(network) ||
		json_integer_value(network) < 0 || json_integer_value(network) > UINT32_MAX) {
		lien_reply_invalid(client, "socket must be 16 hexadecimal digits, and network a "
					   "number of 32 bits");
		return;
	}
	connecting = calloc(1, sizeof(*connecting));
	if (!connecting || list_processes(agent, connecting)) {
		free(connecting);
		lien_reply_error(client, "out of memory");
		return;
	}
	connecting->job = (struct lien_job){
		.kind = LIEN_JOB_IPC_CONNECT, .work = work, .done = done, .drop = drop};
	connecting->waited_for.drop = client_gone;
	connecting->client = client;
	connecting->netns = agent->netns;
	connecting->network = json_integer_value(network);
	connecting->fd = -1;
	memcpy(connecting->name, name, sizeof(connecting->name));
	client->job = &connecting->waited_for;
	if (lien_job_start(agent, &connecting->job)) {
		lien_reply_error(client, "out of memory");
		return;
	}
	client->waits = LIEN_WAIT_JOB;
}

/* Memory that an abandoned thread (agent/core/jobs.h) still uses stays. */
void lien_netns_stop(struct lien_agent *agent)
{
	if (!agent->netns || agent->netns->helper <= 0)
		return;
	shutdown(agent->netns->fd, SHUT_RDWR);
	waitpid(agent->netns->helper, NULL, 0);
}
