// SPDX-License-Identifier: BSD-2-Clause
/* Memory that leaves one process and arrives in another. */
#include <errno.h>

#include <lien/cuda_abi.h>
#include "agent/graph/internal.h"

struct lien_share *lien_share_find(struct lien_graph *graph, uint64_t number)
{
	struct lien_share key = {.number = number};

	return SPLAY_FIND(lien_share_tree, &graph->shares, &key);
}

uint64_t lien_graph_shares_made(const struct lien_graph *graph)
{
	return graph->shares_made;
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

/* FNV-1a. A collision between two names on one node takes some 2^31 of them. */
uint64_t lien_share_number(unsigned call, const uint8_t *key)
{
	uint64_t hash = 0xcbf29ce484222325ull ^ call;
	unsigned i;

	for (i = 0; i < LIEN_KEY_BYTES; i++)
		hash = (hash ^ key[i]) * 0x100000001b3ull;
	return hash | LIEN_SHARE_BY_KEY;
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

int lien_graph_apply_export(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->share.handle);
	struct lien_allocation *allocation;

	/* Memory with an address from the start has no handle that the driver would export. */
	if (!handle || lien_allocation_by_address(handle->holding->allocation)) {
		lien_graph_odd(graph, process);
		return 0;
	}
	allocation = handle->holding->allocation;
	if (event->share.handle_type == CU_MEM_HANDLE_TYPE_FABRIC &&
		event->size >= LIEN_EVENT_SIZE(share))
		return share_by_key(graph, allocation, event, event->share.key);
	if (event->flags & LIEN_EVENT_CONTROL)
		lien_share_drop_control(graph, allocation);
	else
		allocation->exports++;
	if (!event->share.share)
		return 0;
	if (event->share.share & LIEN_SHARE_BY_KEY || lien_share_find(graph, event->share.share))
		/* numbers are never reused; only a forged recording says otherwise */
		return -EBADMSG;
	return share_new(graph, allocation, event, event->share.share, NULL) ? 0 : -ENOMEM;
}

/* An import whose export was not seen: only the importer is known. NULL: out of memory. */
static struct lien_allocation *import_unmatched(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *allocation = lien_allocation_new(graph, LIEN_ORIGIN_IMPORT);

	if (!allocation || lien_allocation_asked(graph, process, allocation, event))
		return NULL;
	process->incomplete |= LIEN_INCOMPLETE_SHARE;
	return allocation;
}

int lien_graph_apply_import(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *allocation;
	struct lien_share *share;
	struct lien_handle *handle;

	if (event->share.handle_type == CU_MEM_HANDLE_TYPE_FABRIC &&
		event->size >= LIEN_EVENT_SIZE(share))
		share = lien_share_find(
			graph, lien_share_number(LIEN_CALL_CU_MEM_EXPORT, event->share.key));
	else
		share = lien_share_find(graph, event->share.share);
	/* The handle may have been the last known thing to hold this memory. */
	if (share)
		share->allocation->importing = true;
	lien_handle_vacate(graph, process, event->share.handle);
	if (share) {
		share->allocation->importing = false;
	}
	allocation =
		share ? lien_share_taken(graph, share) : import_unmatched(graph, process, event);
	if (!allocation)
		return -ENOMEM;
	handle = lien_handle_new(graph, process, allocation, event->share.handle);
	if (!handle)
		return -ENOMEM;
	handle->imported = true;
	return lien_handle_take(graph, handle, event);
}

int lien_graph_apply_key_export(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_mapping *mapping = lien_process_mapping(process, event->key.va);

	if (!mapping || !lien_allocation_by_address(mapping->holding->allocation)) {
		lien_graph_odd(graph, process);
		return 0;
	}
	return share_by_key(graph, mapping->holding->allocation, event, event->key.key);
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

int lien_graph_apply_key_import(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	unsigned by = event->type == LIEN_CALL_CU_IPC_OPEN ? LIEN_CALL_CU_IPC_GET
							   : LIEN_CALL_CU_POOL_EXPORT_POINTER;
	struct lien_share *share = lien_share_find(graph, lien_share_number(by, event->key.key));
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
	if (!lien_range_sane(event->key.va, bytes)) {
		lien_graph_odd(graph, process);
		return 0;
	}
	if (allocation)
		allocation->importing = true;
	vacated = lien_range_vacate(graph, process, event->key.va, bytes);
	if (allocation)
		allocation->importing = false;
	if (!vacated)
		return 0;
	if (!allocation)
		allocation = import_unmatched(graph, process, event);
	if (!allocation)
		return -ENOMEM;
	if (share)
		lien_share_taken(graph, share);
	mapping = lien_mapping_new(
		graph, lien_holding_get(graph, process, allocation), event->key.va, bytes);
	if (!mapping)
		return -ENOMEM;
	mapping->imported = mapping->opened = true;
	mapping->opens = 1;
	mapping->context = lien_context_number(process, event->key.context);
	return 0;
}
