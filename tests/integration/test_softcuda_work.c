/* SPDX-License-Identifier: BSD-2-Clause */
/* Host functions: streams that are busy, and what waits for them. */
#include <stdatomic.h>
#include <time.h>

#include "test_softcuda.h"

static _Atomic int open_gate, passed;

static void wait_at_gate(void *arg)
{
	while (!atomic_load(&open_gate))
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	atomic_fetch_add(&passed, (int)(intptr_t)arg);
}

static void pass(void *arg)
{
	atomic_store(&passed, atomic_load(&passed) * 10 + (int)(intptr_t)arg);
}

static void close_gate(void)
{
	atomic_store(&open_gate, 0);
	atomic_store(&passed, 0);
}

static void test_order(void **state)
{
	CUstream stream;
	CUevent event;

	(void)state;
	close_gate();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	FAILS(INVALID_VALUE, cuLaunchHostFunc(stream, NULL, NULL));
	FAILS(INVALID_HANDLE, cuLaunchHostFunc((CUstream)event, pass, NULL));
	OK(cuLaunchHostFunc(stream, wait_at_gate, NULL));
	OK(cuLaunchHostFunc(stream, pass, (void *)1));
	OK(cuEventRecord(event, stream));
	OK(cuLaunchHostFunc(stream, pass, (void *)2));
	FAILS(NOT_READY, cuStreamQuery(stream));
	FAILS(NOT_READY, cuEventQuery(event));
	OK(cuStreamQuery(NULL)); /* has nothing to do with a non-blocking stream */
	assert_int_equal(atomic_load(&passed), 0);
	atomic_store(&open_gate, 1);
	OK(cuEventSynchronize(event));
	assert_in_range(atomic_load(&passed), 1, 12);
	OK(cuStreamSynchronize(stream));
	assert_int_equal(atomic_load(&passed), 12);
	OK(cuStreamQuery(stream));
	OK(cuEventQuery(event));
	close_gate();
	OK(cuLaunchHostFunc(stream, pass, (void *)3));
	OK(cuCtxSynchronize());
	assert_int_equal(atomic_load(&passed), 3);
	OK(cuEventDestroy_v2(event));
	OK(cuStreamDestroy_v2(stream));
}

static void test_between_streams(void **state)
{
	CUstream first, second;
	CUevent event;

	(void)state;
	close_gate();
	OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	OK(cuLaunchHostFunc(first, wait_at_gate, (void *)7));
	OK(cuEventRecord(event, first));
	OK(cuStreamDestroy_v2(first)); /* its work is still done */
	OK(cuStreamQuery(second));
	OK(cuStreamWaitEvent(second, event, 0));
	OK(cuEventDestroy_v2(event));
	OK(cuLaunchHostFunc(second, pass, (void *)1));
	FAILS(NOT_READY, cuStreamQuery(second));
	atomic_store(&open_gate, 1);
	OK(cuStreamSynchronize(second));
	assert_int_equal(atomic_load(&passed), 71);
	OK(cuStreamDestroy_v2(second));
}

static void test_default_stream(void **state)
{
	CUstream stream;

	(void)state;
	close_gate();
	OK(cuStreamCreate(&stream, 0));
	OK(cuLaunchHostFunc(stream, wait_at_gate, (void *)4));
	FAILS(NOT_READY, cuStreamQuery(NULL));
	OK(cuLaunchHostFunc(NULL, pass, (void *)5));
	OK(cuLaunchHostFunc(stream, pass, (void *)6));
	atomic_store(&open_gate, 1);
	OK(cuStreamSynchronize(stream));
	assert_int_equal(atomic_load(&passed), 456);
	OK(cuStreamDestroy_v2(stream));
}

/* Pinned memory is read when its turn comes, other memory before the call returns. */
static void test_copies(void **state)
{
	uint32_t *pinned, plain = 1;
	CUstream stream;
	CUdeviceptr ptr;

	(void)state;
	close_gate();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc_v2(&ptr, PIECE));
	OK(cuMemAllocHost_v2((void **)&pinned, 4096));
	OK(cuMemsetD8_v2(ptr, 0, 4096));
	OK(cuLaunchHostFunc(stream, wait_at_gate, NULL));
	pinned[0] = 1;
	OK(cuMemcpyHtoDAsync_v2(ptr, pinned, 4, stream));
	OK(cuMemcpyDtoDAsync_v2(ptr + 4, ptr, 4, stream));
	OK(cuMemsetD8Async(ptr + 8, 9, 4, stream));
	OK(cuMemcpyDtoHAsync_v2(pinned + 1, ptr + 4, 8, stream));
	FAILS(INVALID_VALUE, cuMemcpyDtoDAsync_v2(ptr, 4096, 4, stream));
	assert_int_equal(read_mark(ptr), 0);
	pinned[0] = 77;
	atomic_store(&open_gate, 1);
	OK(cuMemcpyDtoHAsync_v2(&plain, ptr + 8, 4, stream));
	assert_int_equal(plain, 0x09090909);
	assert_int_equal(pinned[1], 77);
	assert_int_equal(pinned[2], 0x09090909);
	OK(cuMemFreeHost(pinned));
	OK(cuMemFree_v2(ptr));
	OK(cuStreamDestroy_v2(stream));
}

int work_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_between_streams),
		cmocka_unit_test(test_default_stream),
		cmocka_unit_test(test_copies),
	};

	return cmocka_run_group_tests_name("softcuda work", tests, NULL, NULL);
}
