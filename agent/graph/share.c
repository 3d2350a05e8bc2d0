// SPDX-License-Identifier: BSD-2-Clause
/* Memory that leaves one process and arrives in another, and multicast objects: handles without
 * memory, to which several devices' memory is bound. */
#include <errno.h>

#include <lien/cuda_abi.h>
#include "agent/graph/hash.h"
#include "agent/graph/internal.h"

struct lien_share *lien_share_find(struct lien_graph *graph, uint64_t number)
{
	return SPLAY_FIND(lien_share_tree, &graph->shares, &(struct lien_share){.number = number});
}

/* If nothing holds it, an import may still be on its way through the ring. */
static void note_closed(struct lien_share *share)
{
	if (share->control || share->closed || !lien_allocation_held(share->allocation))
		return;
	share->allocation->awaited -= lien_share_awaited(share);
	share->closed = true;
}

void lien_graph_open_exports(
	struct lien_graph *graph, uint64_t made, const uint64_t *open, unsigned count)
{
	struct lien_share *share;

	SPLAY_FOREACH (share, lien_share_tree, &graph->shares) {
		while (count && *open < share->number)
			open++, count--;
		if (!(share->number & LIEN_SHARE_BY_KEY) && share->made <= made &&
			(!count || *open != share->number))
			note_closed(share);
	}
}

/* A collision between two names on one node takes some 2^31 of them. */
uint64_t lien_share_number(unsigned call, const uint8_t *key)
{
	return lien_hash(LIEN_HASH_START ^ call, key, LIEN_KEY_BYTES) | LIEN_SHARE_BY_KEY;
}

/* NULL: out of memory. No export with that number may exist. The key is NULL unless the number is a
 * hash of it. */
static struct lien_share *share_new(struct lien_graph *graph, struct lien_allocation *allocation,
	const struct lien_event *event, uint64_t number, const uint8_t *key)
{
	const struct lien_share like = {
		.number = number,
		.call = event->type,
		.fd = key ? -1 : event->share.fd,
		.control = event->flags & LIEN_EVENT_CONTROL,
		.imports = !!(event->flags & LIEN_EVENT_IMPORTED),
	};

	return lien_share_copy(graph, allocation, &like, key);
}

/* The key names other memory from now on; imports that used it stay. */
static void share_outdate(struct lien_graph *graph, struct lien_share *share)
{
	SPLAY_REMOVE(lien_share_tree, &graph->shares, share);
	share->stale = true;
}

/* The application has exported by the name that a restore's export has. */
static void share_claim(struct lien_share *share)
{
	share->control = false;
	share->imports = 0;
	share->allocation->exports++;
}

/* Exports the memory under a 64-byte name, again or for the first time. */
static int share_by_key(struct lien_graph *graph, struct lien_allocation *allocation,
	const struct lien_event *event, const uint8_t *key)
{
	uint64_t number = lien_share_number(event->type, key);
	struct lien_share *share = lien_share_find(graph, number);

	if (share && share->allocation == allocation) { /* exported again */
		if (share->control && !(event->flags & LIEN_EVENT_CONTROL))
			share_claim(share);
		return 0;
	}
	if (share) /* the driver reuses names of freed memory */
		share_outdate(graph, share);
	if (!share_new(graph, allocation, event, number, key))
		return -ENOMEM;
	allocation->exports += !(event->flags & LIEN_EVENT_CONTROL);
	return 0;
}

static int apply_export(struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->share.handle);
	struct lien_allocation *allocation;

	/* Memory with an address from the start has no handle that the driver would export. */
	if (!handle || lien_allocation_by_address(handle->holding->allocation))
		return lien_process_odd(process);
	allocation = handle->holding->allocation;
	if (event->share.handle_type == CU_MEM_HANDLE_TYPE_FABRIC &&
		event->size >= LIEN_EVENT_SIZE(share))
		return share_by_key(process->graph, allocation, event, event->share.key);
	if (event->flags & LIEN_EVENT_CONTROL)
		lien_share_drop_control(process->graph, allocation);
	else
		allocation->exports++;
	if (!event->share.share)
		return 0;
	if (event->share.share & LIEN_SHARE_BY_KEY ||
		lien_share_find(process->graph, event->share.share))
		/* numbers are never reused; only a forged recording says otherwise */
		return -EBADMSG;
	return share_new(process->graph, allocation, event, event->share.share, NULL) ? 0 : -ENOMEM;
}

