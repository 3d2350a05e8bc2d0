// SPDX-License-Identifier: BSD-2-Clause
/*
 * What ranks of other nodes get and give goes through a thread of each communicator, as through
 * NCCL's proxy: it sends what the GPU has put into slots in host memory, and fills those that the
 * GPU waits for. The GPU is done with a send when all of it is in slots.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "softnccl_sync.h"

enum word {
	LAUNCHED, /* value: collectives */
	DATA,	  /* value: bytes, which follow */
	TAKEN,	  /* value: slots emptied */
	ENDED,
};

struct frame {
	uint32_t word, lane;
	uint64_t value;
};

struct way {
	struct frame frame;
	size_t at; /* bytes of the frame, and of what follows, that have gone or come */
	char *data;
};

struct far {
	int rank;
	struct way out, in;
	bool sends;			   /* out has something */
	uint64_t launched;		   /* what was sent last */
	uint64_t tail[LANES], head[LANES]; /* likewise */
	bool over;			   /* nothing goes any more */
};

static struct peer *peer_of(ncclComm_t comm, const struct far *far)
{
	return &comm->peers[far->rank];
}

static struct fifo *fifo_out(ncclComm_t comm, const struct far *far, int lane)
{
	return &comm->page->to[lane][far->rank];
}

static struct fifo *fifo_in(ncclComm_t comm, const struct far *far, int lane)
{
	return &peer_of(comm, far)->page->to[lane][comm->rank];
}

/* What is to be sent next, or nothing. */
static bool next(ncclComm_t comm, struct far *far, bool ends)
{
	uint64_t launched = atomic_load(&comm->page->launched), value;
	struct way *out = &far->out;
	int lane;

	*out = (struct way){0};
	for (lane = 0; lane < LANES; lane++) {
		value = atomic_load(&fifo_in(comm, far, lane)->head);
		if (value != far->head[lane]) {
			far->head[lane] = value;
			out->frame = (struct frame){TAKEN, lane, value};
			return true;
		}
	}
	if (launched != far->launched) {
		far->launched = launched;
		out->frame = (struct frame){LAUNCHED, 0, launched};
		return true;
	}
	for (lane = 0; lane < LANES; lane++) {
		struct fifo *fifo = fifo_out(comm, far, lane);

		value = far->tail[lane];
		if (atomic_load(&fifo->tail) != value) {
			far->tail[lane]++;
			out->frame = (struct frame){DATA, lane, fifo->bytes[value % SLOTS]};
			out->data = sync_slot(&peer_of(comm, far)->out, lane, value);
			return true;
		}
	}
	if (ends && !far->over) {
		far->over = true;
		out->frame = (struct frame){ENDED, 0, 0};
		return true;
	}
	return false;
}

/* The rest of the frame, or of what follows it: where, and how much. */
static size_t rest(struct way *way, char **where)
{
	size_t bytes = way->frame.word == DATA ? way->frame.value : 0;

	if (way->at < sizeof(way->frame)) {
		*where = (char *)&way->frame + way->at;
		return sizeof(way->frame) - way->at;
	}
	*where = way->data + way->at - sizeof(way->frame);
	return sizeof(way->frame) + bytes - way->at;
}

/* As much as goes; false: the peer is gone. */
static bool send_all(ncclComm_t comm, struct far *far, bool ends)
{
	ssize_t gone;
	size_t bytes;
	char *where;

	while (far->sends || (far->sends = next(comm, far, ends))) {
		bytes = rest(&far->out, &where);
		if (!bytes) {
			far->sends = false;
			continue;
		}
		gone = send(peer_of(comm, far)->data, where, bytes, MSG_NOSIGNAL);
		if (gone < 0)
			return errno == EAGAIN || errno == EINTR;
		far->out.at += gone;
	}
	return true;
}

static void arrived(ncclComm_t comm, struct far *far)
{
	struct frame *frame = &far->in.frame;
	struct peer *peer = peer_of(comm, far);

	switch (frame->word) {
	case LAUNCHED:
		atomic_store(&peer->page->launched, frame->value);
		break;
	case DATA:
		atomic_fetch_add(&fifo_in(comm, far, frame->lane)->tail, 1);
		break;
	case TAKEN:
		atomic_store(&fifo_out(comm, far, frame->lane)->head, frame->value);
		break;
	case ENDED:
		atomic_store(&peer->page->ended, 1);
		break;
	}
	sync_ring(comm->bell);
}

static bool frame_is_right(const struct frame *frame)
{
	return frame->word <= ENDED && frame->lane < LANES &&
	       (frame->word != DATA || frame->value <= SLOT_BYTES);
}

