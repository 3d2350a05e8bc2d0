// SPDX-License-Identifier: BSD-2-Clause
/*
 * A stand-in libnccl.so.2 for replays: the functions of NCCL that lien probes, with NCCL's
 * signatures (nccl.h of 2.28) so that a probe finds each argument where it is in the real one, and
 * no communication. lien_softnccl_call() issues a driver call from here, so that its return address
 * lies in "libnccl.so.2" as that of NCCL's own calls does.
 */
#include <stddef.h>
#include <stdlib.h>

typedef enum {
	ncclSuccess = 0,
	ncclSystemError = 2,
	ncclInvalidArgument = 4,
} ncclResult_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclConfig_v21700 ncclConfig_t;
typedef struct {
	char internal[128];
} ncclUniqueId;

struct ncclComm {
	int nranks, rank;
};

struct registration {
	void *buffer;
	size_t bytes;
};

#define EXPORT __attribute__((visibility("default"), noinline))

static ncclResult_t make(ncclComm_t *comm, int nranks, int rank)
{
	if (!comm || nranks < 1 || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	*comm = malloc(sizeof(**comm));
	if (!*comm)
		return ncclSystemError;
	**comm = (struct ncclComm){.nranks = nranks, .rank = rank};
	return ncclSuccess;
}

static ncclResult_t enroll(void *buffer, size_t bytes, void **handle)
{
	struct registration *registration = malloc(sizeof(*registration));

	if (!registration)
		return ncclSystemError;
	*registration = (struct registration){.buffer = buffer, .bytes = bytes};
	*handle = registration;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	(void)id;
	return make(comm, nranks, rank);
}

EXPORT ncclResult_t ncclCommInitRankConfig(
	ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	(void)id;
	(void)config;
	return make(comm, nranks, rank);
}

EXPORT ncclResult_t ncclCommInitRankScalable(
	ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	(void)config;
	if (nids < 1 || !ids)
		return ncclInvalidArgument;
	return make(comm, nranks, rank);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	free(comm);
	return ncclSuccess;
}

/* Not an alias of the above: a probe on one must not see the other. */
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	if (!comm)
		return ncclInvalidArgument;
	free(comm);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommRegister(
	const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
	return comm && handle ? enroll(buffer, bytes, handle) : ncclInvalidArgument;
}

EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
	(void)comm;
	free(handle);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommWindowRegister(
	ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags)
{
	(void)flags;
	return comm && window ? enroll(buffer, bytes, (void **)window) : ncclInvalidArgument;
}

EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
	if (!comm)
		return ncclInvalidArgument;
	free(window);
	return ncclSuccess;
}

EXPORT long lien_softnccl_call(void *fn, long a0, long a1, long a2, long a3, long a4, long a5)
{
	long (*call)(long, long, long, long, long, long);
	long result;

	call = (__typeof__(call))fn;
	result = call(a0, a1, a2, a3, a4, a5);
	/* Something to come back for: the call must not become a jump. */
	__asm__ volatile("" : "+r"(result));
	return result;
}
