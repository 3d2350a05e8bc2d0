/* SPDX-License-Identifier: BSD-2-Clause */
/* The virtual memory calls within one process: handles, ranges, mappings. */
#include "test_softcuda.h"

#define NONE CU_MEM_HANDLE_TYPE_NONE
#define RW   CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define FD   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static void test_create(void **state)
{
	CUmemAllocationProp prop = device_prop(0, NONE), read;
	CUmemGenericAllocationHandle handle, next;
	size_t before = free_bytes(), size;

	(void)state;
	OK(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	assert_int_equal(size, PIECE);
	OK(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	assert_int_equal(size, PIECE);
	FAILS(INVALID_VALUE, cuMemCreate(&handle, 0, &prop, 0));
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE / 2, &prop, 0));
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 1));
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, NULL, 0));
	FAILS(INVALID_VALUE, cuMemCreate(NULL, PIECE, &prop, 0));
	FAILS(OUT_OF_MEMORY, cuMemCreate(&handle, DEVICE_MEMORY + PIECE, &prop, 0));
	assert_int_equal(free_bytes(), before);
	prop.location.id = 2;
	FAILS(INVALID_DEVICE, cuMemCreate(&handle, PIECE, &prop, 0));
	prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 0));
	prop = device_prop(0, NONE);
	prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 0));
	prop = device_prop(0, 2);
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 0));

	prop = device_prop(1, FD);
	prop.allocFlags.gpuDirectRDMACapable = 1;
	OK(cuMemCreate(&handle, PIECE, &prop, 0));
	assert_true(handle > UINT32_MAX);
	OK(cuMemGetAllocationPropertiesFromHandle(&read, handle));
	assert_memory_equal(&read, &prop, sizeof(prop));
	assert_int_equal(free_bytes(), before); /* device 1's */
	FAILS(INVALID_VALUE, cuMulticastBindMem(0, 0, handle, 0, PIECE, 0));
	OK(cuMemRelease(handle));
	FAILS(INVALID_VALUE, cuMemRelease(handle));
	FAILS(INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&read, handle));
	FAILS(INVALID_VALUE, cuMulticastBindMem(0, 0, handle, 0, PIECE, 0));
	next = make(3 * PIECE, NONE);
	assert_true(next == handle); /* and means other memory now */
	assert_int_equal(free_bytes(), before - 3 * PIECE);
	OK(cuMemRelease(next));
	assert_int_equal(free_bytes(), before);
	FAILS(INVALID_VALUE, cuMemRelease(0));
}

static void test_full_device(void **state)
{
	CUmemGenericAllocationHandle handles[DEVICE_MEMORY / PIECE];
	CUmemAllocationProp prop = device_prop(0, NONE);
	size_t count = free_bytes() / PIECE;
	CUmemGenericAllocationHandle more;

	(void)state;
	for (size_t i = 0; i < count; i++)
		OK(cuMemCreate(&handles[i], PIECE, &prop, 0));
	assert_int_equal(free_bytes(), 0);
	FAILS(OUT_OF_MEMORY, cuMemCreate(&more, PIECE, &prop, 0));
	OK(cuMemRelease(handles[0]));
	OK(cuMemCreate(&handles[0], PIECE, &prop, 0));
	for (size_t i = 0; i < count; i++)
		OK(cuMemRelease(handles[i]));
	assert_int_equal(free_bytes(), count * PIECE);
}

static void test_host_location(void **state)
{
	CUmemAllocationProp prop = device_prop(0, NONE), read;
	CUmemAccessDesc access[2] = {
		device_access(0, RW), {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, RW}};
	CUmemGenericAllocationHandle handle, copy;
	size_t before = free_bytes();
	unsigned long long flags;
	CUdeviceptr ptr;
	int fd;

	(void)state;
	prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
	OK(cuMemCreate(&handle, PIECE, &prop, 0));
	OK(cuMemRelease(handle));
	prop.requestedHandleTypes = FD; /* "HOST allocations are not IPC capable" */
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 0));
	prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	OK(cuMemCreate(&handle, PIECE, &prop, 0));
	assert_int_equal(free_bytes(), before);
	ptr = map_somewhere(handle, PIECE);
	OK(cuMemSetAccess(ptr, PIECE, access, 2));
	OK(cuMemGetAccess(&flags, &access[1].location, ptr));
	assert_int_equal(flags, RW);
	OK(cuMemsetD8_v2(ptr, 7, PIECE));
	OK(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	OK(cuMemImportFromShareableHandle(&copy, (void *)(uintptr_t)fd, FD));
	close(fd);
	OK(cuMemGetAllocationPropertiesFromHandle(&read, copy));
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE; /* of what was imported none is told */
	assert_memory_equal(&read, &prop, sizeof(prop));
	OK(cuMemRelease(copy));
	OK(cuMemRelease(handle));
	unmap_and_free(ptr, PIECE);
}

