/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory without handles: pitch, managed, pinned; what its addresses say; descriptors for it. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "test_softcuda.h"

#define NONE CU_MEM_HANDLE_TYPE_NONE

static void test_pitch(void **state)
{
	size_t before = free_bytes(), pitch = 0, size;
	CUdeviceptr ptr, base;

	(void)state;
	FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&ptr, &pitch, 0, 10, 4));
	FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&ptr, &pitch, 10, 0, 4));
	FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&ptr, &pitch, 10, 10, 5));
	FAILS(INVALID_VALUE, cuMemAllocPitch_v2(NULL, &pitch, 10, 10, 4));
	FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&ptr, NULL, 10, 10, 4));
	FAILS(OUT_OF_MEMORY, cuMemAllocPitch_v2(&ptr, &pitch, 1ul << 40, 1ul << 40, 16));
	FAILS(OUT_OF_MEMORY, cuMemAllocPitch_v2(&ptr, &pitch, SIZE_MAX - 1, 1, 16));
	OK(cuMemAllocPitch_v2(&ptr, &pitch, 1000, 4096, 16));
	assert_int_equal(pitch, 1024);
	assert_int_equal(free_bytes(), before - 2 * PIECE);
	OK(cuMemGetAddressRange_v2(&base, &size, ptr + 5));
	assert_int_equal(base, ptr);
	assert_int_equal(size, 1024 * 4096);
	OK(cuMemsetD8_v2(ptr, 1, pitch * 4096));
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 1, pitch * 4096 + 1));
	OK(cuMemFree_v2(ptr));
	assert_int_equal(free_bytes(), before);
}

static void test_managed(void **state)
{
	size_t before = free_bytes();
	unsigned int managed = 0, type = 0;
	void *host = NULL;
	CUdeviceptr ptr;
	int ordinal;

	(void)state;
	FAILS(INVALID_VALUE, cuMemAllocManaged(&ptr, 0, CU_MEM_ATTACH_GLOBAL));
	FAILS(INVALID_VALUE, cuMemAllocManaged(&ptr, PIECE, 0));
	FAILS(INVALID_VALUE, cuMemAllocManaged(&ptr, PIECE, 3));
	FAILS(INVALID_VALUE, cuMemAllocManaged(NULL, PIECE, CU_MEM_ATTACH_GLOBAL));
	FAILS(OUT_OF_MEMORY, cuMemAllocManaged(&ptr, DEVICE_MEMORY + 1, CU_MEM_ATTACH_HOST));
	OK(cuMemAllocManaged(&ptr, PIECE + 1, CU_MEM_ATTACH_HOST));
	assert_int_equal(free_bytes(), before - 2 * PIECE);
	*(char *)(uintptr_t)ptr = 7; /* the CPU may */
	OK(cuMemcpyDtoD_v2(ptr + PIECE, ptr, 1));
	assert_int_equal(*(char *)(uintptr_t)(ptr + PIECE), 7);
	OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr));
	assert_int_equal(managed, 1);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
	assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
	OK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr + 9));
	assert_ptr_equal(host, (void *)(uintptr_t)(ptr + 9));
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
	assert_int_equal(ordinal, 0);
	OK(cuMemFreeAsync(ptr, NULL));
	assert_int_equal(free_bytes(), before);
	OK(cuDeviceGetAttribute(&ordinal, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
	assert_int_equal(ordinal, 0);
}

static void test_host_flags(void **state)
{
	char *ours = malloc(8192);
	unsigned int flags;
	CUdeviceptr device;
	size_t before = free_bytes();
	void *ptr;
	int ordinal;

	(void)state;
	FAILS(INVALID_VALUE, cuMemHostAlloc(&ptr, 100, 8));
	FAILS(INVALID_VALUE, cuMemHostAlloc(&ptr, 0, 0));
	FAILS(INVALID_VALUE, cuMemHostAlloc(NULL, 100, 0));
	OK(cuMemHostAlloc(
		&ptr, 3 * PIECE, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED));
	assert_int_equal(free_bytes(), before); /* no device's memory */
	OK(cuMemHostGetFlags(&flags, (char *)ptr + 5));
	assert_int_equal(flags, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED);
	OK(cuMemHostGetDevicePointer_v2(&device, (char *)ptr + 5, 0));
	assert_int_equal(device, (uintptr_t)ptr + 5);
	FAILS(INVALID_VALUE, cuMemHostGetDevicePointer_v2(&device, ptr, 1));
	FAILS(INVALID_VALUE, cuMemHostGetFlags(NULL, ptr));
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (uintptr_t)ptr));
	assert_int_equal(ordinal, 0);
	FAILS(INVALID_VALUE, cuMemFree_v2((uintptr_t)ptr));
	OK(cuMemFreeHost(ptr));
	FAILS(INVALID_VALUE, cuMemHostGetFlags(&flags, ptr));
	FAILS(INVALID_VALUE, cuMemHostGetDevicePointer_v2(&device, ptr, 0));
	OK(cuMemAllocHost_v2(&ptr, 100));
	OK(cuMemHostGetFlags(&flags, ptr));
	assert_int_equal(flags, CU_MEMHOSTALLOC_DEVICEMAP);
	OK(cuMemFreeHost(ptr));
	FAILS(INVALID_VALUE, cuMemHostRegister_v2(ours, 8192, 0x10));
	OK(cuMemHostRegister_v2(ours, 8192, CU_MEMHOSTREGISTER_DEVICEMAP));
	FAILS(INVALID_VALUE, cuMemHostGetFlags(&flags, ours)); /* not allocated by it */
	OK(cuMemHostGetDevicePointer_v2(&device, ours, 0));
	OK(cuMemcpyDtoD_v2(device, device + 4096, 4096));
	OK(cuMemHostUnregister(ours));
	FAILS(INVALID_VALUE, cuMemcpyDtoD_v2(device, device + 4096, 4096));
	free(ours);
}

