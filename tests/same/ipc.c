// SPDX-License-Identifier: BSD-2-Clause
/* Legacy IPC, with a process that opens what this one has. */
#include "same.h"

#define HANDLES 8

static struct handle {
	bool have;
	CUipcMemHandle handle;
	struct block *block;
	unsigned number; /* of the block */
} handles[HANDLES];

static struct slot {
	struct block *block; /* NULL: nothing is open here */
	unsigned number;
	size_t bytes; /* to the end, from where it was opened */
} slots[PEER_SLOTS];

static void get(void)
{
	struct handle *at = &handles[below(HANDLES)];
	struct block *block;
	CUipcMemHandle handle;
	CUdeviceptr va;

	LOOK_UP(call, cuIpcGetMemHandle);
	say("(");
	va = address_any(known("the agent does not follow a handle of what was freed")
				 ? ON_DEVICE | NOT_FREED
				 : ON_DEVICE,
		&block);
	say(")");
	if (!say_result(call(&handle, va)) && block)
		*at = (struct handle){true, handle, block, block->number};
}

static bool stands(const struct handle *handle)
{
	return handle->have && handle->block->number == handle->number && handle->block->live;
}

/* The own process cannot. */
static void open_own(void)
{
	struct handle *handle = &handles[below(HANDLES)];
	CUdeviceptr va = 0;

	if (!stands(handle))
		return;
	LOOK_UP(call, cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle");
	say("(a%u's)", handle->number);
	say_result(call(&va, handle->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

static void close_own(void)
{
	struct block *block;
	CUdeviceptr va;

	LOOK_UP(call, cuIpcCloseMemHandle);
	say("(");
	va = address_any(ON_DEVICE, &block);
	say(")");
	say_result(call(va));
}

/* --- the other process --- */

static void peer_open(void)
{
	struct handle *handle = &handles[below(HANDLES)];
	unsigned slot = below(PEER_SLOTS);
	struct peer_request request = {.call = PEER_OPEN,
		.slot = slot,
		.old = one_in(3),
		.device = below(devices),
		.handle = handle->handle};
	struct peer_answer answer;

	if (!handle->have || slots[slot].block || !streams_rest())
		return;
	say("other: cuIpcOpenMemHandle(a%u's%s, %d) %u", handle->number,
		stands(handle) ? "" : ", which is freed", request.device, slot);
	answer = peer_ask(&request);
	say_result(answer.result);
	if (answer.result)
		return;
	slots[slot] = (struct slot){handle->block, handle->number, handle->block->known};
	handle->block->opens++;
	request.call = PEER_RANGE;
	answer = peer_ask(&request);
	say(" range: %d, +%lu, %lu", answer.result, (unsigned long)answer.value[0],
		(unsigned long)answer.value[1]);
}

static void close_slot(unsigned slot)
{
	struct peer_request request = {.call = PEER_CLOSE, .slot = slot};
	struct peer_answer answer = peer_ask(&request);

	if (answer.result)
		say(" other: closing a%u: %d", slots[slot].number, answer.result);
	slots[slot].block->opens--;
	slots[slot].block = NULL;
}

static void peer_close(void)
{
	unsigned slot = below(PEER_SLOTS);

	if (!slots[slot].block)
		return;
	say("other: cuIpcCloseMemHandle(%u)", slot);
	close_slot(slot);
}

void ipc_close(const struct block *block)
{
	for (unsigned i = 0; i < PEER_SLOTS; i++)
		if (slots[i].block && (!block || slots[i].block == block))
			close_slot(i);
}

static void peer_see(void)
{
	unsigned slot = below(PEER_SLOTS);
	struct peer_request request = {
		.call = one_in(3) ? PEER_SET : PEER_SUM, .slot = slot, .value = below(256)};
	struct peer_answer answer;

	if (!slots[slot].block || !slots[slot].bytes || !streams_rest())
		return;
	request.offset = below(slots[slot].bytes);
	request.bytes = slots[slot].bytes - request.offset;
	if (request.bytes > HOST_BYTES)
		request.bytes = HOST_BYTES;
	answer = peer_ask(&request);
	say("other: %s(a%u+%zu, %zu)", request.call == PEER_SET ? "set" : "sum", slots[slot].number,
		request.offset, request.bytes);
	if (!say_result(answer.result) && request.call == PEER_SUM)
		say(" %#lx", (unsigned long)answer.value[0]);
}

const struct op ipc_ops[] = {
	{get, 10},
	{open_own, 3},
	{close_own, 2},
	{peer_open, 10},
	{peer_close, 4},
	{peer_see, 15},
	{0},
};