static void test_reserve(void **state)
{
	CUdeviceptr first, second, aligned;

	(void)state;
	FAILS(INVALID_VALUE, cuMemAddressReserve(&first, 0, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemAddressReserve(&first, PIECE + 4096, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemAddressReserve(&first, PIECE, 3 * PIECE, 0, 0));
	FAILS(INVALID_VALUE, cuMemAddressReserve(&first, PIECE, 0, 0, 1));
	FAILS(INVALID_VALUE, cuMemAddressReserve(NULL, PIECE, 0, 0, 0));
	OK(cuMemAddressReserve(&first, 4 * PIECE, 0, 0, 0));
	assert_int_equal(first % PIECE, 0);
	OK(cuMemAddressReserve(&aligned, PIECE, 1ul << 30, 0, 0));
	assert_int_equal(aligned % (1ul << 30), 0);
	OK(cuMemAddressFree(aligned, PIECE));
	OK(cuMemAddressReserve(&second, PIECE, 0, first + PIECE, 0)); /* taken: elsewhere */
	assert_true(second < first || second >= first + 4 * PIECE);
	FAILS(INVALID_VALUE, cuMemAddressFree(first, 3 * PIECE));
	FAILS(INVALID_VALUE, cuMemAddressFree(first + PIECE, 3 * PIECE));
	OK(cuMemAddressFree(first, 4 * PIECE));
	FAILS(INVALID_VALUE, cuMemAddressFree(first, 4 * PIECE));
	OK(cuMemAddressReserve(&aligned, 4 * PIECE, 0, first, 0)); /* free: there */
	assert_int_equal(aligned, first);
	OK(cuMemAddressFree(first, 4 * PIECE));
	OK(cuMemAddressFree(second, PIECE));
	OK(cuMemAddressReserve(&first, 16ul << 30, 0, 0, 0)); /* NCCL's windows take 160 GiB */
	OK(cuMemAddressFree(first, 16ul << 30));
}

static void test_map(void **state)
{
	CUmemGenericAllocationHandle handle = make(2 * PIECE, NONE), other = make(PIECE, NONE), got;
	CUdeviceptr ptr, base;
	size_t size;

	(void)state;
	OK(cuMemAddressReserve(&ptr, 8 * PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, PIECE, PIECE, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, PIECE, 0, handle, 1));
	FAILS(INVALID_VALUE, cuMemMap(ptr, PIECE / 2, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr + 4096, PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, 3 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr + 7 * PIECE, 2 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr + 8 * PIECE, PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, PIECE, 0, handle + 1, 0));
	OK(cuMemMap(ptr + PIECE, 2 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, 2 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr + 2 * PIECE, PIECE, 0, other, 0));
	OK(cuMemMap(ptr + 3 * PIECE, PIECE, 0, other, 0));
	OK(cuMemMap(ptr, PIECE, 0, handle, 0)); /* an alias, of a part */
	OK(cuMemGetAddressRange_v2(&base, &size, ptr + 3 * PIECE - 1));
	assert_int_equal(base, ptr + PIECE);
	assert_int_equal(size, 2 * PIECE);
	OK(cuMemGetAddressRange_v2(&base, &size, ptr));
	assert_int_equal(size, PIECE);
	FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, ptr + 4 * PIECE));

	OK(cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)(ptr + 3 * PIECE - 1)));
	assert_true(got == handle);
	OK(cuMemRelease(handle));
	FAILS(INVALID_VALUE,
		cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)(ptr + 4 * PIECE)));
	FAILS(INVALID_VALUE, cuMemRetainAllocationHandle(&got, &size));

	FAILS(INVALID_VALUE, cuMemAddressFree(ptr, 8 * PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr + 4 * PIECE, PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr + PIECE, PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr + 2 * PIECE, PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr, 5 * PIECE));
	OK(cuMemUnmap(ptr + PIECE, 3 * PIECE)); /* two mappings, side by side */
	OK(cuMemUnmap(ptr, PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr, PIECE));
	OK(cuMemAddressFree(ptr, 8 * PIECE));
	OK(cuMemRelease(handle));
	OK(cuMemRelease(other));
}

