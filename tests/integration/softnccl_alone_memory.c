// SPDX-License-Identifier: BSD-2-Clause
/* Memory that the stand-in libnccl allocates from the driver, and the threads that do so. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include <lien/cuda_abi.h>
#include "softnccl_alone.h"

struct softnccl_buffer {
	struct softnccl_buffer *next;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va;
	size_t bytes;
};

struct softnccl_proxy {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	ncclComm_t comm;
	CUcontext context;
	bool wanted, stopping;
	ncclResult_t result;
};

/* Bound at run time: programs that only register buffers need no driver. */
static struct {
	__typeof__(&cuCtxGetCurrent) get_current;
	__typeof__(&cuCtxSetCurrent) set_current;
	__typeof__(&cuCtxGetDevice) get_device;
	__typeof__(&cuMemCreate) create;
	__typeof__(&cuMemRelease) release;
	__typeof__(&cuMemAddressReserve) reserve;
	__typeof__(&cuMemAddressFree) address_free;
	__typeof__(&cuMemMap) map;
	__typeof__(&cuMemUnmap) unmap;
	__typeof__(&cuMemSetAccess) set_access;
} driver;

static size_t buffer_bytes;
static pthread_mutex_t allocated_lock = PTHREAD_MUTEX_INITIALIZER;
static struct softnccl_buffer *allocated; /* by ncclMemAlloc() */

static bool driver_bind(void)
{
	static const char *const names[] = {"cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxGetDevice",
		"cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemAddressFree",
		"cuMemMap", "cuMemUnmap", "cuMemSetAccess"};
	void *library = dlopen("libcuda.so.1", RTLD_NOW), **functions = (void **)&driver;
	unsigned i;

	_Static_assert(sizeof(driver) == sizeof(names), "a name for each");
	for (i = 0; library && i < sizeof(names) / sizeof(names[0]); i++) {
		functions[i] = dlsym(library, names[i]);
		if (!functions[i])
			return false;
	}
	return library;
}

/* Allocates buffers of so many bytes from now on, a multiple of the granularity. Returns 0, or -1:
 * no driver. */
EXPORT int lien_softnccl_allocate(size_t bytes)
{
	if (!driver.create && !driver_bind())
		return -1;
	buffer_bytes = bytes;
	return 0;
}

static ncclResult_t buffer_make(struct softnccl_buffer **list, size_t bytes)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	struct softnccl_buffer *buffer = calloc(1, sizeof(*buffer));
	CUdevice device = 0;

	if (!buffer)
		return ncclSystemError;
	if (driver.get_device(&device))
		goto failed;
	prop.location.id = access.location.id = device;
	if (driver.create(&buffer->handle, bytes, &prop, 0))
		goto failed;
	if (driver.reserve(&buffer->va, bytes, 0, 0, 0) ||
		driver.map(buffer->va, bytes, 0, buffer->handle, 0) ||
		driver.set_access(buffer->va, bytes, &access, 1))
		abort(); /* the driver is broken: there is nothing to save */
	buffer->bytes = bytes;
	buffer->next = *list;
	*list = buffer;
	return ncclSuccess;
failed:
	free(buffer);
	return ncclSystemError;
}

static void buffer_free(struct softnccl_buffer *buffer)
{
	driver.unmap(buffer->va, buffer->bytes);
	driver.release(buffer->handle);
	driver.address_free(buffer->va, buffer->bytes);
	free(buffer);
}

ncclResult_t softnccl_buffer_new(ncclComm_t comm)
{
	return buffer_bytes ? buffer_make(&softnccl_of(comm)->buffers, buffer_bytes) : ncclSuccess;
}

void softnccl_buffers_free(ncclComm_t comm)
{
	struct softnccl_buffer *buffer;

	while ((buffer = softnccl_of(comm)->buffers)) {
		softnccl_of(comm)->buffers = buffer->next;
		buffer_free(buffer);
	}
}

static void *proxy_run(void *arg)
{
	struct softnccl_proxy *proxy = arg;

	driver.set_current(proxy->context);
	pthread_mutex_lock(&proxy->lock);
	while (!proxy->stopping) {
		if (proxy->wanted) {
			proxy->result = softnccl_buffer_new(proxy->comm);
			proxy->wanted = false;
			pthread_cond_broadcast(&proxy->changed);
		}
		if (!proxy->stopping)
			pthread_cond_wait(&proxy->changed, &proxy->lock);
	}
	pthread_mutex_unlock(&proxy->lock);
	return NULL;
}

static struct softnccl_proxy *proxy_start(ncclComm_t comm)
{
	struct softnccl_proxy *proxy = calloc(1, sizeof(*proxy));

	if (!proxy)
		return NULL;
	pthread_mutex_init(&proxy->lock, NULL);
	pthread_cond_init(&proxy->changed, NULL);
	proxy->comm = comm;
	if (!driver.get_current(&proxy->context) &&
		!pthread_create(&proxy->thread, NULL, proxy_run, proxy))
		return proxy;
	free(proxy);
	return NULL;
}

ncclResult_t softnccl_proxy_buffer(ncclComm_t comm)
{
	struct softnccl_proxy *proxy;

	if (!buffer_bytes)
		return ncclSuccess;
	if (!softnccl_of(comm)->proxy)
		softnccl_of(comm)->proxy = proxy_start(comm);
	proxy = softnccl_of(comm)->proxy;
	if (!proxy)
		return ncclSystemError;
	pthread_mutex_lock(&proxy->lock);
	proxy->wanted = true;
	pthread_cond_broadcast(&proxy->changed);
	while (proxy->wanted)
		pthread_cond_wait(&proxy->changed, &proxy->lock);
	pthread_mutex_unlock(&proxy->lock);
	return proxy->result;
}

void softnccl_proxy_stop(ncclComm_t comm)
{
	struct softnccl_proxy *proxy = softnccl_of(comm)->proxy;

	if (!proxy)
		return;
	pthread_mutex_lock(&proxy->lock);
	proxy->stopping = true;
	pthread_cond_broadcast(&proxy->changed);
	pthread_mutex_unlock(&proxy->lock);
	pthread_join(proxy->thread, NULL);
	free(proxy);
	softnccl_of(comm)->proxy = NULL;
}

/* Runs a single allocation in a thread of its own. */
ncclResult_t softnccl_buffer_new_elsewhere(ncclComm_t comm)
{
	ncclResult_t result = softnccl_proxy_buffer(comm);

	softnccl_proxy_stop(comm);
	return result;
}

/* Kernels that use what it gives out are the program's own. */
EXPORT ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *device_comm)
{
	(void)comm, (void)requirements, (void)device_comm;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclMemAlloc(void **address, size_t bytes)
{
	ncclResult_t result;

	if (!address || !bytes || (!driver.create && !driver_bind()))
		return ncclInvalidArgument;
	pthread_mutex_lock(&allocated_lock);
	result = buffer_make(&allocated, bytes);
	if (!result)
		*address = (void *)allocated->va;
	pthread_mutex_unlock(&allocated_lock);
	return result;
}

EXPORT ncclResult_t ncclMemFree(void *address)
{
	ncclResult_t result = ncclInvalidArgument;
	struct softnccl_buffer **at, *buffer;

	pthread_mutex_lock(&allocated_lock);
	for (at = &allocated; *at; at = &(*at)->next)
		if ((*at)->va == (CUdeviceptr)address)
			break;
	buffer = *at;
	if (buffer) {
		*at = buffer->next;
		buffer_free(buffer);
		result = ncclSuccess;
	}
	pthread_mutex_unlock(&allocated_lock);
	return result;
}
