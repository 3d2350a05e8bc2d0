// SPDX-License-Identifier: BSD-2-Clause
/*
 * A rank whose NCCL works in the background: prog_background LIBRARY DEVICE. Commands on standard
 * input, answers on standard output:
 *
 *	alone		makes a communicator of this process alone; "ok RESULT"
 *	make ID RANK NRANKS	one that does not block; "ok RESULT"
 *	poll		what ncclCommGetAsyncError says of it; "ok RESULT"
 *	reduce TIMES	all ranks' 1 over it; "ok SUM", of all times
 *	destroy		"ok RESULT"
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

#include "sync_nccl.h"

static struct {
#define MEMBER(name, arguments) ncclResult_t(*name) arguments;
	SYNC_NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
} nccl;

static ncclComm_t own, comm;

static void bind(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

#define BIND(name, arguments)                                                                      \
	nccl.name = library ? (__typeof__(nccl.name))dlsym(library, #name) : NULL;                 \
	if (!nccl.name)                                                                            \
		exit(2);
	SYNC_NCCL_FUNCTIONS(BIND)
#undef BIND
}

static int make_alone(void)
{
	ncclUniqueId id;

	return nccl.ncclGetUniqueId(&id) ? -1 : (int)nccl.ncclCommInitRank(&own, 1, id, 0);
}

static int make(const char *hex, int rank, int nranks)
{
	ncclConfig_t config = {.size = sizeof(config), .magic = 0xcafebeef, .blocking = 0};
	ncclUniqueId id = {{0}};
	unsigned byte;

	for (size_t i = 0; i < sizeof(id) && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
		id.internal[i] = byte;
	return nccl.ncclCommInitRankConfig(&comm, nranks, id, rank, &config);
}

static int poll_comm(void)
{
	ncclResult_t result = ncclSuccess;

	return nccl.ncclCommGetAsyncError(comm, &result) ? -1 : (int)result;
}

static ncclResult_t finish(ncclResult_t result)
{
	while (result == ncclInProgress) {
		usleep(200);
		if (nccl.ncclCommGetAsyncError(comm, &result))
			return ncclInternalError;
	}
	return result;
}

static int reduce_once(CUdeviceptr data, CUstream stream)
{
	unsigned one = 1;

	if (cuMemcpyHtoD_v2(data, &one, sizeof(one)) ||
		finish(nccl.ncclAllReduce((void *)data, (void *)data, 1, ncclUint32, ncclSum, comm,
			(cudaStream_t)stream)) ||
		cuStreamSynchronize(stream) || cuMemcpyDtoH_v2(&one, data, sizeof(one)))
		return -1000000;
	return one;
}

static int reduce(int times)
{
	CUdeviceptr data;
	CUstream stream;
	int sum = 0;

	if (cuStreamCreate(&stream, 0) || cuMemAlloc_v2(&data, sizeof(unsigned)))
		return -1;
	while (times-- > 0)
		sum += reduce_once(data, stream);
	cuMemFree_v2(data);
	cuStreamDestroy_v2(stream);
	return sum;
}

static int destroy(void)
{
	ncclResult_t result = nccl.ncclCommDestroy(comm);

	comm = NULL;
	return result;
}

int main(int argc, char **argv)
{
	char line[400], hex[300];
	int rank, nranks, answer;
	CUcontext context;

	if (argc != 3 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, atoi(argv[2])) ||
		cuCtxSetCurrent(context))
		return 2;
	bind(argv[1]);
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		answer = -1;
		if (!strcmp(line, "alone\n"))
			answer = make_alone();
		else if (sscanf(line, "make %299s %d %d", hex, &rank, &nranks) == 3)
			answer = make(hex, rank, nranks);
		else if (!strcmp(line, "poll\n"))
			answer = poll_comm();
		else if (sscanf(line, "reduce %d", &rank) == 1)
			answer = reduce(rank);
		else if (!strcmp(line, "destroy\n"))
			answer = destroy();
		printf("ok %d\n", answer);
		fflush(stdout);
	}
	return 0;
}
