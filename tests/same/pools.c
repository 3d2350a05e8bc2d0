// SPDX-License-Identifier: BSD-2-Clause
/* Stream-ordered memory, and its pools. */
#include <unistd.h>

#include "same.h"

#define MADE_MAX 4

static int device_of(const struct stream *stream)
{
	return stream->context ? stream->context->device : current_device();
}

/* Memory that a graph will have is not ours to use. */
static void allocated(
	CUdeviceptr va, size_t size, int device, const struct stream *stream, bool captured)
{
	struct block *block;

	if (captured)
		return;
	block = block_add(ASYNC, va, size);
	block->device = device;
	stream_worked(stream);
	if (current() && current()->device == device && !capture.stream && streams_rest())
		block_fill(block);
	else
		say(": a%u", block->number);
}

static void alloc(void)
{
	bool captured, null = one_in(50);
	struct stream stream = stream_to_work();
	size_t size = size_any();
	CUdeviceptr va = 0;

	if (!block_room(size))
		return;
	captured = stream_captures(&stream);
	LOOK_UP(call, cuMemAllocAsync, "cuMemAllocAsync_ptsz");
	say("(%s%zu, %s)", null ? "NULL, " : "", size, stream_name(&stream));
	if (!say_result(call(null ? NULL : &va, size, stream.handle)))
		allocated(va, size, device_of(&stream), &stream, captured);
}

static void alloc_from(void)
{
	struct stream stream = stream_to_work();
	struct pool *pool = pool_any(false);
	size_t size = size_any();
	CUdeviceptr va = 0;
	bool captured;

	if (!pool || !block_room(size))
		return;
	captured = stream_captures(&stream);
	LOOK_UP(call, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync_ptsz");
	say("(%zu, %s, %s)", size, pool_name(pool->handle), stream_name(&stream));
	if (!say_result(call(&va, size, pool->handle, stream.handle)))
		allocated(va, size, pool->device, &stream, captured);
}

static void free_async(void)
{
	unsigned kinds = one_in(8) ? PLAIN | PITCH | ASYNC : ASYNC;
	struct stream stream = stream_to_work();
	struct block *block;
	CUdeviceptr va;

	if (!streams_rest())
		return;
	LOOK_UP(call, cuMemFreeAsync, "cuMemFreeAsync_ptsz");
	say("(%s, ", stream_name(&stream));
	va = address_any(kinds, &block);
	say(")");
	ipc_close(block);
	if (say_result(call(va, stream.handle)) || address_was_freed)
		return;
	if (block)
		block_gone(block);
	stream_worked(&stream);
}

/* --- pools --- */

static void device_pool(void)
{
	int device = one_in(20) ? 77 : (int)below(devices);
	CUmemoryPool handle = NULL;
	CUresult result;

	if (one_in(2)) {
		LOOK_UP(call, cuDeviceGetDefaultMemPool);
		say("(%d)", device);
		result = call(&handle, device);
		if (!result)
			pool_add(handle, device, true);
	} else {
		LOOK_UP(call, cuDeviceGetMemPool);
		say("(%d)", device);
		result = call(&handle, device);
	}
	if (!say_result(result))
		say(" %s", pool_name(handle));
}

static void set_pool(void)
{
	int device = below(devices);
	struct pool *pool = pool_any(false);

	if (!pool)
		return;
	LOOK_UP(call, cuDeviceSetMemPool);
	say("(%d, %s)", device, pool_name(pool->handle));
	say_result(call(device, pool->handle));
}

static void create(void)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = one_in(3) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, below(devices)},
	};
	CUmemoryPool handle = NULL;

	if (pools_made() >= MADE_MAX)
		return;
	if (one_in(15))
		props.location.id = 77;
	LOOK_UP(call, cuMemPoolCreate);
	say("(%d, %d)", props.location.id, props.handleTypes);
	if (say_result(call(&handle, &props)))
		return;
	pool_add(handle, props.location.id, false);
	say(" %s", pool_name(handle));
}

/* Memory that was allocated from it stays until it is freed. */
static void destroy(void)
{
	struct pool *pool = pool_any(!one_in(10));

	if (!pool || !streams_rest())
		return;
	LOOK_UP(call, cuMemPoolDestroy);
	say("(%s)", pool_name(pool->handle));
	if (!say_result(call(pool->handle)))
		pool->alive = false;
}

static void get_attribute(void)
{
	CUmemPool_attribute attribute = one_in(20) ? 77 : 1 + below(8);
	struct pool *pool = pool_any(false);
	uint64_t value = 0;

	if (!pool || (pool->unclear && attribute > CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) ||
		!streams_rest())
		return;
	LOOK_UP(call, cuMemPoolGetAttribute);
	say("(%s, %d)", pool_name(pool->handle), attribute);
	if (!say_result(call(pool->handle, attribute, &value)))
		say(" %lu", (unsigned long)value);
}

static void set_attribute(void)
{
	static const uint64_t values[] = {0, 0, 1, 4 * MIB, 64 * MIB, UINT64_MAX};
	CUmemPool_attribute attribute = one_in(20) ? 77 : 1 + below(8);
	struct pool *pool = pool_any(false);
	uint64_t value = ANY(values);

	if (!pool)
		return;
	if (attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
		value &= 1;
	LOOK_UP(call, cuMemPoolSetAttribute);
	say("(%s, %d, %lu)", pool_name(pool->handle), attribute, (unsigned long)value);
	say_result(call(pool->handle, attribute, &value));
}

static void trim(void)
{
	struct pool *pool = pool_any(false);
	size_t keep = one_in(2) ? 0 : size_any();

	if (!pool || !streams_rest())
		return;
	LOOK_UP(call, cuMemPoolTrimTo);
	say("(%s, %zu)", pool_name(pool->handle), keep);
	say_result(call(pool->handle, keep));
}

static void access_of(void)
{
	static const CUmemAccess_flags flags[] = {CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
		CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_NONE};
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, below(devices)}, ANY(flags)};
	struct pool *pool = pool_any(!one_in(4));
	CUmemAccess_flags found = 99;

	if (!pool || !streams_rest())
		return;
	if (one_in(2)) {
		LOOK_UP(call, cuMemPoolSetAccess);
		say("(%s, %d, %d)", pool_name(pool->handle), access.location.id, access.flags);
		say_result(call(pool->handle, &access, 1));
		return;
	}
	LOOK_UP(call, cuMemPoolGetAccess);
	say("(%s, %d)", pool_name(pool->handle), access.location.id);
	if (!say_result(call(&found, pool->handle, &access.location)))
		say(" %d", found);
}

static void export(void)
{
	struct pool *pool = pool_any(false);
	CUmemPoolPtrExportData data;
	struct block *block;
	CUdeviceptr va;
	int fd = -1;

	if (!pool)
		return;
	if (one_in(2)) {
		LOOK_UP(call, cuMemPoolExportToShareableHandle);
		say("(%s)", pool_name(pool->handle));
		say_result(call(&fd, pool->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		if (fd >= 0)
			close(fd);
		return;
	}
	LOOK_UP(call, cuMemPoolExportPointer);
	say("(");
	va = address_any(ASYNC | PLAIN, &block);
	say(")");
	say_result(call(&data, va));
}

const struct op pool_ops[] = {
	{alloc, 40},
	{alloc_from, 15},
	{free_async, 40},
	{device_pool, 8},
	{set_pool, 2},
	{create, 3},
	{destroy, 2},
	{get_attribute, 12},
	{set_attribute, 6},
	{trim, 5},
	{access_of, 4},
	{export, 3},
	{0},
};
