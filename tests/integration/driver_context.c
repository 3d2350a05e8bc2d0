// SPDX-License-Identifier: BSD-2-Clause
/* Commands of prog_driver: contexts, devices, streams, and the truth. */
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"
#include "tests/softcuda/dump.h"

#define THINGS_MAX 64

static CUcontext contexts[THINGS_MAX];
static unsigned int context_count;

CUresult use_device(int ordinal)
{
	CUcontext context;
	CUresult result = cuDevicePrimaryCtxRetain(&context, ordinal);

	return result ? result : cuCtxSetCurrent(context);
}

static void do_init(void)
{
	CUresult result = cuInit(0);

	say(result ? result : use_device(arg[0]), 0);
}

static void do_cuinit(void)
{
	say(cuInit(arg[0]), 0);
}

static void do_device(void)
{
	say(use_device(arg[0]), 0);
}

static CUcontext context_of(uint64_t number)
{
	return number < context_count ? contexts[number] : NULL;
}

static void do_ctx(void)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (context_count < THINGS_MAX)
		result = cuCtxCreate_v2(&contexts[context_count], 0, arg[0]);
	say(result, context_count);
	context_count += !result;
}

SAYS(ctx_set, cuCtxSetCurrent(context_of(arg[0])))
SAYS(ctx_push, cuCtxPushCurrent_v2(context_of(arg[0])))
SAYS(ctx_pop, cuCtxPopCurrent_v2(NULL))
SAYS(ctx_destroy, cuCtxDestroy_v2(context_of(arg[0])))

static void do_uuid(void)
{
	CUuuid uuid;
	CUresult result = cuDeviceGetUuid_v2(&uuid, arg[0]);

	say_bytes(result, &uuid, sizeof(uuid));
}

/* For the current device. */
static void do_info(void)
{
	size_t free_bytes = 0, total = 0;
	CUresult result = cuMemGetInfo_v2(&free_bytes, &total);

	say_two(result, free_bytes, total);
}

static void do_info_of(void)
{
	size_t free_bytes = 0, total = 0;
	CUresult result = use_device(arg[0]);

	if (!result)
		result = cuMemGetInfo_v2(&free_bytes, &total);
	say_two(result, free_bytes, total);
}

SAYS(sync, cuCtxSynchronize())

/* --- captures --- */

static CUstream stream;

static void do_capture(void)
{
	CUresult result = stream ? CUDA_SUCCESS : cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

	say(result ? result : cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)arg[0]), 0);
}

static void do_capture_end(void)
{
	CUgraph graph = NULL;

	say(cuStreamEndCapture(stream, &graph), (uintptr_t)graph);
	if (graph)
		cuGraphDestroy(graph);
}

static void do_stream(void)
{
	say(cuStreamDestroy_v2(stream), 0);
	stream = NULL;
}

/* --- threads, each on a device of its own --- */

static struct worker {
	pthread_t thread;
	int device;
	size_t bytes;
	CUdeviceptr va;
	CUresult result;
} workers[THINGS_MAX];
static unsigned int worker_count;
static pthread_barrier_t allocated, over;

static void *work(void *of)
{
	struct worker *worker = of;

	worker->result = use_device(worker->device);
	if (!worker->result)
		worker->result = cuMemAlloc_v2(&worker->va, worker->bytes);
	pthread_barrier_wait(&allocated);
	pthread_barrier_wait(&over);
	if (!worker->result)
		worker->result = cuMemFree_v2(worker->va);
	return NULL;
}

/* Their addresses, by device. They hold their memory until `threads-end`. */
static void do_threads(void)
{
	if (worker_count || !arg[0] || arg[0] > THINGS_MAX) {
		printf("error -1 one to %d threads, once\n", THINGS_MAX);
		return;
	}
	worker_count = arg[0];
	pthread_barrier_init(&allocated, NULL, worker_count + 1);
	pthread_barrier_init(&over, NULL, worker_count + 1);
	for (unsigned int i = 0; i < worker_count; i++) {
		workers[i] = (struct worker){.device = i, .bytes = arg[1]};
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			abort();
	}
	pthread_barrier_wait(&allocated);
	for (unsigned int i = 0; i < worker_count; i++) {
		if (workers[i].result) {
			say(workers[i].result, 0);
			return;
		}
	}
	printf("ok");
	for (unsigned int i = 0; i < worker_count; i++)
		printf(" %#llx", workers[i].va);
	printf("\n");
}

static void do_threads_end(void)
{
	CUresult result = CUDA_SUCCESS;

	if (worker_count)
		pthread_barrier_wait(&over);
	for (unsigned int i = 0; i < worker_count; i++) {
		pthread_join(workers[i].thread, NULL);
		result = result ? result : workers[i].result;
	}
	worker_count = 0;
	say(result, 0);
}

/* --- the truth --- */

static int print_object(const struct softcuda_object *object, void *first)
{
	printf("%s{\"kind\":%d,\"number\":%" PRIu64 ",\"value\":%" PRIu64 ",\"references\":%" PRIu64
	       ",\"va\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"size\":%" PRIu64 ",\"pool\":%" PRIu64
	       ",\"location\":[%d,%d],\"imported\":%d,\"multicast\":%" PRIu64 ",\"offset\":%" PRIu64
	       ",\"access\":[",
		*(bool *)first ? "" : ",", object->kind, object->number, object->value,
		object->references, object->va, object->bytes, object->size, object->pool,
		object->location.type, object->location.id, object->imported, object->multicast,
		object->offset);
	for (int i = 0; i <= SOFTCUDA_DEVICES; i++)
		printf("%s%d", i ? "," : "", object->access[i]);
	printf("]}");
	*(bool *)first = false;
	return 0;
}

/* All that softcuda_dump() tells, as JSON on a line; NVIDIA's driver has no such function. */
static void do_dump(void)
{
	int (*dump)(softcuda_dump_fn, void *) = dlsym(RTLD_DEFAULT, "softcuda_dump");
	bool first = true;

	if (!dump) {
		printf("error -1 not the software driver\n");
		return;
	}
	printf("[");
	dump(print_object, &first);
	printf("]\n");
}

const struct command context_commands[] = {
	C("init", init, 1),		  /* DEVICE: cuInit; its primary context is current */
	C("cuinit", cuinit, 1),		  /* FLAGS */
	C("device", device, 1),		  /* DEVICE: its primary context is current */
	C("ctx", ctx, 1),		  /* DEVICE: a new context, current; its number */
	C("ctx-set", ctx_set, 1),	  /* NUMBER */
	C("ctx-push", ctx_push, 1),	  /* NUMBER */
	C("ctx-pop", ctx_pop, 0),	  /* */
	C("ctx-destroy", ctx_destroy, 1), /* NUMBER */
	C("uuid", uuid, 1),		  /* DEVICE */
	C("info", info, 0),		  /* free and total of the current device */
	C("info", info_of, 1),		  /* DEVICE: is current; free and total */
	C("sync", sync, 0),		  /* */
	C("capture", capture, 1),	  /* MODE */
	C("capture-end", capture_end, 0),
	C("stream-destroy", stream, 0), /* that of `capture` */
	C("threads", threads, 2),	/* DEVICES BYTES: a thread and an allocation on each */
	C("threads-end", threads_end, 0),
	C("dump", dump, 0),
	{NULL, NULL, 0},
};
