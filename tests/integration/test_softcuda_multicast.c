/* SPDX-License-Identifier: BSD-2-Clause */
/* Multicast objects: teams, bindings, what they hold, and their life as handles. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include "../../tests/softcuda/dump.h"
#include "test_softcuda.h"

#define NONE CU_MEM_HANDLE_TYPE_NONE
#define FD   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define RW   CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static CUmemGenericAllocationHandle object(unsigned int devices, size_t size, unsigned int types)
{
	CUmulticastObjectProp prop = {.numDevices = devices, .size = size, .handleTypes = types};
	CUmemGenericAllocationHandle handle = 0;

	CHECK(!cuMulticastCreate(&handle, &prop));
	return handle;
}

static void test_multicast_create(void **state)
{
	CUmulticastObjectProp prop = {.numDevices = 2, .size = PIECE};
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp read;
	size_t size, before = free_bytes();

	(void)state;
	OK(cuMulticastGetGranularity(&size, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
	assert_int_equal(size, PIECE);
	OK(cuMulticastGetGranularity(&size, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED));
	FAILS(INVALID_VALUE, cuMulticastGetGranularity(&size, &prop, 2));
	FAILS(INVALID_VALUE, cuMulticastGetGranularity(&size, NULL, 0));
	FAILS(INVALID_VALUE, cuMulticastCreate(&handle, NULL));
	FAILS(INVALID_VALUE, cuMulticastCreate(NULL, &prop));
	prop.size = PIECE / 2;
	FAILS(INVALID_VALUE, cuMulticastCreate(&handle, &prop));
	prop = (CUmulticastObjectProp){.numDevices = 0, .size = PIECE};
	FAILS(INVALID_VALUE, cuMulticastCreate(&handle, &prop));
	prop = (CUmulticastObjectProp){.numDevices = 2, .size = PIECE, .flags = 1};
	FAILS(INVALID_VALUE, cuMulticastCreate(&handle, &prop));
	prop = (CUmulticastObjectProp){.numDevices = 2, .size = PIECE, .handleTypes = 2};
	FAILS(INVALID_VALUE, cuMulticastCreate(&handle, &prop));

	handle = object(2, 4 * PIECE, NONE);
	assert_int_equal(free_bytes(), before);
	FAILS(INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&read, handle));
	FAILS(INVALID_DEVICE, cuMulticastAddDevice(handle, 2));
	FAILS(INVALID_VALUE, cuMulticastAddDevice(handle + 1, 0));
	OK(cuMulticastAddDevice(handle, 0));
	FAILS(INVALID_VALUE, cuMulticastAddDevice(handle, 0)); /* in it already */
	OK(cuMulticastAddDevice(handle, 1));
	OK(cuMemRelease(handle));
	FAILS(INVALID_VALUE, cuMulticastAddDevice(handle, 0));
	handle = object(1, PIECE, NONE);
	OK(cuMulticastAddDevice(handle, 1));
	FAILS(INVALID_VALUE, cuMulticastAddDevice(handle, 0)); /* the team is complete */
	OK(cuMemRelease(handle));
	handle = make(PIECE, NONE);
	FAILS(INVALID_VALUE, cuMulticastAddDevice(handle, 0)); /* memory */
	OK(cuMemRelease(handle));
}

