// SPDX-License-Identifier: BSD-2-Clause
/*
 * A process that uses plain device memory as it is told to: a command a line on standard input, an
 * answer a line on standard output, "ok VALUE..." or "error NUMBER 0". It gets the driver's
 * functions by cuGetProcAddress_v2(), as libcudart does, or with the argument `linked` by linking.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

#define ARGS_MAX 8

#define FUNCTIONS(X)                                                                               \
	X(cuMemAlloc_v2, "cuMemAlloc")                                                             \
	X(cuMemAllocPitch_v2, "cuMemAllocPitch")                                                   \
	X(cuMemFree_v2, "cuMemFree")                                                               \
	X(cuMemAllocAsync, "cuMemAllocAsync")                                                      \
	X(cuMemFreeAsync, "cuMemFreeAsync")                                                        \
	X(cuMemPoolSetAccess, "cuMemPoolSetAccess")                                                \
	X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute")                                          \
	X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute")                                          \
	X(cuStreamSynchronize, "cuStreamSynchronize")                                              \
	X(cuMemGetAddressRange_v2, "cuMemGetAddressRange")                                         \
	X(cuPointerGetAttribute, "cuPointerGetAttribute")                                          \
	X(cuPointerGetAttributes, "cuPointerGetAttributes")                                        \
	X(cuIpcGetMemHandle, "cuIpcGetMemHandle")                                                  \
	X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle")                                             \
	X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle")                                              \
	X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess")                                          \
	X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess")                                        \
	X(cuCtxDestroy_v2, "cuCtxDestroy")                                                         \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                    \
	X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease")                               \
	X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset")                                   \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle")

static struct {
#define MEMBER(name, symbol) __typeof__(name) *name;
	FUNCTIONS(MEMBER)
#undef MEMBER
} cu;

static void look_up(int linked)
{
#define LOOK_UP(name, symbol)                                                                      \
	cu.name = name;                                                                            \
	if (!linked && cuGetProcAddress_v2(symbol, (void **)&cu.name, 13000, 0, NULL))             \
		abort();
	FUNCTIONS(LOOK_UP)
#undef LOOK_UP
}

/* The names of before CUDA 4 and 11. */
static void look_up_older(void)
{
	cu.cuCtxDestroy_v2 = dlsym(RTLD_DEFAULT, "cuCtxDestroy");
	cu.cuDevicePrimaryCtxRelease_v2 = dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxRelease");
	cu.cuDevicePrimaryCtxReset_v2 = dlsym(RTLD_DEFAULT, "cuDevicePrimaryCtxReset");
	cu.cuIpcOpenMemHandle_v2 = dlsym(RTLD_DEFAULT, "cuIpcOpenMemHandle");
}

static char **words;

static void say(CUresult result, uint64_t value)
{
	if (result)
		printf("error %d 0\n", result);
	else
		printf("ok %#" PRIx64 "\n", value);
}

/* --- contexts --------------------------------------------------------------------------------- */

static void do_init(const uint64_t *arg)
{
	CUcontext context = NULL;
	CUresult result = cuInit(0);

	if (!result)
		result = cu.cuDevicePrimaryCtxRetain(&context, arg[0]);
	say(result ? result : cuCtxSetCurrent(context), (uintptr_t)context);
}

static void do_create(const uint64_t *arg)
{
	CUcontext context = NULL;
	CUresult result = cuCtxCreate_v2(&context, 0, arg[0]);

	say(result, (uintptr_t)context);
}

static void do_current(const uint64_t *arg)
{
	say(cuCtxSetCurrent((CUcontext)arg[0]), 0);
}

static void do_destroy(const uint64_t *arg)
{
	say(cu.cuCtxDestroy_v2((CUcontext)arg[0]), 0);
}

static void do_primary_release(const uint64_t *arg)
{
	say(cu.cuDevicePrimaryCtxRelease_v2(arg[0]), 0);
}

static void do_primary_reset(const uint64_t *arg)
{
	say(cu.cuDevicePrimaryCtxReset_v2(arg[0]), 0);
}

static void do_peer(const uint64_t *arg)
{
	say(cu.cuCtxEnablePeerAccess((CUcontext)arg[0], 0), 0);
}

