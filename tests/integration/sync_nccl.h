/* SPDX-License-Identifier: BSD-2-Clause */
/* What softnccl_sync.c offers, as nccl.h 2.28 declares it. */
#ifndef SYNC_NCCL_H
#define SYNC_NCCL_H

#include <stddef.h>

typedef enum {
	ncclSuccess = 0,
	ncclUnhandledCudaError = 1,
	ncclSystemError = 2,
	ncclInternalError = 3,
	ncclInvalidArgument = 4,
	ncclInvalidUsage = 5,
	ncclRemoteError = 6,
	ncclInProgress = 7,
} ncclResult_t;

typedef enum {
	ncclUint8 = 1,
	ncclInt32 = 2,
	ncclUint32 = 3,
	ncclInt64 = 4,
	ncclUint64 = 5,
	ncclFloat32 = 7,
	ncclFloat64 = 8,
} ncclDataType_t;

typedef enum {
	ncclSum = 0,
} ncclRedOp_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct {
	size_t size;
	unsigned int magic, version;
	int blocking; /* 0: ncclCommInitRankConfig() returns before it is done */
} ncclConfig_t;
typedef struct CUstream_st *cudaStream_t;

typedef struct {
	char internal[128];
} ncclUniqueId;

#define NCCL_SPLIT_NOCOLOR -1

/* clang-format off */
#define SYNC_NCCL_FUNCTIONS(X) \
	X(ncclGetUniqueId, (ncclUniqueId *id)) \
	X(ncclCommInitRank, (ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)) \
	X(ncclCommInitRankConfig, (ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, \
		ncclConfig_t *config)) \
	X(ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, \
		ncclConfig_t *config)) \
	X(ncclCommFinalize, (ncclComm_t comm)) \
	X(ncclCommDestroy, (ncclComm_t comm)) \
	X(ncclCommAbort, (ncclComm_t comm)) \
	X(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *result)) \
	X(ncclGroupStart, (void)) \
	X(ncclGroupEnd, (void)) \
	X(ncclAllReduce, (const void *src, void *dst, size_t count, ncclDataType_t type, \
		ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
	X(ncclBroadcast, (const void *src, void *dst, size_t count, ncclDataType_t type, \
		int root, ncclComm_t comm, cudaStream_t stream)) \
	X(ncclAllGather, (const void *src, void *dst, size_t count, ncclDataType_t type, \
		ncclComm_t comm, cudaStream_t stream)) \
	X(ncclReduceScatter, (const void *src, void *dst, size_t count, ncclDataType_t type, \
		ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
	X(ncclSend, (const void *src, size_t count, ncclDataType_t type, int peer, \
		ncclComm_t comm, cudaStream_t stream)) \
	X(ncclRecv, (void *dst, size_t count, ncclDataType_t type, int peer, \
		ncclComm_t comm, cudaStream_t stream))

/* What not every version has that has the others: registrations and memory since 2.19, windows since
 * 2.27, ncclAlltoAll() since 2.28. */
#define SYNC_NCCL_OPTIONAL(X) \
	X(ncclGetVersion, (int *version)) \
	X(ncclMemAlloc, (void **memory, size_t bytes)) \
	X(ncclMemFree, (void *memory)) \
	X(ncclCommRegister, (const ncclComm_t comm, void *memory, size_t bytes, void **handle)) \
	X(ncclCommDeregister, (const ncclComm_t comm, void *handle)) \
	X(ncclCommWindowRegister, (ncclComm_t comm, void *memory, size_t bytes, \
		ncclWindow_t *window, int flags)) \
	X(ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window)) \
	X(ncclAlltoAll, (const void *src, void *dst, size_t count, ncclDataType_t type, \
		ncclComm_t comm, cudaStream_t stream))
/* clang-format on */

/* Of the stand-in alone, for communicators that rest in all ranks: what one rank has for another is
 * filled as the seed says; all have done so, is it still there, in both? Bytes, or -1. */
ncclResult_t lien_sync_mark(ncclComm_t comm, uint64_t seed);
long lien_sync_check(ncclComm_t comm, uint64_t seed);

#endif
