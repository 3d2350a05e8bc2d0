// SPDX-License-Identifier: BSD-2-Clause
/* How the ranks of a communicator meet: a socket between any two, over which buffers go at first.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "softnccl_sync.h"

#define MEET_SECONDS 120

struct message {
	uint64_t word;
	int fds[3];
	int count;
};

static socklen_t name_of(struct sockaddr_un *name, uint64_t id, int rank)
{
	int len;

	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	len = snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "lien-nccl-%016lx-%d",
		(unsigned long)id, rank);
	return offsetof(struct sockaddr_un, sun_path) + 1 + len;
}

static int listen_at(uint64_t id, int rank)
{
	struct sockaddr_un name;
	socklen_t len = name_of(&name, id, rank);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && (bind(fd, (struct sockaddr *)&name, len) || listen(fd, RANKS_MAX))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* The other one may not be there yet. */
static int connect_to(uint64_t id, int rank)
{
	struct timespec pause = {.tv_nsec = 2000000};
	struct sockaddr_un name;
	socklen_t len = name_of(&name, id, rank);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), tries;

	for (tries = 0; fd >= 0 && tries < MEET_SECONDS * 500; tries++) {
		if (!connect(fd, (struct sockaddr *)&name, len))
			return fd;
		if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
			break;
		nanosleep(&pause, NULL);
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

static bool ready_to_read(int fd)
{
	struct pollfd wanted = {.fd = fd, .events = POLLIN};
	int found;

	do
		found = poll(&wanted, 1, MEET_SECONDS * 1000);
	while (found < 0 && errno == EINTR);
	return found == 1;
}

static bool say(int fd, const struct message *message)
{
	char control[CMSG_SPACE(sizeof(message->fds))] = {0};
	struct iovec iov = {(void *)&message->word, sizeof(message->word)};
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *cmsg;

	if (message->count) {
		header.msg_control = control;
		header.msg_controllen = CMSG_SPACE(message->count * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&header);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(message->count * sizeof(int));
		memcpy(CMSG_DATA(cmsg), message->fds, message->count * sizeof(int));
	}
	return sendmsg(fd, &header, MSG_NOSIGNAL) == sizeof(message->word);
}

/* With exactly so many descriptors as count says. */
static bool hear(int fd, struct message *message, int count)
{
	char control[CMSG_SPACE(sizeof(message->fds))] = {0};
	struct iovec iov = {&message->word, sizeof(message->word)};
	struct msghdr header = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *cmsg;
	ssize_t got;

	if (!ready_to_read(fd))
		return false;
	do
		got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC | MSG_WAITALL);
	while (got < 0 && errno == EINTR);
	if (got != sizeof(message->word))
		return false;
	cmsg = CMSG_FIRSTHDR(&header);
	message->count = cmsg ? (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
	if (cmsg)
		memcpy(message->fds, CMSG_DATA(cmsg), message->count * sizeof(int));
	return message->count == count;
}

/* Each rank goes to those before it, and lets in those behind it. */
static bool connect_all(ncclComm_t comm)
{
	int door = listen_at(comm->id, comm->rank), i, fd;
	struct message hello = {.word = comm->rank}, other;
	bool all = door >= 0;

	for (i = 0; all && i < comm->rank; i++) {
		if (sync_net_is_far(comm, i))
			continue;
		fd = comm->peers[i].socket = connect_to(comm->id, i);
		all = fd >= 0 && say(fd, &hello);
	}
	for (i = comm->rank + 1; all && i < comm->nranks; i++) {
		if (sync_net_is_far(comm, i))
			continue;
		all = ready_to_read(door) && (fd = accept4(door, NULL, NULL, SOCK_CLOEXEC)) >= 0;
		if (!all)
			break;
		all = hear(fd, &other, 0) && other.word < (uint64_t)comm->nranks &&
		      comm->peers[other.word].socket < 0;
		if (all)
			comm->peers[other.word].socket = fd;
		else
			close(fd);
	}
	if (door >= 0)
		close(door);
	return all && sync_net_connect(comm);
}

ncclResult_t sync_exchange(ncclComm_t comm, uint64_t *words)
{
	struct message ours = {.word = words[comm->rank]}, other;
	int i;

	for (i = 0; i < comm->nranks; i++)
		if (i != comm->rank && !say(comm->peers[i].socket, &ours))
			return ncclRemoteError;
	for (i = 0; i < comm->nranks; i++) {
		if (i == comm->rank)
			continue;
		if (!hear(comm->peers[i].socket, &other, 0))
			return ncclRemoteError;
		words[i] = other.word;
	}
	return ncclSuccess;
}

static void *map_file(int fd, size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

static ncclResult_t give(ncclComm_t comm, struct peer *peer, int page_fd)
{
	struct message message = {.fds = {-1, page_fd, -1}, .count = 3};
	ncclResult_t result;
	bool said;

	if (!sync_bell(&message.fds[0]))
		return ncclSystemError;
	result = sync_buffer_make(&peer->out, BUFFER_BYTES, &message.fds[2]);
	if (result)
		return result;
	message.word = comm->rank;
	said = say(peer->socket, &message);
	close(message.fds[2]);
	return said ? ncclSuccess : ncclRemoteError;
}

static ncclResult_t receive(struct peer *peer)
{
	struct message message;

	if (!hear(peer->socket, &message, 3))
		return ncclRemoteError;
	peer->bell = map_file(message.fds[0], sizeof(*peer->bell));
	peer->page = map_file(message.fds[1], sizeof(*peer->page));
	close(message.fds[0]);
	close(message.fds[1]);
	if (!peer->bell || !peer->page)
		return ncclSystemError;
	return sync_buffer_import(&peer->in, BUFFER_BYTES, message.fds[2]);
}

static ncclResult_t share(ncclComm_t comm)
{
	uint64_t words[RANKS_MAX] = {0};
	ncclResult_t result = ncclSystemError;
	int page_fd = memfd_create("page", MFD_CLOEXEC), i;

	if (page_fd < 0)
		return result;
	if (!ftruncate(page_fd, sizeof(*comm->page)) &&
		(comm->page = map_file(page_fd, sizeof(*comm->page))))
		result = ncclSuccess;
	for (i = 0; !result && i < comm->nranks; i++)
		if (comm->peers[i].data >= 0)
			result = sync_proxy_share(comm, i);
		else if (i != comm->rank)
			result = give(comm, &comm->peers[i], page_fd);
	close(page_fd);
	for (i = 0; !result && i < comm->nranks; i++)
		if (i != comm->rank && comm->peers[i].data < 0)
			result = receive(&comm->peers[i]);
	/* None uses what another one has not mapped yet. */
	return result ? result : sync_exchange(comm, words);
}

/* Tells of peers that are gone, and did not say that they would go. */
static void *watch(void *arg)
{
	ncclComm_t comm = arg;
	struct pollfd wanted[RANKS_MAX + 1];
	int i;

	for (i = 0; i < comm->nranks; i++) /* the proxy knows of those of other nodes */
		wanted[i] = (struct pollfd){
			comm->peers[i].data < 0 ? comm->peers[i].socket : -1, POLLRDHUP, 0};
	wanted[i] = (struct pollfd){comm->stop[0], POLLIN, 0};
	while (!wanted[comm->nranks].revents) {
		if (poll(wanted, comm->nranks + 1, -1) < 0)
			continue;
		for (i = 0; i < comm->nranks; i++) {
			if (wanted[i].fd < 0 || !wanted[i].revents)
				continue;
			wanted[i].fd = -1;
			if (atomic_load(&comm->peers[i].page->ended))
				continue;
			fprintf(stderr, "process %d: rank %d of communicator %016lx is gone\n",
				getpid(), i, (unsigned long)comm->id);
			atomic_store(&comm->error, ncclRemoteError);
		}
	}
	return NULL;
}

static ncclResult_t watch_start(ncclComm_t comm)
{
	if (pipe(comm->stop))
		return ncclSystemError;
	if (!pthread_create(&comm->watcher, NULL, watch, comm))
		return ncclSuccess;
	close(comm->stop[0]);
	close(comm->stop[1]);
	comm->stop[1] = -1;
	return ncclSystemError;
}

static ncclComm_t comm_new(uint64_t id, const struct sockaddr_in *root, int nranks, int rank)
{
	ncclComm_t comm = calloc(1, sizeof(*comm));
	int i, fd;

	if (!comm)
		return NULL;
	*comm = (struct ncclComm){.id = id,
		.rank = rank,
		.nranks = nranks,
		.stop = {-1, -1},
		.root = *root,
		.door = -1,
		.proxy_bell = -1,
		.proxy_stop = {-1, -1}};
	pthread_mutex_init(&comm->lock, NULL);
	for (i = 0; i < RANKS_MAX; i++)
		comm->peers[i].socket = comm->peers[i].data = -1;
	comm->bell = sync_bell(&fd);
	return comm;
}

static ncclResult_t comm_connect(ncclComm_t comm)
{
	ncclResult_t result =
		sync_net_meet(comm) && connect_all(comm) ? ncclSuccess : ncclRemoteError;

	if (!result)
		result = share(comm);
	if (!result)
		result = sync_buffer_make(&comm->own, 2ul << 20, NULL);
	if (!result)
		result = sync_buffer_fill(&comm->own, comm->id ^ comm->rank);
	if (!result)
		result = sync_proxy_start(comm);
	return result ? result : watch_start(comm);
}

static ncclResult_t comm_finish(ncclComm_t *out, ncclComm_t comm, ncclResult_t result)
{
	if (!result)
		result = comm_connect(comm);
	if (!result)
		*out = comm;
	else
		sync_comm_free(comm);
	return result;
}

ncclResult_t sync_comm_make(
	ncclComm_t *out, uint64_t id, const struct sockaddr_in *root, int nranks, int rank)
{
	ncclComm_t comm = comm_new(id, root, nranks, rank);

	return comm ? comm_finish(out, comm, ncclSuccess) : ncclSystemError;
}

/* All ranks of the parent take part, also where nobody of another node is in what is made. */
static ncclResult_t exchange_doors(ncclComm_t comm, ncclComm_t parent, const int *members)
{
	uint64_t words[RANKS_MAX] = {0};
	struct place *own = &comm->places[comm->rank];
	ncclResult_t result;
	int i;

	*own = parent->places[parent->rank];
	if (!sync_net_open(comm, own))
		return ncclSystemError;
	words[parent->rank] = own->port;
	result = sync_exchange(parent, words);
	for (i = 0; i < comm->nranks; i++) {
		comm->places[i] = parent->places[members[i]];
		comm->places[i].port = words[members[i]];
	}
	return result;
}

ncclResult_t sync_comm_split_without(ncclComm_t parent)
{
	uint64_t words[RANKS_MAX] = {0};

	return sync_net_is_wide(parent) ? sync_exchange(parent, words) : ncclSuccess;
}

ncclResult_t sync_comm_split(
	ncclComm_t *out, uint64_t id, ncclComm_t parent, const int *members, int nranks, int rank)
{
	ncclComm_t comm = comm_new(id, &parent->root, nranks, rank);
	ncclResult_t result = ncclSuccess;

	if (!comm)
		return ncclSystemError;
	if (sync_net_is_wide(parent))
		result = exchange_doors(comm, parent, members);
	return comm_finish(out, comm, result);
}

struct later {
	ncclComm_t comm;
	CUcontext context;
};

static void *connect_later(void *arg)
{
	struct later later = *(struct later *)arg;

	free(arg);
	sync_context_set(later.context);
	atomic_store(&later.comm->error, comm_connect(later.comm));
	return NULL;
}

ncclResult_t sync_comm_make_later(
	ncclComm_t *out, uint64_t id, const struct sockaddr_in *root, int nranks, int rank)
{
	struct later *later = calloc(1, sizeof(*later));
	pthread_t thread;

	if (!later)
		return ncclSystemError;
	later->comm = comm_new(id, root, nranks, rank);
	later->context = sync_context();
	if (!later->comm) {
		free(later);
		return ncclSystemError;
	}
	later->comm->background = true;
	atomic_store(&later->comm->error, ncclInProgress);
	*out = later->comm;
	if (pthread_create(&thread, NULL, connect_later, later))
		return ncclSystemError;
	pthread_detach(thread);
	return ncclInProgress;
}

void sync_comm_free(ncclComm_t comm)
{
	struct peer *peer;

	if (comm->page)
		atomic_store(&comm->page->ended, 1);
	if (comm->stop[1] >= 0) {
		close(comm->stop[1]);
		pthread_join(comm->watcher, NULL);
		close(comm->stop[0]);
	}
	sync_proxy_stop(comm);
	if (comm->door >= 0)
		close(comm->door);
	for (peer = comm->peers; peer < comm->peers + comm->nranks; peer++) {
		sync_buffer_free(&peer->out);
		sync_buffer_free(&peer->in);
		if (peer->socket >= 0)
			close(peer->socket);
		if (peer->data >= 0)
			close(peer->data);
		if (peer->page)
			munmap(peer->page, sizeof(*peer->page));
		if (peer->bell)
			munmap(peer->bell, sizeof(*peer->bell));
	}
	sync_buffer_free(&comm->own);
	if (comm->page)
		munmap(comm->page, sizeof(*comm->page));
	free(comm);
}
