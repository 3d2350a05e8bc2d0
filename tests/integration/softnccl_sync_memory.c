// SPDX-License-Identifier: BSD-2-Clause
/* Device memory of the stand-in libnccl, made, shared and freed in the way of NCCL 2.28; with
 * NCCL_CUMEM_ENABLE=0 by cudaMalloc() and legacy IPC. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "softnccl_sync.h"

/* As in NCCL, pointers in the library's data. */
static struct {
	__typeof__(&cuCtxGetDevice) get_device;
	__typeof__(&cuCtxGetCurrent) get_context;
	__typeof__(&cuCtxSetCurrent) set_context;
	__typeof__(&cuLaunchHostFunc) launch;
	__typeof__(&cuMemCreate) create;
	__typeof__(&cuMemRelease) release;
	__typeof__(&cuMemRetainAllocationHandle) retain;
	__typeof__(&cuMemGetAddressRange_v2) get_range;
	__typeof__(&cuMemAddressReserve) reserve;
	__typeof__(&cuMemAddressFree) address_free;
	__typeof__(&cuMemMap) map;
	__typeof__(&cuMemUnmap) unmap;
	__typeof__(&cuMemSetAccess) set_access;
	__typeof__(&cuMemExportToShareableHandle) export;
	__typeof__(&cuMemImportFromShareableHandle) import;
	__typeof__(&cuMemcpyHtoD_v2) to_device;
	__typeof__(&cuMemcpyDtoH_v2) to_host;
	__typeof__(&cuMemcpyDtoDAsync_v2) copy;
	__typeof__(&cuMemAlloc_v2) alloc;
	__typeof__(&cuMemFree_v2) free;
	__typeof__(&cuMemAllocHost_v2) alloc_host;
	__typeof__(&cuMemFreeHost) free_host;
	__typeof__(&cuIpcGetMemHandle) ipc_get;
	__typeof__(&cuIpcOpenMemHandle_v2) ipc_open;
	__typeof__(&cuIpcCloseMemHandle) ipc_close;
} driver;

static bool bound;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool bind_all(void)
{
	static const char *const names[] = {"cuCtxGetDevice", "cuCtxGetCurrent", "cuCtxSetCurrent",
		"cuLaunchHostFunc", "cuMemCreate", "cuMemRelease", "cuMemRetainAllocationHandle",
		"cuMemGetAddressRange_v2", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap",
		"cuMemUnmap", "cuMemSetAccess", "cuMemExportToShareableHandle",
		"cuMemImportFromShareableHandle", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2",
		"cuMemcpyDtoDAsync_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocHost_v2",
		"cuMemFreeHost", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2",
		"cuIpcCloseMemHandle"};
	void *library = dlopen("libcuda.so.1", RTLD_NOW), **functions = (void **)&driver;

	_Static_assert(sizeof(driver) == sizeof(names), "a name for each");
	for (unsigned i = 0; library && i < sizeof(names) / sizeof(names[0]); i++) {
		functions[i] = dlsym(library, names[i]);
		if (!functions[i])
			return false;
	}
	return library;
}

bool sync_driver_bind(void)
{
	pthread_mutex_lock(&lock);
	if (!bound)
		bound = bind_all();
	pthread_mutex_unlock(&lock);
	return bound;
}

CUcontext sync_context(void)
{
	CUcontext context;

	return driver.get_context(&context) ? NULL : context;
}

void sync_context_set(CUcontext context)
{
	driver.set_context(context);
}

