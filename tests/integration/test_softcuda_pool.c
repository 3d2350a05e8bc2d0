/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream-ordered memory and its pools within one process. */
#include <pthread.h>

#include "test_softcuda.h"

#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static CUmemPoolProps pool_props(int device)
{
	return (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

static uint64_t get(CUmemoryPool pool, CUmemPool_attribute attribute)
{
	uint64_t value = ~0ull;

	CHECK(!cuMemPoolGetAttribute(pool, attribute, &value));
	return value;
}

#define RESERVED(pool) get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
#define USED(pool)     get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)

static void test_default_pool(void **state)
{
	size_t before = free_bytes();
	CUmemoryPool pool, other;
	CUdeviceptr ptr;
	char out = 0;

	(void)state;
	FAILS(INVALID_DEVICE, cuDeviceGetDefaultMemPool(&pool, 2));
	FAILS(INVALID_VALUE, cuDeviceGetDefaultMemPool(NULL, 0));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuDeviceGetMemPool(&other, 0));
	assert_ptr_equal(pool, other);
	OK(cuDeviceGetDefaultMemPool(&other, 1));
	assert_ptr_not_equal(pool, other);
	FAILS(INVALID_VALUE, cuMemPoolDestroy(pool));
	FAILS(INVALID_VALUE, cuMemAllocAsync(&ptr, 0, NULL));
	FAILS(INVALID_VALUE, cuMemAllocAsync(NULL, 1, NULL));
	FAILS(OUT_OF_MEMORY, cuMemAllocAsync(&ptr, DEVICE_MEMORY + 1, NULL));
	FAILS(OUT_OF_MEMORY, cuMemAllocAsync(&ptr, SIZE_MAX, NULL));
	FAILS(INVALID_HANDLE, cuMemAllocAsync(&ptr, 1, (CUstream)&out));
	OK(cuMemAllocAsync_ptsz(&ptr, PIECE + 3, CU_STREAM_PER_THREAD));
	assert_int_equal(free_bytes(), before - 2 * PIECE);
	assert_int_equal(RESERVED(pool), 2 * PIECE);
	assert_int_equal(USED(pool), PIECE + 3);
	OK(cuMemsetD8_v2(ptr, 5, PIECE + 3));
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 5, PIECE + 4));
	OK(cuMemcpyDtoH_v2(&out, ptr + PIECE, 1));
	assert_int_equal(out, 5);
	OK(cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
	assert_ptr_equal(other, pool);
	FAILS(INVALID_VALUE, cuMemFreeAsync_ptsz(ptr + 1, NULL));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr, 2 * PIECE));
	OK(cuMemFreeAsync_ptsz(ptr, NULL));
	FAILS(INVALID_VALUE, cuMemFreeAsync(ptr, NULL));
	FAILS(INVALID_VALUE, cuMemFree_v2(ptr));
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(&out, ptr, 1));
	/* Reserved until a synchronisation finds more than the threshold, which is 0. */
	assert_int_equal(free_bytes(), before - 2 * PIECE);
	assert_int_equal(USED(pool), 0);
	OK(cuStreamSynchronize(NULL));
	assert_int_equal(free_bytes(), before);
	assert_int_equal(RESERVED(pool), 0);
	assert_int_equal(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 2 * PIECE);
}

/* cuMemFree frees what cuMemAllocAsync made, and cuMemFreeAsync what cuMemAlloc made. */
static void test_crossed_frees(void **state)
{
	size_t before = free_bytes();
	CUdeviceptr ptr;
	CUevent event;

	(void)state;
	OK(cuMemAllocAsync(&ptr, PIECE, NULL));
	OK(cuMemFree_v2(ptr));
	FAILS(INVALID_VALUE, cuMemFree_v2(ptr));
	assert_int_equal(free_bytes(), before - PIECE);
	OK(cuEventCreate(&event, 0));
	OK(cuEventSynchronize(event));
	OK(cuEventDestroy_v2(event));
	assert_int_equal(free_bytes(), before);
	OK(cuMemAlloc_v2(&ptr, PIECE));
	OK(cuMemFreeAsync(ptr, NULL));
	FAILS(INVALID_VALUE, cuMemFreeAsync(ptr, NULL));
	assert_int_equal(free_bytes(), before);
}

