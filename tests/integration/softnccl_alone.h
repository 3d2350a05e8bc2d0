/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stand-in libnccl.so.2 whose ranks are alone: the functions of NCCL that lien probes, without
 * communication. It is the replay's, with more in it. Communicators of other processes are unknown
 * here: a split's rank is 0.
 *
 * It allocates memory of its own from the driver only after lien_softnccl_allocate(), and then when
 * and where NCCL does: a buffer for each new communicator, in the calling thread (for a group or a
 * non-blocking call: in a thread of NCCL's), and two at its first collective or transfer: one in
 * the thread that calls, or ends the group, and one in the communicator's proxy thread.
 */
#ifndef SOFTNCCL_ALONE_H
#define SOFTNCCL_ALONE_H

#include <stdbool.h>

#include "tools/replay/softnccl.h"

typedef struct CUstream_st *cudaStream_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;

#define NCCL_SPLIT_NOCOLOR -1

struct softnccl_buffer;
struct softnccl_proxy;

struct softnccl_comm {
	struct ncclComm nccl; /* what the caller has */
	bool blocking;
	bool connected;			 /* its first collective has run */
	struct softnccl_buffer *buffers; /* owned by the communicator */
	struct softnccl_proxy *proxy;	 /* NULL: not started yet */
	unsigned children;		 /* number of communicators split off or shrunk from it */
};

static inline struct softnccl_comm *softnccl_of(ncclComm_t comm)
{
	return (struct softnccl_comm *)comm;
}

/* softnccl_alone.c: work that remains when a group ends, or when a non-blocking call is queried. */
struct softnccl_job {
	struct softnccl_job *next;
	ncclComm_t comm;   /* needs a buffer */
	ncclComm_t *where; /* then receives it; NULL: was set at once */
	ncclComm_t parent; /* like comm, queried with ncclCommGetAsyncError() */
};
/* Returns true inside a group of this thread. */
bool softnccl_grouped(void);

/* softnccl_alone_memory.c. Succeeds without effect before lien_softnccl_allocate(). */
ncclResult_t softnccl_buffer_new(ncclComm_t comm);
void softnccl_buffers_free(ncclComm_t comm);
/* Calls softnccl_buffer_new() in a thread that has none of the caller's frames. */
ncclResult_t softnccl_buffer_new_elsewhere(ncclComm_t comm);
/* Same, in the communicator's proxy thread, which it starts. */
ncclResult_t softnccl_proxy_buffer(ncclComm_t comm);
void softnccl_proxy_stop(ncclComm_t comm);

/* softnccl_alone_traffic.c: called at the end of a group. */
ncclResult_t softnccl_connect_all(void);

#endif
