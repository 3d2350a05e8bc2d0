// SPDX-License-Identifier: BSD-2-Clause
/* Calls that make memory, give it an address or work on it, and captures of streams. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

static bool by_control(const struct lien_event *event)
{
	return event->flags & LIEN_EVENT_CONTROL;
}

struct lien_allocation *lien_allocation_asked(struct lien_process *process,
	const struct lien_event *event, enum lien_origin origin, uint64_t bytes)
{
	struct lien_allocation *allocation = lien_allocation_new(process->graph, origin);

	if (!allocation)
		return NULL;
	allocation->bytes = bytes;
	allocation->found = event->flags & LIEN_EVENT_FOUND;
	allocation->site = lien_process_site(process, event);
	if (origin != LIEN_ORIGIN_IMPORT)
		lien_allocation_own(allocation, process);
	if (!allocation->site ||
		(lien_event_tagged(event) && lien_allocation_set_tag(process->graph, allocation,
						     process->uid, event->tagged.tag)))
		return NULL;
	if (event->scope && !strcmp(allocation->site->library->text, "nccl")) {
		allocation->comm = lien_comm_of_scope(process, event->scope);
		allocation->comm_inferred = event->flags & LIEN_EVENT_INFERRED;
	}
	return allocation;
}

int lien_handle_take(struct lien_handle *handle, const struct lien_event *event)
{
	struct lien_process *process = handle->holding->process;
	char library[LIEN_CALLER_SIZE];

	lien_handle_refer(handle, handle->references + 1);
	if (event->flags & (LIEN_EVENT_CONTROL | LIEN_EVENT_TRANSLATED | LIEN_EVENT_FOUND))
		return 0;
	handle->raw++;
	lien_process_caller(process, event, library);
	handle->raw_to = lien_graph_name(process->graph, library, sizeof(library));
	return handle->raw_to ? 0 : -ENOMEM;
}

static int make_with_handle(struct lien_process *process, const struct lien_event *event,
	uint64_t value, uint64_t bytes, const struct lien_prop *prop)
{
	struct lien_allocation *allocation;
	struct lien_handle *handle;

	lien_handle_vacate(process, value);
	allocation = lien_allocation_asked(process, event, lien_origin_of(event->type), bytes);
	if (!allocation)
		return -ENOMEM;
	allocation->prop = *prop;
	handle = lien_handle_new(process, allocation, value);
	return handle ? lien_handle_take(handle, event) : -ENOMEM;
}

static int apply_create(struct lien_process *process, const struct lien_event *event)
{
	return make_with_handle(
		process, event, event->create.handle, event->create.bytes, &event->create.prop);
}

static int apply_multicast_create(struct lien_process *process, const struct lien_event *event)
{
	static const struct lien_prop nowhere = {.location_id = -1};

	return make_with_handle(
		process, event, event->multicast.handle, event->multicast.bytes, &nowhere);
}

static int apply_retain(struct lien_process *process, const struct lien_event *event)
{
	struct lien_mapping *mapping = lien_process_mapping(process, event->retain.va);
	struct lien_handle *handle = lien_handle_find(process, event->retain.handle);

	if (handle && mapping && handle->holding != mapping->holding) {
		lien_retain_contradicts(process, event);
		handle = lien_handle_find(process, event->retain.handle);
		mapping = lien_process_mapping(process, event->retain.va);
	}
	if (!handle) {
		if (!mapping)
			return lien_process_odd(process);
		handle = lien_handle_new(
			process, mapping->holding->allocation, event->retain.handle);
		if (!handle)
			return -ENOMEM;
		handle->imported = mapping->imported;
	}
	return lien_handle_take(handle, event);
}

static int apply_reserve(struct lien_process *process, const struct lien_event *event)
{
	struct lien_reservation *reservation = lien_slab_get(&process->graph->slabs.reservations),
				*old;

	if (!reservation)
		return -ENOMEM;
	reservation->va = event->reserve.va;
	reservation->bytes = event->reserve.bytes;
	while ((old = SPLAY_INSERT(lien_reservation_tree, &process->reservations, reservation))) {
		if (lien_pending_apply(process, LIEN_KIND_address_free, old->va, 0))
			continue;
		lien_process_odd(process);
		lien_reservation_drop(process, old);
	}
	return 0;
}

#define MADE_JUST_NOW 64

/* Memory put back behind a parked mapping has just been made, so it has few holders. */
static bool made_just_now(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	const struct lien_binding *binding;
	const struct lien_handle *handle;
	const struct lien_share *share;
	unsigned n = 0;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		n += 1 + holding->mapped;
		TAILQ_FOREACH (handle, &holding->handles, of_holding)
			if (++n > MADE_JUST_NOW)
				return false;
		if (n > MADE_JUST_NOW)
			return false;
	}
	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (++n > MADE_JUST_NOW)
			return false;
	LIST_FOREACH (binding, &allocation->bindings, of_memory)
		if (++n > MADE_JUST_NOW)
			return false;
	return true;
}

