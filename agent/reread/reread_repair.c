// SPDX-License-Identifier: BSD-2-Clause
/* Makes up the calls that bring the graph in line with the driver. */
#include <lien/cuda_abi.h>
#include "agent/reread/reread.h"

/* Kinds of places (CUmemLocationType); the last one stands for all that follow. */
#define LOCATION_TYPES 8

struct repair {
	struct lien_emitter *emitter;
	struct lien_process *process;
	uint64_t exported[LOCATION_TYPES]; /* the most bytes that other processes export together */
	bool others_unknown;		   /* not all exports of other processes are known */
};

static uint64_t *exported_at(struct repair *repair, uint32_t location_type)
{
	return &repair->exported[location_type < LOCATION_TYPES ? location_type
								: LOCATION_TYPES - 1];
}

static void look_at_others(struct repair *repair, struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	struct lien_process *process;
	uint64_t *most;

	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		most = exported_at(repair, allocation->prop.location_type);
		if (allocation->owner != repair->process && allocation->exports &&
			allocation->bytes > *most)
			*most = allocation->bytes;
	}
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		repair->others_unknown |=
			process != repair->process && process->cuda &&
			process->incomplete & ~LIEN_INCOMPLETE_NCCL & ~LIEN_INCOMPLETE_CARDS;
}

/*
 * Removes what is no longer there. A handle whose last mapping is gone was probably released as
 * well. If it was not, its next use shows that, while a handle that is kept by mistake would never
 * go. If its value is seen again, it may be other memory: the driver reuses values.
 */
static void take_away(struct repair *repair, const struct lien_difference *difference)
{
	struct lien_mapping *mapping = lien_process_mapping(repair->process, difference->va);
	struct lien_holding *holding = mapping ? mapping->holding : NULL;
	struct lien_handle *handle, *next;
	struct lien_event event;

	if (!mapping || mapping->va != difference->va)
		return;
	if (holding->allocation->origin == LIEN_ORIGIN_ALLOC) {
		event = lien_emit_event(repair->emitter, repair->process, LIEN_CALL_CU_MEM_FREE);
		event.range.va = mapping->va;
		lien_emit_given_back(repair->emitter, &event, LIEN_EVENT_SIZE(range));
		return;
	}
	handle = holding->mapped == 1 ? TAILQ_FIRST(&holding->handles) : NULL;
	while (handle && !handle->references) /* these stand first, and go with the mapping */
		handle = TAILQ_NEXT(handle, of_holding);
	lien_emit_unmap(repair->emitter, repair->process, mapping->va, mapping->bytes);
	for (; handle; handle = next) { /* what is mapped no more exists by its handles alone */
		next = TAILQ_NEXT(handle, of_holding);
		if (!handle->holding->mapped)
			lien_emit_release_all(repair->emitter, handle);
	}
}

/* Another process whose exports are not all known may have made it. The driver (580) reports no
 * types of handles for imported memory. */
static bool may_be_imported(struct repair *repair, const struct lien_wire_found *found)
{
	return !found->handle_types &&
	       (repair->others_unknown ||
		       *exported_at(repair, found->location_type) >= found->bytes);
}

static struct lien_prop prop_of(const struct lien_wire_found *found)
{
	return (struct lien_prop){
		.type = found->prop_type,
		.handle_types = found->handle_types,
		.location_type = found->location_type,
		.location_id = found->location_id,
		.compression = found->compression,
		.rdma = found->rdma,
		.usage = found->usage,
	};
}

/* Returns true if it is taken for an import. */
static bool make_known(struct repair *repair, const struct lien_wire_found *found)
{
	const bool imported = may_be_imported(repair, found);
	const struct lien_prop prop = prop_of(found);

	if (imported)
		lien_emit_import(repair->emitter, repair->process, found->handle, 0);
	else /* the map of a longer one extends it */
		lien_emit_create(
			repair->emitter, repair->process, found->handle, found->bytes, &prop);
	return imported;
}