static unsigned long long buffer_id(CUdeviceptr ptr)
{
	unsigned long long id = 0;

	CHECK(!cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
	return id;
}

static void test_buffer_ids(void **state)
{
	unsigned long long first, second;
	CUdeviceptr ptr, again;
	void *host;

	(void)state;
	OK(cuMemAlloc_v2(&ptr, 1));
	first = buffer_id(ptr);
	OK(cuMemFree_v2(ptr));
	OK(cuMemAlloc_v2(&again, 1));
	second = buffer_id(again);
	assert_true(first && second && first != second);
	OK(cuMemHostAlloc(&host, 1, 0));
	assert_true(buffer_id((uintptr_t)host) > second);
	OK(cuMemFreeHost(host));
	OK(cuMemFree_v2(again));
	/* Of a pool the same piece comes back: it is another buffer. */
	OK(cuMemAllocAsync(&ptr, 1, NULL));
	first = buffer_id(ptr);
	OK(cuMemFreeAsync(ptr, NULL));
	FAILS(INVALID_VALUE, cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
	OK(cuMemAllocAsync(&again, 1, NULL));
	assert_int_equal(again, ptr);
	assert_true(buffer_id(again) != first);
	OK(cuMemFreeAsync(again, NULL));
	OK(cuCtxSynchronize());
}

static void test_pointer_attributes(void **state)
{
	CUpointer_attribute numbers[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
	CUmemGenericAllocationHandle handle = make(PIECE, CU_MEM_HANDLE_TYPE_FABRIC);
	unsigned int type = 9, capable = 9;
	unsigned long long types = 9;
	CUdeviceptr start = 9, ptr, plain;
	size_t size = 9;
	int ordinal = 9;
	void *data[] = {&type, &ordinal, &start, &size, &capable, &types};

	(void)state;
	OK(cuMemAddressReserve(&ptr, 4 * PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuPointerGetAttribute(&type, numbers[0], ptr));
	OK(cuPointerGetAttributes(6, numbers, data, ptr)); /* no error: zeros */
	assert_true(!type && !ordinal && !start && !size && !capable && !types);
	OK(cuMemMap(ptr + PIECE, PIECE, 0, handle, 0));
	OK(cuPointerGetAttributes(6, numbers, data, ptr + PIECE + 1));
	assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
	assert_int_equal(ordinal, 0);
	assert_int_equal(start, ptr); /* "the mappable address range" */
	assert_int_equal(size, 4 * PIECE);
	assert_int_equal(capable, 0);
	assert_int_equal(types, CU_MEM_HANDLE_TYPE_FABRIC);
	OK(cuMemUnmap(ptr + PIECE, PIECE));
	OK(cuMemAddressFree(ptr, 4 * PIECE));
	OK(cuMemRelease(handle));
	use_device(1);
	OK(cuMemAlloc_v2(&plain, 100));
	use_device(0);
	OK(cuPointerGetAttributes(6, numbers, data, plain + 50));
	assert_int_equal(ordinal, 1);
	assert_int_equal(start, plain);
	assert_int_equal(size, 100);
	assert_int_equal(capable, 1);
	assert_int_equal(types, 0);
	FAILS(INVALID_VALUE, cuPointerGetAttributes(0, numbers, data, plain));
	FAILS(INVALID_VALUE, cuPointerGetAttributes(6, NULL, data, plain));
	data[3] = NULL;
	FAILS(INVALID_VALUE, cuPointerGetAttributes(6, numbers, data, plain));
	numbers[0] = 99;
	FAILS(INVALID_VALUE, cuPointerGetAttributes(1, numbers, data, plain));
	FAILS(INVALID_VALUE, cuPointerGetAttribute(&type, 99, plain));
	OK(cuMemFree_v2(plain));
}

static CUresult range_handle(int *fd, CUdeviceptr ptr, size_t size)
{
	return cuMemGetHandleForAddressRange(fd, ptr, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
}

static void test_range_handle(void **state)
{
	CUmemGenericAllocationHandle first = make(PIECE, NONE), second = make(PIECE, NONE);
	CUmemAllocationProp prop = device_prop(1, NONE);
	CUmemGenericAllocationHandle other;
	size_t before = free_bytes();
	CUdeviceptr ptr, plain;
	struct stat st;
	void *host;
	int fd = -1;

	(void)state;
	OK(cuMemCreate(&other, PIECE, &prop, 0));
	OK(cuMemAddressReserve(&ptr, 4 * PIECE, 0, 0, 0));
	OK(cuMemMap(ptr, PIECE, 0, first, 0));
	FAILS(INVALID_VALUE, range_handle(&fd, ptr, 2 * PIECE)); /* not mapped all over */
	OK(cuMemMap(ptr + PIECE, PIECE, 0, second, 0));
	OK(cuMemMap(ptr + 2 * PIECE, PIECE, 0, other, 0));
	FAILS(INVALID_VALUE, range_handle(&fd, ptr, 3 * PIECE)); /* two devices */
	FAILS(INVALID_VALUE, range_handle(&fd, ptr + 1, PIECE));
	FAILS(INVALID_VALUE, range_handle(&fd, ptr, 100));
	FAILS(INVALID_VALUE, range_handle(&fd, ptr, 0));
	FAILS(INVALID_VALUE, range_handle(NULL, ptr, PIECE));
	FAILS(INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, ptr, PIECE, 2, 0));
	FAILS(INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, ptr, PIECE, 1, 2));
	FAILS(NOT_SUPPORTED, cuMemGetHandleForAddressRange(&fd, ptr, PIECE, 1,
				     CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE));
	OK(range_handle(&fd, ptr + 4096, 2 * PIECE - 4096));
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks, 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	/* It keeps nothing: the memory goes while it is open. */
	OK(cuMemUnmap(ptr, 3 * PIECE));
	OK(cuMemAddressFree(ptr, 4 * PIECE));
	OK(cuMemRelease(first));
	OK(cuMemRelease(second));
	OK(cuMemRelease(other));
	assert_int_equal(free_bytes(), before + 2 * PIECE);
	close(fd);
	OK(cuMemAlloc_v2(&plain, PIECE));
	OK(range_handle(&fd, plain, PIECE));
	close(fd);
	FAILS(INVALID_VALUE, range_handle(&fd, plain, 2 * PIECE));
	OK(cuMemFree_v2(plain));
	FAILS(INVALID_VALUE, range_handle(&fd, plain, PIECE));
	OK(cuMemHostAlloc(&host, PIECE, 0));
	FAILS(NOT_SUPPORTED, range_handle(&fd, (uintptr_t)host, PIECE));
	OK(cuMemFreeHost(host));
}

int alloc_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pitch),
		cmocka_unit_test(test_managed),
		cmocka_unit_test(test_host_flags),
		cmocka_unit_test(test_buffer_ids),
		cmocka_unit_test(test_pointer_attributes),
		cmocka_unit_test(test_range_handle),
	};

	return cmocka_run_group_tests_name("softcuda memory", tests, NULL, NULL);
}
