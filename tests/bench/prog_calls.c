// SPDX-License-Identifier: BSD-2-Clause
/*
 * prog_calls PAIRS CHUNKS: makes PAIRS pairs of cuMemRetainAllocationHandle and cuMemRelease, which
 * cost next to nothing on the software driver, and prints the nanoseconds of a call in each of
 * CHUNKS parts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <lien/cuda_abi.h>

#define BYTES (2ul << 20)

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e9 + ts.tv_nsec;
}

static void check(CUresult result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "prog_calls: %s: %d\n", what, result);
	exit(1);
}

int main(int argc, char **argv)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	long pairs = argc > 1 ? atol(argv[1]) : 1000, chunks = argc > 2 ? atol(argv[2]) : 1, i, j;
	CUmemGenericAllocationHandle handle;
	CUcontext context;
	CUdeviceptr va;
	CUdevice device;
	double start;

	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cuMemCreate(&handle, BYTES, &prop, 0), "cuMemCreate");
	check(cuMemAddressReserve(&va, BYTES, 0, 0, 0), "cuMemAddressReserve");
	check(cuMemMap(va, BYTES, 0, handle, 0), "cuMemMap");
	for (i = 0; i < chunks; i++) {
		start = now_ns();
		for (j = 0; j < pairs / chunks; j++) {
			check(cuMemRetainAllocationHandle(&handle, (void *)va), "cuMemRetain...");
			check(cuMemRelease(handle), "cuMemRelease");
		}
		printf("%.1f ", (now_ns() - start) / (2.0 * (pairs / chunks)));
	}
	printf("\n");
	return 0;
}