/* Sets the access that was found, and none for devices that only the graph has. */
static void give_access(struct repair *repair, const struct lien_wire_found *found)
{
	const struct lien_mapping *mapping = lien_process_mapping(repair->process, found->va);
	const struct lien_access_set *set = mapping ? lien_mapping_access(mapping) : NULL;
	struct lien_event event =
		lien_emit_event(repair->emitter, repair->process, LIEN_CALL_CU_MEM_SET_ACCESS);
	unsigned i, j, n;

	event.access.va = found->va;
	event.access.bytes = found->bytes;
	for (n = 0; n < found->places && n < LIEN_ACCESS_MAX; n++)
		event.access.access[n] = (struct lien_access){found->place[n].location_type,
			found->place[n].location_id, found->place[n].flags};
	for (i = 0; set && i < set->count; i++) {
		const struct lien_access *known = &set->access[i];

		for (j = 0; j < found->places; j++)
			if (found->place[j].location_type == known->location_type &&
				found->place[j].location_id == known->location_id)
				break;
		if (j == found->places && n < LIEN_ACCESS_MAX &&
			known->location_type == CU_MEM_LOCATION_TYPE_DEVICE)
			event.access.access[n++] =
				(struct lien_access){known->location_type, known->location_id, 0};
	}
	event.access.count = n;
	if (n)
		lien_emit(repair->emitter, &event, LIEN_EVENT_SIZE(access));
}

static void emit_property(
	struct repair *repair, const struct lien_wire_found *found, struct lien_prop prop)
{
	struct lien_event event =
		lien_emit_event(repair->emitter, repair->process, LIEN_EVENT_PROP);

	event.property.va = found->va;
	event.property.prop = prop;
	lien_emit(repair->emitter, &event, LIEN_EVENT_SIZE(property));
}

static void put_there(struct repair *repair, const struct lien_wire_found *found)
{
	struct lien_handle key = {.value = found->handle}, *handle;
	struct lien_event event;
	bool imported = false;

	if (found->kind == LIEN_WIRE_PLAIN) {
		event = lien_emit_event(repair->emitter, repair->process, LIEN_CALL_CU_MEM_ALLOC);
		event.alloc.va = found->va;
		event.alloc.bytes = found->bytes;
		event.alloc.device = found->location_type == CU_MEM_LOCATION_TYPE_DEVICE
					     ? found->location_id
					     : -1;
		lien_emit(repair->emitter, &event, LIEN_EVENT_SIZE(alloc));
		return;
	}
	handle = SPLAY_FIND(lien_handle_tree, &repair->process->handles, &key);
	if (handle && !handle->holding->mapped) {
		lien_emit_release_all(repair->emitter, handle);
		handle = NULL;
	}
	if (!handle)
		imported = make_known(repair, found);
	lien_emit_map(repair->emitter, repair->process, found->va, found->bytes, found->handle);
	give_access(repair, found);
	if (imported) /* adoption may find that it was made here */
		emit_property(repair, found, prop_of(found));
}

static void mend(struct repair *repair, const struct lien_difference *difference)
{
	if (difference->kind == LIEN_DIFFERENCE_PROPERTIES)
		emit_property(repair, &difference->found, prop_of(&difference->found));
	if (difference->kind == LIEN_DIFFERENCE_PROPERTIES ||
		difference->kind == LIEN_DIFFERENCE_ACCESS) {
		if (difference->found.kind == LIEN_WIRE_AREA)
			give_access(repair, &difference->found);
	} else if (difference->found.bytes) {
		put_there(repair, &difference->found);
	}
}

static bool takes_away(const struct lien_difference *difference)
{
	return difference->kind == LIEN_DIFFERENCE_GONE ||
	       difference->kind == LIEN_DIFFERENCE_SIZE ||
	       difference->kind == LIEN_DIFFERENCE_HANDLE;
}

void lien_reread_repair(const struct lien_reread *reread, struct lien_graph *graph,
	struct lien_process *process, struct lien_emitter *emitter)
{
	struct repair repair = {.emitter = emitter, .process = process};
	unsigned i;

	look_at_others(&repair, graph);
	for (i = 0; i < reread->certain.count; i++)
		if (takes_away(&reread->certain.difference[i]))
			take_away(&repair, &reread->certain.difference[i]);
	for (i = 0; i < reread->certain.count; i++)
		mend(&repair, &reread->certain.difference[i]);
}

void lien_reread_learn(const struct lien_reread *reread, struct lien_process *process,
	struct lien_emitter *emitter)
{
	struct repair repair = {.emitter = emitter, .process = process};
	const struct lien_wire_found *found;
	struct lien_mapping *mapping;
	struct lien_prop prop;
	unsigned i;

	for (i = 0; i < reread->plain.count; i++) {
		found = &reread->plain.found[i];
		mapping = lien_process_mapping(process, found->va);
		if (!found->bytes || !mapping || mapping->va != found->va ||
			mapping->holding->allocation->origin != LIEN_ORIGIN_ALLOC ||
			mapping->holding->allocation->prop.location_id >= 0)
			continue;
		prop = mapping->holding->allocation->prop;
		prop.location_type = found->location_type;
		prop.location_id = found->location_id;
		emit_property(&repair, found, prop);
	}
}
