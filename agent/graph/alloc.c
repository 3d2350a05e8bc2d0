// SPDX-License-Identifier: BSD-2-Clause
/* Memory without handles, on the device and in the host; pools, contexts and dma-buf descriptors.
 */
#include <errno.h>
#include <stdlib.h>

#include <lien/cuda_abi.h>
#include "agent/graph/internal.h"

static struct lien_context *context_find(struct lien_process *process, uint64_t value)
{
	struct lien_context key = {.value = value};

	return RB_FIND(lien_context_tree, &process->contexts, &key);
}

static struct lien_pool *pool_find(struct lien_process *process, uint64_t value)
{
	struct lien_pool key = {.value = value};

	return RB_FIND(lien_pool_tree, &process->pools, &key);
}

uint32_t lien_context_number(struct lien_process *process, uint64_t value)
{
	const struct lien_context *context = context_find(process, value);

	return context ? context->number : 0;
}

/* Pool memory is on the pool's device, other memory on the device of the thread's context. */
static int32_t device_of(struct lien_process *process, const struct lien_event *event)
{
	const struct lien_pool *pool =
		event->alloc.pool ? pool_find(process, event->alloc.pool) : NULL;

	return pool && pool->device >= 0 ? pool->device : event->alloc.device;
}

int lien_graph_apply_alloc(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *allocation;

	if (!event->alloc.va || !event->alloc.bytes)
		return 0; /* cuMemHostAlloc() of 0 bytes succeeds */
	if (!lien_range_sane(event->alloc.va, event->alloc.bytes)) {
		lien_graph_odd(graph, process);
		return 0;
	}
	if (!lien_range_vacate(graph, process, event->alloc.va, event->alloc.bytes))
		return 0;
	allocation = lien_allocation_new(graph, lien_origin_of(event->type));
	if (!allocation)
		return -ENOMEM;
	lien_allocation_own(allocation, process);
	allocation->bytes = event->alloc.bytes;
	allocation->prop.location_id = device_of(process, event);
	if (allocation->prop.location_id >= 0)
		allocation->prop.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
	allocation->context = lien_context_number(process, event->alloc.context);
	if (lien_allocation_asked(graph, process, allocation, event))
		return -ENOMEM;
	return lien_mapping_new(graph, lien_holding_get(graph, process, allocation),
		       event->alloc.va, event->alloc.bytes)
		       ? 0
		       : -ENOMEM;
}

static int free_at(struct lien_graph *graph, struct lien_process *process, uint64_t va, bool host,
	bool registered)
{
	struct lien_mapping *mapping = lien_process_mapping(process, va);
	enum lien_origin origin;

	if (!va)
		return 0;
	origin = mapping ? mapping->holding->allocation->origin : 0;
	if (!mapping || mapping->va != va ||
		(!lien_allocation_by_address(mapping->holding->allocation) && !mapping->opened) ||
		(origin == LIEN_ORIGIN_HOST) != host ||
		(origin == LIEN_ORIGIN_REGISTERED) != registered)
		lien_graph_odd(graph, process);
	else
		lien_mapping_drop(graph, mapping);
	return 0;
}

int lien_graph_apply_free(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	return free_at(graph, process, event->range.va, false, false);
}

int lien_graph_apply_free_host(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	return free_at(graph, process, event->range.va, true, false);
}

int lien_graph_apply_unregister_host(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	return free_at(graph, process, event->range.va, false, true);
}

static void pool_drop(struct lien_process *process, struct lien_pool *pool)
{
	RB_REMOVE(lien_pool_tree, &process->pools, pool);
	free(pool);
}

