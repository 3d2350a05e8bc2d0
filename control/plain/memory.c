// SPDX-License-Identifier: BSD-2-Clause
/* The heap, and the chunks of virtual memory that it is filled with: where they can be, for whom,
 * and which devices have access. */
#include "control/plain/memory.h"

#include <lien/locked.h>

#include "control/driver/genuine.h"
#include "control/tag/tag.h"

struct lien_heap lien_plain_heap LIEN_ZERO_IN_CHILD;
int lien_plain_enabled;

/* --- devices that have access ----------------------------------------------------------------- */

/*
 * The driver copies plain memory of one device when another one's context is current, and between
 * two, whether or not peer access is enabled; virtual memory only where both have access. So each
 * device that the process has a context on has access to all plain memory that it can reach, from
 * then on, and cuCtxEnablePeerAccess() finds everything done.
 */
static struct {
	uint64_t used;			    /* bits: devices with a context, now or before */
	uint64_t reach[LIEN_PLAIN_DEVICES]; /* bits: of each of these, whose memory it can reach */
} used LIEN_ZERO_IN_CHILD;

static CUmemAccessDesc access_of(CUdevice device)
{
	return (CUmemAccessDesc){
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

/* Bits: the devices on which the process has a context, or had one. */
static uint64_t devices_used(void)
{
	return __atomic_load_n(&used.used, __ATOMIC_SEQ_CST);
}

/* Lets those use it that have access to memory of the device: itself, and those that the process
 * uses and that can reach it; of a pool the device alone. */
LIEN_TRANSLATED static CUresult set_access(struct lien_heap_range range, CUdevice device, int pool)
{
	CUmemAccessDesc access[LIEN_PLAIN_DEVICES] = {access_of(device)};
	uint64_t others = pool ? 0 : devices_used() & ~(1ull << device);
	unsigned n = 1;

	for (; others; others &= others - 1)
		if (used.reach[__builtin_ctzll(others)] >> device & 1)
			access[n++] = access_of(__builtin_ctzll(others));
	return LIEN_REAL(cuMemSetAccess)(range.base, range.bytes, access, n);
}

LIEN_TRANSLATED CUresult lien_plain_allow(struct lien_heap_range range, CUdevice device)
{
	const CUmemAccessDesc access = access_of(device);

	return LIEN_REAL(cuMemSetAccess)(range.base, range.bytes, &access, 1);
}

LIEN_TRANSLATED static uint64_t reach_of(CUdevice device)
{
	uint64_t reach = 0;
	CUdevice other;
	int count, can;

	if (LIEN_REAL(cuDeviceGetCount)(&count))
		return 0;
	for (other = 0; other < count && other < LIEN_PLAIN_DEVICES; other++)
		if (other != device && !LIEN_REAL(cuDeviceCanAccessPeer)(&can, device, other) &&
			can)
			reach |= 1ull << other;
	return reach;
}

/* Where it fails, copies of that chunk with this device's context current do, too. */
LIEN_TRANSLATED static void let_reach(CUdevice device)
{
	struct lien_heap_range chunk = {0};
	struct lien_heap_key key;

	while (lien_heap_next(&lien_plain_heap, chunk.base + chunk.bytes, &chunk, &key))
		if (!key.pool && used.reach[device] >> key.device & 1)
			lien_plain_allow(chunk, device);
}

LIEN_TRANSLATED void lien_plain_use(CUdevice device)
{
	uint64_t bit;

	if (device < 0 || device >= LIEN_PLAIN_DEVICES)
		return;
	bit = 1ull << device;
	if (devices_used() & bit)
		return;
	/* Threads that come here at the same time write the same. */
	__atomic_store_n(&used.reach[device], reach_of(device), __ATOMIC_RELAXED);
	if (!(__atomic_fetch_or(&used.used, bit, __ATOMIC_SEQ_CST) & bit))
		let_reach(device);
}

/* --- who asks --------------------------------------------------------------------------------- */

/* The segments of object files that have asked. A file that is unloaded stays here: then another
 * one that lies in its place shares chunks with its memory, and nothing else happens. */
#define SEGMENTS 256

struct segment {
	uintptr_t begin, end;
};

static struct {
	pthread_mutex_t lock;
	unsigned count;
	struct segment list[SEGMENTS];
} asked LIEN_ZERO_IN_CHILD;

/* Returns a number from 1; 0: it is not known. */
static uint32_t number_of(uintptr_t code)
{
	unsigned i, n = __atomic_load_n(&asked.count, __ATOMIC_ACQUIRE);

	for (i = 0; i < n; i++)
		if (code >= asked.list[i].begin && code < asked.list[i].end)
			return i + 1;
	return 0;
}

/* Looks for the address that is the beginning of *arg, which becomes its segment. */
static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct segment *segment = arg;
	const ElfW(Phdr) *found = lien_segment_of(info, segment->begin);
	uintptr_t begin = found ? info->dlpi_addr + found->p_vaddr : 0;

	(void)size;
	if (found)
		*segment = (struct segment){begin, begin + found->p_memsz};
	return found != NULL;
}

/* Returns the object file that contains the code, as a number that stays the same; 0: code that was
 * generated has none, or there are too many. */
static uint32_t asker_of(const void *code)
{
	struct segment segment = {.begin = (uintptr_t)code};
	uint32_t number = number_of((uintptr_t)code);

	if (number || !dl_iterate_phdr(look, &segment))
		return number;
	LIEN_LOCKED(&asked.lock);
	number = number_of((uintptr_t)code);
	if (number || asked.count == SEGMENTS)
		return number;
	asked.list[asked.count] = segment;
	return __atomic_add_fetch(&asked.count, 1, __ATOMIC_RELEASE);
}

/* --- places ----------------------------------------------------------------------------------- */

static struct device {
	int known, rdma;
	uint64_t granularity; /* 0: it cannot have memory of ours */
} devices[LIEN_PLAIN_DEVICES];

static CUmemAllocationProp prop_for(CUdevice device, int rdma)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
		.allocFlags = {.gpuDirectRDMACapable = rdma},
	};
}