/* A map goes into one reservation, also where two lie side by side. */
static void test_map_across_ranges(void **state)
{
	CUmemGenericAllocationHandle handle = make(2 * PIECE, NONE);
	CUdeviceptr ptr, first, second;

	(void)state;
	OK(cuMemAddressReserve(&ptr, 2 * PIECE, 0, 0, 0));
	OK(cuMemAddressFree(ptr, 2 * PIECE));
	OK(cuMemAddressReserve(&first, PIECE, 0, ptr, 0));
	OK(cuMemAddressReserve(&second, PIECE, 0, ptr + PIECE, 0));
	assert_int_equal(first, ptr);
	assert_int_equal(second, ptr + PIECE);
	FAILS(INVALID_VALUE, cuMemMap(ptr, 2 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemAddressFree(ptr, 2 * PIECE));
	OK(cuMemMap(ptr, PIECE, 0, handle, 0));
	unmap_and_free(first, PIECE);
	OK(cuMemAddressFree(second, PIECE));
	OK(cuMemRelease(handle));
}

/* Memory lives while anything holds it; a handle is usable while it is referenced. */
static void test_lifetime(void **state)
{
	size_t before = free_bytes();
	CUmemGenericAllocationHandle handle = make(PIECE, FD), again;
	CUmemAllocationProp prop;
	CUdeviceptr ptr = map_somewhere(handle, PIECE), alias;
	char byte = 0;
	int fd;

	(void)state;
	OK(cuMemsetD8_v2(ptr, 42, PIECE));
	OK(cuMemRelease(handle));
	assert_int_equal(free_bytes(), before - PIECE);
	FAILS(INVALID_VALUE, cuMemRelease(handle));
	FAILS(INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, FD, 0));
	OK(cuMemAddressReserve(&alias, PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemMap(alias, PIECE, 0, handle, 0));
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)ptr));
	assert_true(again == handle);
	OK(cuMemMap(alias, PIECE, 0, handle, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	OK(cuMemRelease(handle));
	unmap_and_free(ptr, PIECE);
	OK(cuMemSetAccess(
		alias, PIECE, &(CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 0}, RW}, 1));
	OK(cuMemcpyDtoH_v2(&byte, alias + PIECE - 1, 1));
	assert_int_equal(byte, 42);
	unmap_and_free(alias, PIECE);
	assert_int_equal(free_bytes(), before - PIECE); /* the exported fd */
	close(fd);
	assert_int_equal(free_bytes(), before);
}

/* What was freed last is given out first. */
static void test_given_again(void **state)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle first = make(PIECE, NONE), second = make(PIECE, NONE), again;
	CUdeviceptr low = map_somewhere(first, PIECE), high = map_somewhere(second, PIECE), ptr;
	CUmemoryPool pool, next_pool;
	CUstream stream, next_stream;
	CUevent event, next_event;

	(void)state;
	unmap_and_free(high, PIECE);
	unmap_and_free(low, PIECE);
	OK(cuMemAddressReserve(&ptr, PIECE, 0, 0, 0));
	assert_int_equal(ptr, low);
	OK(cuMemAddressFree(ptr, PIECE));

	OK(cuMemRelease(first));
	OK(cuMemRelease(second));
	again = make(2 * PIECE, FD);
	assert_true(again == second);
	second = make(PIECE, NONE);
	assert_true(second == first);
	OK(cuMemRelease(again));
	OK(cuMemRelease(second));

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuStreamDestroy_v2(stream));
	OK(cuStreamCreate(&next_stream, CU_STREAM_NON_BLOCKING));
	assert_ptr_equal(next_stream, stream);
	OK(cuStreamDestroy_v2(stream));
	OK(cuEventCreate(&event, 0));
	OK(cuEventDestroy_v2(event));
	OK(cuEventCreate(&next_event, 0));
	assert_ptr_equal(next_event, event);
	OK(cuEventDestroy_v2(event));
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolDestroy(pool));
	OK(cuMemPoolCreate(&next_pool, &props));
	assert_ptr_equal(next_pool, pool);
	OK(cuMemPoolDestroy(pool));
}

int vmm_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create),
		cmocka_unit_test(test_full_device),
		cmocka_unit_test(test_host_location),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_map),
		cmocka_unit_test(test_map_across_ranges),
		cmocka_unit_test(test_lifetime),
		cmocka_unit_test(test_given_again),
	};

	return cmocka_run_group_tests_name("softcuda vmm", tests, NULL, NULL);
}