static void test_threshold(void **state)
{
	CUmemPoolProps props = pool_props(0);
	uint64_t threshold = 3 * PIECE, zero = 0, one = 1;
	size_t before = free_bytes();
	CUdeviceptr ptr[5], small;
	CUmemoryPool pool;
	int flag = 7;

	(void)state;
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	assert_int_equal(get(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), threshold);
	for (int i = 0; i < 5; i++)
		OK(cuMemAllocFromPoolAsync(&ptr[i], i + 1 == 5 ? 2 * PIECE : PIECE, pool, NULL));
	for (int i = 0; i < 5; i++)
		OK(cuMemFreeAsync(ptr[i], NULL));
	assert_int_equal(RESERVED(pool), 6 * PIECE);
	OK(cuCtxSynchronize());
	assert_true(RESERVED(pool) >= threshold && RESERVED(pool) < 5 * PIECE);
	assert_int_equal(free_bytes(), before - RESERVED(pool));
	/* The smallest piece that fits is used again. */
	OK(cuMemAllocFromPoolAsync_ptsz(&small, 10, pool, NULL));
	assert_int_equal(free_bytes(), before - RESERVED(pool));
	assert_int_equal(USED(pool), 10);
	OK(cuMemPoolTrimTo(pool, 0));
	assert_int_equal(RESERVED(pool), PIECE); /* what is in use stays */
	assert_int_equal(free_bytes(), before - PIECE);
	assert_int_equal(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 6 * PIECE);
	FAILS(INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
	assert_int_equal(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 10);
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
	assert_int_equal(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), PIECE);
	FAILS(INVALID_VALUE,
		cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &zero));
	FAILS(INVALID_VALUE, cuMemPoolSetAttribute(pool, 99, &zero));
	FAILS(INVALID_VALUE, cuMemPoolGetAttribute(pool, 0, &zero));
	FAILS(INVALID_VALUE, cuMemPoolGetAttribute(pool, 4, NULL));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &flag));
	assert_int_equal(flag, 1);
	flag = 0;
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &flag));
	OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &flag));
	assert_int_equal(flag, 1);
	/* Destroyed with memory in use: its handle is no good, its memory is. */
	OK(cuMemPoolDestroy(pool));
	FAILS(INVALID_VALUE, cuMemPoolDestroy(pool));
	FAILS(INVALID_VALUE, cuMemPoolTrimTo(pool, 0));
	FAILS(INVALID_VALUE, cuMemAllocFromPoolAsync(&ptr[0], 1, pool, NULL));
	OK(cuMemsetD8_v2(small, 1, 10));
	assert_int_equal(free_bytes(), before - PIECE);
	OK(cuMemFreeAsync(small, NULL));
	assert_int_equal(free_bytes(), before);
}