static void test_bind(void **state)
{
	CUmemGenericAllocationHandle multicast = object(1, 4 * PIECE, NONE);
	CUmemGenericAllocationHandle memory = make(2 * PIECE, NONE), other;
	CUmemAllocationProp prop = device_prop(1, NONE);
	size_t before = free_bytes();
	CUdeviceptr ptr, async, plain;

	(void)state;
	OK(cuMulticastAddDevice(multicast, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 0, memory, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 0, memory, 0, PIECE, 1));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 0, memory, 0, PIECE / 2, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 4096, memory, 0, PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 0, memory, 4096, PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 0, memory, PIECE, 2 * PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 3 * PIECE, memory, 0, 2 * PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 0, multicast, 0, PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(memory, 0, memory, 0, PIECE, 0));
	OK(cuMemCreate(&other, PIECE, &prop, 0));
	FAILS(INVALID_DEVICE, cuMulticastBindMem(multicast, 0, other, 0, PIECE, 0));
	OK(cuMemRelease(other));
	prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
	OK(cuMemCreate(&other, PIECE, &prop, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 0, other, 0, PIECE, 0));
	OK(cuMemRelease(other));

	OK(cuMulticastBindMem(multicast, PIECE, memory, 0, 2 * PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindMem(multicast, 2 * PIECE, memory, 0, PIECE, 0));
	ptr = map_somewhere(memory, 2 * PIECE);
	OK(cuMulticastBindAddr(multicast, 3 * PIECE, ptr + PIECE, PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindAddr(multicast, 0, ptr + 4096, PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindAddr(multicast, 0, ptr + PIECE, 2 * PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastBindAddr(multicast, 0, 4096, PIECE, 0));
	FAILS(INVALID_VALUE, cuMulticastUnbind(multicast, 0, 0, PIECE));
	FAILS(INVALID_VALUE, cuMulticastUnbind(multicast, 0, PIECE, PIECE)); /* not as bound */
	FAILS(INVALID_DEVICE, cuMulticastUnbind(multicast, 1, PIECE, 2 * PIECE));
	FAILS(INVALID_DEVICE, cuMulticastUnbind(multicast, 2, PIECE, 2 * PIECE));
	FAILS(INVALID_VALUE, cuMulticastUnbind(memory, 0, PIECE, 2 * PIECE));
	/* A binding holds the memory, without handle and mapping. */
	OK(cuMemRelease(memory));
	unmap_and_free(ptr, 2 * PIECE);
	assert_int_equal(free_bytes(), before);
	OK(cuMulticastUnbind(multicast, 0, PIECE, 2 * PIECE));
	FAILS(INVALID_VALUE, cuMulticastUnbind(multicast, 0, PIECE, 2 * PIECE));
	assert_int_equal(free_bytes(), before);
	OK(cuMulticastUnbind(multicast, 0, 3 * PIECE, PIECE));
	assert_int_equal(free_bytes(), before + 2 * PIECE);

	/* Memory of a pool may be bound, of cuMemAlloc not. What is still bound goes at the end. */
	OK(cuMemAlloc_v2(&plain, PIECE));
	FAILS(INVALID_VALUE, cuMulticastBindAddr(multicast, 0, plain, PIECE, 0));
	OK(cuMemFree_v2(plain));
	OK(cuMemAllocAsync(&async, PIECE, NULL));
	OK(cuMulticastBindAddr(multicast, 0, async, PIECE, 0));
	OK(cuMemFreeAsync(async, NULL));
	FAILS(INVALID_VALUE, cuMulticastBindAddr(multicast, PIECE, async, PIECE, 0));
	OK(cuCtxSynchronize());
	assert_int_equal(free_bytes(), before + PIECE);
	OK(cuMemRelease(multicast));
	assert_int_equal(free_bytes(), before + 2 * PIECE);
}

/* Both ways of sharing, in one process; the team is one and the same. */
static void test_multicast_share(void **state)
{
	CUmemGenericAllocationHandle multicast = object(2, PIECE, FD | CU_MEM_HANDLE_TYPE_FABRIC);
	CUmemGenericAllocationHandle by_fd, by_fabric, closed = object(1, PIECE, NONE);
	CUmemFabricHandle fabric;
	int fd;

	(void)state;
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(&fd, closed, FD, 0));
	OK(cuMemRelease(closed));
	OK(cuMemExportToShareableHandle(&fd, multicast, FD, 0));
	OK(cuMemExportToShareableHandle(&fabric, multicast, CU_MEM_HANDLE_TYPE_FABRIC, 0));
	OK(cuMemImportFromShareableHandle(&by_fd, (void *)(uintptr_t)fd, FD));
	OK(cuMemImportFromShareableHandle(&by_fabric, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
	close(fd);
	OK(cuMulticastAddDevice(by_fd, 1));
	FAILS(INVALID_VALUE, cuMulticastAddDevice(by_fabric, 1));
	OK(cuMulticastAddDevice(by_fabric, 0));
	FAILS(INVALID_VALUE, cuMulticastAddDevice(multicast, 0));
	OK(cuMemRelease(by_fd));
	OK(cuMemRelease(by_fabric));
	OK(cuMemRelease(multicast));
}

static void test_multicast_map(void **state)
{
	CUmemGenericAllocationHandle multicast = object(1, 2 * PIECE, NONE), got;
	CUmemAccessDesc host = {{CU_MEM_LOCATION_TYPE_HOST, 0}, RW};
	size_t before = free_bytes(), size;
	CUdeviceptr ptr, base;
	unsigned int type;
	int ordinal;
	char out = 0;

	(void)state;
	OK(cuMulticastAddDevice(multicast, 0));
	OK(cuMemAddressReserve(&ptr, 4 * PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, 3 * PIECE, 0, multicast, 0));
	OK(cuMemAddressFree(ptr, 4 * PIECE));
	ptr = map_somewhere(multicast, 2 * PIECE);
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, &host, 1));
	OK(cuMemRelease(multicast));
	OK(cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)(ptr + PIECE)));
	assert_int_equal(got, multicast);
	OK(cuMemRelease(multicast));
	OK(cuMemsetD8_v2(ptr, 3, 2 * PIECE));
	OK(cuMemcpyDtoH_v2(&out, ptr + 2 * PIECE - 1, 1));
	assert_int_equal(out, 3);
	assert_int_equal(free_bytes(), before); /* nothing of the device's */
	OK(cuMemGetAddressRange_v2(&base, &size, ptr + 1));
	assert_int_equal(size, 2 * PIECE);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
	assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
	FAILS(INVALID_VALUE,
		cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
	unmap_and_free(ptr, 2 * PIECE);
}

/* Each process adds the device that it sees, as ranks do, and binds its memory to it. */
static void role_rank(int sock)
{
	CUmemGenericAllocationHandle multicast, memory;
	CUdeviceptr ptr;
	int fd;

	CHECK(!cuInit(0));
	use_device(0);
	receive_number(sock, &fd);
	CHECK(!cuMemImportFromShareableHandle(&multicast, (void *)(uintptr_t)fd, FD));
	CHECK(!close(fd));
	CHECK(!cuMulticastAddDevice(multicast, 0));
	CHECK(cuMulticastAddDevice(multicast, 0) == CUDA_ERROR_INVALID_VALUE);
	memory = make(PIECE, FD);
	CHECK(!cuMulticastBindMem(multicast, 0, memory, 0, PIECE, 0));
	ptr = map_somewhere(multicast, PIECE);
	CHECK(!cuMemRelease(memory));
	send_number(sock, 0, -1);
	CHECK(receive_number(sock, NULL) == 1);
	CHECK(!cuMemsetD8_v2(ptr, 1, PIECE));
	unmap_and_free(ptr, PIECE);
	CHECK(!cuMulticastUnbind(multicast, 0, 0, PIECE));
	CHECK(!cuMemRelease(multicast));
	send_number(sock, 0, -1);
	pause();
}

static int note_team(const struct softcuda_object *object, void *team)
{
	if (object->kind == SOFTCUDA_MULTICAST)
		*(uint64_t *)team = object->team;
	return 0;
}

/* Returns the team that it found when it was done; the binding must have waited for it. */
static void *bind_and_wait(void *arg)
{
	int (*dump)(softcuda_dump_fn, void *) = dlsym(RTLD_DEFAULT, "softcuda_dump");
	CUmemGenericAllocationHandle *handles = arg;
	uint64_t team = 0;

	/* Not shareable, as the object is: it fails, but not before the team is complete. */
	CHECK(cuMulticastBindMem(handles[0], 0, handles[1], 0, PIECE, 0) ==
		CUDA_ERROR_INVALID_VALUE);
	CHECK(!dump(note_team, &team));
	return (void *)(uintptr_t)team;
}

static void test_multicast_processes(void **state)
{
	static const char *const one[] = {"CUDA_VISIBLE_DEVICES=1", NULL};
	CUmemGenericAllocationHandle handles[2] = {object(2, PIECE, FD), make(PIECE, NONE)};
	size_t before = free_bytes(), other;
	pthread_t thread;
	struct actor actor;
	void *team;
	char output[8];
	int fd;

	(void)state;
	use_device(1);
	other = free_bytes();
	use_device(0);
	OK(cuMulticastAddDevice(handles[0], 0));
	assert_int_equal(pthread_create(&thread, NULL, bind_and_wait, handles), 0);
	OK(cuMemExportToShareableHandle(&fd, handles[0], FD, 0));
	actor_start(&actor, "rank", one);
	send_number(actor.sock, 0, fd);
	close(fd);
	receive_number(actor.sock, NULL);
	pthread_join(thread, &team);
	assert_int_equal((uintptr_t)team, 3);
	OK(cuMemRelease(handles[1]));
	handles[1] = make(PIECE, FD);
	OK(cuMulticastBindMem(handles[0], 0, handles[1], 0, PIECE, 0));
	/* What the other one bound is not ours to unbind. */
	FAILS(INVALID_VALUE, cuMulticastUnbind(handles[0], 1, 0, PIECE));
	use_device(1);
	assert_int_equal(free_bytes(), other - PIECE);
	send_number(actor.sock, 1, -1);
	receive_number(actor.sock, NULL);
	assert_int_equal(free_bytes(), other);
	use_device(0);
	assert_int_equal(kill(actor.pid, SIGKILL), 0);
	actor_wait(&actor, output, sizeof(output));
	OK(cuMemRelease(handles[0]));
	OK(cuMemRelease(handles[1]));
	assert_int_equal(free_bytes(), before + PIECE);
}

const struct role multicast_roles[] = {
	{"rank", role_rank},
	{NULL, NULL},
};

int multicast_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_multicast_create),
		cmocka_unit_test(test_bind),
		cmocka_unit_test(test_multicast_share),
		cmocka_unit_test(test_multicast_map),
		cmocka_unit_test(test_multicast_processes),
	};

	return cmocka_run_group_tests_name("softcuda multicast", tests, NULL, NULL);
}