/* The control library puts memory back behind a parked mapping. */
static void mapping_revive(struct lien_mapping *mapping, struct lien_handle *handle)
{
	if (handle->holding->allocation != mapping->holding->allocation)
		lien_allocation_merge(mapping->holding->process->graph, handle->holding->allocation,
			mapping->holding->allocation);
	lien_mapping_park(mapping, false);
	mapping->opened = false;
	mapping->access = NULL;
}

static int apply_map(struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->map.handle);
	struct lien_mapping *mapping = lien_process_mapping(process, event->map.va);
	struct lien_allocation *allocation;

	if (!lien_range_sane(event->map.va, event->map.bytes))
		return lien_process_odd(process);
	if (handle && by_control(event) && mapping && mapping->parked &&
		!lien_allocation_by_address(mapping->holding->allocation) &&
		mapping->va == event->map.va && mapping->bytes == event->map.bytes &&
		handle->holding->allocation->origin != LIEN_ORIGIN_MULTICAST &&
		mapping->holding->allocation->origin != LIEN_ORIGIN_MULTICAST &&
		(handle->holding->allocation == mapping->holding->allocation ||
			made_just_now(handle->holding->allocation))) {
		mapping_revive(mapping, handle);
		return 0;
	}
	if (!lien_range_vacate(process, event->map.va, event->map.bytes))
		return 0;
	handle = lien_handle_find(process, event->map.handle);
	if (!handle) { /* made before this process was watched, or its event was lost */
		lien_process_odd(process);
		allocation =
			lien_allocation_asked(process, event, LIEN_ORIGIN_IMPORT, event->map.bytes);
		if (!allocation)
			return -ENOMEM;
		handle = lien_handle_new(process, allocation, event->map.handle);
		if (!handle)
			return -ENOMEM;
		lien_handle_refer(handle, 1);
		handle->imported = true;
	}
	allocation = handle->holding->allocation;
	mapping = lien_mapping_new(handle->holding, event->map.va, event->map.bytes);
	if (!mapping)
		return -ENOMEM;
	mapping->imported = handle->imported;
	if (allocation->bytes < event->map.bytes)
		/* unmatched import: its size is known only now */
		allocation->bytes = event->map.bytes;
	return 0;
}

static int apply_access(struct lien_process *process, const struct lien_event *event)
{
	uint64_t va = event->access.va, end = va + event->access.bytes;
	const struct lien_access_set *base = NULL, *set = NULL;
	struct lien_mapping *mapping = lien_process_overlap(process, va, event->access.bytes);

	if (!mapping)
		lien_process_odd(process);
	for (; mapping && mapping->va < end && lien_process_visits(process);
		mapping = RB_NEXT(lien_mapping_tree, &process->mappings, mapping)) {
		if (mapping->opened)
			continue;
		if (!set || mapping->access != base) { /* neighbours mostly have the same set */
			base = mapping->access;
			set = lien_graph_access(
				process->graph, base, event->access.access, event->access.count);
		}
		if (!set)
			return -ENOMEM;
		mapping->access = set;
	}
	return 0;
}

/* --- memory without handles, on the device and in the host; pools ----------------------------- */

static struct lien_pool *pool_find(struct lien_process *process, uint64_t value)
{
	return RB_FIND(lien_pool_tree, &process->pools, &(struct lien_pool){.value = value});
}

/* Pool memory is on the pool's device, other memory on the device of the thread's context. */
static int32_t device_of(struct lien_process *process, const struct lien_event *event)
{
	const struct lien_pool *pool =
		event->alloc.pool ? pool_find(process, event->alloc.pool) : NULL;

	return pool && pool->device >= 0 ? pool->device : event->alloc.device;
}

