/* SPDX-License-Identifier: BSD-2-Clause */
/* What the library exports, and how it is found. */
#include <dlfcn.h>

#include <lien/calls.h>

#include "test_softcuda.h"

/* lien's probes find the symbol; callers come by either way: both must be the same place. */
static void test_proc_address(void **state)
{
	static const char *const same[] = {"cuInit", "cuMemCreate", "cuMemMap", "cuMemRelease",
		"cuMemRetainAllocationHandle", "cuStreamEndCapture", "cuCtxSetCurrent",
		"cuLaunchHostFunc", "cuMemHostUnregister", "cuEventQuery", "cuMemAllocManaged",
		"cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
		"cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool", "cuDeviceSetMemPool",
		"cuMemPoolCreate", "cuMemPoolDestroy", "cuMemPoolSetAttribute",
		"cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuMemPoolSetAccess",
		"cuMemPoolGetAccess", "cuMemPoolExportToShareableHandle",
		"cuMemPoolImportFromShareableHandle", "cuMemPoolExportPointer",
		"cuMemPoolImportPointer", "cuIpcGetMemHandle", "cuIpcCloseMemHandle",
		"cuMemHostAlloc", "cuMemHostGetFlags", "cuPointerGetAttributes",
		"cuMemGetHandleForAddressRange", "cuMulticastGetGranularity", "cuMulticastCreate",
		"cuMulticastAddDevice", "cuMulticastBindMem", "cuMulticastBindAddr",
		"cuMulticastUnbind"};
	static const char *const second[] = {"cuMemAlloc", "cuMemFree", "cuMemGetInfo",
		"cuMemcpyDtoH", "cuMemcpyHtoDAsync", "cuMemHostRegister", "cuCtxPushCurrent",
		"cuCtxPopCurrent", "cuStreamDestroy", "cuEventDestroy", "cuMemcpy2D",
		"cuMemcpy2DUnaligned", "cuMemcpy2DAsync", "cuStreamBeginCapture",
		"cuMemGetAddressRange", "cuGetProcAddress", "cuCtxSynchronize", "cuMemAllocPitch",
		"cuMemAllocHost", "cuIpcOpenMemHandle", "cuDeviceGetUuid",
		"cuMemHostGetDevicePointer"};
	static const char *const per_thread[] = {"cuMemAllocAsync", "cuMemAllocFromPoolAsync",
		"cuMemFreeAsync", "cuStreamEndCapture", "cuStreamBeginCaptureToGraph",
		"cuMemcpyAsync", "cuMemsetD8Async", "cuMemsetD32Async", "cuMemcpyPeerAsync",
		"cuStreamSynchronize", "cuStreamGetCtx", "cuStreamQuery", "cuStreamWaitEvent",
		"cuLaunchHostFunc", "cuStreamIsCapturing", "cuEventRecord"};
	/* Functions that wait, and those of which only the second version is there. */
	static const char *const variants[][2] = {{"cuMemcpy", "cuMemcpy_ptds"},
		{"cuMemcpyPeer", "cuMemcpyPeer_ptds"}, {"cuMemsetD8", "cuMemsetD8_v2_ptds"},
		{"cuMemsetD32", "cuMemsetD32_v2_ptds"}, {"cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds"},
		{"cuMemcpyDtoH", "cuMemcpyDtoH_v2_ptds"}, {"cuMemcpyDtoD", "cuMemcpyDtoD_v2_ptds"},
		{"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2_ptsz"},
		{"cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2_ptsz"},
		{"cuMemcpyDtoDAsync", "cuMemcpyDtoDAsync_v2_ptsz"},
		{"cuMemcpy2D", "cuMemcpy2D_v2_ptds"},
		{"cuMemcpy2DUnaligned", "cuMemcpy2DUnaligned_v2_ptds"},
		{"cuMemcpy2DAsync", "cuMemcpy2DAsync_v2_ptsz"}};
	/* Older versions, known by their names alone. */
	static const char *const older[] = {"cuCtxPushCurrent", "cuCtxPopCurrent",
		"cuStreamDestroy", "cuEventDestroy", "cuMemHostRegister", "cuCtxDestroy"};
	CUdriverProcAddressQueryResult status;
	char symbol[64];
	void *pfn;

	(void)state;
	for (size_t i = 0; i < COUNT(same); i++) {
		OK(cuGetProcAddress_v2(same[i], &pfn, 13000, 0, &status));
		assert_int_equal(status, CU_GET_PROC_ADDRESS_SUCCESS);
		assert_non_null(pfn);
		assert_ptr_equal(pfn, dlsym(RTLD_DEFAULT, same[i]));
	}
	for (size_t i = 0; i < COUNT(second); i++) {
		snprintf(symbol, sizeof(symbol), "%s_v2", second[i]);
		OK(cuGetProcAddress_v2(second[i], &pfn, 13000, 0, NULL));
		assert_non_null(pfn);
		assert_ptr_equal(pfn, dlsym(RTLD_DEFAULT, symbol));
	}
	assert_ptr_equal(dlsym(RTLD_DEFAULT, "cuMemAlloc"), NULL);
	OK(cuGetProcAddress_v2("cuCtxSynchronize", &pfn, 12000, 0, NULL));
	assert_ptr_equal(pfn, dlsym(RTLD_DEFAULT, "cuCtxSynchronize"));
	for (size_t i = 0; i < COUNT(per_thread); i++) {
		snprintf(symbol, sizeof(symbol), "%s_ptsz", per_thread[i]);
		OK(cuGetProcAddress_v2(per_thread[i], &pfn, 13000,
			CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
		assert_non_null(pfn);
		assert_ptr_equal(pfn, dlsym(RTLD_DEFAULT, symbol));
	}
	for (size_t i = 0; i < COUNT(variants); i++) {
		OK(cuGetProcAddress_v2(variants[i][0], &pfn, 13000,
			CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
		assert_non_null(pfn);
		assert_ptr_equal(pfn, dlsym(RTLD_DEFAULT, variants[i][1]));
	}
	for (size_t i = 0; i < COUNT(older); i++)
		assert_non_null(dlsym(RTLD_DEFAULT, older[i]));
	OK(cuGetProcAddress_v2("cuDeviceGetUuid", &pfn, 11000, 0, NULL));
	assert_ptr_equal(pfn, dlsym(RTLD_DEFAULT, "cuDeviceGetUuid"));
	OK(cuGetProcAddress("cuGetProcAddress", &pfn, 11080, 0));
	assert_ptr_equal(pfn, dlsym(RTLD_DEFAULT, "cuGetProcAddress"));
	FAILS(NOT_FOUND, cuGetProcAddress("cuNoSuchCall", &pfn, 11080, 0));
	FAILS(NOT_FOUND, cuGetProcAddress_v2("cuNoSuchCall", &pfn, 13000, 0, &status));
	assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	assert_null(pfn);
	FAILS(NOT_FOUND, cuGetProcAddress_v2("cuMemMap", &pfn, 9000, 0, &status));
	assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	FAILS(INVALID_VALUE, cuGetProcAddress_v2("cuMemMap", &pfn, 13010, 0, NULL));
	FAILS(INVALID_VALUE, cuGetProcAddress_v2("cuMemMap", &pfn, 13000, 3, NULL));
	FAILS(INVALID_VALUE, cuGetProcAddress_v2(NULL, &pfn, 13000, 0, NULL));
}

/* Every call of the driver that lien traces exists and has an entry of its own. */
static void test_traced_symbols(void **state)
{
	static const struct {
		int library;
		const char *symbol;
	} calls[] = {
#define ROW(name, number, lib, symbol, flags, kind)                                                \
	{(number) == LIEN_CALL_CU_UNKNOWN ? 0 : LIEN_LIB_##lib, symbol},
		LIEN_CALLS(ROW)
#undef ROW
	};
	void *at[COUNT(calls)];

	(void)state;
	for (size_t i = 0; i < COUNT(calls); i++) {
		at[i] = NULL;
		if (calls[i].library != LIEN_LIB_CUDA)
			continue;
		at[i] = dlsym(RTLD_DEFAULT, calls[i].symbol);
		if (!at[i])
			print_error("%s is missing\n", calls[i].symbol);
		assert_non_null(at[i]);
		for (size_t j = 0; j < i; j++)
			assert_ptr_not_equal(at[i], at[j]);
	}
}

static void test_error_names(void **state)
{
	const char *text;

	(void)state;
	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
	assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
	OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
	assert_string_equal(text, "out of memory");
	FAILS(INVALID_VALUE, cuGetErrorName(12345, &text));
	assert_null(text);
	FAILS(INVALID_VALUE, cuGetErrorString(CUDA_SUCCESS, NULL));
}

int symbol_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_proc_address),
		cmocka_unit_test(test_traced_symbols),
		cmocka_unit_test(test_error_names),
	};

	return cmocka_run_group_tests_name("softcuda symbols", tests, NULL, NULL);
}
