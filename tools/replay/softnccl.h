/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stand-in libnccl.so.2 for replays and tests: the functions of NCCL that lien probes, with the
 * signatures of nccl.h 2.28 so that a probe finds each argument where it is in the real one, and no
 * communication. Communicators of other processes are not known here: a split's rank is 0.
 *
 * It asks the driver for memory of its own only after lien_softnccl_allocate(), and then when and
 * where NCCL does: a buffer for each communicator that is made, by the thread that calls (of a
 * group or a non-blocking call: by a thread of NCCL's), and two at its first collective or
 * transfer: one by the thread that calls, or ends the group, and one by the communicator's proxy
 * thread.
 */
#ifndef SOFTNCCL_H
#define SOFTNCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
	ncclSuccess = 0,
	ncclSystemError = 2,
	ncclInvalidArgument = 4,
	ncclInProgress = 7,
} ncclResult_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct CUstream_st *cudaStream_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;

/* Its beginning, which is all that is read. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} ncclConfig_t;

typedef struct {
	char internal[128];
} ncclUniqueId;

#define NCCL_SPLIT_NOCOLOR -1

#define EXPORT __attribute__((visibility("default"), noinline))

struct softnccl_buffer;
struct softnccl_proxy;

/*
 * As in the real one the first and the last eight bytes are equal, and somewhere in between is the
 * 64-bit hash that names the communicator, with rank and size behind it.
 */
#define SOFTNCCL_MAGIC 0x0280028002800280ull

struct ncclComm {
	uint64_t start_magic;
	char channels[8192]; /* what the real one has there */
	uint64_t magic;	     /* the same as the hash in those that are split off */
	uint64_t hash;
	int rank, nranks;
	bool blocking;
	bool connected;			 /* its first collective has been */
	struct softnccl_buffer *buffers; /* its own */
	struct softnccl_proxy *proxy;	 /* NULL: none yet */
	unsigned children;		 /* that were split off it or shrunk from it */
	uint64_t end_magic;
};

/* softnccl.c: what is left to do when a group ends, or when a non-blocking call is asked for. */
struct softnccl_job {
	struct softnccl_job *next;
	ncclComm_t comm;   /* to be given a buffer */
	ncclComm_t *where; /* then set to it; NULL: it was at once */
	ncclComm_t parent; /* asked for, with comm, by ncclCommGetAsyncError() */
};
/* In a group of this thread. */
bool softnccl_grouped(void);

/* softnccl_memory.c. Nothing, with success, before lien_softnccl_allocate(). */
ncclResult_t softnccl_buffer_new(ncclComm_t comm);
void softnccl_buffers_free(ncclComm_t comm);
/* softnccl_buffer_new() in a thread that has none of the caller's frames. */
ncclResult_t softnccl_buffer_new_elsewhere(ncclComm_t comm);
/* The same in the communicator's proxy thread, which is started. */
ncclResult_t softnccl_proxy_buffer(ncclComm_t comm);
void softnccl_proxy_stop(ncclComm_t comm);

/* softnccl_traffic.c: at the end of a group. */
ncclResult_t softnccl_connect_all(void);

#endif
