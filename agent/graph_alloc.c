// SPDX-License-Identifier: BSD-2-Clause
/* Memory without handles, on the device and in the host; pools, contexts and dma-buf descriptors.
 */
#include <errno.h>
#include <stdlib.h>

#include <lien/cuda_abi.h>
#include "agent/graph_internal.h"

static enum lien_origin origin_of(unsigned call)
{
	switch (call) {
	case LIEN_CALL_CU_MEM_ALLOC_PITCH:
		return LIEN_ORIGIN_PITCH;
	case LIEN_CALL_CU_MEM_ALLOC_MANAGED:
		return LIEN_ORIGIN_MANAGED;
	case LIEN_CALL_CU_MEM_ALLOC_ASYNC:
	case LIEN_CALL_CU_MEM_ALLOC_ASYNC_PTSZ:
	case LIEN_CALL_CU_MEM_ALLOC_FROM_POOL:
	case LIEN_CALL_CU_MEM_ALLOC_FROM_POOL_PTSZ:
		return LIEN_ORIGIN_POOL;
	case LIEN_CALL_CU_HOST_ALLOC:
	case LIEN_CALL_CU_ALLOC_HOST:
		return LIEN_ORIGIN_HOST;
	case LIEN_CALL_CU_HOST_REGISTER:
		return LIEN_ORIGIN_REGISTERED;
	}
	return LIEN_ORIGIN_ALLOC;
}

static struct lien_context *context_find(struct lien_process *process, uint64_t value)
{
	struct lien_context *context;

	LIST_FOREACH (context, &process->contexts, next)
		if (context->value == value)
			break;
	return context;
}

int lien_graph_apply_alloc(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *allocation;
	struct lien_context *context;

	if (!event->alloc.va || !event->alloc.bytes)
		return 0; /* cuMemHostAlloc() of nothing succeeds */
	if (event->alloc.va >= LIEN_ADDRESS_END) {
		lien_graph_odd(graph, process);
		return 0;
	}
	lien_range_vacate(graph, process, event->alloc.va, event->alloc.bytes);
	allocation = lien_allocation_new(graph, origin_of(event->type));
	if (!allocation)
		return -ENOMEM;
	lien_allocation_own(allocation, process);
	allocation->bytes = event->alloc.bytes;
	allocation->prop.location_id = event->alloc.device;
	if (event->alloc.device >= 0)
		allocation->prop.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
	context = context_find(process, event->alloc.context);
	allocation->context = context ? context->number : 0;
	if (lien_allocation_asked(graph, process, allocation, event))
		return -ENOMEM;
	return lien_mapping_new(graph, process, allocation, event->alloc.va, event->alloc.bytes)
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
	origin = mapping ? mapping->allocation->origin : 0;
	if (!mapping || mapping->va != va ||
		(!lien_allocation_by_address(mapping->allocation) && !mapping->imported) ||
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

static struct lien_pool *pool_find(struct lien_process *process, uint64_t value)
{
	struct lien_pool *pool;

	LIST_FOREACH (pool, &process->pools, next)
		if (pool->value == value)
			break;
	return pool;
}

static void pool_drop(struct lien_pool *pool)
{
	LIST_REMOVE(pool, next);
	free(pool);
}

/* Or its import. */
int lien_graph_apply_pool_create(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_pool *pool;

	while ((pool = pool_find(process, event->pool.pool)))
		if (!lien_graph_apply_pending(
			    graph, process, LIEN_CALL_CU_POOL_DESTROY, pool->value, 0))
			pool_drop(pool);
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->value = event->pool.pool;
	pool->imported = event->type == LIEN_CALL_CU_POOL_IMPORT;
	pool->device = pool->imported ? -1 : event->pool.device;
	pool->share = event->pool.share;
	LIST_INSERT_HEAD(&process->pools, pool, next);
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
		pool_drop(pool);
	return 0;
}

int lien_graph_apply_context(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_context *context = context_find(process, event->context.context);

	(void)graph;
	if (!context) {
		context = calloc(1, sizeof(*context));
		if (!context)
			return -ENOMEM;
		context->value = event->context.context;
		context->number = ++process->next_context;
		LIST_INSERT_HEAD(&process->contexts, context, next);
	}
	context->device = event->context.device;
	context->primary = event->type == LIEN_CALL_CU_CONTEXT_PRIMARY;
	return 0;
}

/* What was allocated in it is freed. Memory with handles belongs to no context, nor do pools. */
static void context_free(
	struct lien_graph *graph, struct lien_process *process, const struct lien_context *context)
{
	struct lien_mapping *mapping, *next;

	RB_FOREACH_SAFE (mapping, lien_mapping_tree, &process->mappings, next)
		if (mapping->allocation->context == context->number &&
			mapping->allocation->owner == process &&
			mapping->allocation->origin != LIEN_ORIGIN_POOL && !mapping->imported)
			lien_mapping_drop(graph, mapping);
}

int lien_graph_apply_context_destroy(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_context *context = context_find(process, event->context.context);

	if (!context) {
		lien_graph_odd(graph, process);
		return 0;
	}
	context_free(graph, process, context);
	LIST_REMOVE(context, next);
	free(context);
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
	for (; mapping && mapping->va < end;
		mapping = RB_NEXT(lien_mapping_tree, &process->mappings, mapping))
		mapping->allocation->dmabufs++;
	return 0;
}
