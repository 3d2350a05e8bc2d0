// SPDX-License-Identifier: BSD-2-Clause
/* Dumps memory without handles, and multicast objects, as events. */
#include <string.h>

#include "agent/graph/dump/dump.h"

static uint64_t context_value(const struct lien_process *owner, uint32_t number)
{
	struct lien_context key = {.number = number};
	const struct lien_context *context = RB_FIND(lien_context_number_tree,
		(struct lien_context_number_tree *)&owner->context_numbers, &key);

	return context ? context->value : 0;
}

static int emit_alloc(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner, uint64_t va)
{
	struct lien_event event = lien_dump_event(owner, lien_origin_call(allocation->origin));
	int err = lien_dump_asked(dump, &event, allocation, owner);

	event.alloc.va = va;
	event.alloc.bytes = allocation->bytes;
	event.alloc.context = allocation->context ? context_value(owner, allocation->context) : 0;
	event.alloc.device = allocation->prop.location_id;
	return err ? err : lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(alloc));
}

static int emit_key(struct lien_dump *dump, const struct lien_process *process, unsigned call,
	uint64_t va, const struct lien_share *share, uint32_t context)
{
	struct lien_event event = lien_dump_event(process, call);

	event.flags = share->imports ? LIEN_EVENT_IMPORTED : 0;
	event.key.va = va;
	event.key.context = context ? context_value(process, context) : 0;
	memcpy(event.key.key, share->key, LIEN_KEY_BYTES);
	return lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(key));
}

static int emit_openings(struct lien_dump *dump, const struct lien_allocation *allocation)
{
	const struct lien_share *share = lien_dump_share(dump, allocation);
	const struct lien_holding *holding;
	const struct lien_mapping *mapping;
	unsigned call, told;
	int err = 0;

	if (!share)
		return 0;
	call = share->call == LIEN_CALL_CU_IPC_GET ? LIEN_CALL_CU_IPC_OPEN
						   : LIEN_CALL_CU_POOL_IMPORT_POINTER;
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		LIST_FOREACH (mapping, &holding->mappings, of_holding)
			for (told = 0; told < lien_mapping_opens(mapping) && !err; told++)
				err = emit_key(dump, holding->process, call, mapping->va, share,
					mapping->context);
	return err;
}

/* Gives the key to other memory, and frees that. */
static int emit_renamed(
	struct lien_dump *dump, const struct lien_process *owner, const struct lien_share *share)
{
	struct lien_event event = lien_dump_event(owner, LIEN_CALL_CU_MEM_ALLOC);
	int err;

	event.alloc.va = LIEN_DUMP_VA - 1;
	event.alloc.bytes = 1;
	event.alloc.device = -1;
	err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(alloc));
	if (!err)
		err = emit_key(dump, owner, share->call, LIEN_DUMP_VA - 1, share, 0);
	event = lien_dump_event(owner, LIEN_CALL_CU_MEM_FREE);
	event.range.va = LIEN_DUMP_VA - 1;
	return err ? err : lien_dump_release(dump, &event, LIEN_EVENT_SIZE(range));
}

int lien_dump_opened(struct lien_dump *dump, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = LIST_FIRST(&allocation->holdings);
	const struct lien_mapping *mapping = LIST_FIRST(&holding->mappings);
	struct lien_event event = lien_dump_event(holding->process, LIEN_CALL_CU_IPC_OPEN);
	int err = lien_dump_asked(dump, &event, allocation, holding->process);
	uint64_t name = LIEN_DUMP_HANDLE | allocation->id;
	unsigned told;

	event.key.va = mapping->va;
	event.key.context = context_value(holding->process, mapping->context);
	memcpy(event.key.key, &name, sizeof(name));
	for (told = 0; told < mapping->opens && !err; told++)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(key));
	return err;
}

/* Returns the owner's mapping; NULL: the owner has freed it, and others have opened or bound it. */
static const struct lien_mapping *owners_mapping(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = lien_allocation_holding(allocation, allocation->owner);
	const struct lien_mapping *mapping;

	if (holding)
		LIST_FOREACH (mapping, &holding->mappings, of_holding)
			if (!mapping->imported)
				return mapping;
	return NULL;
}

int lien_dump_by_address(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner)
{
	const struct lien_mapping *mapping = owners_mapping(allocation);
	uint64_t va = mapping ? mapping->va : LIEN_DUMP_VA;
	struct lien_event event = lien_dump_event(owner, LIEN_CALL_CU_MEM_FREE);
	const struct lien_share *share;
	int err;

	err = emit_alloc(dump, allocation, owner, va);
	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (!err)
			err = emit_key(dump, owner, share->call, va, share, 0);
	if (!err)
		err = emit_openings(dump, allocation);
	if (!err)
		err = lien_dump_dmabufs(dump, allocation, owner);
	if (!err)
		err = lien_dump_bindings(dump, allocation, owner);
	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->stale && !err)
			err = emit_renamed(dump, owner, share);
	event.range.va = va;
	return err || mapping ? err : lien_dump_release(dump, &event, LIEN_EVENT_SIZE(range));
}

int lien_dump_multicast(struct lien_dump *dump, const struct lien_allocation *object,
	const struct lien_process *owner)
{
	struct lien_event event = lien_dump_event(owner, LIEN_CALL_CU_MULTICAST_CREATE);
	unsigned device;
	int err;

	event.flags = lien_dump_made_flags(dump, object, owner);
	err = lien_dump_asked(dump, &event, object, owner);
	event.multicast.handle = lien_dump_handle(dump, object, owner, false);
	event.multicast.bytes = object->bytes;
	if (!err)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(multicast));
	event = lien_dump_event(owner, LIEN_CALL_CU_MULTICAST_DEVICE);
	event.multicast.handle = lien_dump_handle(dump, object, owner, false);
	for (device = 0; device < 64 && !err; device++) {
		event.multicast.device = device;
		if (object->devices >> device & 1)
			err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(multicast));
	}
	return err;
}

