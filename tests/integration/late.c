/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A library that gets the driver's functions in one of these ways: LATE_DIRECT links to libcuda.
 * LATE_DLSYM asks dlsym() at each function's first call, LATE_PROC and LATE_PROC_V1 ask
 * cuGetProcAddress(), and keep the pointer in their data. LATE_HEAP asks dlsym() and hides the
 * pointers on the heap.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/integration/late.h"

#ifdef LATE_DIRECT

#define CU(name) name

#else

/* The name, and what cuGetProcAddress() calls it. */
#define FUNCTIONS(X)                                                                               \
	X(cuInit, "cuInit")                                                                        \
	X(cuDeviceGet, "cuDeviceGet")                                                              \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                                    \
	X(cuCtxSetCurrent, "cuCtxSetCurrent")                                                      \
	X(cuMemCreate, "cuMemCreate")                                                              \
	X(cuMemRelease, "cuMemRelease")                                                            \
	X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle")                              \
	X(cuMemAddressReserve, "cuMemAddressReserve")                                              \
	X(cuMemMap, "cuMemMap")                                                                    \
	X(cuMemUnmap, "cuMemUnmap")                                                                \
	X(cuMemSetAccess, "cuMemSetAccess")                                                        \
	X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle")                            \
	X(cuMemsetD8_v2, "cuMemsetD8")                                                             \
	X(cuMemcpyDtoH_v2, "cuMemcpyDtoH")                                                         \
	X(cuMulticastCreate, "cuMulticastCreate")                                                  \
	X(cuMulticastAddDevice, "cuMulticastAddDevice")                                            \
	X(cuMulticastBindMem, "cuMulticastBindMem")

struct functions {
#define MEMBER(name, base) __typeof__(name) *name;
	FUNCTIONS(MEMBER)
#undef MEMBER
};

#ifdef LATE_HEAP

static struct functions *functions(void)
{
	static uintptr_t hidden; /* upside down */

	if (!hidden)
		hidden = ~(uintptr_t)calloc(1, sizeof(struct functions));
	return (struct functions *)~hidden;
}

#else

static struct functions *functions(void)
{
	static struct functions kept;

	return &kept;
}

#endif

static void *library(void)
{
	static void *opened;

	if (!opened)
		opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	return opened;
}

static void *look_up(const char *name, const char *base)
{
	void *found = NULL;

#if defined(LATE_PROC)
	static __typeof__(cuGetProcAddress_v2) *get;

	if (!get)
		*(void **)&get = dlsym(library(), "cuGetProcAddress_v2");
	if (!get || get(base, &found, 12010, 0, NULL))
		found = NULL;
#elif defined(LATE_PROC_V1)
	static __typeof__(cuGetProcAddress) *get;

	if (!get)
		*(void **)&get = dlsym(library(), "cuGetProcAddress");
	if (!get || get(base, &found, 12010, 0))
		found = NULL;
#else
	(void)base;
	found = dlsym(library(), name);
#endif
	if (!found) {
		fprintf(stderr, "late: no %s\n", name);
		abort();
	}
	return found;
}

#define GETTER(name, base)                                                                         \
	static __typeof__(name) *get_##name(void)                                                  \
	{                                                                                          \
		if (!functions()->name)                                                            \
			*(void **)&functions()->name = look_up(#name, base);                       \
		return functions()->name;                                                          \
	}
FUNCTIONS(GETTER)

#define CU(name) get_##name()

#endif

static CUresult init(int ordinal)
{
	CUcontext context;
	CUdevice device;
	CUresult result = CU(cuInit)(0);

	if (!result)
		result = CU(cuDeviceGet)(&device, ordinal);
	if (!result)
		result = CU(cuDevicePrimaryCtxRetain)(&context, device);
	return result ? result : CU(cuCtxSetCurrent)(context);
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes, int device)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUresult result = CU(cuMemCreate)(handle, bytes, &prop, 0);

	__asm__ volatile("" : "+r"(result)); /* never a jump */
	return result;
}

static CUresult show(CUdeviceptr *va, size_t bytes, CUmemGenericAllocationHandle handle, int device)
{
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult result = CU(cuMemAddressReserve)(va, bytes, 0, 0, 0);

	if (!result)
		result = CU(cuMemMap)(*va, bytes, 0, handle, 0);
	if (!result)
		result = CU(cuMemSetAccess)(*va, bytes, &access, 1);
	return result;
}

static CUresult retain(CUmemGenericAllocationHandle *handle, CUdeviceptr va)
{
	return CU(cuMemRetainAllocationHandle)(handle, (void *)(uintptr_t)va);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	return CU(cuMemRelease)(handle);
}

static CUresult unmap(CUdeviceptr va, size_t bytes)
{
	return CU(cuMemUnmap)(va, bytes);
}

static CUresult fill(CUdeviceptr va, size_t bytes, unsigned char value)
{
	return CU(cuMemsetD8_v2)(va, value, bytes);
}

static CUresult read_back(void *to, CUdeviceptr va, size_t bytes)
{
	return CU(cuMemcpyDtoH_v2)(to, va, bytes);
}

static CUresult export(int *fd, CUmemGenericAllocationHandle handle)
{
	return CU(cuMemExportToShareableHandle)(
		fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static CUresult multicast(CUmemGenericAllocationHandle *handle, size_t bytes, int device)
{
	CUmulticastObjectProp prop = {.numDevices = 1,
		.size = bytes,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	CUresult result = CU(cuMulticastCreate)(handle, &prop);

	return result ? result : CU(cuMulticastAddDevice)(*handle, device);
}

static CUresult bind(
	CUmemGenericAllocationHandle object, CUmemGenericAllocationHandle memory, size_t bytes)
{
	return CU(cuMulticastBindMem)(object, 0, memory, 0, bytes, 0);
}

__attribute__((visibility("default"))) const struct late *late(void)
{
	static const struct late calls = {init, create, show, retain, release, unmap, fill,
		read_back, export, multicast, bind};

	return &calls;
}