static void do_unpeer(const uint64_t *arg)
{
	say(cu.cuCtxDisablePeerAccess((CUcontext)arg[0]), 0);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void do_alloc(const uint64_t *arg)
{
	CUdeviceptr ptr = 0;
	CUresult result = cu.cuMemAlloc_v2(&ptr, arg[0]);

	say(result, ptr);
}

static void do_pitch(const uint64_t *arg)
{
	CUdeviceptr ptr = 0;
	size_t pitch = 0;
	CUresult result = cu.cuMemAllocPitch_v2(&ptr, &pitch, arg[0], arg[1], arg[2]);

	if (result)
		say(result, 0);
	else
		printf("ok %#llx %zu\n", ptr, pitch);
}

/* Virtual memory of the application's own, without a handle. */
static void do_virtual(const uint64_t *arg)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, arg[0]}};
	const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle = 0;
	CUdeviceptr at = 0;
	CUresult result = cuMemCreate(&handle, arg[1], &prop, 0);

	if (!result)
		result = cuMemAddressReserve(&at, arg[1], 0, 0, 0);
	if (!result)
		result = cuMemMap(at, arg[1], 0, handle, 0);
	if (!result)
		result = cuMemSetAccess(at, arg[1], &access, 1);
	if (!result)
		result = cuMemRelease(handle);
	say(result, at);
}

static void do_virtual_free(const uint64_t *arg)
{
	CUresult result = cuMemUnmap(arg[0], arg[1]);

	say(result ? result : cuMemAddressFree(arg[0], arg[1]), 0);
}

static void do_free(const uint64_t *arg)
{
	say(cu.cuMemFree_v2(arg[0]), 0);
}

static void *free_elsewhere(void *arg)
{
	uint64_t *args = arg;
	CUresult result = cuCtxSetCurrent((CUcontext)args[1]);

	args[0] = result ? result : cu.cuMemFree_v2(args[0]);
	return NULL;
}

static void do_free_in_thread(const uint64_t *arg)
{
	uint64_t args[] = {arg[0], arg[1]};
	pthread_t thread;

	if (pthread_create(&thread, NULL, free_elsewhere, args))
		abort();
	pthread_join(thread, NULL);
	say(args[0], 0);
}

static void do_range(const uint64_t *arg)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult result = cu.cuMemGetAddressRange_v2(&base, &size, arg[0]);

	if (result)
		say(result, 0);
	else
		printf("ok %#llx %zu\n", base, size);
}

static void do_attribute(const uint64_t *arg)
{
	uint64_t value = 0;
	CUresult result = cu.cuPointerGetAttribute(&value, arg[1], arg[0]);

	say(result, value);
}

static void do_sync_memops(const uint64_t *arg)
{
	const unsigned int value = arg[1];

	say(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, arg[0]), 0);
}

static void do_flags(const uint64_t *arg)
{
	unsigned int flags = 0;
	CUresult result = cuCtxGetFlags(&flags);

	(void)arg;
	say(result, flags);
}

static void do_attributes(const uint64_t *arg)
{
	CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	uint64_t value[4] = {0};
	void *data[] = {&value[0], &value[1], &value[2], &value[3]};
	CUresult result = cu.cuPointerGetAttributes(4, attributes, data, arg[0]);

	if (result)
		say(result, 0);
	else
		printf("ok %#" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", value[0], value[1],
			value[2], value[3]);
}

static void do_retain(const uint64_t *arg)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = cu.cuMemRetainAllocationHandle(&handle, (void *)arg[0]);

	say(result, handle);
}

static void do_access(const uint64_t *arg)
{
	const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, arg[1]};
	unsigned long long flags = 0;
	CUresult result = cuMemGetAccess(&flags, &location, arg[0]);

	say(result, flags);
}

static void do_fill(const uint64_t *arg)
{
	say(cuMemsetD8_v2(arg[0], arg[2], arg[1]), 0);
}

static void do_check(const uint64_t *arg)
{
	uint8_t *bytes = malloc(arg[1]);
	CUresult result;
	uint64_t i;

	if (!bytes)
		abort();
	result = cuMemcpyDtoH_v2(bytes, arg[0], arg[1]);
	for (i = 0; !result && i < arg[1] && bytes[i] == (uint8_t)arg[2]; i++)
		;
	free(bytes);
	say(result, i == arg[1]);
}

static void do_put(const uint64_t *arg)
{
	uint8_t *bytes = malloc(arg[1]);

	if (!bytes)
		abort();
	memset(bytes, (int)arg[2], arg[1]);
	say(cuMemcpyHtoD_v2(arg[0], bytes, arg[1]), 0);
	free(bytes);
}

