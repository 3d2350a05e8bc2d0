// SPDX-License-Identifier: BSD-2-Clause
/*
 * Connects a process to the socket of another one's legacy IPC (control/plain/ipc.h), if that is in
 * another network namespace. The connection says nothing by itself: whoever asks for it shows the
 * owner a handle over it.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/core/worker.h"
#include "agent/join/ipc_connect.h"
#include "agent/join/join.h"
#include "agent/join/netns.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

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

/* --- in the worker's thread ------------------------------------------------------------------- */

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

/* --- in the agent's --------------------------------------------------------------------------- */

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
	if (!client) {
		drop(job);
		return;
	}
	if (connecting->fd >= 0) {
		lien_reply_pass(client, connecting->fd);
		connecting->fd = -1;
	} else if (connecting->fd == -EAGAIN) {
		lien_reply_busy(client, "the socket has too many connections that wait",
			(struct lien_blame){LIEN_CAUSE_BUSY, 0, 0});
	} else {
		lien_reply_invalid(client, "no process has this socket in this network namespace");
	}
	drop(job);
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
	connecting->job = (struct lien_job){.work = work, .done = done, .drop = drop};
	connecting->waited_for.drop = client_gone;
	connecting->client = client;
	connecting->netns = agent->netns;
	connecting->network = json_integer_value(network);
	connecting->fd = -1;
	memcpy(connecting->name, name, sizeof(connecting->name));
	client->job = &connecting->waited_for;
	if (lien_worker_submit(agent->ipc_connect, &connecting->job)) {
		drop(&connecting->job);
		lien_reply_error(client, "out of memory");
		return;
	}
	client->waiting = true;
}

int lien_ipc_connect_start(struct lien_agent *agent)
{
	return lien_worker_new(agent, &agent->ipc_connect);
}

void lien_ipc_connect_stop(struct lien_agent *agent)
{
	lien_worker_free(agent->ipc_connect);
	agent->ipc_connect = NULL;
}
