/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Multicast objects. An object is a memfd as large as the object (host memory that is used only
 * where a mapping of it is written: nothing is multicast), and one page more that says what all who
 * share it have to agree on: the size of the team and the devices in it. Which memory is bound is
 * known to the process that bound it. Bound memory is held until it is unbound or the object goes.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "softcuda.h"

#define MULTICAST_NAME "lien-softcuda-multicast-"
#define SHARED_PAGE    4096

struct shared {
	uint64_t size;
	uint32_t wanted;       /* devices */
	uint32_t types;	       /* of handles that it may be exported as */
	_Atomic uint64_t team; /* a bit for each device, as all processes number them */
};

struct soft_multicast {
	struct shared *shared;
	LIST_HEAD(, soft_binding) bindings;
};

uint64_t soft_multicast_team(const struct soft_allocation *multicast, unsigned int *wanted)
{
	*wanted = multicast->multicast->shared->wanted;
	return atomic_load(&multicast->multicast->shared->team);
}

struct soft_binding *soft_multicast_bindings(const struct soft_allocation *multicast)
{
	return LIST_FIRST(&multicast->multicast->bindings);
}

static void unbind(struct soft_binding *binding)
{
	LIST_REMOVE(binding, entry);
	binding->memory->bindings--;
	soft_allocation_put(binding->memory);
	free(binding);
}

void soft_multicast_free(struct soft_allocation *allocation)
{
	struct soft_multicast *multicast = allocation->multicast;

	while (!LIST_EMPTY(&multicast->bindings))
		unbind(LIST_FIRST(&multicast->bindings));
	munmap(multicast->shared, SHARED_PAGE);
	free(multicast);
}