/* An import whose export was not seen: only the importer is known. NULL: out of memory. */
static struct lien_allocation *import_unmatched(
	struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *allocation =
		lien_allocation_asked(process, event, LIEN_ORIGIN_IMPORT, 0);

	if (allocation)
		process->incomplete |= LIEN_INCOMPLETE_SHARE;
	return allocation;
}

static int apply_import(struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *allocation;
	struct lien_share *share;
	struct lien_handle *handle;

	if (event->share.handle_type == CU_MEM_HANDLE_TYPE_FABRIC &&
		event->size >= LIEN_EVENT_SIZE(share))
		share = lien_share_find(process->graph,
			lien_share_number(LIEN_CALL_CU_MEM_EXPORT, event->share.key));
	else
		share = lien_share_find(process->graph, event->share.share);
	/* The handle may have been the last known thing to hold this memory. */
	if (share)
		share->allocation->importing = true;
	lien_handle_vacate(process, event->share.handle);
	if (share)
		share->allocation->importing = false;
	allocation =
		share ? lien_share_taken(process->graph, share) : import_unmatched(process, event);
	if (!allocation)
		return -ENOMEM;
	handle = lien_handle_new(process, allocation, event->share.handle);
	if (!handle)
		return -ENOMEM;
	handle->imported = true;
	return lien_handle_take(handle, event);
}

static int apply_key_export(struct lien_process *process, const struct lien_event *event)
{
	struct lien_mapping *mapping = lien_process_mapping(process, event->key.va);

	if (!mapping || !lien_allocation_by_address(mapping->holding->allocation))
		return lien_process_odd(process);
	return share_by_key(process->graph, mapping->holding->allocation, event, event->key.key);
}

/* Legacy IPC: a process that opens a name twice gets one address for both, also if the export of
 * the memory was not seen. */
static struct lien_mapping *opened(
	struct lien_process *process, uint64_t va, const struct lien_allocation *allocation)
{
	struct lien_mapping *mapping = lien_process_mapping(process, va);

	if (!mapping || !mapping->opened || mapping->va != va)
		return NULL;
	if (allocation)
		return mapping->holding->allocation == allocation ? mapping : NULL;
	return mapping->holding->allocation->origin == LIEN_ORIGIN_IMPORT ? mapping : NULL;
}

static int apply_key_import(struct lien_process *process, const struct lien_event *event)
{
	unsigned by = event->type == LIEN_CALL_CU_IPC_OPEN ? LIEN_CALL_CU_IPC_GET
							   : LIEN_CALL_CU_POOL_EXPORT_POINTER;
	struct lien_share *share =
		lien_share_find(process->graph, lien_share_number(by, event->key.key));
	struct lien_allocation *allocation = share ? share->allocation : NULL;
	struct lien_mapping *mapping;
	uint64_t bytes;
	bool vacated;

	mapping = opened(process, event->key.va, allocation);
	if (mapping && event->type == LIEN_CALL_CU_IPC_OPEN) {
		mapping->opens++;
		return 0;
	}
	bytes = allocation ? allocation->bytes : 1; /* the driver does not return a size */
	if (!lien_range_sane(event->key.va, bytes))
		return lien_process_odd(process);
	if (allocation)
		allocation->importing = true;
	vacated = lien_range_vacate(process, event->key.va, bytes);
	if (allocation)
		allocation->importing = false;
	if (!vacated)
		return 0;
	if (!allocation)
		allocation = import_unmatched(process, event);
	if (!allocation)
		return -ENOMEM;
	if (share)
		lien_share_taken(process->graph, share);
	mapping = lien_mapping_new(lien_holding_get(process, allocation), event->key.va, bytes);
	if (!mapping)
		return -ENOMEM;
	mapping->imported = mapping->opened = true;
	mapping->opens = 1;
	mapping->context = lien_context_number(process, event->key.context);
	return 0;
}

