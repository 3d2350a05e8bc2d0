// SPDX-License-Identifier: BSD-2-Clause
/*
 * prog_handles: calls that pass handles, by several threads at a time. A line "KIND THREADS COUNT"
 * on standard input has each thread make COUNT of them; the answer is the nanoseconds of one, as a
 * thread sees it. Kinds:
 *
 *   pair   cuMemCreate and cuMemRelease of 2 MiB
 *   query  cuMemGetAllocationPropertiesFromHandle of a handle of the thread's own
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lien/cuda_abi.h>

#define BYTES	    (2ul << 20)
#define THREADS_MAX 64

static struct {
	pthread_t thread;
	CUmemGenericAllocationHandle handle;
	double ns;
} threads[THREADS_MAX];

static pthread_barrier_t barrier;
static unsigned count;
static int queries;

static void check(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "prog_handles: %s: %d\n", what, result);
	exit(1);
}

static CUmemGenericAllocationHandle create(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle;

	check(cuMemCreate(&handle, BYTES, &prop, 0), "cuMemCreate");
	return handle;
}

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e9 + ts.tv_nsec;
}

static void *run(void *arg)
{
	unsigned number = (uintptr_t)arg, i;
	CUmemAllocationProp prop;
	double begin;

	pthread_barrier_wait(&barrier);
	begin = now_ns();
	for (i = 0; i < count; i++) {
		if (queries)
			check(cuMemGetAllocationPropertiesFromHandle(&prop, threads[number].handle),
				"cuMemGetAllocationPropertiesFromHandle");
		else
			check(cuMemRelease(create()), "cuMemRelease");
	}
	threads[number].ns = (now_ns() - begin) / count;
	return NULL;
}

int main(void)
{
	CUcontext context;
	char kind[16];
	unsigned n, i;
	double sum;

	check(cuInit(0), "cuInit");
	check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	for (i = 0; i < THREADS_MAX; i++)
		threads[i].handle = create();
	while (scanf("%15s %u %u", kind, &n, &count) == 3 && n && n <= THREADS_MAX && count) {
		queries = !strcmp(kind, "query");
		pthread_barrier_init(&barrier, NULL, n);
		for (i = 0; i < n; i++)
			check(pthread_create(&threads[i].thread, NULL, run, (void *)(uintptr_t)i),
				"pthread_create");
		for (i = 0, sum = 0; i < n; i++) {
			pthread_join(threads[i].thread, NULL);
			sum += threads[i].ns;
		}
		pthread_barrier_destroy(&barrier);
		printf("%.1f\n", sum / n);
		fflush(stdout);
	}
	return 0;
}