static bool same(const struct lien_process *process, uint32_t pid, uint64_t start)
{
	return process->pid == pid && process->start == start;
}

/* Does the process have a handle? Its owner and all holders keep one until the end of the dump. */
static bool has(const struct lien_allocation *allocation, const struct lien_process *process)
{
	return same(process, allocation->owner_pid, allocation->owner_start) ||
	       lien_allocation_holding(allocation, process);
}

static bool was_imported(struct lien_dump *dump, const struct lien_allocation *allocation)
{
	const struct lien_share *share = lien_dump_share(dump, allocation);

	return share && share->imports;
}

/* Returns a process that can have bound the memory: one that has both, or the memory's owner, or
 * the object's owner if it imported the memory and released it since. `dead` is room for an owner
 * that has ended. */
static const struct lien_process *binder(struct lien_dump *dump, const struct lien_binding *binding,
	const struct lien_process *process, struct lien_process *dead)
{
	const struct lien_process *owner = lien_dump_owner(dump, binding->object, dead);
	const struct lien_holding *holding;

	if (lien_allocation_by_address(binding->memory) || has(binding->object, process))
		return process;
	if (owner && has(binding->memory, owner))
		return owner;
	LIST_FOREACH (holding, &binding->memory->holdings, of_allocation)
		if (!TAILQ_EMPTY(&holding->handles) && has(binding->object, holding->process))
			return holding->process;
	return owner && !was_imported(dump, binding->object) && was_imported(dump, binding->memory)
		       ? owner
		       : process;
}

/*
 * Imports the allocation if the process does not have it; *borrowed then tells the caller to
 * release it.
 */
static int borrow(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t *handle, bool *borrowed)
{
	bool own = same(process, allocation->owner_pid, allocation->owner_start);

	*handle = lien_dump_handle(dump, allocation, process, !own);
	*borrowed = !has(allocation, process);
	return *borrowed ? lien_dump_import(dump, allocation, process, *handle) : 0;
}

static int give_back(
	struct lien_dump *dump, const struct lien_process *process, uint64_t handle, bool borrowed)
{
	return borrowed ? lien_dump_handle_release(dump, process, handle, 0) : 0;
}

static int emit_binding(struct lien_dump *dump, const struct lien_binding *binding,
	const struct lien_process *process)
{
	const struct lien_allocation *object = binding->object, *memory = binding->memory;
	struct lien_event event = lien_dump_event(process, LIEN_CALL_CU_MULTICAST_BIND);
	const struct lien_mapping *mapping;
	bool object_borrowed, memory_borrowed = false;
	uint64_t handle, bound = 0;
	int err;

	err = borrow(dump, object, process, &handle, &object_borrowed);
	if (lien_allocation_by_address(memory)) {
		event.type = LIEN_CALL_CU_MULTICAST_BIND_ADDRESS;
		mapping = owners_mapping(memory);
		bound = (mapping ? mapping->va : LIEN_DUMP_VA) + binding->memory_offset;
	} else {
		event.multicast.memory_offset = binding->memory_offset;
		err = err ? err : borrow(dump, memory, process, &bound, &memory_borrowed);
	}
	event.multicast.handle = handle;
	event.multicast.memory = bound;
	event.multicast.offset = binding->offset;
	event.multicast.bytes = binding->bytes;
	if (!err)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(multicast));
	if (!err)
		err = give_back(dump, process, handle, object_borrowed);
	return err ? err : give_back(dump, process, bound, memory_borrowed);
}

int lien_dump_bindings(struct lien_dump *dump, const struct lien_allocation *memory,
	const struct lien_process *process)
{
	const struct lien_binding *binding;
	struct lien_process dead = {0};
	int err = 0;

	LIST_FOREACH (binding, &memory->bindings, of_memory)
		if (!err)
			err = emit_binding(dump, binding, binder(dump, binding, process, &dead));
	return err;
}

/* Memory that is no longer mapped is mapped for the time it takes. */
int lien_dump_dmabufs(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process)
{
	const struct lien_mapping *mapping = lien_dump_mapping(allocation);
	bool mapped = mapping || lien_allocation_by_address(allocation);
	struct lien_event event = lien_dump_event(process, LIEN_CALL_CU_MEM_MAP);
	unsigned told;
	int err = 0;

	event.map.va = LIEN_DUMP_VA;
	event.map.bytes = allocation->bytes;
	event.map.handle = lien_dump_handle(dump, allocation, process,
		!same(process, allocation->owner_pid, allocation->owner_start));
	if (allocation->dmabufs && !mapped)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(map));
	event = lien_dump_event(
		mapping ? mapping->holding->process : process, LIEN_CALL_CU_RANGE_HANDLE);
	event.range_handle.va = mapping ? mapping->va : LIEN_DUMP_VA;
	event.range_handle.bytes = mapping ? mapping->bytes : allocation->bytes;
	event.range_handle.handle_type = 1;
	event.range_handle.fd = -1;
	for (told = 0; told < allocation->dmabufs && !err; told++)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(range_handle));
	event = lien_dump_event(process, LIEN_CALL_CU_MEM_UNMAP);
	event.range.va = LIEN_DUMP_VA;
	event.range.bytes = allocation->bytes;
	return allocation->dmabufs && !mapped && !err
		       ? lien_dump_release(dump, &event, LIEN_EVENT_SIZE(range))
		       : err;
}
