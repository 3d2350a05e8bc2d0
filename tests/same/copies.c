// SPDX-License-Identifier: BSD-2-Clause
/* Contents: what is written, copied and read. Only what has been written is read. */
#include <string.h>

#include "same.h"

#define KNOWN	 (256ull << 10) /* of a block, from its beginning */
#define TOO_MUCH (1ull << 40)

static unsigned char host[HOST_BYTES]; /* pageable */

uint64_t sum_of(const void *memory, size_t bytes)
{
	const unsigned char *at = memory;
	uint64_t sum = 0xcbf29ce484222325;

	for (size_t i = 0; i < bytes; i++)
		sum = (sum ^ at[i]) * 0x100000001b3;
	return sum >> 20;
}

void pattern(void *memory, size_t bytes, unsigned seed)
{
	unsigned char *at = memory;

	for (size_t i = 0; i < bytes; i++)
		at[i] = (i * 7 + (i >> 8) * 13) ^ seed;
}

/* The context is the block's own: it has just been allocated. */
void block_fill(struct block *block)
{
	__typeof__(&cuMemsetD8_v2) set = names_find("cuMemsetD8_v2");
	size_t bytes = block->size < KNOWN ? block->size : KNOWN;
	CUresult result = set(block->va, block->number, bytes);

	say(": a%u", block->number);
	if (result)
		say(" not filled: %d", result);
	else
		block->known = bytes;
}

bool span_any(unsigned kinds, struct block **block, size_t *offset, size_t *bytes)
{
	*block = block_any(kinds);
	if (!*block || !(*block)->known)
		return false;
	*offset = one_in(2) ? 0 : below((*block)->known);
	*bytes = (*block)->known - *offset;
	if (*bytes > HOST_BYTES)
		*bytes = HOST_BYTES;
	if (one_in(2))
		*bytes = 1 + below(*bytes);
	return true;
}

/* --- between the host and the device --- */

static void write_now(void)
{
	struct block *block;
	size_t offset, bytes;

	if (!span_any(ON_DEVICE, &block, &offset, &bytes) || !streams_rest())
		return;
	if (one_in(40))
		bytes = 0;
	pattern(host, bytes, below(256));
	LOOK_UP(call, cuMemcpyHtoD_v2, "cuMemcpyHtoD_v2_ptds");
	say("(a%u+%zu, %zu)", block->number, offset, bytes);
	say_result(call(block->va + offset, host, bytes));
}

static void read_now(void)
{
	struct block *block;
	size_t offset, bytes;

	if (!span_any(ON_DEVICE, &block, &offset, &bytes) || !streams_rest())
		return;
	memset(host, 0, bytes);
	if (one_in(3)) {
		LOOK_UP(call, cuMemcpy, "cuMemcpy_ptds");
		say("(host, a%u+%zu, %zu)", block->number, offset, bytes);
		say_result(call((uintptr_t)host, block->va + offset, bytes));
	} else {
		LOOK_UP(call, cuMemcpyDtoH_v2, "cuMemcpyDtoH_v2_ptds");
		say("(a%u+%zu, %zu)", block->number, offset, bytes);
		say_result(call(host, block->va + offset, bytes));
	}
	say(" sum %#lx", (unsigned long)sum_of(host, bytes));
}

/* --- streams: host memory that is pinned, and pageable memory of which nothing is read --- */

