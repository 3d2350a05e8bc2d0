// SPDX-License-Identifier: BSD-2-Clause
/* Queries about an address. */
#include <string.h>

#include "same.h"

#define ANY_KIND (ON_DEVICE | HOST | REGISTERED)
#define BUFFERS	 512

static const int attributes[] = {
	CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CU_POINTER_ATTRIBUTE_BUFFER_ID,
	CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPED,
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
	999, /* none */
};

/* Numbers of buffers are unique in a process, and no more is said of them. */
static unsigned buffer_name(uint64_t id)
{
	static uint64_t ids[BUFFERS];
	static unsigned count;

	for (unsigned i = 0; i < count; i++)
		if (ids[i] == id)
			return i + 1;
	if (count < BUFFERS)
		ids[count++] = id;
	return count;
}

static void say_value(int attribute, uint64_t value)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		say(" %s", context_name((CUcontext)(uintptr_t)value));
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		say(" %s", address_name(value));
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		say(" %s", pool_name((CUmemoryPool)(uintptr_t)value));
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		if (known("virtual memory has another number after a restore") &&
			address_kind == VIRTUAL)
			break;
		say(" b%u", value ? buffer_name(value) : 0);
		break;
	default:
		say(" %lu", (unsigned long)value);
	}
}

static void range(void)
{
	bool no_base = one_in(8), no_size = one_in(8);
	CUdeviceptr base = 0, va;
	struct block *block;
	size_t size = 0;

	LOOK_UP(call, cuMemGetAddressRange_v2);
	say("(");
	va = address_any(ANY_KIND, &block);
	say("%s%s)", no_base ? ", no base" : "", no_size ? ", no size" : "");
	if (!say_result(call(no_base ? NULL : &base, no_size ? NULL : &size, va)))
		say(" %s %zu", address_name(base), size);
}

static void attribute(void)
{
	int number = ANY(attributes);
	struct block *block;
	uint64_t value = 0;
	CUdeviceptr va;

	LOOK_UP(call, cuPointerGetAttribute);
	say("(%d, ", number);
	va = address_any(ANY_KIND, &block);
	say(")");
	if (!say_result(call(&value, number, va)) && !address_was_freed)
		say_value(number, value);
}

static void several(void)
{
	unsigned count = 1 + below(5);
	CUpointer_attribute numbers[5];
	uint64_t values[5] = {0};
	struct block *block;
	void *data[5];
	CUdeviceptr va;

	for (unsigned i = 0; i < count; i++) {
		numbers[i] = attributes[below(COUNT(attributes) - !one_in(8))];
		data[i] = &values[i];
	}
	LOOK_UP(call, cuPointerGetAttributes);
	say("(");
	va = address_any(ANY_KIND, &block);
	say(":");
	for (unsigned i = 0; i < count; i++)
		say(" %d", numbers[i]);
	say(")");
	if (say_result(call(count, numbers, data, va)) || address_was_freed)
		return;
	for (unsigned i = 0; i < count; i++)
		say_value(numbers[i], values[i]);
}

static void set_attribute(void)
{
	int number = one_in(8) ? ANY(attributes) : CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
	unsigned value = below(3);
	struct block *block;
	CUdeviceptr va;

	LOOK_UP(call, cuPointerSetAttribute);
	say("(%u, %d, ", value, number);
	va = address_any(ANY_KIND, &block);
	say(")");
	say_result(call(one_in(16) ? NULL : &value, number, va));
}

const struct op pointer_ops[] = {
	{range, 25},
	{attribute, 40},
	{several, 20},
	{set_attribute, 10},
	{0},
};