static void do_copy(const uint64_t *arg)
{
	say(cuMemcpyDtoD_v2(arg[0], arg[1], arg[2]), 0);
}

static void do_copy_async(const uint64_t *arg)
{
	CUresult result = cuMemcpyDtoDAsync_v2(arg[0], arg[1], arg[2], NULL);

	say(result ? result : cuStreamSynchronize(NULL), 0);
}

/* --- streams ---------------------------------------------------------------------------------- */

static void do_stream(const uint64_t *arg)
{
	CUstream stream = NULL;
	CUresult result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

	(void)arg;
	say(result, (uintptr_t)stream);
}

static void do_stream_blocking(const uint64_t *arg)
{
	CUstream stream = NULL;
	CUresult result = cuStreamCreate(&stream, 0);

	(void)arg;
	say(result, (uintptr_t)stream);
}

static sem_t held;

static void wait_there(void *unused)
{
	(void)unused;
	sem_wait(&held);
}

static void do_hold(const uint64_t *arg)
{
	sem_init(&held, 0, 0);
	say(cuLaunchHostFunc((CUstream)arg[0], wait_there, NULL), 0);
}

static void do_go_on(const uint64_t *arg)
{
	(void)arg;
	say(sem_post(&held), 0);
}

static void do_synchronize(const uint64_t *arg)
{
	say(cu.cuStreamSynchronize((CUstream)arg[0]), 0);
}

static void do_synchronize_ptsz(const uint64_t *arg)
{
	(void)arg;
	say(cuStreamSynchronize_ptsz(NULL), 0);
}

static void do_query(const uint64_t *arg)
{
	say(cuStreamQuery((CUstream)arg[0]), 0);
}

static void do_event(const uint64_t *arg)
{
	CUevent event = NULL;
	CUresult result = cuEventCreate(&event, 0);

	(void)arg;
	say(result, (uintptr_t)event);
}

static void do_record(const uint64_t *arg)
{
	say(cuEventRecord((CUevent)arg[0], (CUstream)arg[1]), 0);
}

static void do_alloc_async(const uint64_t *arg)
{
	CUdeviceptr ptr = 0;
	CUresult result = cu.cuMemAllocAsync(&ptr, arg[0], (CUstream)arg[1]);

	say(result, ptr);
}

static void do_free_async(const uint64_t *arg)
{
	say(cu.cuMemFreeAsync(arg[0], (CUstream)arg[1]), 0);
}

static void do_pool(const uint64_t *arg)
{
	CUmemoryPool pool = NULL;
	uint64_t used = 0, reserved = 0;
	CUresult result = cuDeviceGetDefaultMemPool(&pool, arg[0]);

	if (!result)
		result = cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	if (!result)
		result = cu.cuMemPoolGetAttribute(
			pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
	if (result)
		say(result, 0);
	else
		printf("ok %" PRIu64 " %" PRIu64 "\n", used, reserved);
}

static void do_pool_get(const uint64_t *arg)
{
	CUmemoryPool pool = NULL;
	CUresult result = cuDeviceGetDefaultMemPool(&pool, arg[0]);
	uint64_t value = 0;

	if (!result)
		result = cu.cuMemPoolGetAttribute(pool, arg[1], &value);
	say(result, value);
}

static void do_pool_set(const uint64_t *arg)
{
	CUmemoryPool pool = NULL;
	CUresult result = cuDeviceGetDefaultMemPool(&pool, arg[0]);
	uint64_t value = arg[2];

	say(result ? result : cu.cuMemPoolSetAttribute(pool, arg[1], &value), 0);
}

static void do_pool_peer(const uint64_t *arg)
{
	const CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, arg[1]}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemoryPool pool = NULL;
	CUresult result = cuDeviceGetDefaultMemPool(&pool, arg[0]);

	say(result ? result : cu.cuMemPoolSetAccess(pool, &access, 1), 0);
}

static void do_capture(const uint64_t *arg)
{
	say(cuStreamBeginCapture_v2((CUstream)arg[0], arg[1]), 0);
}

static void do_capture_end(const uint64_t *arg)
{
	CUgraph graph;

	say(cuStreamEndCapture((CUstream)arg[0], &graph), 0);
}

/* --- IPC -------------------------------------------------------------------------------------- */

