// SPDX-License-Identifier: BSD-2-Clause
/* How ranks of several nodes meet: by the root whose address is in the unique id. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "softnccl_sync.h"

#define MEET_SECONDS 120

/* What a rank says to the root, which answers with the places of all. */
struct registration {
	uint64_t id;
	int32_t rank, nranks;
	struct place place;
};

struct root {
	int door;
	uint64_t id;
	int sockets[RANKS_MAX];
	struct place places[RANKS_MAX];
};

static int listen_on(const struct in_addr *address, uint16_t *port)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = *address};
	socklen_t len = sizeof(name);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && !bind(fd, (struct sockaddr *)&name, len) && !listen(fd, 2 * RANKS_MAX) &&
		!getsockname(fd, (struct sockaddr *)&name, &len)) {
		*port = name.sin_port;
		return fd;
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

static int connect_to(const struct sockaddr_in *name)
{
	struct timespec pause = {.tv_nsec = 20000000};
	int fd, tries, one = 1;

	for (tries = 0; tries < MEET_SECONDS * 50; tries++) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			return -1;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (!connect(fd, (const struct sockaddr *)name, sizeof(*name)))
			return fd;
		close(fd);
		nanosleep(&pause, NULL);
	}
	return -1;
}

static int let_in(int door)
{
	struct pollfd wanted = {.fd = door, .events = POLLIN};
	int found, fd, one = 1;

	do
		found = poll(&wanted, 1, MEET_SECONDS * 1000);
	while (found < 0 && errno == EINTR);
	fd = found == 1 ? accept4(door, NULL, NULL, SOCK_CLOEXEC) : -1;
	if (fd >= 0)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static bool get(int fd, void *data, size_t bytes)
{
	struct timeval limit = {.tv_sec = MEET_SECONDS};
	ssize_t got;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	for (; bytes; bytes -= got, data = (char *)data + got) {
		do
			got = recv(fd, data, bytes, 0);
		while (got < 0 && errno == EINTR);
		if (got <= 0)
			return false;
	}
	return true;
}

static bool put(int fd, const void *data, size_t bytes)
{
	return send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Ends when all are there, or when nobody has come for long. */
static void *serve(void *arg)
{
	struct root *root = arg;
	struct registration one;
	int there = 0, nranks = 1, fd, i;

	for (i = 0; i < RANKS_MAX; i++)
		root->sockets[i] = -1;
	while (there < nranks && (fd = let_in(root->door)) >= 0) {
		if (!get(fd, &one, sizeof(one)) || one.id != root->id || one.rank < 0 ||
			one.nranks > RANKS_MAX || one.rank >= one.nranks ||
			root->sockets[one.rank] >= 0) {
			close(fd);
			continue;
		}
		root->sockets[one.rank] = fd;
		root->places[one.rank] = one.place;
		nranks = one.nranks;
		there++;
	}
	for (i = 0; i < RANKS_MAX; i++) {
		if (root->sockets[i] < 0)
			continue;
		if (there == nranks)
			put(root->sockets[i], root->places, nranks * sizeof(root->places[0]));
		close(root->sockets[i]);
	}
	close(root->door);
	free(root);
	return NULL;
}

static bool address_of(const char *interface, struct in_addr *address)
{
	struct ifreq request = {.ifr_addr.sa_family = AF_INET};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool found;

	strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
	found = fd >= 0 && !ioctl(fd, SIOCGIFADDR, &request);
	if (found)
		*address = ((struct sockaddr_in *)&request.ifr_addr)->sin_addr;
	if (fd >= 0)
		close(fd);
	return found;
}

bool sync_net_root(uint64_t id, struct sockaddr_in *name)
{
	const char *interface = getenv("NCCL_SOCKET_IFNAME");
	struct root *root;
	pthread_t thread;

	if (!interface)
		return true;
	root = calloc(1, sizeof(*root));
	if (!root || !address_of(interface, &name->sin_addr))
		goto failed;
	root->id = id;
	root->door = listen_on(&name->sin_addr, &name->sin_port);
	if (root->door < 0)
		goto failed;
	if (!pthread_create(&thread, NULL, serve, root)) {
		pthread_detach(thread);
		return true;
	}
	close(root->door);
failed:
	free(root);
	return false;
}

/* What reaches whom by a socket without a network shares memory, as the software driver's. */
static uint64_t own_node(void)
{
	struct stat namespace;

	return stat("/proc/self/ns/net", &namespace) ? 0 : namespace.st_ino;
}

bool sync_net_is_wide(ncclComm_t comm)
{
	return getenv("NCCL_SOCKET_IFNAME") && comm->root.sin_addr.s_addr != htonl(INADDR_LOOPBACK);
}

bool sync_net_open(ncclComm_t comm, struct place *place)
{
	place->node = own_node();
	comm->door = listen_on(&place->address, &place->port);
	return comm->door >= 0;
}

bool sync_net_meet(ncclComm_t comm)
{
	struct registration ours = {.id = comm->id, .rank = comm->rank, .nranks = comm->nranks};
	struct sockaddr_in local;
	socklen_t len = sizeof(local);
	bool met = false;
	int fd;

	if (!sync_net_is_wide(comm) || comm->door >= 0)
		return true;
	fd = connect_to(&comm->root);
	if (fd < 0)
		return false;
	if (!getsockname(fd, (struct sockaddr *)&local, &len)) {
		ours.place.address = local.sin_addr;
		met = sync_net_open(comm, &ours.place) && put(fd, &ours, sizeof(ours)) &&
		      get(fd, comm->places, comm->nranks * sizeof(comm->places[0]));
	}
	close(fd);
	return met;
}

bool sync_net_is_far(ncclComm_t comm, int rank)
{
	return comm->places[rank].node != comm->places[comm->rank].node;
}

/* Two sockets for each: of the threads that make calls, and of the proxy. */
enum {
	CALLS,
	PROXY,
};

static int *socket_of(struct peer *peer, int purpose)
{
	return purpose == PROXY ? &peer->data : &peer->socket;
}

static bool go_to(ncclComm_t comm, int rank)
{
	struct sockaddr_in name = {.sin_family = AF_INET,
		.sin_addr = comm->places[rank].address,
		.sin_port = comm->places[rank].port};
	int32_t hello[2] = {comm->rank}, fd;

	for (hello[1] = CALLS; hello[1] <= PROXY; hello[1]++) {
		fd = *socket_of(&comm->peers[rank], hello[1]) = connect_to(&name);
		if (fd < 0 || !put(fd, hello, sizeof(hello)))
			return false;
	}
	return true;
}

static bool accept_one(ncclComm_t comm)
{
	int fd = let_in(comm->door), *place;
	int32_t hello[2];

	if (fd < 0)
		return false;
	if (get(fd, hello, sizeof(hello)) && hello[0] >= 0 && hello[0] < comm->nranks) {
		place = socket_of(&comm->peers[hello[0]], hello[1]);
		if (*place < 0) {
			*place = fd;
			return true;
		}
	}
	close(fd);
	return false;
}

bool sync_net_connect(ncclComm_t comm)
{
	int wanted = 0, i;

	for (i = 0; i < comm->nranks; i++) {
		if (!sync_net_is_far(comm, i))
			continue;
		if (i > comm->rank)
			wanted += 2;
		else if (!go_to(comm, i))
			return false;
	}
	while (wanted--)
		if (!accept_one(comm))
			return false;
	if (comm->door >= 0)
		close(comm->door);
	comm->door = -1;
	return true;
}
