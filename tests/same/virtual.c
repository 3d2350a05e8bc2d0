// SPDX-License-Identifier: BSD-2-Clause
/* Virtual memory of the program's own, and its calls with addresses that are none. */
#include <unistd.h>

#include "same.h"

#define FOUND(name) ((__typeof__(&(name)))names_find(#name))
#define FD	    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemAllocationProp prop_of(int device)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = one_in(2) ? FD : 0,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

static CUresult map(CUdeviceptr *va, size_t size, CUmemGenericAllocationHandle handle, int device)
{
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUresult result = FOUND(cuMemAddressReserve)(va, size, 0, 0, 0);

	say(" reserve %d", result);
	if (!result)
		say(" map %d", result = FOUND(cuMemMap)(*va, size, 0, handle, 0));
	if (!result)
		say(" access %d", result = FOUND(cuMemSetAccess)(*va, size, &access, 1));
	return result;
}

/* The mapping alone keeps it. */
static void create(void)
{
	int device = below(devices);
	CUmemAllocationProp prop = prop_of(device);
	size_t size = 2 * MIB * (1 + below(2));
	CUmemGenericAllocationHandle handle = 0;
	struct block *block;
	CUdeviceptr va = 0;
	CUresult result;

	if (!block_room(size))
		return;
	if (one_in(15))
		size--;
	LOOK_UP(call, cuMemCreate);
	say("(%zu, %d)", size, device);
	if (say_result(call(&handle, size, &prop, 0)))
		return;
	result = map(&va, size, handle, device);
	say(" release %d", FOUND(cuMemRelease)(handle));
	if (result)
		return;
	block = block_add(VIRTUAL, va, size);
	block->device = device;
	if (current() && current()->device == device)
		block_fill(block);
	else
		say(": a%u", block->number);
}

static void unmap(void)
{
	struct block *block;
	CUdeviceptr va;

	if (!streams_rest())
		return;
	LOOK_UP(call, cuMemUnmap);
	say("(");
	if (known("plain memory can be unmapped"))
		va = address_whole(VIRTUAL, &block);
	else
		va = address_any(one_in(8) ? ON_DEVICE : VIRTUAL, &block);
	say(")");
	if (say_result(call(va, block ? block->size : 2 * MIB)) || !block)
		return;
	block_gone(block);
	say(" free %d", FOUND(cuMemAddressFree)(va, block->size));
}

static void retain(void)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop = {0};
	struct block *block;
	CUdeviceptr va;
	int fd = -1;

	LOOK_UP(call, cuMemRetainAllocationHandle);
	say("(");
	va = address_any(ON_DEVICE, &block);
	say(")");
	if (say_result(call(&handle, (void *)(uintptr_t)va)))
		return;
	say(" properties %d", FOUND(cuMemGetAllocationPropertiesFromHandle)(&prop, handle));
	say(" of %d, %d", prop.location.id, prop.requestedHandleTypes);
	if (prop.requestedHandleTypes)
		say(" export %d", FOUND(cuMemExportToShareableHandle)(&fd, handle, FD, 0));
	if (fd >= 0)
		close(fd);
	say(" release %d", FOUND(cuMemRelease)(handle));
}

static void access_of(void)
{
	CUmemAccessDesc access = {
		{CU_MEM_LOCATION_TYPE_DEVICE, below(devices)}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	unsigned long long flags = 0;
	struct block *block;
	CUdeviceptr va;

	if (one_in(2)) {
		LOOK_UP(call, cuMemGetAccess);
		say("(%d, ", access.location.id);
		va = address_any(one_in(4) ? ON_DEVICE : VIRTUAL, &block);
		say(")");
		if (!say_result(call(&flags, &access.location, va)))
			say(" %llu", flags);
		return;
	}
	LOOK_UP(call, cuMemSetAccess);
	say("(%d, ", access.location.id);
	if (known("access to memory of a pool can be given"))
		va = address_any((one_in(4) ? PLAIN | PITCH : VIRTUAL) | NOT_FREED, &block);
	else
		va = address_any((one_in(4) ? ON_DEVICE : VIRTUAL) | NOT_FREED, &block);
	say(")");
	say_result(call(va, block ? block->size : 2 * MIB, &access, 1));
}

static void address_free(void)
{
	struct block *block;
	CUdeviceptr va;

	LOOK_UP(call, cuMemAddressFree);
	say("(");
	va = address_any(ON_DEVICE, &block);
	say(")");
	say_result(call(va, block ? block->size : 2 * MIB));
}

/* Not where an address has to be a multiple of a page by chance, and not memory of a pool
 * (plain.md, "Limits"). */
static void range_handle(void)
{
	struct block *block = block_any(PLAIN | PITCH | VIRTUAL);
	size_t size = one_in(10) ? 64 * MIB : PAGE * (1 + below(3));
	int fd = -1;

	if (!block || block->size < 2 * MIB)
		return;
	LOOK_UP(call, cuMemGetHandleForAddressRange);
	say("(a%u, %zu)", block->number, size);
	say_result(call(&fd, block->va, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	if (fd >= 0)
		close(fd);
}

const struct op virtual_ops[] = {
	{create, 6},
	{unmap, 5},
	{retain, 6},
	{access_of, 8},
	{address_free, 2},
	{range_handle, 3},
	{0},
};
