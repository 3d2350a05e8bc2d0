/* SPDX-License-Identifier: BSD-2-Clause */
/* Copies of rows, and between the memory of two contexts. */
#include "test_softcuda.h"

static void test_rows(void **state)
{
	unsigned char host[4 * 8], back[4 * 8] = {0};
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = host,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstXInBytes = 16,
		.dstY = 1,
		.dstPitch = 512,
		.WidthInBytes = 8,
		.Height = 4};
	CUDA_MEMCPY2D read = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcXInBytes = 16,
		.srcY = 1,
		.srcPitch = 512,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.dstHost = back,
		.WidthInBytes = 8,
		.Height = 4};
	CUdeviceptr ptr;
	size_t pitch;

	(void)state;
	use_device(0);
	OK(cuMemAllocPitch_v2(&ptr, &pitch, 100, 5, 16));
	assert_int_equal(pitch, 512);
	for (size_t i = 0; i < sizeof(host); i++)
		host[i] = i;
	rows.dstDevice = read.srcDevice = ptr;
	OK(cuMemcpy2D_v2(&rows));
	OK(cuMemcpy2DUnaligned_v2(&read));
	assert_memory_equal(host, back, sizeof(host));
	memset(back, 0, sizeof(back));
	OK(cuMemcpy2DAsync_v2(&read, NULL));
	assert_memory_equal(host, back, sizeof(host));
	rows.Height = 5; /* the last row is not in the memory */
	FAILS(INVALID_VALUE, cuMemcpy2D_v2(&rows));
	rows.dstPitch = 20; /* less than a row */
	FAILS(INVALID_VALUE, cuMemcpy2D_v2(&rows));
	FAILS(INVALID_VALUE, cuMemcpy2D_v2(NULL));
	OK(cuMemFree_v2(ptr));
}

static void test_between_contexts(void **state)
{
	unsigned int value = 0;
	CUcontext first, second;
	CUdeviceptr ptr, other;

	(void)state;
	use_device(0);
	OK(cuCtxGetCurrent(&first));
	OK(cuMemAlloc_v2(&ptr, 64));
	OK(cuMemsetD32_v2(ptr, 77, 16));
	OK(cuCtxCreate_v2(&second, 0, 1));
	OK(cuMemAlloc_v2(&other, 64));
	OK(cuMemcpyPeer(other, second, ptr, first, 64));
	OK(cuMemcpyDtoH_v2(&value, other + 60, 4));
	assert_int_equal(value, 77);
	OK(cuMemsetD32Async(other, 78, 16, NULL));
	OK(cuMemcpyPeerAsync(ptr, first, other, second, 64, NULL));
	OK(cuMemcpyDtoH_v2(&value, ptr, 4));
	assert_int_equal(value, 78);
	FAILS(INVALID_VALUE, cuMemcpyPeer(other, second, ptr, first, 65));
	OK(cuMemFree_v2(other));
	OK(cuCtxDestroy_v2(second));
	FAILS(INVALID_CONTEXT, cuMemcpyPeer(ptr, first, ptr, second, 4));
	OK(cuMemFree_v2(ptr));
}

int row_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_between_contexts),
	};

	return cmocka_run_group_tests_name("softcuda rows", tests, NULL, NULL);
}
