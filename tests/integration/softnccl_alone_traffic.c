// SPDX-License-Identifier: BSD-2-Clause
/* Collectives and transfers of the stand-in libnccl: no data moves. */
#include <pthread.h>

#include "softnccl_alone.h"

#define GROUPED_MAX 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread ncclComm_t grouped[GROUPED_MAX]; /* to connect when the group ends */
static __thread unsigned grouped_count;

/* NCCL connects at the first use: one buffer is made by this thread, one by the proxy. */
static ncclResult_t connect_now(ncclComm_t comm)
{
	ncclResult_t result;

	result = softnccl_buffer_new(comm);
	return result ? result : softnccl_proxy_buffer(comm);
}

ncclResult_t softnccl_connect_all(void)
{
	ncclResult_t result = ncclSuccess;

	while (grouped_count && !result)
		result = connect_now(grouped[--grouped_count]);
	return result;
}

static ncclResult_t use(ncclComm_t comm)
{
	ncclResult_t result = ncclSuccess;

	if (!comm)
		return ncclInvalidArgument;
	if (__atomic_load_n(&softnccl_of(comm)->connected, __ATOMIC_ACQUIRE))
		return ncclSuccess;
	pthread_mutex_lock(&lock);
	if (!softnccl_of(comm)->connected && softnccl_grouped() && grouped_count < GROUPED_MAX)
		grouped[grouped_count++] = comm;
	else if (!softnccl_of(comm)->connected)
		result = connect_now(comm);
	__atomic_store_n(&softnccl_of(comm)->connected, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
	ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)receive;
	(void)count;
	(void)type;
	(void)op;
	(void)root;
	(void)stream;
	return use(comm);
}

EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count,
	ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)receive;
	(void)count;
	(void)type;
	(void)root;
	(void)stream;
	return use(comm);
}

/* An old name, which NCCL implements by the other function. */
EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root,
	ncclComm_t comm, cudaStream_t stream)
{
	return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count,
	ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)receive;
	(void)count;
	(void)type;
	(void)op;
	(void)stream;
	return use(comm);
}

EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count,
	ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)receive;
	(void)count;
	(void)type;
	(void)op;
	(void)stream;
	return use(comm);
}

EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count,
	ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)receive;
	(void)count;
	(void)type;
	(void)stream;
	return use(comm);
}

EXPORT ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type,
	ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)receive;
	(void)count;
	(void)type;
	(void)stream;
	return use(comm);
}

EXPORT ncclResult_t ncclGather(const void *send, void *receive, size_t count, ncclDataType_t type,
	int root, ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)receive;
	(void)count;
	(void)type;
	(void)root;
	(void)stream;
	return use(comm);
}

EXPORT ncclResult_t ncclScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
	int root, ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)receive;
	(void)count;
	(void)type;
	(void)root;
	(void)stream;
	return use(comm);
}

EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
	ncclComm_t comm, cudaStream_t stream)
{
	(void)send;
	(void)count;
	(void)type;
	(void)peer;
	(void)stream;
	return use(comm);
}

EXPORT ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer,
	ncclComm_t comm, cudaStream_t stream)
{
	(void)receive;
	(void)count;
	(void)type;
	(void)peer;
	(void)stream;
	return use(comm);
}
