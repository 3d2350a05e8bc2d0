// SPDX-License-Identifier: BSD-2-Clause
/* Memory of the device and of the host: allocating and freeing it. */
#include <stdlib.h>
#include <sys/mman.h>

#include "same.h"

#define PIECES	    8 /* of ours that can be registered */
#define PIECE_BYTES (16 * PAGE)

static void alloc(void)
{
	bool null = one_in(50);
	size_t size = size_any();
	CUdeviceptr va = 0;

	if (!block_room(size))
		return;
	LOOK_UP(call, cuMemAlloc_v2);
	say("(%s%zu)", null ? "NULL, " : "", size);
	if (say_result(call(null ? NULL : &va, size)))
		return;
	block_fill(block_add(PLAIN, va, size));
	say("%s", va % 256 ? " not aligned" : "");
}

static void alloc_pitch(void)
{
	static const unsigned elements[] = {4, 8, 16, 16, 16, 2, 0};
	size_t width = one_in(20) ? 0 : 1 + below(6000), height = one_in(20) ? 0 : 1 + below(300);
	unsigned element = ANY(elements);
	CUdeviceptr va = 0;
	size_t pitch = 0;

	if (!block_room(4 * MIB))
		return;
	LOOK_UP(call, cuMemAllocPitch_v2);
	say("(%zu, %zu, %u)", width, height, element);
	if (say_result(call(&va, &pitch, width, height, element)))
		return;
	say(" pitch %zu", pitch);
	block_fill(block_add(PITCH, va, pitch * height));
}

static void alloc_managed(void)
{
	static const unsigned flags[] = {CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_GLOBAL, 0, 7};
	unsigned flag = ANY(flags);
	size_t size = size_any();
	CUdeviceptr va = 0;

	if (!block_room(size))
		return;
	LOOK_UP(call, cuMemAllocManaged);
	say("(%zu, %u)", size, flag);
	if (!say_result(call(&va, size, flag)))
		block_fill(block_add(MANAGED, va, size));
}

static void free_block(void)
{
	struct block *block;
	CUdeviceptr va;

	if (!streams_rest())
		return;
	LOOK_UP(call, cuMemFree_v2);
	say("(");
	va = address_any(PLAIN | PITCH | MANAGED | ASYNC, &block);
	say(")");
	ipc_close(block);
	if (!say_result(call(va)) && block)
		block_gone(block);
}

static void info(void)
{
	size_t free = 0, total = 0;

	LOOK_UP(call, cuMemGetInfo_v2);
	say("()");
	if (!say_result(call(&free, &total)))
		say(" total %zu%s", total, free > total ? " and more free" : "");
}

/* --- of the host --- */

static void host_alloc(void)
{
	unsigned flags = below(one_in(10) ? 32 : 4);
	size_t size = one_in(20) ? 0 : 1 + below(HOST_BYTES);
	CUresult result;
	void *va = NULL;

	if (!block_room(size))
		return;
	if (one_in(2)) {
		LOOK_UP(call, cuMemHostAlloc);
		say("(%zu, %u)", size, flags);
		result = call(&va, size, flags);
	} else {
		LOOK_UP(call, cuMemAllocHost_v2);
		say("(%zu)", size);
		result = call(&va, size);
	}
	if (say_result(result))
		return;
	block_add(HOST, (uintptr_t)va, size)->known = size;
	pattern(va, size, below(256));
}

static void host_free(void)
{
	struct block *block = block_any(one_in(10) ? HOST | PLAIN : HOST);

	if (!block || !streams_rest())
		return;
	LOOK_UP(call, cuMemFreeHost);
	say("(a%u)", block->number);
	if (!say_result(call((void *)(uintptr_t)block->va)))
		block_gone(block);
}

static void host_register(void)
{
	static unsigned char *pieces;
	unsigned piece = below(PIECES), flags = below(4);

	if (!pieces)
		pieces = mmap(NULL, PIECES * PIECE_BYTES, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pieces == MAP_FAILED)
		abort();
	LOOK_UP(call, cuMemHostRegister_v2, "cuMemHostRegister");
	say("(piece %u, %u)", piece, flags);
	if (say_result(call(pieces + piece * PIECE_BYTES, PIECE_BYTES, flags)))
		return;
	block_add(REGISTERED, (uintptr_t)(pieces + piece * PIECE_BYTES), PIECE_BYTES)->known =
		PIECE_BYTES;
	pattern(pieces + piece * PIECE_BYTES, PIECE_BYTES, piece);
}

static void host_unregister(void)
{
	struct block *block = block_any(one_in(10) ? HOST | PLAIN | REGISTERED : REGISTERED);

	if (!block || !streams_rest())
		return;
	LOOK_UP(call, cuMemHostUnregister);
	say("(a%u)", block->number);
	if (!say_result(call((void *)(uintptr_t)block->va)))
		block_gone(block);
}

static void host_ask(void)
{
	struct block *block = block_any(HOST | REGISTERED | PLAIN);
	CUdeviceptr device = 0;
	unsigned flags = 0;

	if (!block)
		return;
	if (one_in(2)) {
		LOOK_UP(call, cuMemHostGetDevicePointer_v2);
		say("(a%u)", block->number);
		if (!say_result(call(&device, (void *)(uintptr_t)block->va, 0)))
			say(" %s", address_name(device));
		return;
	}
	LOOK_UP(call, cuMemHostGetFlags);
	say("(a%u)", block->number);
	if (!say_result(call(&flags, (void *)(uintptr_t)block->va)))
		say(" %u", flags);
}

const struct op memory_ops[] = {
	{alloc, 60},
	{alloc_pitch, 10},
	{alloc_managed, 5},
	{free_block, 50},
	{info, 6},
	{host_alloc, 5},
	{host_free, 4},
	{host_register, 3},
	{host_unregister, 3},
	{host_ask, 4},
	{0},
};
