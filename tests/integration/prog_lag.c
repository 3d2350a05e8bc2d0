/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One of two ranks, which goes as far ahead of the other as it is told: prog_lag LIBRARY RANK.
 *
 * Rank 0 says "id HEX" first, which is the other's first line; both say "ready". `step N` gives the
 * stream N times a memset of a buffer, a launch, and a sum of the buffer over both ranks, waits for
 * none of them, and is answered with "stepped". `groups N` opens and closes N groups with a sum
 * each, waits for each, and is answered with "grouped"; `queue N` does so without waiting, and is
 * answered with "queued". `captures N` begins and ends N stream captures in a thread of its own,
 * which then says "captured". `meet` makes another communicator, as at the beginning, and is
 * answered with "met". `refused N` makes N calls that NCCL refuses, and is answered with "refused".
 * `finish` waits for all, and is answered with "finished WRONG": the number of bytes that are not
 * what the sums must have made of them. An error ends it with status 2.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

#include "sync_nccl.h"

#define RANKS 2
#define BYTES (64ul << 10) /* of the buffer and of the result */
#define SIZE  (2ul << 20)

static struct {
#define MEMBER(name, arguments) ncclResult_t(*name) arguments;
	SYNC_NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
} nccl;

static struct {
	int rank;
	ncclComm_t comm;
	CUcontext context;
	CUstream stream;
	CUdeviceptr memory;
	unsigned steps;
} job;

static void must(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "rank %d: %s: %d\n", job.rank, what, result);
	exit(2);
}

#define MUST(call) must((int)(call), #call)

static void bind_all(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

	must(!library, "dlopen");
#define BIND(name, arguments)                                                                      \
	nccl.name = (__typeof__(nccl.name))dlsym(library, #name);                                  \
	must(!nccl.name, #name);
	SYNC_NCCL_FUNCTIONS(BIND)
#undef BIND
}

static void meet(void)
{
	ncclUniqueId id;
	unsigned byte, i;

	if (!job.rank) {
		MUST(nccl.ncclGetUniqueId(&id));
		printf("id ");
		for (i = 0; i < sizeof(id); i++)
			printf("%02x", (unsigned char)id.internal[i]);
		printf("\n");
		fflush(stdout);
	} else {
		for (i = 0; i < sizeof(id); i++) {
			must(scanf("%2x", &byte) != 1, "id");
			id.internal[i] = byte;
		}
	}
	MUST(nccl.ncclCommInitRank(&job.comm, RANKS, id, job.rank));
}

static void open_all(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, job.rank}};
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;

	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&job.context, job.rank));
	MUST(cuCtxSetCurrent(job.context));
	MUST(cuStreamCreate(&job.stream, 0));
	MUST(cuMemCreate(&handle, SIZE, &prop, 0));
	MUST(cuMemAddressReserve(&job.memory, SIZE, 0, 0, 0));
	MUST(cuMemMap(job.memory, SIZE, 0, handle, 0));
	MUST(cuMemSetAccess(job.memory, SIZE, &access, 1));
}

static void nothing(void *data)
{
	(void)data;
}

static void step(unsigned times)
{
	while (times--) {
		job.steps++;
		MUST(cuMemsetD8Async(job.memory, (unsigned char)(job.steps % 100 + job.rank), BYTES,
			job.stream));
		MUST(cuLaunchHostFunc(job.stream, nothing, NULL));
		MUST(nccl.ncclAllReduce((void *)job.memory, (void *)(job.memory + BYTES), BYTES,
			ncclUint8, ncclSum, job.comm, (cudaStream_t)job.stream));
	}
	printf("stepped\n");
}

static void groups(unsigned times, bool wait)
{
	while (times--) {
		MUST(nccl.ncclGroupStart());
		MUST(nccl.ncclAllReduce((void *)job.memory, (void *)(job.memory + BYTES), 4,
			ncclUint8, ncclSum, job.comm, (cudaStream_t)job.stream));
		MUST(nccl.ncclGroupEnd());
		if (wait)
			MUST(cuStreamSynchronize(job.stream));
	}
	printf(wait ? "grouped\n" : "queued\n");
}

/* On a stream of their own: no work of the other's is in them. */
static void *captures(void *times)
{
	unsigned i, n = (uintptr_t)times;
	CUstream stream;
	CUgraph graph;

	MUST(cuCtxSetCurrent(job.context));
	MUST(cuStreamCreate(&stream, 0));
	for (i = 0; i < n; i++) {
		MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		usleep(100);
		MUST(cuLaunchHostFunc(stream, nothing, NULL));
		MUST(cuStreamEndCapture(stream, &graph)); /* fails if it was spoilt */
		usleep(2000);
	}
	MUST(cuStreamDestroy_v2(stream));
	printf("captured\n");
	fflush(stdout);
	return NULL;
}

/* Calls that NCCL refuses, and which nobody waits for. */
static void refused(unsigned times)
{
	while (times--)
		must(!nccl.ncclAllReduce((void *)job.memory, (void *)(job.memory + BYTES), 4, 99,
			     ncclSum, job.comm, (cudaStream_t)job.stream),
			"a call that is to be refused");
	printf("refused\n");
}

static void finish(void)
{
	static unsigned char found[BYTES];
	unsigned wrong = 0, i;

	MUST(cuStreamSynchronize(job.stream));
	MUST(cuMemcpyDtoH_v2(found, job.memory + BYTES, BYTES));
	for (i = 0; i < BYTES; i++)
		wrong += found[i] != (unsigned char)(2 * (job.steps % 100) + 1);
	printf("finished %u\n", wrong);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	char word[16];
	unsigned times;

	if (argc < 3)
		return 1;
	job.rank = atoi(argv[2]);
	bind_all(argv[1]);
	open_all();
	meet();
	printf("ready\n");
	fflush(stdout);
	while (scanf("%15s", word) == 1) {
		if (!strcmp(word, "meet"))
			meet(), printf("met\n");
		else if (!strcmp(word, "step") && scanf("%u", &times) == 1)
			step(times);
		else if (!strcmp(word, "groups") && scanf("%u", &times) == 1)
			groups(times, true);
		else if (!strcmp(word, "queue") && scanf("%u", &times) == 1)
			groups(times, false);
		else if (!strcmp(word, "captures") && scanf("%u", &times) == 1)
			must(pthread_create(&thread, NULL, captures, (void *)(uintptr_t)times),
				"thread");
		else if (!strcmp(word, "refused") && scanf("%u", &times) == 1)
			refused(times);
		else if (!strcmp(word, "finish"))
			finish();
		fflush(stdout);
	}
	return 0;
}