/* Around an open multicast file, whose fd goes with it. */
static CUresult wrap(struct soft_allocation **made, int fd, size_t size)
{
	CUmemAllocationProp prop = {.location.id = -1};
	struct soft_multicast *multicast = calloc(1, sizeof(*multicast));
	CUresult result;
	void *at;

	at = multicast ? mmap(NULL, SHARED_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, size)
		       : MAP_FAILED;
	if (at == MAP_FAILED) {
		free(multicast);
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	madvise(at, SHARED_PAGE, MADV_DONTFORK);
	multicast->shared = at;
	LIST_INIT(&multicast->bindings);
	result = soft_allocation_wrap(made, fd, size, &prop);
	if (result) {
		munmap(at, SHARED_PAGE);
		free(multicast);
		return result;
	}
	(*made)->multicast = multicast;
	return CUDA_SUCCESS;
}

struct soft_allocation *soft_multicast_import(
	int fd, CUmemAllocationHandleType type, CUresult *result)
{
	struct soft_allocation *made = NULL;
	struct stat st;
	int own;

	if (!soft_backing_is_memfd(fd, MULTICAST_NAME, type, SOFT_GRANULARITY + SHARED_PAGE) ||
		fstat(fd, &st))
		return NULL;
	own = soft_backing_reopen(fd);
	*result = own < 0 ? soft_result(own) : wrap(&made, own, st.st_size - SHARED_PAGE);
	if (made)
		made->prop.requestedHandleTypes = made->multicast->shared->types;
	return made;
}

static bool prop_ok(const CUmulticastObjectProp *prop)
{
	return prop && prop->numDevices && prop->numDevices <= SOFT_MAX_DEVICES && prop->size &&
	       !(prop->size % SOFT_GRANULARITY) && !prop->flags &&
	       !(prop->handleTypes & ~(unsigned long long)SOFT_HANDLE_TYPES);
}

SOFT_EXPORT CUresult cuMulticastGetGranularity(
	size_t *granularity, const CUmulticastObjectProp *prop, CUmulticastGranularity_flags option)
{
	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	/* The size is not looked at: it is what the caller is about to make whole. */
	if (!granularity || !prop || !prop->numDevices || prop->flags ||
		(option != CU_MULTICAST_GRANULARITY_MINIMUM &&
			option != CU_MULTICAST_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	*granularity = SOFT_GRANULARITY;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMulticastCreate(
	CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	struct soft_allocation *made;
	struct shared *shared;
	CUresult result;
	int fd;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!handle || !prop_ok(prop))
		return CUDA_ERROR_INVALID_VALUE;
	fd = soft_backing_memfd(
		MULTICAST_NAME, prop->numDevices, prop->handleTypes, prop->size + SHARED_PAGE);
	if (fd < 0)
		return soft_result(fd);
	result = wrap(&made, fd, prop->size);
	if (result)
		return result;
	shared = made->multicast->shared;
	shared->size = prop->size;
	shared->wanted = prop->numDevices;
	shared->types = prop->handleTypes;
	made->prop.requestedHandleTypes = prop->handleTypes;
	pthread_rwlock_wrlock(&soft.lock);
	soft_allocation_list(made);
	*handle = soft_allocation_adopt(made);
	pthread_rwlock_unlock(&soft.lock);
	return CUDA_SUCCESS;
}

static struct soft_allocation *use(CUmemGenericAllocationHandle handle, const char *call)
{
	struct soft_allocation *found = soft_handle_use(handle, call);

	return found && found->multicast ? found : NULL;
}

static CUresult join(struct shared *shared, uint64_t device)
{
	uint64_t team = atomic_load(&shared->team);

	do {
		if (team & device || __builtin_popcountll(team) >= (int)shared->wanted)
			return CUDA_ERROR_INVALID_VALUE;
	} while (!atomic_compare_exchange_weak(&shared->team, &team, team | device));
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
	struct soft_allocation *multicast;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_rwlock_wrlock(&soft.lock);
	multicast = use(handle, "cuMulticastAddDevice");
	if (multicast)
		result = join(multicast->multicast->shared, 1ull << soft.device[device].physical);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

/* "Any calls to cuMulticastBindMem or BindAddr will block until all devices have been added." */
CUresult soft_multicast_wait(CUmemGenericAllocationHandle handle, const char *call)
{
	struct soft_allocation *found;
	unsigned int wanted;

	for (;;) {
		found = soft_handle_use(handle, call);
		if (!found)
			return CUDA_ERROR_INVALID_VALUE;
		if (!found->multicast ||
			__builtin_popcountll(soft_multicast_team(found, &wanted)) >= (int)wanted)
			return CUDA_SUCCESS;
		pthread_rwlock_unlock(&soft.lock);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		pthread_rwlock_wrlock(&soft.lock);
	}
}

static bool in_team(const struct soft_allocation *multicast, CUdevice device)
{
	return atomic_load(&multicast->multicast->shared->team) >> soft.device[device].physical & 1;
}

static bool whole_within(size_t offset, size_t size, size_t total)
{
	return size && !(size % SOFT_GRANULARITY) && !(offset % SOFT_GRANULARITY) &&
	       size <= total && offset <= total - size;
}

static CUresult check_memory(
	const struct soft_allocation *multicast, const struct soft_allocation *memory)
{
	if (memory->multicast || memory->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!in_team(multicast, memory->prop.location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	/* "Externally shareable ... can be bound only to externally shareable memory." */
	if (multicast->prop.requestedHandleTypes && !memory->prop.requestedHandleTypes)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult bind(struct soft_allocation *multicast, const struct soft_binding *what)
{
	struct soft_multicast *of = multicast->multicast;
	struct soft_binding *binding;
	CUresult result = check_memory(multicast, what->memory);

	if (result)
		return result;
	if (!whole_within(what->offset, what->size, multicast->size) ||
		!whole_within(what->memory_offset, what->size, what->memory->size))
		return CUDA_ERROR_INVALID_VALUE;
	LIST_FOREACH (binding, &of->bindings, entry) {
		if (binding->device == what->device &&
			binding->offset < what->offset + what->size &&
			what->offset < binding->offset + binding->size)
			return CUDA_ERROR_INVALID_VALUE;
	}
	/* The binding is to hold the memory when nothing else does; its file does that. */
	binding = what->memory->fd < 0 ? NULL : malloc(sizeof(*binding));
	if (!binding)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*binding = *what;
	binding->memory->bindings++;
	LIST_INSERT_HEAD(&of->bindings, binding, entry);
	return CUDA_SUCCESS;
}

/* The _v2 functions (CUDA 13.1) name the device on which the memory is bound. It must be the
 * memory's own. */
#define OWN_DEVICE -1

static CUresult bind_memory(const char *call, CUmemGenericAllocationHandle handle, CUdevice device,
	size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	struct soft_binding what = {.offset = offset, .size = size, .memory_offset = memory_offset};
	struct soft_allocation *multicast;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!size || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&soft.lock);
	result = soft_multicast_wait(handle, call);
	multicast = result ? NULL : use(handle, call);
	what.memory = soft_handle_use(memory, call);
	if (multicast && what.memory) {
		what.device = what.memory->prop.location.id;
		result = device == OWN_DEVICE || device == what.device ? bind(multicast, &what)
								       : CUDA_ERROR_INVALID_DEVICE;
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	SOFT_FAULT();
	return bind_memory("cuMulticastBindMem", handle, OWN_DEVICE, offset, memory, memory_offset,
		size, flags);
}

SOFT_EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle handle, CUdevice device,
	size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	SOFT_FAULT();
	return device < 0 ? CUDA_ERROR_INVALID_DEVICE
			  : bind_memory("cuMulticastBindMem_v2", handle, device, offset, memory,
				    memory_offset, size, flags);
}

static CUresult bind_address(const char *call, CUmemGenericAllocationHandle handle, CUdevice device,
	size_t offset, CUdeviceptr ptr, size_t size, unsigned long long flags)
{
	struct soft_binding what = {.offset = offset, .size = size};
	struct soft_allocation *multicast;
	struct soft_mapping *mapping;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!size || flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&soft.lock);
	result = soft_multicast_wait(handle, call);
	multicast = result ? NULL : use(handle, call);
	mapping = soft_mapping_find(ptr);
	/* "The memory must have been allocated via cuMemCreate or cudaMallocAsync." */
	if (multicast && mapping && size <= mapping->size - (ptr - mapping->base) &&
		(mapping->kind == SOFT_VMM || (mapping->kind == SOFT_ASYNC && mapping->bytes))) {
		what.memory = mapping->allocation;
		what.memory_offset = ptr - mapping->base;
		what.device = what.memory->prop.location.id;
		result = device == OWN_DEVICE || device == what.device ? bind(multicast, &what)
								       : CUDA_ERROR_INVALID_DEVICE;
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
	}
	pthread_rwlock_unlock(&soft.lock);
	return result;
}

SOFT_EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset,
	CUdeviceptr ptr, size_t size, unsigned long long flags)
{
	SOFT_FAULT();
	return bind_address("cuMulticastBindAddr", handle, OWN_DEVICE, offset, ptr, size, flags);
}

SOFT_EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle handle, CUdevice device,
	size_t offset, CUdeviceptr ptr, size_t size, unsigned long long flags)
{
	SOFT_FAULT();
	return device < 0 ? CUDA_ERROR_INVALID_DEVICE
			  : bind_address("cuMulticastBindAddr_v2", handle, device, offset, ptr,
				    size, flags);
}

static CUresult unbind_one(
	struct soft_allocation *multicast, CUdevice device, size_t offset, size_t size)
{
	struct soft_binding *binding;

	if (!in_team(multicast, device))
		return CUDA_ERROR_INVALID_DEVICE;
	LIST_FOREACH (binding, &multicast->multicast->bindings, entry) {
		if (binding->device == device && binding->offset == offset &&
			binding->size == size) {
			unbind(binding);
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_VALUE;
}

SOFT_EXPORT CUresult cuMulticastUnbind(
	CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size)
{
	struct soft_allocation *multicast;
	CUresult result = CUDA_ERROR_INVALID_VALUE;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!soft_device_ok(device))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_rwlock_wrlock(&soft.lock);
	multicast = use(handle, "cuMulticastUnbind");
	if (multicast)
		result = unbind_one(multicast, device, offset, size);
	pthread_rwlock_unlock(&soft.lock);
	return result;
}