ncclResult_t sync_launch(cudaStream_t stream, CUhostFn function, void *data)
{
	return driver.launch(stream, function, data) ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t sync_copy(cudaStream_t stream, void *dst, const void *src, size_t bytes)
{
	return driver.copy((CUdeviceptr)dst, (CUdeviceptr)src, bytes, stream)
		       ? ncclUnhandledCudaError
		       : ncclSuccess;
}

bool sync_plain(void)
{
	const char *setting = getenv("NCCL_CUMEM_ENABLE");

	return setting && !strcmp(setting, "0");
}

/* The IPC handle travels in a file, as a descriptor does. */
static ncclResult_t plain_make(struct buffer *buffer, size_t bytes, int *fd)
{
	CUipcMemHandle handle;

	*buffer = (struct buffer){.bytes = bytes};
	if (driver.alloc(&buffer->va, bytes))
		return ncclUnhandledCudaError;
	if (!fd)
		return ncclSuccess;
	*fd = memfd_create("ipc", MFD_CLOEXEC);
	if (*fd >= 0 && !driver.ipc_get(&handle, buffer->va) &&
		pwrite(*fd, &handle, sizeof(handle), 0) == sizeof(handle))
		return ncclSuccess;
	if (*fd >= 0)
		close(*fd);
	driver.free(buffer->va);
	return ncclUnhandledCudaError;
}

static ncclResult_t plain_import(struct buffer *buffer, size_t bytes, int fd)
{
	bool read = false;
	CUipcMemHandle handle;

	*buffer = (struct buffer){.bytes = bytes, .opened = true};
	read = pread(fd, &handle, sizeof(handle), 0) == sizeof(handle);
	close(fd);
	if (!read)
		return ncclSystemError;
	return driver.ipc_open(&buffer->va, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
		       ? ncclUnhandledCudaError
		       : ncclSuccess;
}

static ncclResult_t show(struct buffer *buffer, CUmemGenericAllocationHandle handle, int device)
{
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	if (driver.reserve(&buffer->va, buffer->bytes, 0, 0, 0))
		return ncclUnhandledCudaError;
	if (driver.map(buffer->va, buffer->bytes, 0, handle, 0))
		goto reserved;
	if (!driver.set_access(buffer->va, buffer->bytes, &access, 1))
		return ncclSuccess;
	driver.unmap(buffer->va, buffer->bytes);
reserved:
	driver.address_free(buffer->va, buffer->bytes);
	return ncclUnhandledCudaError;
}

ncclResult_t sync_buffer_make(struct buffer *buffer, size_t bytes, int *fd)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location.type = CU_MEM_LOCATION_TYPE_DEVICE};
	struct buffer made = {.bytes = bytes};
	CUmemGenericAllocationHandle handle;

	if (sync_plain())
		return plain_make(buffer, bytes, fd);
	if (driver.get_device(&prop.location.id) || driver.create(&handle, bytes, &prop, 0))
		return ncclUnhandledCudaError;
	if (show(&made, handle, prop.location.id)) {
		driver.release(handle);
		return ncclUnhandledCudaError;
	}
	if (fd && driver.export(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) {
		sync_buffer_free(&made);
		return ncclUnhandledCudaError;
	}
	*buffer = made;
	return ncclSuccess;
}

ncclResult_t sync_buffer_import(struct buffer *buffer, size_t bytes, int fd)
{
	struct buffer made = {.bytes = bytes};
	CUmemGenericAllocationHandle handle;
	CUresult result;
	CUdevice device;

	if (sync_plain())
		return plain_import(buffer, bytes, fd);
	result = driver.import(
		&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close(fd);
	if (result)
		return ncclUnhandledCudaError;
	if (driver.get_device(&device) || show(&made, handle, device)) {
		driver.release(handle);
		return ncclUnhandledCudaError;
	}
	*buffer = made;
	return ncclSuccess;
}

/* By address, as NCCL does: it asks the driver for the handle. */
static void mapped_free(struct buffer *buffer)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr base;
	size_t size;

	if (driver.retain(&handle, (void *)(uintptr_t)buffer->va) || driver.release(handle) ||
		driver.get_range(&base, &size, buffer->va) || base != buffer->va ||
		size != buffer->bytes || driver.unmap(base, size) || driver.release(handle) ||
		driver.address_free(base, size))
		abort();
}

ncclResult_t sync_buffer_make_host(struct buffer *buffer, size_t bytes)
{
	void *memory;

	*buffer = (struct buffer){.bytes = bytes, .host = true};
	if (driver.alloc_host(&memory, bytes))
		return ncclUnhandledCudaError;
	buffer->va = (uintptr_t)memory;
	return ncclSuccess;
}

void sync_buffer_free(struct buffer *buffer)
{
	if (!buffer->va)
		return;
	if (buffer->host) {
		if (driver.free_host((void *)(uintptr_t)buffer->va))
			abort();
	} else if (!sync_plain())
		mapped_free(buffer);
	else if (buffer->opened ? driver.ipc_close(buffer->va) : driver.free(buffer->va))
		abort();
	buffer->va = 0;
}

bool sync_buffer_of(struct buffer *buffer, const void *memory, size_t bytes)
{
	CUdeviceptr start = (uintptr_t)memory, base;
	size_t size;

	*buffer = (struct buffer){0};
	if (driver.get_range(&base, &size, start) || start + bytes > base + size)
		return false;
	buffer->va = base;
	buffer->bytes = size;
	return true;
}

ncclResult_t sync_buffer_alias(
	struct buffer *alias, const struct buffer *of, CUmemGenericAllocationHandle *handle)
{
	struct buffer made = {.bytes = of->bytes};
	CUdevice device;

	if (driver.get_device(&device) || driver.retain(handle, (void *)(uintptr_t)of->va))
		return ncclUnhandledCudaError;
	if (show(&made, *handle, device)) {
		driver.release(*handle);
		return ncclUnhandledCudaError;
	}
	*alias = made;
	return ncclSuccess;
}

void sync_buffer_alias_free(struct buffer *alias, CUmemGenericAllocationHandle handle)
{
	if (driver.unmap(alias->va, alias->bytes) || driver.release(handle) ||
		driver.address_free(alias->va, alias->bytes))
		abort();
	alias->va = 0;
}

static void pattern(uint64_t *words, size_t count, uint64_t seed)
{
	for (size_t i = 0; i < count; i++)
		words[i] = (seed + i) * 0x9e3779b97f4a7c15ul;
}

ncclResult_t sync_buffer_fill(const struct buffer *buffer, uint64_t seed)
{
	uint64_t *words = malloc(buffer->bytes);
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

	if (words) {
		pattern(words, buffer->bytes / sizeof(*words), seed);
		result = driver.to_device(buffer->va, words, buffer->bytes);
	}
	free(words);
	return result ? ncclUnhandledCudaError : ncclSuccess;
}

bool sync_buffer_is(const struct buffer *buffer, uint64_t seed)
{
	uint64_t *words = malloc(2 * buffer->bytes), *found = words;
	bool is = false;

	if (words) {
		found += buffer->bytes / sizeof(*words);
		pattern(words, buffer->bytes / sizeof(*words), seed);
		is = !driver.to_host(found, buffer->va, buffer->bytes) &&
		     !memcmp(words, found, buffer->bytes);
	}
	free(words);
	return is;
}

bool sync_buffers_equal(const struct buffer *one, const struct buffer *other)
{
	char *bytes = malloc(2 * one->bytes);
	bool equal = false;

	if (bytes)
		equal = one->bytes == other->bytes && !driver.to_host(bytes, one->va, one->bytes) &&
			!driver.to_host(bytes + one->bytes, other->va, one->bytes) &&
			!memcmp(bytes, bytes + one->bytes, one->bytes);
	free(bytes);
	return equal;
}