static int apply_alloc(struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *allocation;

	if (!event->alloc.va || !event->alloc.bytes)
		return 0; /* cuMemHostAlloc() of 0 bytes succeeds */
	if (!lien_range_sane(event->alloc.va, event->alloc.bytes))
		return lien_process_odd(process);
	if (!lien_range_vacate(process, event->alloc.va, event->alloc.bytes))
		return 0;
	allocation = lien_allocation_asked(
		process, event, lien_origin_of(event->type), event->alloc.bytes);
	if (!allocation)
		return -ENOMEM;
	allocation->prop.location_id = device_of(process, event);
	if (allocation->prop.location_id >= 0)
		allocation->prop.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
	allocation->context = lien_context_number(process, event->alloc.context);
	return lien_mapping_new(
		       lien_holding_get(process, allocation), event->alloc.va, event->alloc.bytes)
		       ? 0
		       : -ENOMEM;
}

static int apply_pool_destroy(struct lien_process *process, const struct lien_event *event)
{
	struct lien_pool *pool = pool_find(process, event->pool.pool);

	if (!pool)
		lien_process_odd(process);
	else
		free(RB_REMOVE(lien_pool_tree, &process->pools, pool));
	return 0;
}

/* Creates a pool or imports one. */
static int apply_pool_create(struct lien_process *process, const struct lien_event *event)
{
	struct lien_pool *pool;

	while ((pool = pool_find(process, event->pool.pool)))
		if (!lien_pending_apply(process, LIEN_KIND_pool_destroy, pool->value, 0))
			free(RB_REMOVE(lien_pool_tree, &process->pools, pool));
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->value = event->pool.pool;
	pool->imported = event->type == LIEN_CALL_CU_POOL_IMPORT;
	pool->device = pool->imported ? -1 : event->pool.device;
	pool->share = event->pool.share;
	RB_INSERT(lien_pool_tree, &process->pools, pool);
	return 0;
}

static int apply_pool_share(struct lien_process *process, const struct lien_event *event)
{
	struct lien_pool *pool = pool_find(process, event->pool.pool);

	if (!pool)
		lien_process_odd(process);
	else
		pool->share = event->pool.share;
	return 0;
}

static int apply_range_handle(struct lien_process *process, const struct lien_event *event)
{
	uint64_t end = event->range_handle.va + event->range_handle.bytes;
	struct lien_mapping *mapping =
		lien_process_overlap(process, event->range_handle.va, event->range_handle.bytes);

	if (!mapping)
		lien_process_odd(process);
	for (; mapping && mapping->va < end && lien_process_visits(process);
		mapping = RB_NEXT(lien_mapping_tree, &process->mappings, mapping))
		if (mapping->holding->allocation->origin != LIEN_ORIGIN_MULTICAST)
			mapping->holding->allocation->dmabufs++;
	return 0;
}

/* --- captures --------------------------------------------------------------------------------- */

static struct lien_capture *capture_find(struct lien_process *process, uint64_t stream)
{
	return RB_FIND(
		lien_capture_tree, &process->captures, &(struct lien_capture){.stream = stream});
}

static int apply_capture_begin(struct lien_process *process, const struct lien_event *event)
{
	struct lien_capture *capture = capture_find(process, event->capture.stream);

	process->captured = true;
	if (capture)
		lien_pending_apply(process, LIEN_KIND_stream_destroy, event->capture.stream, 0);
	if (capture_find(process, event->capture.stream))
		return 0; /* a stream has one capture at a time: the previous end was missed */
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return -ENOMEM;
	capture->stream = event->capture.stream;
	RB_INSERT(lien_capture_tree, &process->captures, capture);
	return 0;
}

/* These results leave a capture running. Any other result ends it, most of them without a graph. */
static bool capture_goes_on(int result)
{
	return result == 1 /* INVALID_VALUE: none on this stream */ || result == 400 ||
	       result == 903 /* UNMATCHED: not the origin */ || result == 908 /* WRONG_THREAD */;
}

/* A stream's destruction ends its capture. */
static int apply_stream_destroy(struct lien_process *process, const struct lien_event *event)
{
	struct lien_capture *capture = capture_find(process, event->capture.stream);

	if (capture)
		free(RB_REMOVE(lien_capture_tree, &process->captures, capture));
	return 0;
}

static int apply_capture_end(struct lien_process *process, const struct lien_event *event)
{
	return capture_goes_on(event->result) ? 0 : apply_stream_destroy(process, event);
}

/* Some kinds differ in their arguments, but not in their effect. */
#define apply_alloc_pitch     apply_alloc
#define apply_alloc_managed   apply_alloc
#define apply_alloc_async     apply_alloc
#define apply_alloc_from_pool apply_alloc
#define apply_alloc_host      apply_alloc
#define apply_register_host   apply_alloc
#define apply_pool_import     apply_pool_create

lien_apply_fn *const lien_memory_effects[LIEN_KIND_COUNT] = {LIEN_MEMORY_KINDS(LIEN_EFFECT)};