LIEN_TRANSLATED static int has(CUdevice device, CUdevice_attribute attribute)
{
	int value = 0;

	return !LIEN_REAL(cuDeviceGetAttribute)(&value, attribute, device) && value;
}

/* Threads that ask at the same time get the same answers. */
LIEN_TRANSLATED static struct device device_of(CUdevice device)
{
	struct device found = {.known = 1};
	CUmemAllocationProp prop;
	size_t granularity = 0;

	if (device < 0 || device >= LIEN_PLAIN_DEVICES)
		return found;
	if (__atomic_load_n(&devices[device].known, __ATOMIC_ACQUIRE))
		return devices[device];
	found.rdma = has(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	prop = prop_for(device, found.rdma);
	if (has(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
		has(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) &&
		!LIEN_REAL(cuMemGetAllocationGranularity)(
			&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM))
		found.granularity = granularity;
	LIEN_LOCKED(&lien_plain_heap.lock);
	devices[device].rdma = found.rdma;
	devices[device].granularity = found.granularity;
	__atomic_store_n(&devices[device].known, 1, __ATOMIC_RELEASE);
	return found;
}

LIEN_TRANSLATED int lien_plain_place(struct lien_plain_place *place, const void *caller)
{
	struct device found;
	CUcontext context;
	CUdevice device;

	context = lien_plain_current();
	if (!__atomic_load_n(&lien_plain_enabled, __ATOMIC_RELAXED) || !context ||
		LIEN_REAL(cuCtxGetDevice)(&device))
		return 0;
	found = device_of(device);
	if (!found.granularity || lien_plain_refused(context))
		return 0;
	lien_plain_use(device); /* the context may be one that the driver made by itself */
	*place = (struct lien_plain_place){
		.key = {.context = (uintptr_t)context,
			.device = device,
			.asker = asker_of(caller),
			.tag = lien_tag_number()},
		.granularity = found.granularity,
		.rdma = found.rdma,
	};
	return 1;
}

/* --- chunks ----------------------------------------------------------------------------------- */

LIEN_TRANSLATED CUresult lien_plain_unmap(struct lien_heap_range range)
{
	CUresult result = LIEN_REAL(cuMemUnmap)(range.base, range.bytes);

	/* The memory is gone: a failure only leaves the addresses unused. */
	if (!result)
		LIEN_REAL(cuMemAddressFree)(range.base, range.bytes);
	return result;
}

LIEN_TRANSLATED void lien_plain_drop(uint64_t context)
{
	struct lien_heap_range chunk;

	while (lien_heap_drop(&lien_plain_heap, context, &chunk))
		lien_plain_unmap(chunk);
}

LIEN_TRANSLATED CUresult lien_plain_map(CUmemGenericAllocationHandle handle, CUdevice device,
	int pool, struct lien_heap_range *range)
{
	CUdeviceptr at = 0;
	CUresult result = LIEN_REAL(cuMemAddressReserve)(&at, range->bytes, 0, 0, 0), released;

	range->base = at;
	if (!result) {
		result = lien_translate_cuMemMap(at, range->bytes, 0, handle, 0);
		if (result)
			LIEN_REAL(cuMemAddressFree)(at, range->bytes);
	}
	if (result) {
		lien_plain_release(handle);
		return result;
	}
	result = set_access(*range, device, pool);
	released = lien_plain_release(handle);
	if (!result)
		result = released;
	if (result)
		lien_plain_unmap(*range);
	return result;
}

int lien_plain_reuse(const struct lien_plain_place *place, uint64_t bytes,
	struct lien_heap_order *order, CUdeviceptr *ptr)
{
	struct lien_heap_block block;

	if (lien_heap_take(&lien_plain_heap, &place->key, bytes, order, &block))
		return 0;
	*ptr = block.address;
	return 1;
}

/* Makes a chunk for the block. */
LIEN_TRANSLATED static CUresult make_chunk(const struct lien_plain_place *place, uint64_t bytes,
	int least, struct lien_heap_range *chunk)
{
	CUmemAllocationProp prop = prop_for(place->key.device, place->rdma);
	CUmemGenericAllocationHandle handle;
	CUresult result;

	chunk->bytes = lien_heap_chunk_bytes(&place->key, bytes, place->granularity, least);
	if (!chunk->bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = lien_translate_cuMemCreate(&handle, chunk->bytes, &prop, 0);
	return result ? result : lien_plain_map(handle, place->key.device, place->key.pool, chunk);
}

LIEN_TRANSLATED CUresult lien_plain_take(
	const struct lien_plain_place *place, uint64_t bytes, uint64_t *made, CUdeviceptr *ptr)
{
	const uint64_t before = devices_used();
	struct lien_heap_range chunk;
	struct lien_heap_block block;
	CUresult result;

	if (lien_plain_reuse(place, bytes, NULL, ptr))
		return CUDA_SUCCESS;
	result = make_chunk(place, bytes, 0, &chunk);
	if (result && place->key.pool)
		result = make_chunk(place, bytes, 1, &chunk);
	if (result)
		return result;
	if (lien_heap_add(&lien_plain_heap, &place->key, chunk, bytes, &block)) {
		lien_plain_unmap(chunk);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (made)
		*made = chunk.bytes;
	/* Another thread began to use a device, and did not find this chunk. */
	if (before != devices_used())
		set_access(chunk, place->key.device, place->key.pool);
	*ptr = block.address;
	return CUDA_SUCCESS;
}
