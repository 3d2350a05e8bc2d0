/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stand-in libnccl.so.2 whose ranks really depend on each other. Data goes through device memory
 * that one rank has made and exported and its peer has imported, as through NCCL's P2P buffers; a
 * thread of the stream it is put into (cuLaunchHostFunc) plays the GPU. It is busy from the call,
 * or the end of the outermost group, until all peers have done their part, however long that takes.
 * One process per rank. Only making a communicator can be non-blocking.
 *
 * When a rank dies its peers' ncclCommGetAsyncError() says so, and what they have under way goes on
 * for ever, or until ncclCommAbort(). Memory that is not there when it is to be touched is a GPU
 * fault: the process says so, and dies of it.
 */
#ifndef SOFTNCCL_SYNC_H
#define SOFTNCCL_SYNC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <lien/cuda_abi.h>

#include "sync_nccl.h"

#define EXPORT __attribute__((visibility("default"), noinline))

#define RANKS_MAX    16
#define SLOTS	     4
#define SLOT_BYTES   (256ul << 10)
#define BUFFER_BYTES (2 * SLOTS * SLOT_BYTES) /* slots of collectives, then of transfers */

enum lane {
	COLLECTIVES,
	TRANSFERS,
	LANES,
};

/* Slots that were filled, and emptied; by the sender, and the receiver. */
struct fifo {
	_Atomic uint64_t tail, head;
};

/* What a rank shares with its peers, in host memory. */
struct page {
	_Atomic uint64_t launched; /* collectives */
	_Atomic int ended;
	struct fifo to[LANES][RANKS_MAX];
};

/* One for each process: what waits there looks again when it was rung. */
struct bell {
	_Atomic uint32_t rings;
};

struct buffer {
	CUdeviceptr va;
	size_t bytes;
};

struct peer {
	int socket; /* -1: this is our own rank */
	struct page *page;
	struct bell *bell;
	struct buffer out, in; /* ours, which it reads; its own, which we read */
};

struct ncclComm {
	uint64_t id;
	int rank, nranks;
	unsigned splits;
	struct page *page;
	struct buffer own; /* nobody else's: to be found as it was left */
	struct peer peers[RANKS_MAX];
	uint64_t launched;
	pthread_mutex_t lock;
	_Atomic int unfinished; /* tasks */
	_Atomic bool aborted;
	_Atomic int error; /* ncclResult_t */
	pthread_t watcher;
	int stop[2]; /* a pipe: closed to end the watcher */
};

/* softnccl_meet.c: ranks meet. Both give and take nothing where they fail. */
ncclResult_t sync_comm_make(ncclComm_t *comm, uint64_t id, int nranks, int rank);
/* The same in a thread, with the caller's context: *comm is there at once, and its error is
 * ncclInProgress until it can be used. */
ncclResult_t sync_comm_make_later(ncclComm_t *comm, uint64_t id, int nranks, int rank);
void sync_comm_free(ncclComm_t comm);
/* A word for each peer of each: words[] has one per rank, ours is filled in. */
ncclResult_t sync_exchange(ncclComm_t comm, uint64_t *words);

/* softnccl_sync_memory.c */
bool sync_driver_bind(void);
/* The thread's; NULL: it has none. */
CUcontext sync_context(void);
void sync_context_set(CUcontext context);
ncclResult_t sync_launch(cudaStream_t stream, CUhostFn function, void *data);
/* Makes device memory and a descriptor of it; maps that of others, and closes the descriptor. */
ncclResult_t sync_buffer_make(struct buffer *buffer, size_t bytes, int *fd);
ncclResult_t sync_buffer_import(struct buffer *buffer, size_t bytes, int fd);
void sync_buffer_free(struct buffer *buffer);
/* Fills with what the seed says; is it still that? */
ncclResult_t sync_buffer_fill(const struct buffer *buffer, uint64_t seed);
bool sync_buffer_is(const struct buffer *buffer, uint64_t seed);

/* softnccl_sync_play.c */
enum kind {
	ALL_REDUCE,
	BROADCAST,
	ALL_GATHER,
	REDUCE_SCATTER,
	SEND,
	RECEIVE,
};

struct task {
	STAILQ_ENTRY(task) entry;
	ncclComm_t comm;
	cudaStream_t stream;
	enum kind kind;
	const char *src;
	char *dst;
	size_t bytes; /* that come from a rank */
	ncclDataType_t type;
	int peer;	 /* or root */
	uint64_t number; /* of a collective */
	bool started, done;
	size_t sent[RANKS_MAX], received[RANKS_MAX];
};

STAILQ_HEAD(tasks, task);

/* The host function that does tasks; its argument is a struct tasks of malloc(). */
void sync_play(void *tasks);
struct bell *sync_bell(int *fd); /* this process's; NULL: no memory */
void sync_ring(struct bell *bell);
size_t sync_type_bytes(ncclDataType_t type);
void sync_catch_faults(void);

#endif
