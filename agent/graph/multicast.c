// SPDX-License-Identifier: BSD-2-Clause
/* Multicast objects: handles without memory, to which several devices' memory is bound. */
#include <errno.h>
#include <stdlib.h>

#include "agent/graph/internal.h"

int lien_graph_apply_multicast_create(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *object;
	struct lien_handle *handle;

	lien_handle_vacate(graph, process, event->multicast.handle);
	object = lien_allocation_new(graph, LIEN_ORIGIN_MULTICAST);
	if (!object)
		return -ENOMEM;
	lien_allocation_own(object, process);
	object->bytes = event->multicast.bytes;
	object->prop.location_id = -1;
	if (lien_allocation_asked(graph, process, object, event))
		return -ENOMEM;
	handle = lien_handle_new(graph, process, object, event->multicast.handle);
	return handle ? lien_handle_take(graph, handle, event) : -ENOMEM;
}

/* Returns the object of a call; a process may have imported it. */
static struct lien_allocation *object_of(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->multicast.handle);

	if (handle && handle->holding->allocation->origin == LIEN_ORIGIN_MULTICAST)
		return handle->holding->allocation;
	lien_graph_odd(graph, process);
	return NULL;
}

int lien_graph_apply_multicast_device(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *object = object_of(graph, process, event);

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

int lien_binding_new(struct lien_graph *graph, const struct lien_binding *like)
{
	struct lien_binding *binding = malloc(sizeof(*binding));

	if (!binding)
		return -ENOMEM;
	*binding = *like;
	binding->number = ++graph->next_binding;
	RB_INSERT(lien_binding_tree, &binding->object->bound, binding);
	LIST_INSERT_HEAD(&binding->memory->bindings, binding, of_memory);
	return 0;
}

int lien_graph_apply_multicast_bind(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *object = object_of(graph, process, event), *memory;
	uint64_t offset;

	memory = memory_of(process, event, &offset);
	if (!object)
		return 0;
	if (!memory || memory->origin == LIEN_ORIGIN_MULTICAST) {
		lien_graph_odd(graph, process);
		return 0;
	}
	return lien_binding_new(graph, &(struct lien_binding){.object = object,
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
int lien_graph_apply_multicast_unbind(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_allocation *object = object_of(graph, process, event);
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
			lien_binding_drop(graph, binding);
	}
	if (!first)
		lien_graph_odd(graph, process);
	return 0;
}
