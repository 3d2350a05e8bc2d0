/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Forks while its threads pass handles: prog_fork FORKS [init]. Each child makes, maps and releases
 * memory of its own. With `init` the parent has used the driver and made two allocations; the
 * driver then refuses every call of a child. The parent prints "ready" and waits for a line. At the
 * end it prints "ok FORKS", or the status of the child that failed.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/cuda_abi.h>
#include <lien/wire.h>

#define THREADS 3
#define BYTES	(2ul << 20)
#define HANG_S	20

static bool over;

static CUresult use_device(void)
{
	CUcontext context;
	CUdevice device;
	CUresult result = cuInit(0);

	if (!result)
		result = cuDeviceGet(&device, 0);
	if (!result)
		result = cuDevicePrimaryCtxRetain(&context, device);
	return result ? result : cuCtxSetCurrent(context);
}

static CUresult create(CUmemGenericAllocationHandle *handle)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};

	return cuMemCreate(handle, BYTES, &prop, 0);
}

static CUresult show(CUdeviceptr *va, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult result = cuMemAddressReserve(va, BYTES, 0, 0, 0);

	if (!result)
		result = cuMemMap(*va, BYTES, 0, handle, 0);
	return result ? result : cuMemSetAccess(*va, BYTES, &access, 1);
}

static void *pass(void *arg)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop;
	unsigned i;

	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		create(&handle);
		cuMemRelease(handle);
		/* The driver refuses it at once, so most of the time is spent in the control
		 * library. */
		for (i = 0; i < 100; i++)
			cuMemGetAllocationPropertiesFromHandle(&prop, 7);
	}
	return arg;
}

/* The control library's thread is the parent's. */
static bool is_served(void)
{
	const struct lien_control_state *state = dlsym(RTLD_DEFAULT, "lien_control_state");

	return state && state->agent_fd >= 0;
}

/* 0, or the step that failed. */
static int child(bool used, CUmemGenericAllocationHandle of_parent)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va;

	alarm(HANG_S);
	if (is_served())
		return 7;
	if (used)
		return create(&handle) != CUDA_ERROR_NOT_INITIALIZED ||
		       cuMemRelease(of_parent) != CUDA_ERROR_NOT_INITIALIZED;
	if (use_device())
		return 2;
	if (create(&handle))
		return 3;
	if (show(&va, handle) || cuMemsetD8_v2(va, 1, BYTES))
		return 4;
	if (cuMemRelease(handle))
		return 5;
	return cuMemUnmap(va, BYTES) || cuMemAddressFree(va, BYTES) ? 6 : 0;
}

int main(int argc, char **argv)
{
	int forks = argc > 1 ? atoi(argv[1]) : 100, status = 0, i;
	bool used = argc > 2 && !strcmp(argv[2], "init");
	CUmemGenericAllocationHandle handle = 0, other;
	pthread_t threads[THREADS];
	CUdeviceptr va;
	char line[16];

	if (used && (use_device() || create(&handle) || show(&va, handle) || create(&other) ||
			    show(&va, other)))
		return 1;
	printf("ready\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, pass, NULL))
			return 1;
	for (i = 0; i < forks && !status; i++) {
		pid_t pid = fork();

		if (!pid)
			_exit(child(used, handle));
		if (pid < 0 || waitpid(pid, &status, 0) != pid)
			return 1;
	}
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	if (status)
		printf("child %d: status %#x\n", i, status);
	else
		printf("ok %d\n", forks);
	return 0;
}
