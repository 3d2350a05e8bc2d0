// SPDX-License-Identifier: BSD-2-Clause
/*
 * prog_calls LIBNCCL: makes traced calls that cost next to nothing by themselves. A line "KIND
 * COUNT" on standard input makes COUNT of them; the answer is the nanoseconds of one. Kinds:
 *
 *   create      cuMemCreate of no bytes, which fails at once: seen entering and returning
 *   release     cuMemRelease of a handle with another reference: announced at entry as well
 *   retain      cuMemRetainAllocationHandle, which those references come from
 *   properties  cuMemGetAllocationPropertiesFromHandle: not traced, but held by a gate
 *   context     cuCtxSetCurrent: seen entering only, no event
 *   collective  ncclAllReduce of LIBNCCL: seen entering only, counted
 *   endbr, sub  the same of functions that begin with these instructions (tests/bench/nccl.c)
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lien/cuda_abi.h>

#define BYTES (2ul << 20)

static CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static CUmemGenericAllocationHandle handle;
static CUcontext context;
static CUdeviceptr va;

typedef int collective_fn(const void *from, void *to, size_t count, int type, int operation,
	void *comm, void *stream);

static collective_fn *all_reduce, *broadcast, *reduce_scatter;

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e9 + ts.tv_nsec;
}

static void check(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "prog_calls: %s: %d\n", what, result);
	exit(1);
}

static void create(void)
{
	CUmemGenericAllocationHandle none;

	check(!cuMemCreate(&none, 0, &prop, 0), "cuMemCreate of nothing");
}

static void release(void)
{
	check(cuMemRelease(handle), "cuMemRelease");
}

static void retain(void)
{
	check(cuMemRetainAllocationHandle(&handle, (void *)va), "cuMemRetainAllocationHandle");
}

static void properties(void)
{
	CUmemAllocationProp found;

	check(cuMemGetAllocationPropertiesFromHandle(&found, handle), "properties");
}

static void set_context(void)
{
	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

static void collective(void)
{
	check(all_reduce(NULL, NULL, 1, 7, 0, &va, NULL), "ncclAllReduce");
}

static void endbr(void)
{
	check(broadcast(NULL, NULL, 1, 7, 0, &va, NULL), "ncclBroadcast");
}

static void sub(void)
{
	check(reduce_scatter(NULL, NULL, 1, 7, 0, &va, NULL), "ncclReduceScatter");
}

static const struct kind {
	const char *name;
	void (*call)(void);
} kinds[] = {
	{"create", create},
	{"release", release},
	{"retain", retain},
	{"properties", properties},
	{"context", set_context},
	{"collective", collective},
	{"endbr", endbr},
	{"sub", sub},
};

static const struct kind *kind_of(const char *name)
{
	unsigned i;

	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	fprintf(stderr, "prog_calls: no such kind: %s\n", name);
	exit(2);
}

static void open_nccl(const char *path)
{
	void *library = path ? dlopen(path, RTLD_NOW) : NULL;

	check(!library, "cannot open LIBNCCL");
	all_reduce = (collective_fn *)dlsym(library, "ncclAllReduce");
	broadcast = (collective_fn *)dlsym(library, "ncclBroadcast");
	reduce_scatter = (collective_fn *)dlsym(library, "ncclReduceScatter");
	check(!all_reduce || !broadcast || !reduce_scatter, "LIBNCCL lacks a function");
}

static double measure(void (*call)(void), long count)
{
	double began = now_ns();
	long i;

	for (i = 0; i < count; i++)
		call();
	return (now_ns() - began) / count;
}

int main(int argc, char **argv)
{
	CUdevice device;
	char name[32];
	long count;

	open_nccl(argc > 1 ? argv[1] : NULL);
	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cuMemCreate(&handle, BYTES, &prop, 0), "cuMemCreate");
	check(cuMemAddressReserve(&va, BYTES, 0, 0, 0), "cuMemAddressReserve");
	check(cuMemMap(va, BYTES, 0, handle, 0), "cuMemMap");
	while (scanf("%31s %ld", name, &count) == 2) {
		printf("%.1f\n", measure(kind_of(name)->call, count));
		fflush(stdout);
	}
	return 0;
}