static void test_pool_create(void **state)
{
	CUmemPoolProps props = pool_props(0);
	size_t before = free_bytes();
	CUmemoryPool pool, current;
	CUdeviceptr ptr[3];

	(void)state;
	FAILS(INVALID_VALUE, cuMemPoolCreate(NULL, &props));
	FAILS(INVALID_VALUE, cuMemPoolCreate(&pool, NULL));
	props.reserved[53] = 1;
	FAILS(INVALID_VALUE, cuMemPoolCreate(&pool, &props));
	props = pool_props(2);
	FAILS(INVALID_DEVICE, cuMemPoolCreate(&pool, &props));
	props = pool_props(0);
	props.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
	FAILS(INVALID_VALUE, cuMemPoolCreate(&pool, &props));
	props = pool_props(0);
	props.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
	FAILS(INVALID_VALUE, cuMemPoolCreate(&pool, &props));
	props.location.type = CU_MEM_LOCATION_TYPE_HOST;
	props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	FAILS(INVALID_VALUE, cuMemPoolCreate(&pool, &props)); /* "not IPC capable" */
	props = pool_props(0);
	props.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	FAILS(NOT_SUPPORTED, cuMemPoolCreate(&pool, &props));

	props = pool_props(0);
	props.maxSize = 2 * PIECE;
	OK(cuMemPoolCreate(&pool, &props));
	FAILS(INVALID_VALUE, cuDeviceSetMemPool(1, pool)); /* "must be local to the device" */
	FAILS(INVALID_DEVICE, cuDeviceSetMemPool(2, pool));
	FAILS(INVALID_VALUE, cuDeviceSetMemPool(0, NULL));
	OK(cuDeviceSetMemPool(0, pool));
	OK(cuMemAllocAsync(&ptr[0], PIECE, NULL));
	OK(cuMemAllocAsync(&ptr[1], PIECE, NULL));
	FAILS(OUT_OF_MEMORY, cuMemAllocAsync(&ptr[2], 1, NULL)); /* of the pool's size */
	OK(cuMemFreeAsync(ptr[0], NULL));
	OK(cuMemFreeAsync(ptr[1], NULL));
	OK(cuMemAllocAsync(&ptr[2], 2 * PIECE, NULL)); /* idle pieces make way */
	assert_int_equal(RESERVED(pool), 2 * PIECE);
	OK(cuMemFree_v2(ptr[2]));
	OK(cuMemPoolDestroy(pool));
	assert_int_equal(free_bytes(), before);
	OK(cuDeviceGetMemPool(&current, 0));
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	assert_ptr_equal(current, pool);
}

/* A device that is full for one pool's idle memory is not full. */
static void test_full_of_idle(void **state)
{
	uint64_t threshold = UINT64_MAX, zero = 0;
	size_t before = free_bytes();
	CUmemoryPool pool;
	CUdeviceptr ptr;

	(void)state;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	OK(cuMemAllocAsync(&ptr, before - PIECE, NULL));
	OK(cuMemFreeAsync(ptr, NULL));
	OK(cuCtxSynchronize());
	assert_int_equal(free_bytes(), PIECE);
	OK(cuMemAllocAsync(&ptr, before, NULL));
	OK(cuMemFreeAsync(ptr, NULL));
	OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &zero));
	OK(cuCtxSynchronize());
	assert_int_equal(free_bytes(), before);
}

static void test_pool_access(void **state)
{
	CUmemAccessDesc peer = device_access(1, RW), own = device_access(0, RW);
	CUmemAccess_flags flags = 7;
	CUmemoryPool pool;
	CUdeviceptr ptr;

	(void)state;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemAllocAsync(&ptr, PIECE, NULL));
	OK(cuMemPoolGetAccess(&flags, pool, &own.location));
	assert_int_equal(flags, RW);
	OK(cuMemPoolGetAccess(&flags, pool, &peer.location));
	assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	use_device(1);
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 1, PIECE));
	OK(cuMemPoolSetAccess(pool, &peer, 1));
	OK(cuMemsetD8_v2(ptr, 1, PIECE)); /* memory that was there already too */
	OK(cuMemPoolGetAccess(&flags, pool, &peer.location));
	assert_int_equal(flags, RW);
	peer.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	OK(cuMemPoolSetAccess(pool, &peer, 1));
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 1, PIECE));
	peer.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	OK(cuMemPoolSetAccess(pool, &peer, 1));
	own.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	FAILS(INVALID_VALUE, cuMemPoolSetAccess(pool, &own, 1));
	own.flags = 2;
	FAILS(INVALID_VALUE, cuMemPoolSetAccess(pool, &own, 1));
	own = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_HOST, 0}, RW};
	FAILS(INVALID_VALUE, cuMemPoolSetAccess(pool, &own, 1));
	own = device_access(2, RW);
	FAILS(INVALID_DEVICE, cuMemPoolSetAccess(pool, &own, 1));
	FAILS(INVALID_DEVICE, cuMemPoolGetAccess(&flags, pool, &own.location));
	FAILS(INVALID_VALUE, cuMemPoolSetAccess(pool, NULL, 1));
	FAILS(INVALID_VALUE, cuMemPoolSetAccess(NULL, &peer, 1));
	FAILS(INVALID_VALUE, cuMemPoolGetAccess(&flags, NULL, &peer.location));
	use_device(0);
	OK(cuMemFreeAsync(ptr, NULL));
	OK(cuCtxSynchronize());
}

