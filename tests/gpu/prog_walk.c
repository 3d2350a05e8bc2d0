// SPDX-License-Identifier: BSD-2-Clause
/*
 * What a walk relies on (control/orders/walk.c), asked of a driver; walk.py runs it.
 *
 *	prog_walk facts       which calls tell what is mapped from what is not, and their cost
 *	prog_walk over        releases a mapped handle once too often, and says what came of it
 *	prog_walk hold N      makes N mappings of 2 MiB with holes between and 160 GiB of reserved
 *	                      addresses, says "ready" and waits for the end of its input
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lien/cuda_abi.h>

#define PIECE (2ull << 20)
#define TIMES 20000

static CUcontext first, second;
static int devices;

static void must(CUresult result, const char *what)
{
	if (!result)
		return;
	printf("failed %s %d\n", what, result);
	exit(1);
}

#define MUST(call) must(call, #call)

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e9 + ts.tv_nsec;
}

static CUmemGenericAllocationHandle create(size_t bytes)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;

	MUST(cuMemCreate(&handle, bytes, &prop, 0));
	return handle;
}

static void give_access(CUdeviceptr va, size_t bytes)
{
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	MUST(cuMemSetAccess(va, bytes, &access, 1));
}

static void start(void)
{
	CUdevice device;

	MUST(cuInit(0));
	MUST(cuDeviceGetCount(&devices));
	MUST(cuDeviceGet(&device, 0));
	MUST(cuDevicePrimaryCtxRetain(&first, device));
	if (devices > 1) {
		MUST(cuDeviceGet(&device, 1));
		MUST(cuDevicePrimaryCtxRetain(&second, device));
	}
	MUST(cuCtxSetCurrent(first));
}

/* How one call answers about an address: "result[ value]", and what it costs. */
enum { ACCESS, RANGE, RETAIN, START, SIZE, MAPPED, CALLS };
static const char *const names[CALLS] = {"cuMemGetAccess", "cuMemGetAddressRange",
	"cuMemRetainAllocationHandle", "RANGE_START_ADDR", "RANGE_SIZE", "MAPPED"};

static CUresult ask(int call, CUdeviceptr va, uint64_t *one, uint64_t *two)
{
	const CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	static const CUpointer_attribute attributes[CALLS] = {
		[START] = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		[SIZE] = CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		[MAPPED] = CU_POINTER_ATTRIBUTE_MAPPED};
	CUmemGenericAllocationHandle handle;
	unsigned long long flags = 0;
	CUdeviceptr base = 0;
	size_t bytes = 0;
	CUresult result;

	*one = *two = 0;
	switch (call) {
	case ACCESS:
		result = cuMemGetAccess(&flags, &device, va);
		*one = flags;
		return result;
	case RANGE:
		result = cuMemGetAddressRange_v2(&base, &bytes, va);
		*one = va - base;
		*two = bytes;
		return result;
	case RETAIN:
		result = cuMemRetainAllocationHandle(&handle, (void *)va);
		return result ? result : cuMemRelease(handle);
	}
	result = cuPointerGetAttribute(one, attributes[call], va);
	if (call == START && !result)
		*one = va - *one;
	return result;
}

static void tell(const char *what, const char *context, CUdeviceptr va)
{
	uint64_t one, two;
	CUresult result;
	double begin;
	int call, i;

	for (call = 0; call < CALLS; call++) {
		result = ask(call, va, &one, &two);
		begin = now_ns();
		for (i = 0; i < TIMES; i++)
			ask(call, va, &one, &two);
		printf("%-26s %-14s %-28s result %-3d %#12llx %#12llx %7.0f ns\n", what, context,
			names[call], result, (unsigned long long)one, (unsigned long long)two,
			(now_ns() - begin) / TIMES);
	}
}

static void facts(void)
{
	CUdeviceptr area, other, plain;
	void *host;
	struct {
		const char *name;
		CUcontext context;
	} contexts[3];
	unsigned n = 0, i;

	start();
	MUST(cuMemAddressReserve(&area, 64 * PIECE, 0, 0, 0));
	MUST(cuMemAddressReserve(&other, 64 * PIECE, 0, 0, 0));
	MUST(cuMemAlloc_v2(&plain, 5 << 20));
	MUST(cuMemHostAlloc(&host, 8 << 20, 0));
	MUST(cuMemMap(area + 2 * PIECE, PIECE, 0, create(PIECE), 0));
	give_access(area + 2 * PIECE, PIECE);
	MUST(cuMemMap(area + 3 * PIECE, 3 * PIECE, 0, create(3 * PIECE), 0));
	give_access(area + 3 * PIECE, 3 * PIECE);
	MUST(cuMemMap(area + 8 * PIECE, PIECE, 0, create(PIECE), 0)); /* no access */
	contexts[n].name = "its device's";
	contexts[n++].context = first;
	if (devices > 1) {
		contexts[n].name = "another's";
		contexts[n++].context = second;
	}
	contexts[n].name = "no context";
	contexts[n++].context = NULL;
	for (i = 0; i < n; i++) {
		MUST(cuCtxSetCurrent(contexts[i].context));
		tell("mapped", contexts[i].name, area + 2 * PIECE);
		tell("mapped, its neighbour", contexts[i].name, area + 3 * PIECE);
		tell("in the middle of it", contexts[i].name, area + 4 * PIECE);
		tell("mapped without access", contexts[i].name, area + 8 * PIECE);
		tell("hole in a reservation", contexts[i].name, area + 6 * PIECE);
		tell("reservation with nothing", contexts[i].name, other + 6 * PIECE);
		tell("not reserved", contexts[i].name, 0x10000000);
		tell("cuMemAlloc", contexts[i].name, plain);
		tell("cuMemHostAlloc", contexts[i].name, (CUdeviceptr)host);
	}
}

/* Can references be counted by releasing until that is refused? In a process of its own: it may
 * not survive. */
static void over(void)
{
	CUmemGenericAllocationHandle handle, again;
	CUdeviceptr va;

	start();
	MUST(cuMemAddressReserve(&va, PIECE, 0, 0, 0));
	handle = create(PIECE);
	MUST(cuMemMap(va, PIECE, 0, handle, 0));
	give_access(va, PIECE);
	MUST(cuMemRelease(handle));
	printf("released once too often: %d\n", cuMemRelease(handle));
	fflush(stdout);
	printf("retained after that: %d\n", cuMemRetainAllocationHandle(&again, (void *)va));
	fflush(stdout);
	printf("memset after that: %d\n", cuMemsetD8_v2(va, 1, PIECE));
	printf("unmap after that: %d\n", cuMemUnmap(va, PIECE));
}

static void hold(unsigned n)
{
	CUdeviceptr area, nothing;
	unsigned i;

	start();
	MUST(cuMemAddressReserve(&area, 2ull * n * PIECE, 0, 0, 0));
	MUST(cuMemAddressReserve(&nothing, 160ull << 30, 0, 0, 0));
	for (i = 0; i < n; i++) {
		MUST(cuMemMap(area + 2 * i * PIECE, PIECE, 0, create(PIECE), 0));
		give_access(area + 2 * i * PIECE, PIECE);
	}
	printf("ready\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "facts"))
		facts();
	else if (argc == 2 && !strcmp(argv[1], "over"))
		over();
	else if (argc == 3 && !strcmp(argv[1], "hold"))
		hold(strtoul(argv[2], NULL, 10));
	else
		return 2;
	return 0;
}
