// SPDX-License-Identifier: BSD-2-Clause
/* Memory without handles, on the device and in the host; pools and dma-buf descriptors. */
#include <errno.h>
#include <stdlib.h>

#include <lien/cuda_abi.h>
#include "agent/graph/internal.h"

static struct lien_pool *pool_find(struct lien_process *process, uint64_t value)
{
	struct lien_pool key = {.value = value};

	return RB_FIND(lien_pool_tree, &process->pools, &key);
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

static void pool_drop(struct lien_process *process, struct lien_pool *pool)
{
	RB_REMOVE(lien_pool_tree, &process->pools, pool);
	free(pool);
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

/* Creates a pool or imports one. */
int lien_graph_apply_pool_create(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_pool *pool;

	while ((pool = pool_find(process, event->pool.pool)))
		if (!lien_pending_apply(graph, process, LIEN_CALL_CU_POOL_DESTROY, pool->value, 0,
			    lien_graph_apply_pool_destroy))
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
