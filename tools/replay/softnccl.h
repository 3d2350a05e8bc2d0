/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stand-in libnccl.so.2 for replays and tests: the functions of NCCL that lien probes, without
 * communication. Signatures are those of nccl.h 2.28, so that a probe finds each argument where the
 * real library has it. Communicators of other processes are unknown here: a split's rank is 0.
 *
 * It allocates memory of its own from the driver only after lien_softnccl_allocate(), and then when
 * and where NCCL does: a buffer for each new communicator, in the calling thread (for a group or a
 * non-blocking call: in a thread of NCCL's), and two at its first collective or transfer: one in
 * the thread that calls, or ends the group, and one in the communicator's proxy thread.
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

/* Only the beginning, the part that is read. */
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
 * As in the real one, the first and the last eight bytes are equal, and between them is the 64-bit
 * hash that names the communicator, followed by rank and size.
 */
#define SOFTNCCL_MAGIC 0x0280028002800280ull

struct ncclComm {
	uint64_t start_magic;
	char channels[8192]; /* stands for the real one's fields */
	uint64_t magic;	     /* equal to the hash in split communicators */
	uint64_t hash;
	int rank, nranks;
	bool blocking;
	bool connected;			 /* its first collective has run */
	struct softnccl_buffer *buffers; /* owned by the communicator */
	struct softnccl_proxy *proxy;	 /* NULL: not started yet */
	unsigned children;		 /* number of communicators split off or shrunk from it */
	uint64_t end_magic;
};

/* softnccl.c: work that remains when a group ends, or when a non-blocking call is queried. */
struct softnccl_job {
	struct softnccl_job *next;
	ncclComm_t comm;   /* needs a buffer */
	ncclComm_t *where; /* then receives it; NULL: was set at once */
	ncclComm_t parent; /* like comm, queried with ncclCommGetAsyncError() */
};
/* Returns true inside a group of this thread. */
bool softnccl_grouped(void);

/* softnccl_memory.c. Succeeds without effect before lien_softnccl_allocate(). */
ncclResult_t softnccl_buffer_new(ncclComm_t comm);
void softnccl_buffers_free(ncclComm_t comm);
/* Calls softnccl_buffer_new() in a thread that has none of the caller's frames. */
ncclResult_t softnccl_buffer_new_elsewhere(ncclComm_t comm);
/* Same, in the communicator's proxy thread, which it starts. */
ncclResult_t softnccl_proxy_buffer(ncclComm_t comm);
void softnccl_proxy_stop(ncclComm_t comm);

/* softnccl_traffic.c: called at the end of a group. */
ncclResult_t softnccl_connect_all(void);

#endif