/* As much as there is; false: the peer is gone. */
static bool receive_all(ncclComm_t comm, struct far *far)
{
	struct way *in = &far->in;
	ssize_t came;
	size_t bytes;
	char *where;

	for (;;) {
		bytes = rest(in, &where);
		if (!bytes) {
			arrived(comm, far);
			*in = (struct way){0};
			continue;
		}
		came = recv(peer_of(comm, far)->data, where, bytes, 0);
		if (came < 0)
			return errno == EAGAIN || errno == EINTR;
		if (!came)
			return false;
		in->at += came;
		if (in->at != sizeof(in->frame))
			continue;
		if (!frame_is_right(&in->frame))
			return false;
		in->data = sync_slot(&peer_of(comm, far)->in, in->frame.lane,
			atomic_load(&fifo_in(comm, far, in->frame.lane)->tail));
	}
}

static void is_gone(ncclComm_t comm, struct far *far)
{
	far->sends = false;
	far->over = true;
	if (atomic_load(&peer_of(comm, far)->page->ended))
		return;
	fprintf(stderr, "process %d: rank %d of communicator %016lx is gone\n", getpid(), far->rank,
		(unsigned long)comm->id);
	atomic_store(&comm->error, ncclRemoteError);
}

static bool all_sent(const struct far *fars, int count)
{
	int i;

	for (i = 0; i < count; i++)
		if (!fars[i].over || fars[i].sends)
			return false;
	return true;
}

/* Until the communicator's end, and then until all has gone. */
static void *proxy(void *arg)
{
	ncclComm_t comm = arg;
	struct far fars[RANKS_MAX] = {0};
	struct pollfd wanted[RANKS_MAX + 2] = {0};
	int count = 0, i;
	bool ends = false;
	uint64_t rings;

	for (i = 0; i < comm->nranks; i++)
		if (comm->peers[i].data >= 0) {
			wanted[count].fd = comm->peers[i].data;
			fars[count++].rank = i;
		}
	wanted[count] = (struct pollfd){comm->proxy_bell, POLLIN, 0};
	wanted[count + 1] = (struct pollfd){comm->proxy_stop[0], POLLIN, 0};
	do {
		for (i = 0; i < count; i++) {
			if (wanted[i].fd >= 0 &&
				(!receive_all(comm, &fars[i]) || !send_all(comm, &fars[i], ends))) {
				is_gone(comm, &fars[i]);
				wanted[i].fd = -1;
			}
			wanted[i].events = POLLIN | (fars[i].sends ? POLLOUT : 0);
		}
		if (ends && (atomic_load(&comm->aborted) || all_sent(fars, count)))
			break;
		if (poll(wanted, count + 2, -1) < 0)
			continue;
		if (wanted[count].revents && read(comm->proxy_bell, &rings, sizeof(rings)) < 0)
			continue;
		if (wanted[count + 1].revents) {
			ends = true;
			wanted[count + 1].fd = -1;
		}
	} while (true);
	return NULL;
}

static bool host_buffer(struct buffer *buffer)
{
	return !sync_buffer_make_host(buffer, BUFFER_BYTES);
}

ncclResult_t sync_proxy_share(ncclComm_t comm, int rank)
{
	struct peer *peer = &comm->peers[rank];

	peer->page = mmap(NULL, sizeof(*peer->page), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (peer->page == MAP_FAILED) {
		peer->page = NULL;
		return ncclSystemError;
	}
	if (!host_buffer(&peer->out) || !host_buffer(&peer->in))
		return ncclUnhandledCudaError;
	return fcntl(peer->data, F_SETFL, O_NONBLOCK) ? ncclSystemError : ncclSuccess;
}

void sync_proxy_ring(ncclComm_t comm)
{
	eventfd_write(comm->proxy_bell, 1);
}

ncclResult_t sync_proxy_start(ncclComm_t comm)
{
	int far = 0, i;

	for (i = 0; i < comm->nranks; i++)
		far += comm->peers[i].data >= 0;
	if (!far)
		return ncclSuccess;
	comm->proxy_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (comm->proxy_bell < 0 || pipe2(comm->proxy_stop, O_CLOEXEC))
		return ncclSystemError;
	if (pthread_create(&comm->proxy, NULL, proxy, comm)) {
		close(comm->proxy_stop[1]);
		close(comm->proxy_stop[0]);
		comm->proxy_stop[1] = -1;
		return ncclSystemError;
	}
	return ncclSuccess;
}

void sync_proxy_stop(ncclComm_t comm)
{
	if (comm->proxy_stop[1] >= 0) {
		close(comm->proxy_stop[1]);
		pthread_join(comm->proxy, NULL);
		close(comm->proxy_stop[0]);
	}
	if (comm->proxy_bell >= 0)
		close(comm->proxy_bell);
}