static void do_ipc_get(const uint64_t *arg)
{
	CUipcMemHandle handle;
	CUresult result = cu.cuIpcGetMemHandle(&handle, arg[0]);
	unsigned i;

	if (result) {
		say(result, 0);
		return;
	}
	printf("ok 0x");
	for (i = 0; i < sizeof(handle); i++)
		printf("%02x", (unsigned char)handle.reserved[i]);
	printf("\n");
}

static CUipcMemHandle handle_of(void)
{
	CUipcMemHandle handle;
	unsigned i, byte;

	for (i = 0; i < sizeof(handle); i++) {
		if (sscanf(words[0] + 2 + 2 * i, "%2x", &byte) != 1)
			abort();
		handle.reserved[i] = (char)byte;
	}
	return handle;
}

static void do_ipc_open(const uint64_t *arg)
{
	CUdeviceptr ptr = 0;
	CUresult result =
		cu.cuIpcOpenMemHandle_v2(&ptr, handle_of(), CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

	(void)arg;
	say(result, ptr);
}

static struct {
	pthread_t thread;
	CUcontext context;
	CUipcMemHandle handle;
	CUdeviceptr ptr;
	CUresult result;
} opener;

static void *open_there(void *unused)
{
	opener.result = cuCtxSetCurrent(opener.context);
	if (!opener.result)
		opener.result = cu.cuIpcOpenMemHandle_v2(
			&opener.ptr, opener.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	return unused;
}

static void do_ipc_open_begin(const uint64_t *arg)
{
	(void)arg;
	opener.handle = handle_of();
	cuCtxGetCurrent(&opener.context);
	say(pthread_create(&opener.thread, NULL, open_there, NULL), 0);
}

static void do_ipc_open_cancel(const uint64_t *arg)
{
	(void)arg;
	say(pthread_cancel(opener.thread), 0);
}

static void do_ipc_open_end(const uint64_t *arg)
{
	(void)arg;
	pthread_join(opener.thread, NULL);
	say(opener.result, opener.ptr);
}

static void do_ipc_close(const uint64_t *arg)
{
	say(cu.cuIpcCloseMemHandle(arg[0]), 0);
}

/* --- a thread that allocates and frees all the time --------------------------------------------
 */

#define CHURNED 16

static struct {
	pthread_t thread;
	CUcontext context;
	_Atomic int stop;
	_Atomic uint64_t rounds;
	CUresult result; /* the first error */
	uint64_t wrong;	 /* blocks with other contents than they were given */
} churn;

static int has_contents(CUdeviceptr ptr, uint8_t value)
{
	uint8_t found[3000];
	unsigned i;

	if (cuMemcpyDtoH_v2(found, ptr, sizeof(found)))
		return 0;
	for (i = 0; i < sizeof(found) && found[i] == value; i++)
		;
	return i == sizeof(found);
}

static void *churn_on(void *unused)
{
	CUdeviceptr live[CHURNED] = {0};
	unsigned at, seed = 1;

	(void)unused;
	churn.result = cuCtxSetCurrent(churn.context);
	while (!churn.result && !churn.stop) {
		at = rand_r(&seed) % CHURNED;
		if (live[at]) {
			churn.wrong += !has_contents(live[at], at);
			churn.result = cu.cuMemFree_v2(live[at]);
			live[at] = 0;
		} else {
			churn.result =
				cu.cuMemAlloc_v2(&live[at], rand_r(&seed) % 2 ? 3000 : 3 << 20);
			if (!churn.result)
				churn.result = cuMemsetD8_v2(live[at], at, 3000);
		}
		churn.rounds++;
	}
	for (at = 0; at < CHURNED && !churn.result; at++)
		if (live[at])
			churn.result = cu.cuMemFree_v2(live[at]);
	return NULL;
}

static void do_churn(const uint64_t *arg)
{
	churn.context = (CUcontext)arg[0];
	churn.stop = 0;
	say(pthread_create(&churn.thread, NULL, churn_on, NULL), 0);
}

static void do_rounds(const uint64_t *arg)
{
	(void)arg;
	say(0, churn.rounds);
}

static void do_churn_stop(const uint64_t *arg)
{
	(void)arg;
	churn.stop = 1;
	pthread_join(churn.thread, NULL);
	say(churn.result, churn.wrong);
}

static void *synchronize_on(void *unused)
{
	CUstream stream = NULL;

	(void)unused;
	if (!cuCtxSetCurrent(churn.context) && !cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))
		while (!churn.stop && !cu.cuStreamSynchronize(stream))
			;
	return NULL;
}

/* Frees and allocates again, stream-ordered, while another thread synchronizes. */
static void do_reuse(const uint64_t *arg)
{
	CUstream stream = NULL;
	CUdeviceptr ptr;
	CUresult result;
	uint64_t i;

	churn.context = (CUcontext)arg[0];
	churn.stop = 0;
	pthread_create(&churn.thread, NULL, synchronize_on, NULL);
	result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	for (i = 0; !result && i < arg[2]; i++) {
		result = cu.cuMemAllocAsync(&ptr, arg[1], stream);
		if (!result)
			result = cu.cuMemFreeAsync(ptr, stream);
		if (!result)
			result = cu.cuStreamSynchronize(stream);
	}
	churn.stop = 1;
	pthread_join(churn.thread, NULL);
	say(result, i);
}

static void do_info(const uint64_t *arg)
{
	size_t bytes = 0, total = 0;
	CUresult result = cuMemGetInfo_v2(&bytes, &total);

	(void)arg;
	say(result, bytes);
}

static CUdeviceptr at_fork;

static void use_in_handler(void)
{
	cuMemsetD8_v2(at_fork, 5, 16);
}

static void *fork_on(void *unused)
{
	pid_t child;

	(void)unused;
	churn.result = cuCtxSetCurrent(churn.context);
	while (!churn.stop) {
		child = fork();
		if (!child)
			_exit(0);
		waitpid(child, NULL, 0);
		churn.rounds++;
	}
	return NULL;
}

/* Forks again and again, with a handler that uses the memory. */
static void do_forks(const uint64_t *arg)
{
	churn.context = (CUcontext)arg[0];
	churn.stop = 0;
	at_fork = arg[1];
	pthread_atfork(use_in_handler, NULL, NULL);
	say(pthread_create(&churn.thread, NULL, fork_on, NULL), 0);
}

/* --- processes -------------------------------------------------------------------------------- */

/* The child, which may not use CUDA, tries to free the memory and to make some; its two results. */
static void do_fork(const uint64_t *arg)
{
	CUdeviceptr ptr = 0;
	int status = 0;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child)
		_exit((cu.cuMemFree_v2(arg[0]) != 0) | (cu.cuMemAlloc_v2(&ptr, 4096) != 0) << 1);
	waitpid(child, &status, 0);
	say(0, WIFEXITED(status) ? WEXITSTATUS(status) : 255);
}

