// SPDX-License-Identifier: BSD-2-Clause
/* Memory without handles, and multicast objects, told as events. */
#include <string.h>

#include "agent/graph_dump.h"

static unsigned alloc_call(enum lien_origin origin)
{
	switch (origin) {
	case LIEN_ORIGIN_PITCH:
		return LIEN_CALL_CU_MEM_ALLOC_PITCH;
	case LIEN_ORIGIN_MANAGED:
		return LIEN_CALL_CU_MEM_ALLOC_MANAGED;
	case LIEN_ORIGIN_POOL:
		return LIEN_CALL_CU_MEM_ALLOC_ASYNC;
	case LIEN_ORIGIN_HOST:
		return LIEN_CALL_CU_HOST_ALLOC;
	case LIEN_ORIGIN_REGISTERED:
		return LIEN_CALL_CU_HOST_REGISTER;
	default:
		return LIEN_CALL_CU_MEM_ALLOC;
	}
}

static uint64_t context_value(const struct lien_process *owner, uint32_t number)
{
	const struct lien_context *context;

	LIST_FOREACH (context, &owner->contexts, next)
		if (context->number == number)
			return context->value;
	return 0;
}

static int tell_alloc(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner, uint64_t va)
{
	struct lien_event event = lien_dump_event(owner, alloc_call(allocation->origin));

	lien_dump_asked(&event, allocation);
	event.alloc.va = va;
	event.alloc.bytes = allocation->bytes;
	event.alloc.context =
		allocation->owner ? context_value(allocation->owner, allocation->context) : 0;
	event.alloc.device = allocation->prop.location_id;
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(alloc));
}

static int tell_key(struct lien_dump *dump, const struct lien_process *process, unsigned call,
	uint64_t va, const struct lien_share *share, uint32_t context)
{
	struct lien_event event = lien_dump_event(process, call);

	event.key.va = va;
	event.key.context = context ? context_value(process, context) : 0;
	memcpy(event.key.key, share->key, LIEN_KEY_BYTES);
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(key));
}

static int tell_openings(struct lien_dump *dump, const struct lien_allocation *allocation)
{
	const struct lien_share *share = LIST_FIRST(&allocation->shares);
	const struct lien_mapping *mapping;
	unsigned call, told;
	int err = 0;

	if (!share)
		return 0;
	call = share->call == LIEN_CALL_CU_IPC_GET ? LIEN_CALL_CU_IPC_OPEN
						   : LIEN_CALL_CU_POOL_IMPORT_POINTER;
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		for (told = 0; mapping->imported && told < mapping->opens && !err; told++)
			err = tell_key(
				dump, mapping->process, call, mapping->va, share, mapping->context);
	return err;
}

static int tell_free(struct lien_dump *dump, const struct lien_process *owner, uint64_t va)
{
	struct lien_event event = lien_dump_event(owner, LIEN_CALL_CU_MEM_FREE);
	int err;

	event.range.va = va;
	event.flags = LIEN_EVENT_ENTRY;
	err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(range));
	event.flags = 0;
	return err ? err : lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(range));
}

int lien_dump_by_address(
	struct lien_dump *dump, struct lien_graph *graph, const struct lien_allocation *allocation)
{
	struct lien_process dead = {0}, *owner = allocation->owner;
	const struct lien_mapping *mapping;
	const struct lien_share *share;
	uint64_t va = LIEN_DUMP_VA;
	int err = 0;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (!mapping->imported)
			va = mapping->va;
	if (!owner) {
		if (lien_graph_process(graph, allocation->owner_pid))
			return 0; /* another one has its number: nothing can be told of it */
		owner = &dead;
		err = lien_dump_dead(dump, allocation, owner);
	}
	if (!err)
		err = tell_alloc(dump, allocation, owner, va);
	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (!err)
			err = tell_key(dump, owner, share->call, va, share, 0);
	if (!err)
		err = tell_openings(dump, allocation);
	if (!err)
		err = lien_dump_dmabufs(dump, allocation);
	return err || va != LIEN_DUMP_VA ? err : tell_free(dump, owner, va);
}

int lien_dump_multicast(struct lien_dump *dump, const struct lien_allocation *object,
	const struct lien_process *owner)
{
	struct lien_event event = lien_dump_event(owner, LIEN_CALL_CU_MULTICAST_CREATE);
	unsigned device;
	int err;

	lien_dump_asked(&event, object);
	event.multicast.handle = lien_dump_handle(object, owner, false);
	event.multicast.bytes = object->bytes;
	err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(multicast));
	event = lien_dump_event(owner, LIEN_CALL_CU_MULTICAST_DEVICE);
	event.multicast.handle = lien_dump_handle(object, owner, false);
	for (device = 0; device < 64 && !err; device++) {
		event.multicast.device = device;
		if (object->devices >> device & 1)
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(multicast));
	}
	return err;
}

/* A process that has, or has been told to have had, a handle to both. */
static const struct lien_process *binder(const struct lien_binding *binding)
{
	const struct lien_handle *handle;

	LIST_FOREACH (handle, &binding->object->handles, of_allocation)
		if (handle->process == binding->memory->owner)
			return handle->process;
	return binding->object->owner == binding->memory->owner ? binding->object->owner : NULL;
}

int lien_dump_bindings(struct lien_dump *dump, const struct lien_allocation *memory)
{
	const struct lien_process *process;
	const struct lien_binding *binding;
	struct lien_event event;
	int err = 0;

	LIST_FOREACH (binding, &memory->bindings, of_memory) {
		process = binder(binding);
		if (!process || err)
			continue;
		event = lien_dump_event(process, LIEN_CALL_CU_MULTICAST_BIND);
		event.multicast.handle = lien_dump_handle(
			binding->object, process, process != binding->object->owner);
		event.multicast.memory = lien_dump_handle(memory, process, false);
		event.multicast.offset = binding->offset;
		event.multicast.memory_offset = binding->memory_offset;
		event.multicast.bytes = binding->bytes;
		err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(multicast));
	}
	return err;
}

int lien_dump_dmabufs(struct lien_dump *dump, const struct lien_allocation *allocation)
{
	const struct lien_mapping *mapping = LIST_FIRST(&allocation->mappings);
	struct lien_event event;
	unsigned told;
	int err = 0;

	for (told = 0; mapping && told < allocation->dmabufs && !err; told++) {
		event = lien_dump_event(mapping->process, LIEN_CALL_CU_RANGE_HANDLE);
		event.range_handle.va = mapping->va;
		event.range_handle.bytes = mapping->bytes;
		event.range_handle.handle_type = 1;
		event.range_handle.fd = -1;
		err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(range_handle));
	}
	return err;
}
