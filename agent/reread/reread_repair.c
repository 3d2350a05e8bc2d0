// SPDX-License-Identifier: BSD-2-Clause
/* Makes up the calls that bring the graph in line with the driver. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/reread/reread_internal.h"
#include "agent/reread/emit.h"

/* Memory that another process has exported. */
struct exported {
	uint64_t location_type, bytes;
};

struct repair {
	struct lien_emitter emitter;
	const struct lien_reread *reread;
	struct lien_graph *graph;
	struct lien_process *process;
	struct exported *exported; /* sorted by location and size */
	unsigned exported_count;
	bool others_unknown; /* not all exports of other processes are known */
};

static struct lien_event event_of(struct repair *repair, unsigned type)
{
	return lien_emit_event(&repair->emitter, repair->process, type);
}

static void emit(struct repair *repair, struct lien_event *event, size_t size)
{
	lien_emit(&repair->emitter, event, size);
}

static void emit_given_back(struct repair *repair, struct lien_event *event, size_t size)
{
	lien_emit_given_back(&repair->emitter, event, size);
}

static struct lien_handle *handle_find(struct lien_process *process, uint64_t value)
{
	struct lien_handle key = {.value = value};

	return SPLAY_FIND(lien_handle_tree, &process->handles, &key);
}

static int exported_cmp(const void *a, const void *b)
{
	const struct exported *x = a, *y = b;

	if (x->location_type != y->location_type)
		return x->location_type < y->location_type ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void list_exported(struct repair *repair)
{
	struct lien_allocation *allocation;

	for (allocation = lien_graph_first_allocation(repair->graph); allocation;
		allocation = lien_graph_next_allocation(allocation))
		if (allocation->owner != repair->process && allocation->exports)
			repair->exported[repair->exported_count++] = (struct exported){
				allocation->prop.location_type, allocation->bytes};
	qsort(repair->exported, repair->exported_count, sizeof(*repair->exported), exported_cmp);
}

/* Prepares the lookups for the differences. 0 or -ENOMEM. */
static int prepare(struct repair *repair)
{
	struct lien_process *process;

	repair->exported =
		calloc(lien_graph_stats(repair->graph)->allocations + 1, sizeof(*repair->exported));
	if (!repair->exported)
		return -ENOMEM;
	list_exported(repair);
	for (process = lien_graph_first(repair->graph); process; process = lien_graph_next(process))
		repair->others_unknown |=
			process != repair->process && process->cuda &&
			process->incomplete & ~LIEN_INCOMPLETE_NCCL & ~LIEN_INCOMPLETE_CARDS;
	return 0;
}

static void release_all(struct repair *repair, struct lien_handle *handle)
{
	lien_emit_release_all(&repair->emitter, handle);
}

/* Releases its handles to memory that it no longer maps. */
static void release_names(struct repair *repair, const uint64_t *values, unsigned count)
{
	struct lien_handle *handle;
	unsigned i;

	for (i = 0; i < count; i++) {
		handle = handle_find(repair->process, values[i]);
		if (handle && !handle->holding->mapped)
			release_all(repair, handle);
	}
}

/*
 * Removes what is no longer there. A handle whose last mapping is gone was probably released as
 * well. If it was not, its next use shows that, while a handle that is kept by mistake would never
 * go. If its value is seen again, it may be other memory: the driver reuses values.
 */
static int take_away(struct repair *repair, const struct lien_difference *difference)
{
	struct lien_mapping *mapping = lien_process_mapping(repair->process, difference->va);
	struct lien_holding *holding = mapping ? mapping->holding : NULL;
	struct lien_handle *handle;
	struct lien_event event;
	uint64_t *values;
	unsigned n = 0;

	if (!mapping || mapping->va != difference->va)
		return 0;
	if (holding->allocation->origin == LIEN_ORIGIN_ALLOC) {
		event = event_of(repair, LIEN_CALL_CU_MEM_FREE);
		event.range.va = mapping->va;
		emit_given_back(repair, &event, LIEN_EVENT_SIZE(range));
		return 0;
	}
	if (holding->mapped == 1)
		TAILQ_FOREACH (handle, &holding->handles, of_holding)
			n++;
	values = calloc(n + 1, sizeof(*values));
	if (!values)
		return -ENOMEM;
	n = 0;
	if (holding->mapped == 1)
		TAILQ_FOREACH (handle, &holding->handles, of_holding)
			values[n++] = handle->value;
	event = event_of(repair, LIEN_CALL_CU_MEM_UNMAP);
	event.range.va = mapping->va;
	event.range.bytes = mapping->bytes;
	emit_given_back(repair, &event, LIEN_EVENT_SIZE(range));
	release_names(repair, values, n);
	free(values);
	return 0;
}

/* Another process whose exports are not all known may have made it. */
static bool may_be_imported(const struct repair *repair, const struct lien_wire_found *found)
{
	const struct exported *exported = repair->exported;
	unsigned low = 0, high = repair->exported_count, mid;

	/* The driver (580) reports none for imported memory. */
	if (found->handle_types)
		return false;
	if (repair->others_unknown)
		return true;
	while (low < high) { /* after the largest one there */
		mid = low + (high - low) / 2;
		if (exported[mid].location_type <= found->location_type)
			low = mid + 1;
		else
			high = mid;
	}
	return low && exported[low - 1].location_type == found->location_type &&
	       exported[low - 1].bytes >= found->bytes;
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
	struct lien_event event;

	if (may_be_imported(repair, found)) {
		event = event_of(repair, LIEN_CALL_CU_MEM_IMPORT);
		event.share.handle = found->handle;
		event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
		event.share.fd = -1;
		emit(repair, &event, LIEN_EVENT_SIZE(share));
		return true;
	}
	event = event_of(repair, LIEN_CALL_CU_MEM_CREATE);
	event.create.handle = found->handle;
	event.create.bytes = found->bytes; /* the map of a longer one extends it */
	event.create.prop = prop_of(found);
	emit(repair, &event, LIEN_EVENT_SIZE(create));
	return false;
}

/* Sets the access that was found, and none for devices that only the graph has. */
static void give_access(struct repair *repair, const struct lien_wire_found *found)
{
	const struct lien_mapping *mapping = lien_process_mapping(repair->process, found->va);
	const struct lien_access_set *set = mapping ? lien_mapping_access(mapping) : NULL;
	struct lien_event event = event_of(repair, LIEN_CALL_CU_MEM_SET_ACCESS);
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
		emit(repair, &event, LIEN_EVENT_SIZE(access));
}

static void emit_property(
	struct repair *repair, const struct lien_wire_found *found, struct lien_prop prop)
{
	struct lien_event event = event_of(repair, LIEN_EVENT_PROP);

	event.property.va = found->va;
	event.property.prop = prop;
	emit(repair, &event, LIEN_EVENT_SIZE(property));
}

static void put_there(struct repair *repair, const struct lien_wire_found *found)
{
	struct lien_handle *handle;
	struct lien_event event;
	bool imported = false;

	if (found->kind == LIEN_WIRE_PLAIN) {
		event = event_of(repair, LIEN_CALL_CU_MEM_ALLOC);
		event.alloc.va = found->va;
		event.alloc.bytes = found->bytes;
		event.alloc.device = found->location_type == CU_MEM_LOCATION_TYPE_DEVICE
					     ? found->location_id
					     : -1;
		emit(repair, &event, LIEN_EVENT_SIZE(alloc));
		return;
	}
	handle = handle_find(repair->process, found->handle);
	if (handle && !handle->holding->mapped) {
		release_all(repair, handle);
		handle = NULL;
	}
	if (!handle)
		imported = make_known(repair, found);
	event = event_of(repair, LIEN_CALL_CU_MEM_MAP);
	event.map.va = found->va;
	event.map.bytes = found->bytes;
	event.map.handle = found->handle;
	emit(repair, &event, LIEN_EVENT_SIZE(map));
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

int lien_reread_repair(const struct lien_reread *reread, struct lien_graph *graph,
	struct lien_process *process, uint64_t now_ns, lien_emit_fn *emit_fn, void *context)
{
	struct repair repair = {.emitter = {now_ns, emit_fn, context},
		.reread = reread,
		.graph = graph,
		.process = process};
	int err = prepare(&repair);
	unsigned i;

	for (i = 0; i < reread->certain.count && !err; i++)
		if (takes_away(&reread->certain.difference[i]))
			err = take_away(&repair, &reread->certain.difference[i]);
	for (i = 0; i < reread->certain.count && !err; i++)
		mend(&repair, &reread->certain.difference[i]);
	free(repair.exported);
	return err;
}

void lien_reread_learn(const struct lien_reread *reread, struct lien_process *process,
	uint64_t now_ns, lien_emit_fn *emit_fn, void *context)
{
	struct repair repair = {
		.emitter = {now_ns, emit_fn, context}, .reread = reread, .process = process};
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