/* Creates a pool or imports one. */
int lien_graph_apply_pool_create(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_pool *pool;

	while ((pool = pool_find(process, event->pool.pool)))
		if (!lien_graph_apply_pending(
			    graph, process, LIEN_CALL_CU_POOL_DESTROY, pool->value, 0))
			pool_drop(process, pool);
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

int lien_graph_apply_pool_share(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_pool *pool = pool_find(process, event->pool.pool);

	if (!pool)
		lien_graph_odd(graph, process);
	else
		pool->share = event->pool.share;
	return 0;
}

int lien_graph_apply_pool_destroy(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_pool *pool = pool_find(process, event->pool.pool);

	if (!pool)
		lien_graph_odd(graph, process);
	else
		pool_drop(process, pool);
	return 0;
}

/* Returns the number of the mapping's context. Memory allocated or opened in a context goes with
 * it. Memory with handles and pools belong to no context. */
static uint32_t in_context(const struct lien_mapping *mapping)
{
	const struct lien_allocation *allocation = mapping->holding->allocation;

	if (mapping->imported)
		return mapping->opened ? mapping->context : 0;
	return lien_allocation_by_address(allocation) && allocation->origin != LIEN_ORIGIN_POOL &&
			       allocation->owner == mapping->holding->process
		       ? allocation->context
		       : 0;
}

uint64_t lien_context_of(const struct lien_mapping *mapping)
{
	struct lien_context key = {.number = in_context(mapping)};
	const struct lien_context *context = RB_FIND(
		lien_context_number_tree, &mapping->holding->process->context_numbers, &key);

	return context ? context->value : 0;
}

static struct lien_mapping *next_in_context(struct lien_graph *graph, struct lien_process *process,
	uint64_t from, const struct lien_context *context)
{
	struct lien_mapping *mapping = lien_process_overlap(process, from, UINT64_MAX - from);

	while (mapping && in_context(mapping) != context->number)
		mapping = lien_process_visits(graph, process)
				  ? RB_NEXT(lien_mapping_tree, &process->mappings, mapping)
				  : NULL;
	return mapping;
}

/* Frees memory allocated in the context, unless a call that has yet to return has freed it. */
static void context_drop(
	struct lien_graph *graph, struct lien_process *process, struct lien_context *context)
{
	struct lien_mapping *mapping;
	uint64_t from = 0;

	while ((mapping = next_in_context(graph, process, from, context))) {
		from = mapping->va;
		if (!lien_mapping_apply_pending(graph, mapping))
			lien_mapping_drop(graph, mapping);
	}
	RB_REMOVE(lien_context_tree, &process->contexts, context);
	RB_REMOVE(lien_context_number_tree, &process->context_numbers, context);
	free(context);
}

/* Every retain returns the same primary context; other contexts are new. */
int lien_graph_apply_context(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	bool primary = event->type == LIEN_CALL_CU_CONTEXT_PRIMARY;
	struct lien_context *context;

	while ((context = context_find(process, event->context.context)) &&
		!(primary && context->primary))
		if (!lien_graph_apply_pending(
			    graph, process, LIEN_CALL_CU_CONTEXT_DESTROY, context->value, 0))
			context_drop(graph, process, context);
	if (!context) {
		context = calloc(1, sizeof(*context));
		if (!context)
			return -ENOMEM;
		context->value = event->context.context;
		context->number = ++process->next_context;
		RB_INSERT(lien_context_tree, &process->contexts, context);
		RB_INSERT(lien_context_number_tree, &process->context_numbers, context);
	}
	context->device = event->context.device;
	context->primary = primary;
	process->no_context &= !primary;
	return 0;
}

int lien_graph_apply_context_destroy(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_context *context = context_find(process, event->context.context);

	if (!context)
		lien_graph_odd(graph, process);
	else
		context_drop(graph, process, context);
	return 0;
}

int lien_graph_apply_range_handle(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	uint64_t end = event->range_handle.va + event->range_handle.bytes;
	struct lien_mapping *mapping =
		lien_process_overlap(process, event->range_handle.va, event->range_handle.bytes);

	if (!mapping)
		lien_graph_odd(graph, process);
	for (; mapping && mapping->va < end && lien_process_visits(graph, process);
		mapping = RB_NEXT(lien_mapping_tree, &process->mappings, mapping))
		if (mapping->holding->allocation->origin != LIEN_ORIGIN_MULTICAST)
			mapping->holding->allocation->dmabufs++;
	return 0;
}