static void test_host_pool(void **state)
{
	CUmemPoolProps props = pool_props(0);
	CUmemAccessDesc device = device_access(0, RW);
	size_t before = free_bytes();
	CUmemoryPool pool;
	CUdeviceptr ptr, dev;
	unsigned int type;
	int ordinal;

	(void)state;
	props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&ptr, PIECE, pool, NULL));
	assert_int_equal(free_bytes(), before);
	memset((void *)(uintptr_t)ptr, 9, PIECE); /* "from the host CPU" */
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 1, 1));
	OK(cuMemAlloc_v2(&dev, PIECE));
	OK(cuMemcpyHtoD_v2(dev, (void *)(uintptr_t)ptr, PIECE));
	OK(cuMemFree_v2(dev));
	OK(cuMemPoolSetAccess(pool, &device, 1));
	OK(cuMemsetD8_v2(ptr, 1, 1));
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
	assert_int_equal(type, CU_MEMORYTYPE_HOST);
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
	assert_int_equal(ordinal, CU_DEVICE_CPU);
	OK(cuMemFreeAsync(ptr, NULL));
	OK(cuMemPoolDestroy(pool));
}

static void test_streams(void **state)
{
	CUcontext context;
	CUstream stream;
	CUgraph graph;
	CUdeviceptr ptr;
	int ordinal;

	(void)state;
	use_device(1);
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuCtxPopCurrent_v2(&context));
	/* The stream says which device, and needs no current context; the default stream does. */
	OK(cuMemAllocAsync(&ptr, 1, stream));
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
	assert_int_equal(ordinal, 1);
	FAILS(INVALID_CONTEXT, cuMemAllocAsync(&ptr, 1, NULL));
	FAILS(INVALID_CONTEXT, cuMemFreeAsync(ptr, NULL));
	OK(cuMemFreeAsync(ptr, stream));
	OK(cuCtxPushCurrent_v2(context));
	/* An allocation in a capture would be the graph's, and graphs are empty here. */
	OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	FAILS(NOT_SUPPORTED, cuMemAllocAsync(&ptr, 1, stream));
	OK(cuStreamEndCapture(stream, &graph));
	OK(cuGraphDestroy(graph));
	OK(cuStreamDestroy_v2(stream));
	OK(cuCtxSynchronize());
	use_device(0);
}

static void *stress(void *arg)
{
	int device = (uintptr_t)arg & 1;
	CUdeviceptr ptr[4];
	uint32_t mark, read;

	use_device(device);
	for (uint32_t i = 0; i < 300; i++) {
		mark = (uintptr_t)arg << 24 | i;
		for (int j = 0; j < 4; j++) {
			CHECK(!cuMemAllocAsync(&ptr[j], (j + 1) * PIECE / 2, NULL));
			CHECK(!cuMemcpyHtoD_v2(ptr[j], &mark, sizeof(mark)));
		}
		for (int j = 0; j < 4; j++) {
			CHECK(!cuMemcpyDtoH_v2(&read, ptr[j], sizeof(read)) && read == mark);
			CHECK(!(j & 1 ? cuMemFree_v2(ptr[j]) : cuMemFreeAsync(ptr[j], NULL)));
		}
		if (i % 8 == 0)
			CHECK(!cuCtxSynchronize());
	}
	return NULL;
}

static void test_pool_threads(void **state)
{
	size_t before = free_bytes();
	pthread_t thread[4];

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, stress, (void *)i), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	OK(cuCtxSynchronize());
	assert_int_equal(free_bytes(), before);
}

int pool_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_default_pool),
		cmocka_unit_test(test_crossed_frees),
		cmocka_unit_test(test_threshold),
		cmocka_unit_test(test_pool_create),
		cmocka_unit_test(test_full_of_idle),
		cmocka_unit_test(test_pool_access),
		cmocka_unit_test(test_host_pool),
		cmocka_unit_test(test_streams),
		cmocka_unit_test(test_pool_threads),
	};

	return cmocka_run_group_tests_name("softcuda pools", tests, NULL, NULL);
}