static void do_exec(const uint64_t *arg)
{
	(void)arg;
	fflush(stdout);
	execl("/proc/self/exe", "prog_plain", NULL);
	say(999, 0);
}

static void do_close_all(const uint64_t *arg)
{
	(void)arg;
	say(0, syscall(SYS_close_range, 900u, 1023u, 0u) /* not the driver's */);
}

/* No descriptor is left. */
static void do_exhaust(const uint64_t *arg)
{
	(void)arg;
	while (dup(0) >= 0)
		;
	say(0, 0);
}

/* Leaves a child that libc knows nothing of. */
static void do_clone_and_die(const uint64_t *arg)
{
	(void)arg;
	if (!syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL))
		for (;;)
			pause();
	_exit(0);
}

static const struct {
	const char *name;
	void (*run)(const uint64_t *arg);
	int args;
} commands[] = {
	{"init", do_init, 1},	    /* DEVICE: its primary context becomes current */
	{"create", do_create, 1},   /* DEVICE: a context, which becomes current */
	{"reuse", do_reuse, 3},	    /* CONTEXT BYTES COUNT */
	{"info", do_info, 0},	    /* free bytes */
	{"forks", do_forks, 2},	    /* CONTEXT ADDRESS */
	{"current", do_current, 1}, /* CONTEXT */
	{"destroy", do_destroy, 1}, /* CONTEXT */
	{"primary-release", do_primary_release, 1}, /* DEVICE */
	{"primary-reset", do_primary_reset, 1},	    /* DEVICE */
	{"peer", do_peer, 1},			  /* CONTEXT whose memory the current one may use */
	{"unpeer", do_unpeer, 1},		  /* CONTEXT */
	{"alloc", do_alloc, 1},			  /* BYTES */
	{"pitch", do_pitch, 3},			  /* WIDTH HEIGHT ELEMENT: address and pitch */
	{"virtual", do_virtual, 2},		  /* DEVICE BYTES */
	{"virtual-free", do_virtual_free, 2},	  /* ADDRESS BYTES */
	{"free", do_free, 1},			  /* ADDRESS */
	{"free-in-thread", do_free_in_thread, 2}, /* ADDRESS CONTEXT */
	{"range", do_range, 1},			  /* ADDRESS */
	{"attribute", do_attribute, 2},		  /* ADDRESS NUMBER */
	{"sync-memops", do_sync_memops, 2},	  /* ADDRESS VALUE */
	{"flags", do_flags, 0},			  /* of the current context */
	{"attributes", do_attributes, 1},	  /* ADDRESS: start, size, IPC, device */
	{"retain", do_retain, 1},		  /* ADDRESS */
	{"access", do_access, 2},		  /* ADDRESS DEVICE */
	{"fill", do_fill, 3},			  /* ADDRESS BYTES VALUE */
	{"check", do_check, 3},			  /* ADDRESS BYTES VALUE: 1, all have it */
	{"put", do_put, 3},			  /* ADDRESS BYTES VALUE: from host memory */
	{"copy", do_copy, 3}, {"copy-async", do_copy_async, 3}, /* TO FROM BYTES */
	{"ipc-get", do_ipc_get, 1},				/* ADDRESS */
	{"ipc-open", do_ipc_open, 1},				/* HANDLE */
	{"ipc-close", do_ipc_close, 1},				/* ADDRESS */
	{"ipc-open-begin", do_ipc_open_begin, 1},		/* HANDLE: in a thread */
	{"ipc-open-cancel", do_ipc_open_cancel, 0}, {"ipc-open-end", do_ipc_open_end, 0},
	{"exhaust", do_exhaust, 0}, {"clone-and-die", do_clone_and_die, 0},
	{"churn", do_churn, 1},				/* CONTEXT: a thread begins */
	{"rounds", do_rounds, 0},			/* that it made so far */
	{"churn-stop", do_churn_stop, 0},		/* blocks whose contents were wrong */
	{"stream-blocking", do_stream_blocking, 0},	/* waits for the default one */
	{"stream", do_stream, 0}, {"hold", do_hold, 1}, /* STREAM: its work waits */
	{"go-on", do_go_on, 0}, {"synchronize", do_synchronize, 1}, /* STREAM */
	{"alloc-async", do_alloc_async, 2},			    /* BYTES STREAM */
	{"free-async", do_free_async, 2},			    /* ADDRESS STREAM */
	{"pool", do_pool, 1},	      /* DEVICE: used and reserved bytes of its default pool */
	{"pool-get", do_pool_get, 2}, /* DEVICE ATTRIBUTE */
	{"pool-set", do_pool_set, 3}, /* DEVICE ATTRIBUTE VALUE */
	{"event", do_event, 0}, {"record", do_record, 2},		      /* EVENT STREAM */
	{"synchronize-ptsz", do_synchronize_ptsz, 0}, {"query", do_query, 1}, /* STREAM */
	{"pool-peer", do_pool_peer, 2},	    /* DEVICE USER: its default pool */
	{"capture", do_capture, 2},	    /* STREAM MODE */
	{"capture-end", do_capture_end, 1}, /* STREAM */
	{"exec", do_exec, 0}, {"closeall", do_close_all, 0}, {"fork", do_fork, 1}, /* ADDRESS */
};

static void obey(char *line)
{
	char *all[ARGS_MAX + 1], *save = NULL, *word = strtok_r(line, " \n", &save);
	uint64_t arg[ARGS_MAX] = {0};
	unsigned i;
	int n = 0;

	for (; word && n <= ARGS_MAX; word = strtok_r(NULL, " \n", &save))
		all[n++] = word;
	words = all + 1;
	for (i = 0; n && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, all[0]) || commands[i].args != n - 1)
			continue;
		for (int j = 1; j < n; j++)
			arg[j - 1] = strtoull(all[j], NULL, 0);
		commands[i].run(arg);
		return;
	}
	printf("error -1 no such command\n");
}

int main(int argc, char **argv)
{
	char line[512];

	setvbuf(stdout, NULL, _IOLBF, 0);
	look_up(argc > 1 && !strcmp(argv[1], "linked"));
	if (argc > 1 && !strcmp(argv[1], "older"))
		look_up_older();
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	return 0;
}
