// SPDX-License-Identifier: BSD-2-Clause
/*
 * A burst of traced calls: prog_burst THREADS RECORDS. Says "ready", waits for a line, and makes
 * calls as fast as it can in THREADS threads until they have made RECORDS records for the agent.
 * Each thread works on memory of its own. Prints what it holds then as one line of JSON, as
 * prog_churn does, with .records made, and waits for the end of its input.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

#define BYTES	    (2ull << 20)
#define THREADS_MAX 16
#define PAIRS	    16	/* of retain and release, for each mapping made */
#define KEEP_EACH   128 /* of so many mappings one stays */
#define KEPT_MAX    64

struct worker {
	pthread_t thread;
	CUcontext context;
	CUmemGenericAllocationHandle handle;
	unsigned references;
	CUdeviceptr kept[KEPT_MAX];
	unsigned kept_count;
	long records, wanted;
};

static void check(CUresult result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "prog_burst: %s: %d\n", what, result);
	exit(1);
}

/* records_made: 2 for a releasing call, which announces itself. */
#define DO(worker, records_made, call, ...)                                                        \
	do {                                                                                       \
		check(call(__VA_ARGS__), #call);                                                   \
		(worker)->records += (records_made);                                               \
	} while (0)

static void turn(struct worker *worker, bool keep)
{
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va;
	unsigned i;

	DO(worker, 1, cuMemAddressReserve, &va, BYTES, 0, 0, 0);
	DO(worker, 1, cuMemMap, va, BYTES, 0, worker->handle, 0);
	DO(worker, 1, cuMemSetAccess, va, BYTES, &access, 1);
	for (i = 0; i < PAIRS; i++) {
		DO(worker, 1, cuMemRetainAllocationHandle, &handle, (void *)va);
		DO(worker, 2, cuMemRelease, handle);
	}
	if (keep) {
		DO(worker, 1, cuMemRetainAllocationHandle, &handle, (void *)va);
		worker->references++;
		worker->kept[worker->kept_count++] = va;
		return;
	}
	DO(worker, 2, cuMemUnmap, va, BYTES);
	DO(worker, 2, cuMemAddressFree, va, BYTES);
}

static void *work(void *arg)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	struct worker *worker = arg;
	unsigned i;

	check(cuCtxSetCurrent(worker->context), "cuCtxSetCurrent");
	DO(worker, 1, cuMemCreate, &worker->handle, BYTES, &prop, 0);
	worker->references = 1;
	for (i = 0; worker->records < worker->wanted; i++)
		turn(worker, i % KEEP_EACH == 0 && worker->kept_count < KEPT_MAX);
	return NULL;
}

static void print_state(const struct worker *workers, unsigned count)
{
	const char *comma = "";
	long records = 0;
	unsigned i, j;

	printf("{\"plain\": [], \"allocations\": [");
	for (i = 0; i < count; i++) {
		records += workers[i].records;
		printf("%s{\"bytes\": %llu, \"exports\": 0, \"handles\": [[%llu, %u, false]], "
		       "\"mappings\": [",
			i ? ", " : "", BYTES, workers[i].handle, workers[i].references);
		for (j = 0; j < workers[i].kept_count; j++)
			printf("%s[%llu, %llu, 3, 0]", j ? ", " : "", workers[i].kept[j], BYTES);
		printf("]}");
	}
	printf("], \"reservations\": [");
	for (i = 0; i < count; i++)
		for (j = 0; j < workers[i].kept_count; j++, comma = ", ")
			printf("%s[%llu, %llu]", comma, workers[i].kept[j], BYTES);
	printf("], \"records\": %ld}\n", records);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	unsigned count = argc > 1 ? atoi(argv[1]) : 1, i;
	long records = argc > 2 ? atol(argv[2]) : 1000;
	struct worker workers[THREADS_MAX] = {0};
	CUcontext context;
	CUdevice device;
	char line[64];

	if (!count || count > THREADS_MAX)
		return 2;
	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	printf("ready\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	for (i = 0; i < count; i++) {
		workers[i].context = context;
		workers[i].wanted = (records + count - 1) / count;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			return 1;
	}
	for (i = 0; i < count; i++)
		pthread_join(workers[i].thread, NULL);
	print_state(workers, count);
	while (fgets(line, sizeof(line), stdin))
		;
	return 0;
}