static void write_later(void)
{
	struct stream stream = stream_to_work();
	struct block *block;
	size_t offset, bytes;

	if (!span_any(ON_DEVICE, &block, &offset, &bytes) || !streams_rest())
		return;
	pattern(host, bytes, below(256));
	LOOK_UP(call, cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync_v2_ptsz");
	say("(a%u+%zu, %zu, %s)", block->number, offset, bytes, stream_name(&stream));
	if (!say_result(call(block->va + offset, host, bytes, stream.handle)))
		stream_worked(&stream);
}

static void read_later(void)
{
	struct stream stream = stream_to_work();
	struct block *block, *pinned = block_any(HOST | REGISTERED);
	size_t offset, bytes;

	if (!pinned || !span_any(ON_DEVICE, &block, &offset, &bytes) || !streams_rest())
		return;
	if (bytes > pinned->size)
		bytes = pinned->size;
	LOOK_UP(call, cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync_v2_ptsz");
	say("(a%u, a%u+%zu, %zu, %s)", pinned->number, block->number, offset, bytes,
		stream_name(&stream));
	if (say_result(
		    call((void *)(uintptr_t)pinned->va, block->va + offset, bytes, stream.handle)))
		return;
	stream_worked(&stream);
}

static void see_host(void)
{
	struct block *block = block_any(HOST | REGISTERED);

	if (!block || !streams_rest())
		return;
	say("memory of the host(a%u) sum %#lx", block->number,
		(unsigned long)sum_of((void *)(uintptr_t)block->va, block->size));
	if (one_in(2))
		pattern((void *)(uintptr_t)block->va, block->size, below(256));
}

/* --- between blocks --- */

/* Parts that do not overlap. */
static bool two_spans(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes)
{
	struct block *source, *block;
	size_t offset, at, room;

	if (!span_any(ON_DEVICE | HOST | REGISTERED, &source, &offset, bytes) ||
		!span_any(ON_DEVICE, &block, &at, &room) || block == source || !streams_rest())
		return false;
	if (*bytes > room)
		*bytes = room;
	*to = block->va + at;
	*from = source->va + offset;
	if (one_in(60))
		*bytes = TOO_MUCH;
	return true;
}

static void copy_now(void)
{
	CUdeviceptr to, from;
	size_t bytes;

	if (!two_spans(&to, &from, &bytes))
		return;
	if (one_in(2)) {
		LOOK_UP(call, cuMemcpy, "cuMemcpy_ptds");
		say("(%s, %s, %zu)", address_name(to), address_name(from), bytes);
		say_result(call(to, from, bytes));
		return;
	}
	LOOK_UP(call, cuMemcpyDtoD_v2, "cuMemcpyDtoD_v2_ptds");
	say("(%s, %s, %zu)", address_name(to), address_name(from), bytes);
	say_result(call(to, from, bytes));
}

static void copy_later(void)
{
	struct stream stream = stream_to_work();
	CUdeviceptr to, from;
	CUresult result;
	size_t bytes;

	if (!two_spans(&to, &from, &bytes))
		return;
	if (one_in(2)) {
		LOOK_UP(call, cuMemcpyAsync, "cuMemcpyAsync_ptsz");
		say("(%s, %s, %zu, %s)", address_name(to), address_name(from), bytes,
			stream_name(&stream));
		result = call(to, from, bytes, stream.handle);
	} else {
		LOOK_UP(call, cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync_v2_ptsz");
		say("(%s, %s, %zu, %s)", address_name(to), address_name(from), bytes,
			stream_name(&stream));
		result = call(to, from, bytes, stream.handle);
	}
	if (!say_result(result))
		stream_worked(&stream);
}

/* --- sets: of memory of the current context only (plain.md: the driver refuses others') --- */

static bool span_of_current(struct block **block, size_t *offset, size_t *bytes)
{
	return span_any(ON_DEVICE, block, offset, bytes) && current() &&
	       ((*block)->context ? (*block)->context == current()
				  : (*block)->device == current_device()) &&
	       streams_rest();
}

static void set_now(void)
{
	unsigned value = below(256);
	struct block *block;
	size_t offset, bytes;

	if (!span_of_current(&block, &offset, &bytes))
		return;
	if (one_in(3)) {
		offset = one_in(10) ? offset : offset / 4 * 4;
		LOOK_UP(call, cuMemsetD32_v2, "cuMemsetD32_v2_ptds");
		say("(a%u+%zu, %u, %zu)", block->number, offset, value, bytes / 4);
		say_result(call(block->va + offset, value, bytes / 4));
		return;
	}
	if (one_in(60))
		bytes = TOO_MUCH;
	LOOK_UP(call, cuMemsetD8_v2, "cuMemsetD8_v2_ptds");
	say("(a%u+%zu, %u, %zu)", block->number, offset, value, bytes);
	say_result(call(block->va + offset, value, bytes));
}

static void set_later(void)
{
	struct stream stream = stream_to_work();
	unsigned value = below(256);
	struct block *block;
	size_t offset, bytes;

	if (!span_of_current(&block, &offset, &bytes) ||
		(stream.number && stream.context != current()))
		return;
	LOOK_UP(call, cuMemsetD8Async, "cuMemsetD8Async_ptsz");
	say("(a%u+%zu, %u, %zu, %s)", block->number, offset, value, bytes, stream_name(&stream));
	if (!say_result(call(block->va + offset, value, bytes, stream.handle)))
		stream_worked(&stream);
}

const struct op copy_ops[] = {
	{write_now, 25},
	{read_now, 40},
	{write_later, 12},
	{read_later, 8},
	{see_host, 8},
	{copy_now, 20},
	{copy_later, 15},
	{set_now, 15},
	{set_later, 10},
	{0},
};
