/* SPDX-License-Identifier: BSD-2-Clause */
#include <string.h>

#include "dump.h"
#include "softcuda.h"

_Static_assert(SOFTCUDA_DEVICES == SOFT_MAX_DEVICES, "the same array");

struct dump {
	softcuda_dump_fn fn;
	void *arg;
};

static const enum softcuda_kind kinds[] = {
	[SOFT_VMM] = SOFTCUDA_MAPPING,
	[SOFT_PLAIN] = SOFTCUDA_PLAIN,
	[SOFT_PITCH] = SOFTCUDA_PITCH,
	[SOFT_MANAGED] = SOFTCUDA_MANAGED,
	[SOFT_ASYNC] = SOFTCUDA_ASYNC,
	[SOFT_ASYNC_IMPORT] = SOFTCUDA_ASYNC_IMPORT,
	[SOFT_IPC] = SOFTCUDA_IPC,
};

static int tell(const struct dump *dump, const struct softcuda_object *object)
{
	return dump->fn(object, dump->arg);
}

static int dump_bindings(const struct dump *dump, const struct soft_allocation *multicast)
{
	struct soft_binding *binding = soft_multicast_bindings(multicast);
	int stop = 0;

	for (; binding && !stop; binding = LIST_NEXT(binding, entry))
		stop = tell(dump, &(struct softcuda_object){.kind = SOFTCUDA_BINDING,
					  .number = binding->memory->number,
					  .value = binding->memory->handle,
					  .size = binding->size,
					  .bytes = binding->size,
					  .location = binding->memory->prop.location,
					  .multicast = multicast->number,
					  .offset = binding->offset,
					  .memory_offset = binding->memory_offset});
	return stop;
}

static int dump_handle(const struct dump *dump, const struct soft_allocation *allocation)
{
	struct softcuda_object object = {.kind = SOFTCUDA_HANDLE,
		.number = allocation->number,
		.value = allocation->handle,
		.references = allocation->references,
		.bytes = allocation->size,
		.size = allocation->size,
		.location = allocation->prop.location,
		.imported = allocation->imported};
	int stop = 0;

	if (allocation->multicast) {
		object.kind = SOFTCUDA_MULTICAST;
		object.team = soft_multicast_team(allocation, &object.team_wanted);
	}
	if (allocation->references)
		stop = tell(dump, &object);
	if (!stop && allocation->multicast)
		stop = dump_bindings(dump, allocation);
	return stop;
}

static int dump_handles(const struct dump *dump)
{
	struct soft_allocation *allocation;
	int stop = 0;

	for (allocation = soft_allocation_first(); allocation && !stop;
		allocation = LIST_NEXT(allocation, entry)) {
		if (allocation->handle)
			stop = dump_handle(dump, allocation);
	}
	return stop;
}

static int dump_mappings(const struct dump *dump)
{
	struct soft_mapping *mapping;
	int stop = 0;

	for (mapping = soft_mapping_from(0); mapping && !stop;
		mapping = soft_mapping_next(mapping)) {
		struct softcuda_object object = {.kind = kinds[mapping->kind],
			.number = mapping->allocation->number,
			.value = mapping->kind == SOFT_VMM ? mapping->allocation->handle : 0,
			.references = mapping->opens,
			.va = mapping->base,
			.bytes = mapping->bytes,
			.size = mapping->size,
			.pool = (uintptr_t)mapping->pool,
			.buffer = mapping->buffer,
			.location = mapping->allocation->prop.location,
			.imported = mapping->allocation->imported};

		memcpy(object.access, mapping->access, sizeof(object.access));
		if (mapping->bytes) /* not idle in its pool */
			stop = tell(dump, &object);
	}
	return stop;
}

static int dump_ranges(const struct dump *dump)
{
	struct soft_range *range;
	int stop = 0;

	for (range = soft_range_first(); range && !stop; range = soft_range_next(range)) {
		if (!range->internal)
			stop = tell(dump, &(struct softcuda_object){.kind = SOFTCUDA_RANGE,
						  .va = range->base,
						  .bytes = range->size,
						  .size = range->size});
	}
	return stop;
}

static int dump_pools(const struct dump *dump)
{
	CUmemoryPool pool;
	int stop = 0;

	for (pool = soft_pool_first(); pool && !stop; pool = LIST_NEXT(pool, entry)) {
		struct softcuda_object object = {.kind = SOFTCUDA_POOL,
			.number = pool->number,
			.value = (uintptr_t)pool,
			.bytes = pool->used,
			.size = pool->reserved,
			.location = pool->props.location,
			.imported = pool->imported};

		memcpy(object.access, pool->access, sizeof(object.access));
		if (!pool->destroyed)
			stop = tell(dump, &object);
	}
	return stop;
}

static int dump_host(const struct dump *dump)
{
	struct soft_host *host;
	int stop = 0;

	for (host = soft_host_from(0); host && !stop; host = soft_host_next(host))
		stop = tell(dump,
			&(struct softcuda_object){
				.kind = host->registered ? SOFTCUDA_HOST_REGISTERED : SOFTCUDA_HOST,
				.va = host->base,
				.bytes = host->size,
				.size = host->size,
				.buffer = host->buffer,
				.location = {CU_MEM_LOCATION_TYPE_HOST, host->context->device}});
	return stop;
}

SOFT_EXPORT int softcuda_dump(softcuda_dump_fn fn, void *arg)
{
	static int (*const parts[])(const struct dump *dump) = {
		dump_handles, dump_ranges, dump_mappings, dump_pools, dump_host};
	const struct dump dump = {fn, arg};
	int stop = 0;

	if (!soft_ready())
		return -1;
	pthread_rwlock_rdlock(&soft.lock);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && !stop; i++)
		stop = parts[i](&dump);
	pthread_rwlock_unlock(&soft.lock);
	return stop;
}
