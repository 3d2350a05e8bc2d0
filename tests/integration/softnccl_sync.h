/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stand-in libnccl.so.2 whose ranks really depend on each other. Data goes through device memory
 * that one rank has made and exported and its peer has imported, as through NCCL's P2P buffers; a
 * thread of the stream it is put into (cuLaunchHostFunc) plays the GPU. It is busy from the call,
 * or the end of the outermost group, until all peers have done their part, however long that takes.
 * With NCCL_SOCKET_IFNAME set in the process that makes the unique id, ranks in several network
 * namespaces ("nodes") meet over TCP; data for another node goes through host memory and a thread
 * that sends and receives it, as through NCCL's proxy.
 * One process per rank. Non-blocking communicators are made, and what is begun on them outside of
 * groups is launched, by threads of this library.
 *
 * When a rank dies its peers' ncclCommGetAsyncError() says so, and what they have under way goes on
 * for ever, or until ncclCommAbort(). Memory that is not there when it is to be touched is a GPU
 * fault: the process says so, and dies of it.
 */
#ifndef SOFTNCCL_SYNC_H
#define SOFTNCCL_SYNC_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include <lien/cuda_abi.h>

#include "sync_nccl.h"

/* The version that it says it is, and beyond which it has no functions. */
#ifndef SYNC_VERSION
#define SYNC_VERSION 22809
#endif

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
	uint32_t bytes[SLOTS];
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
	bool opened; /* another process's, by legacy IPC */
	bool host;   /* pinned memory of the host */
};

/* Where a rank is: memory is shared within a node. */
struct place {
	uint64_t node;
	struct in_addr address;
	uint16_t port;
};

struct peer {
	int socket;	       /* -1: this is our own rank */
	int data;	       /* of the proxy, to a rank of another node; else -1 */
	struct page *page;     /* the proxy fills that of a rank of another node */
	struct bell *bell;     /* NULL: that is the proxy's */
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
	bool background;	/* does not block */
	_Atomic int unfinished; /* tasks */
	_Atomic bool aborted;
	_Atomic int error; /* ncclResult_t */
	pthread_t watcher;
	int stop[2]; /* a pipe: closed to end the watcher */
	/* Of several nodes. */
	struct sockaddr_in root; /* loopback: all ranks are on this one */
	struct place places[RANKS_MAX];
	int door;	   /* where ranks of other nodes come; -1: none does */
	struct bell *bell; /* this process's */
	pthread_t proxy;
	int proxy_bell, proxy_stop[2];
};

/* softnccl_meet.c: ranks meet. Both give and take nothing where they fail. */
ncclResult_t sync_comm_make(
	ncclComm_t *comm, uint64_t id, const struct sockaddr_in *root, int nranks, int rank);
/* Of ranks of another one, which is told by the colors that all have given. */
ncclResult_t sync_comm_split(
	ncclComm_t *comm, uint64_t id, ncclComm_t parent, const int *members, int nranks, int rank);
ncclResult_t sync_comm_split_without(ncclComm_t parent); /* the part of those that are in none */
/* As sync_comm_make(), in a thread, with the caller's context: *comm is there at once, and its
 * error is ncclInProgress until it can be used. */
ncclResult_t sync_comm_make_later(
	ncclComm_t *comm, uint64_t id, const struct sockaddr_in *root, int nranks, int rank);
void sync_comm_free(ncclComm_t comm);
/* A word for each peer of each: words[] has one per rank, ours is filled in. */
ncclResult_t sync_exchange(ncclComm_t comm, uint64_t *words);

/* softnccl_sync_net.c: false where it fails. */
/* The root of a unique id serves in a thread; its address. Without NCCL_SOCKET_IFNAME, none does.
 */
bool sync_net_root(uint64_t id, struct sockaddr_in *name);
bool sync_net_is_wide(ncclComm_t comm); /* may have ranks of several nodes */
bool sync_net_meet(ncclComm_t comm);	/* fills in the places, if they are not known */
bool sync_net_open(ncclComm_t comm, struct place *place); /* the door, for an address */
bool sync_net_is_far(ncclComm_t comm, int rank);
bool sync_net_connect(ncclComm_t comm); /* the sockets to ranks of other nodes */

/* softnccl_sync_proxy.c */
ncclResult_t sync_proxy_share(ncclComm_t comm, int rank);
ncclResult_t sync_proxy_start(ncclComm_t comm); /* where there are ranks of other nodes */
void sync_proxy_stop(ncclComm_t comm);		/* when all has gone */
void sync_proxy_ring(ncclComm_t comm);

/* softnccl_sync_memory.c */
bool sync_driver_bind(void);
/* The thread's; NULL: it has none. */
CUcontext sync_context(void);
void sync_context_set(CUcontext context);
ncclResult_t sync_launch(cudaStream_t stream, CUhostFn function, void *data);
ncclResult_t sync_copy(cudaStream_t stream, void *dst, const void *src, size_t bytes);
/* NCCL_CUMEM_ENABLE=0: memory is cudaMalloc()'s, and shared by legacy IPC. */
bool sync_plain(void);
/* Makes device memory and a descriptor of it; maps that of others, and closes the descriptor. */
ncclResult_t sync_buffer_make(struct buffer *buffer, size_t bytes, int *fd);
ncclResult_t sync_buffer_import(struct buffer *buffer, size_t bytes, int fd);
ncclResult_t sync_buffer_make_host(struct buffer *buffer, size_t bytes);
void sync_buffer_free(struct buffer *buffer);
/* The whole allocation that the range lies in; false: in none, or in several. */
bool sync_buffer_of(struct buffer *buffer, const void *memory, size_t bytes);
/* The same memory at a second address, and a reference by a handle; gives up both. */
ncclResult_t sync_buffer_alias(
	struct buffer *alias, const struct buffer *of, CUmemGenericAllocationHandle *handle);
void sync_buffer_alias_free(struct buffer *alias, CUmemGenericAllocationHandle handle);
bool sync_buffers_equal(const struct buffer *one, const struct buffer *other);
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
void sync_ring_peer(ncclComm_t comm, const struct peer *peer);
char *sync_slot(const struct buffer *buffer, enum lane lane, uint64_t number);
size_t sync_type_bytes(ncclDataType_t type);
void sync_catch_faults(void);

#endif
