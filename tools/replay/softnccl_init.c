// SPDX-License-Identifier: BSD-2-Clause
/* The communicators of a replay, each alone in its process. */
#include "tools/replay/softnccl.h"

static ncclResult_t make(ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank)
{
	return softnccl_new(comm, sizeof(**comm), softnccl_hash(id), nranks, rank);
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	return make(comm, nranks, &id, rank);
}

EXPORT ncclResult_t ncclCommInitRankConfig(
	ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	(void)config;
	return make(comm, nranks, &id, rank);
}

EXPORT ncclResult_t ncclCommInitRankScalable(
	ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	(void)config;
	return nids < 1 || !ids ? ncclInvalidArgument : make(comm, nranks, ids, rank);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	if (comm)
		softnccl_free(comm);
	return ncclSuccess;
}

/* Not an alias of the above: a probe on one must not see the other. */
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	if (!comm)
		return ncclInvalidArgument;
	softnccl_free(comm);
	return ncclSuccess;
}
