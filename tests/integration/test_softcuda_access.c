/* SPDX-License-Identifier: BSD-2-Clause */
/* Access to mappings: who may, what the CPU may, and what copies do about it. */
#include <fcntl.h>

#include "test_softcuda.h"

#define NONE CU_MEM_HANDLE_TYPE_NONE
#define RW   CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* What the CPU may do there: the kernel says so without a fault. */
static bool cpu_may(CUdeviceptr ptr, bool to_write)
{
	bool may;
	int fd = open(
		to_write ? "/dev/zero" : test_dir, to_write ? O_RDONLY : O_TMPFILE | O_RDWR, 0600);

	assert_true(fd >= 0);
	may = to_write ? read(fd, (void *)(uintptr_t)ptr, 1) == 1
		       : write(fd, (void *)(uintptr_t)ptr, 1) == 1;
	close(fd);
	return may;
}

/* Mappings side by side, with other access each, given more in one call. */
static void test_protection(void **state)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemAccessDesc write = device_access(1, RW);
	CUmemAccessDesc read = device_access(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
	CUmemAccessDesc none = device_access(1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	CUdeviceptr ptr;

	(void)state;
	if (under_valgrind()) /* takes cpu_may() for a mistake */
		skip();
	handle = make(PIECE, NONE);
	OK(cuMemAddressReserve(&ptr, 4 * PIECE, 0, 0, 0));
	assert_false(cpu_may(ptr, false));
	for (int i = 0; i < 3; i++)
		OK(cuMemMap(ptr + i * PIECE, PIECE, 0, handle, 0));
	assert_false(cpu_may(ptr, false));
	OK(cuMemSetAccess(ptr + PIECE, PIECE, &write, 1));
	OK(cuMemSetAccess(ptr, 3 * PIECE, &read, 1));
	for (int i = 0; i < 3; i++) {
		assert_true(cpu_may(ptr + i * PIECE, false));
		assert_int_equal(cpu_may(ptr + i * PIECE, true), i == 1);
	}
	assert_false(cpu_may(ptr + 3 * PIECE, false));
	OK(cuMemSetAccess(ptr + PIECE, PIECE, &none, 1));
	assert_false(cpu_may(ptr + PIECE, true));
	OK(cuMemUnmap(ptr + PIECE, PIECE));
	assert_false(cpu_may(ptr + PIECE, false));
	OK(cuMemUnmap(ptr, PIECE));
	OK(cuMemUnmap(ptr + 2 * PIECE, PIECE));
	OK(cuMemAddressFree(ptr, 4 * PIECE));
	OK(cuMemRelease(handle));
}

static void test_access(void **state)
{
	CUmemGenericAllocationHandle handle = make(2 * PIECE, NONE);
	CUmemAccessDesc both[2] = {
		device_access(0, CU_MEM_ACCESS_FLAGS_PROT_READ), device_access(1, RW)};
	CUmemAccessDesc bad = device_access(2, RW);
	unsigned long long flags;
	CUdeviceptr ptr;
	char byte = 0;

	(void)state;
	OK(cuMemAddressReserve(&ptr, 4 * PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, PIECE, both, 2));
	FAILS(INVALID_VALUE, cuMemGetAccess(&flags, &both[0].location, ptr));
	OK(cuMemMap(ptr, 2 * PIECE, 0, handle, 0));
	OK(cuMemMap(ptr + 2 * PIECE, PIECE, 0, handle, 0));
	OK(cuMemGetAccess(&flags, &both[0].location, ptr));
	assert_int_equal(flags, 0);
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(&byte, ptr, 1));
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 1, 1));

	FAILS(INVALID_DEVICE, cuMemSetAccess(ptr, 2 * PIECE, &bad, 1));
	FAILS(INVALID_DEVICE, cuMemGetAccess(&flags, &bad.location, ptr));
	bad = device_access(0, 2);
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, &bad, 1));
	bad = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, RW};
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, &bad, 1));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, PIECE, both, 2));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 4 * PIECE, both, 2));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, NULL, 1));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, both, 0));
	OK(cuMemGetAccess(&flags, &both[1].location, ptr));
	assert_int_equal(flags, 0); /* what failed changed nothing */

	OK(cuMemSetAccess(ptr, 3 * PIECE, both, 2));
	for (int piece = 0; piece < 3; piece++) {
		OK(cuMemGetAccess(&flags, &both[0].location, ptr + piece * PIECE));
		assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
		OK(cuMemGetAccess(&flags, &both[1].location, ptr + piece * PIECE));
		assert_int_equal(flags, RW);
	}
	/* The current device may read, the other one may write. */
	OK(cuMemcpyDtoH_v2(&byte, ptr, 1));
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(ptr, &byte, 1));
	use_device(1);
	OK(cuMemsetD8_v2(ptr, 9, 3 * PIECE));
	use_device(0);
	OK(cuMemcpyDtoH_v2(&byte, ptr, 1));
	assert_int_equal(byte, 9);
	/* A new mapping starts without access. */
	OK(cuMemUnmap(ptr, 2 * PIECE));
	OK(cuMemMap(ptr, 2 * PIECE, 0, handle, 0));
	OK(cuMemGetAccess(&flags, &both[1].location, ptr));
	assert_int_equal(flags, 0);
	OK(cuMemUnmap(ptr, 3 * PIECE));
	OK(cuMemAddressFree(ptr, 4 * PIECE));
	OK(cuMemRelease(handle));
	OK(cuDevicePrimaryCtxRelease_v2(1));
	OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void test_copies(void **state)
{
	CUmemGenericAllocationHandle handle = make(PIECE, NONE), other = make(PIECE, NONE);
	CUmemAccessDesc access = device_access(0, RW);
	uint32_t words[4] = {0};
	CUdeviceptr ptr;

	(void)state;
	OK(cuMemAddressReserve(&ptr, 3 * PIECE, 0, 0, 0));
	OK(cuMemMap(ptr, PIECE, 0, handle, 0));
	OK(cuMemMap(ptr + PIECE, PIECE, 0, other, 0));
	OK(cuMemSetAccess(ptr, PIECE, &access, 1));
	OK(cuMemcpyHtoD_v2(ptr + PIECE - 8, "abcdefgh", 8));
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(ptr + PIECE - 7, "abcdefgh", 8)); /* no access */
	OK(cuMemSetAccess(ptr + PIECE, PIECE, &access, 1));
	OK(cuMemcpyHtoD_v2(ptr + PIECE - 7, "abcdefgh", 8)); /* across two mappings */
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(ptr + 2 * PIECE - 7, "abcdefgh", 8)); /* the end */
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(ptr - 1, "abcdefgh", 8));
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(16, "abcdefgh", 8));
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(NULL, ptr, 8));
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2((void *)(uintptr_t)(ptr + 2 * PIECE), ptr, 8));
	FAILS(INVALID_VALUE, cuMemcpyDtoD_v2(ptr, ptr + 2 * PIECE - 4, 8));
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(words, UINT64_MAX - 3, 8));
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 1, SIZE_MAX));
	FAILS(INVALID_VALUE, cuMemsetD32_v2(ptr, 1, SIZE_MAX / 2));
	FAILS(INVALID_VALUE, cuMemsetD32_v2(ptr + 2, 1, 1));
	OK(cuMemsetD32_v2(ptr + PIECE - 8, 0x01020304, 4));
	OK(cuMemcpyDtoDAsync_v2(ptr, ptr + PIECE - 8, 16, NULL));
	OK(cuMemcpyDtoHAsync_v2(words, ptr, 16, NULL));
	for (int i = 0; i < 4; i++)
		assert_int_equal(words[i], 0x01020304);
	OK(cuMemcpyHtoDAsync_v2(ptr, &(uint32_t){5}, 4, NULL));
	OK(cuMemcpy((uintptr_t)words, ptr, 4));
	assert_int_equal(words[0], 5);
	OK(cuMemcpyDtoH_v2(words, 16, 0));
	OK(cuMemUnmap(ptr, 2 * PIECE));
	OK(cuMemAddressFree(ptr, 3 * PIECE));
	OK(cuMemRelease(handle));
	OK(cuMemRelease(other));
}

int access_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_protection),
		cmocka_unit_test(test_access),
		cmocka_unit_test(test_copies),
	};

	return cmocka_run_group_tests_name("softcuda access", tests, NULL, NULL);
}
