// SPDX-License-Identifier: BSD-2-Clause
/*
 * prog_pools: times plain and stream-ordered memory. Needs libc alone; opens the driver, and NVML
 * if there is one. Prints one line, "us PER_PAIR peak_mib PEAK reserved_mib RESERVED", of:
 *
 *   prog_pools pair STREAMS BYTES ROUNDS     cuMemAllocAsync and cuMemFreeAsync, the streams in
 * turn prog_pools sync STREAMS BYTES ROUNDS     the same, and cuStreamSynchronize after each pair
 *   prog_pools live STREAMS BYTES ROUNDS     allocations of 64 KiB to 8 MiB, of which that many
 * bytes are live; a random one is freed in a random stream that waits for its own. The pool keeps
 * what it has. prog_pools plain STREAMS BYTES ROUNDS    cuMemAlloc and cuMemFree
 *
 * The peak is what the device had in use at most, less what it had when this began.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAMS_MAX 64
#define LIVE_MAX    4096
#define MIB	    1048576.0

/* clang-format off */
#define DRIVER_FUNCTIONS(X) \
	X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
	X(cuStreamCreate) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuEventCreate) \
	X(cuEventRecord) X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemAlloc_v2) X(cuMemFree_v2) \
	X(cuMemGetInfo_v2) X(cuDeviceGetDefaultMemPool) X(cuMemPoolSetAttribute) \
	X(cuMemPoolGetAttribute) X(cuMemsetD8Async)
/* clang-format on */

#include "tests/gpu/late_bound.h"

struct nvml_memory {
	unsigned long long total, free, used;
};

static int (*nvml_memory)(void *device, struct nvml_memory *memory);
static void *nvml_device;

static CUstream streams[STREAMS_MAX];
static CUevent events[STREAMS_MAX];
static unsigned streams_count;
static CUmemoryPool pool;

static struct {
	CUdeviceptr at;
	size_t bytes;
	unsigned stream;
} live[LIVE_MAX];

static void find_nvml(void)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*init)(void), (*get)(unsigned, void **);

	if (!nvml)
		return;
	init = (__typeof__(init))dlsym(nvml, "nvmlInit_v2");
	get = (__typeof__(get))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	if (init && get && !init() && !get(0, &nvml_device))
		nvml_memory = (__typeof__(nvml_memory))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
}

static uint64_t used(void)
{
	struct nvml_memory memory = {0};
	size_t left = 0, total = 0;

	if (nvml_memory && !nvml_memory(nvml_device, &memory))
		return memory.used;
	CUDA(cuMemGetInfo_v2(&left, &total));
	return total - left;
}

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static unsigned below(unsigned n)
{
	static uint64_t state = 88172645463325252ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % n;
}

static void pair(unsigned round, size_t bytes, int sync)
{
	CUstream stream = streams[round % streams_count];
	CUdeviceptr at;

	CUDA(cuMemAllocAsync(&at, bytes, stream));
	CUDA(cuMemFreeAsync(at, stream));
	if (sync)
		CUDA(cuStreamSynchronize(stream));
}

static void plain(size_t bytes)
{
	CUdeviceptr at;

	CUDA(cuMemAlloc_v2(&at, bytes));
	CUDA(cuMemFree_v2(at));
}

/* Frees it in a stream that need not be its own. */
static void end(unsigned i, unsigned stream)
{
	if (stream != live[i].stream) {
		CUDA(cuEventRecord(events[live[i].stream], streams[live[i].stream]));
		CUDA(cuStreamWaitEvent(streams[stream], events[live[i].stream], 0));
	}
	CUDA(cuMemFreeAsync(live[i].at, streams[stream]));
}

static void turn(size_t bytes, unsigned *count, size_t *sum)
{
	size_t size = (size_t)65536 << below(8);
	unsigned i;

	size -= below(size / 4) & ~255u;
	while (*count && (*sum + size > bytes || *count == LIVE_MAX)) {
		i = below(*count);
		*sum -= live[i].bytes;
		end(i, below(streams_count));
		live[i] = live[--*count];
	}
	live[*count].stream = below(streams_count);
	live[*count].bytes = size;
	CUDA(cuMemAllocAsync(&live[*count].at, size, streams[live[*count].stream]));
	CUDA(cuMemsetD8Async(live[*count].at, 1, size, streams[live[*count].stream]));
	*sum += size;
	++*count;
}

static void begin(unsigned count)
{
	CUcontext context;
	unsigned i;

	CUDA(cuInit(0));
	CUDA(cuDevicePrimaryCtxRetain(&context, 0));
	CUDA(cuCtxSetCurrent(context));
	CUDA(cuDeviceGetDefaultMemPool(&pool, 0));
	streams_count = count < STREAMS_MAX ? count : STREAMS_MAX;
	for (i = 0; i < streams_count; i++) {
		CUDA(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
		CUDA(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
	}
}

int main(int argc, char **argv)
{
	uint64_t keep = UINT64_MAX, before, now, peak = 0, reserved = 0;
	unsigned rounds, round, count = 0;
	size_t bytes, sum = 0;
	double began;

	if (argc != 5)
		return 2;
	bind_driver();
	find_nvml();
	begin(atoi(argv[2]));
	bytes = strtoull(argv[3], NULL, 0);
	rounds = atoi(argv[4]);
	if (!strcmp(argv[1], "live"))
		CUDA(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	pair(0, 65536, 1); /* what the first one makes stays */
	before = used();
	began = now_us();
	for (round = 0; round < rounds; round++) {
		if (!strcmp(argv[1], "live"))
			turn(bytes, &count, &sum);
		else if (!strcmp(argv[1], "plain"))
			plain(bytes);
		else
			pair(round, bytes, !strcmp(argv[1], "sync"));
		if (round % 500 == 499 && !strcmp(argv[1], "live")) {
			now = used();
			peak = now > before && now - before > peak ? now - before : peak;
		}
	}
	CUDA(cuCtxSynchronize());
	began = now_us() - began;
	CUDA(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &reserved));
	printf("us %.2f peak_mib %.0f reserved_mib %.0f\n", began / rounds, peak / MIB,
		reserved / MIB);
	return 0;
}