/* --- multicast objects ------------------------------------------------------------------------ */

/* Returns the object of a call; a process may have imported it. */
static struct lien_allocation *object_of(
	struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->multicast.handle);

	if (handle && handle->holding->allocation->origin == LIEN_ORIGIN_MULTICAST)
		return handle->holding->allocation;
	lien_process_odd(process);
	return NULL;
}

static int apply_multicast_device(struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *object = object_of(process, event);

	if (object && event->multicast.device >= 0 && event->multicast.device < 64)
		object->devices |= 1ull << event->multicast.device;
	return 0;
}

static struct lien_allocation *memory_of(
	struct lien_process *process, const struct lien_event *event, uint64_t *offset)
{
	struct lien_mapping *mapping;
	struct lien_handle *handle;

	if (event->type == LIEN_CALL_CU_MULTICAST_BIND ||
		event->type == LIEN_CALL_CU_MULTICAST_BIND_V2) {
		handle = lien_handle_find(process, event->multicast.memory);
		*offset = event->multicast.memory_offset;
		return handle ? handle->holding->allocation : NULL;
	}
	mapping = lien_process_mapping(process, event->multicast.memory);
	*offset = mapping ? event->multicast.memory - mapping->va : 0;
	return mapping ? mapping->holding->allocation : NULL;
}

static int apply_multicast_bind(struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *object = object_of(process, event), *memory;
	uint64_t offset;

	memory = memory_of(process, event, &offset);
	if (!object)
		return 0;
	if (!memory || memory->origin == LIEN_ORIGIN_MULTICAST)
		return lien_process_odd(process);
	return lien_binding_new(process->graph, &(struct lien_binding){.object = object,
							.memory = memory,
							.offset = event->multicast.offset,
							.bytes = event->multicast.bytes,
							.memory_offset = offset,
							.device = memory->prop.location_id});
}

/* Returns the first binding with a byte in [from, to) of the object, of that device's memory. */
static struct lien_binding *first_at(
	struct lien_allocation *object, int32_t device, uint64_t from, uint64_t to)
{
	struct lien_binding key = {.device = device, .offset = from}, *binding;

	binding = RB_NFIND(lien_binding_tree, &object->bound, &key);
	return binding && binding->device == device && binding->offset < to ? binding : NULL;
}

static struct lien_binding *next_at(struct lien_binding *binding, uint64_t to)
{
	struct lien_binding *next = RB_NEXT(lien_binding_tree, &binding->object->bound, binding);

	return next && next->device == binding->device && next->offset < to ? next : NULL;
}

/* The device says which of the memories bound at that offset is meant. Processes that see one GPU
 * each give it the same number, and mean their own memory. */
static int apply_multicast_unbind(struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *object = object_of(process, event);
	uint64_t from = event->multicast.offset, to = from + event->multicast.bytes;
	struct lien_binding *first, *binding, *next;
	bool own = false;

	if (!object)
		return 0;
	process->joined |= !!(event->flags & LIEN_EVENT_CONTROL);
	first = first_at(object, event->multicast.device, from, to);
	for (binding = first; binding && !own; binding = next_at(binding, to))
		own = binding->memory->owner == process;
	for (binding = first; binding; binding = next) {
		next = next_at(binding, to);
		if (!own || binding->memory->owner == process)
			lien_binding_drop(process->graph, binding);
	}
	if (!first)
		lien_process_odd(process);
	return 0;
}

lien_apply_fn *const lien_share_effects[LIEN_KIND_COUNT] = {LIEN_SHARE_KINDS(LIEN_EFFECT)};
