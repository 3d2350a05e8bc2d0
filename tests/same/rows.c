// SPDX-License-Identifier: BSD-2-Clause
/* Copies of rows, and between the memory of two contexts. */
#include "same.h"

#define WIDTH_MAX 256
#define ROWS_MAX  32

static unsigned char host[WIDTH_MAX * ROWS_MAX];

/* One side: device memory, or the host's as a last resort. Says which. */
static bool side_any(struct block **block, size_t *offset, size_t need)
{
	size_t bytes;

	return span_any(ON_DEVICE, block, offset, &bytes) && (*block)->known >= need &&
	       (*offset = *offset % ((*block)->known - need + 1), true);
}

static bool rows_any(CUDA_MEMCPY2D *rows)
{
	static const CUmemorytype types[] = {
		CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED};
	size_t width = 1 + below(WIDTH_MAX), height = 1 + below(ROWS_MAX), offset;
	size_t pitch = one_in(30) && width > 1 ? width - 1 : width + below(64);
	struct block *to, *from;

	*rows = (CUDA_MEMCPY2D){.WidthInBytes = width, .Height = height};
	if (!side_any(&to, &offset, pitch * height + width))
		return false;
	rows->dstMemoryType = ANY(types);
	rows->dstDevice = to->va + offset;
	rows->dstPitch = pitch;
	say("(a%u+%zu pitch %zu, ", to->number, offset, pitch);
	if (one_in(3) || !side_any(&from, &offset, pitch * height + width) || from == to) {
		pattern(host, sizeof(host), below(256));
		rows->srcMemoryType = CU_MEMORYTYPE_HOST;
		rows->srcHost = host;
		rows->srcPitch = width;
		say("host");
	} else {
		rows->srcMemoryType = ANY(types);
		rows->srcDevice = from->va + offset;
		rows->srcPitch = pitch;
		say("a%u+%zu", from->number, offset);
	}
	say(", %zu * %zu)", width, height);
	return true;
}

static void copy_now(void)
{
	CUDA_MEMCPY2D rows;

	if (!block_any(ON_DEVICE) || !streams_rest())
		return;
	LOOK_UP(call, cuMemcpy2D_v2, "cuMemcpy2D_v2_ptds", "cuMemcpy2DUnaligned_v2",
		"cuMemcpy2DUnaligned_v2_ptds");
	if (rows_any(&rows))
		say_result(call(&rows));
}

static void copy_later(void)
{
	struct stream stream = stream_to_work();
	CUDA_MEMCPY2D rows;

	if (!block_any(ON_DEVICE) || !streams_rest())
		return;
	LOOK_UP(call, cuMemcpy2DAsync_v2, "cuMemcpy2DAsync_v2_ptsz");
	if (!rows_any(&rows))
		return;
	say(" in %s", stream_name(&stream));
	if (!say_result(call(&rows, stream.handle)))
		stream_worked(&stream);
}

/* Memory of a pool belongs to no context: any one of its device will do. */
static struct context *context_of(const struct block *block)
{
	return block->context		      ? block->context
	       : primary[block->device].alive ? &primary[block->device]
					      : NULL;
}

static void between(void)
{
	struct stream stream = stream_to_work();
	struct block *to, *from;
	size_t at, offset, bytes, room;
	CUresult result;

	if (!span_any(ON_DEVICE & ~MANAGED, &from, &offset, &bytes) ||
		!span_any(ON_DEVICE & ~MANAGED, &to, &at, &room) || from == to || !context_of(to) ||
		!context_of(from) || !streams_rest())
		return;
	if (bytes > room)
		bytes = room;
	if (one_in(2)) {
		LOOK_UP(call, cuMemcpyPeer, "cuMemcpyPeer_ptds");
		say("(a%u+%zu, a%u+%zu, %zu)", to->number, at, from->number, offset, bytes);
		say_result(call(to->va + at, context_of(to)->handle, from->va + offset,
			context_of(from)->handle, bytes));
		return;
	}
	LOOK_UP(call, cuMemcpyPeerAsync, "cuMemcpyPeerAsync_ptsz");
	say("(a%u+%zu, a%u+%zu, %zu, %s)", to->number, at, from->number, offset, bytes,
		stream_name(&stream));
	result = say_result(call(to->va + at, context_of(to)->handle, from->va + offset,
		context_of(from)->handle, bytes, stream.handle));
	if (!result)
		stream_worked(&stream);
}

const struct op row_ops[] = {
	{copy_now, 10},
	{copy_later, 8},
	{between, 8},
	{0},
};
