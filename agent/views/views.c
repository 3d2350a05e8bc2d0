// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/named.h"
#include "agent/views/internal.h"

static const char *presence(const struct lien_process *process)
{
	static const char *const names[] = {
		[LIEN_CONTROL_NONE] = "none",
		[LIEN_CONTROL_LOADED] = "loaded",
		[LIEN_CONTROL_TAKEN] = "taken",
		[LIEN_CONTROL_OTHER] = "other",
		[LIEN_CONTROL_READY] = "ready",
		[LIEN_CONTROL_UNKNOWN] = "unknown",
	};

	return names[process->presence];
}

struct process_sums {
	uint64_t bytes, nccl, inferred, imported, offloaded;
	uint64_t devices; /* bit n: device n */
	bool imports_away;
};

/* An import mapped several times is the same memory. */
static void sum_holding(struct process_sums *sums, const struct lien_holding *holding)
{
	const struct lien_mapping *mapping, *here = NULL;

	if (!lien_allocation_on_device(holding->allocation))
		return;
	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		if (mapping->imported && mapping->parked)
			/* otherwise it is lost */
			sums->imports_away |= holding->allocation->owner != NULL;
		else if (mapping->imported && !here)
			here = mapping;
	}
	if (here)
		sums->imported += here->bytes;
}

static void sum_allocation(struct process_sums *sums, const struct lien_allocation *allocation)
{
	bool inferred;

	if (!lien_allocation_held(allocation) || !lien_allocation_on_device(allocation))
		return;
	if (allocation->prop.location_id >= 0 && allocation->prop.location_id < 64)
		sums->devices |= 1ull << allocation->prop.location_id;
	if (lien_allocation_offloaded(allocation)) {
		sums->offloaded += allocation->bytes;
		return;
	}
	sums->bytes += allocation->bytes;
	if (strcmp(lien_allocation_attributed(allocation, &inferred), "nccl"))
		return;
	sums->nccl += allocation->bytes;
	if (inferred)
		sums->inferred += allocation->bytes;
}

static json_t *view_devices(uint64_t devices)
{
	json_t *list = json_array();
	int i;

	for (i = 0; i < 64; i++)
		if (devices >> i & 1)
			json_array_append_new(list, json_integer(i));
	return list;
}

static json_t *view_ranks(struct lien_process *process)
{
	json_t *list = json_array();
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (comm->rank >= 0)
			lien_view_add(list, "{s:o, s:i, s:i}", "group", lien_view_group(comm),
				"rank", comm->rank, "nranks", comm->nranks);
	return list;
}

/* A recording does not have what a control library reports. */
static json_t *known_bytes(const struct lien_process *process, uint64_t bytes)
{
	return process->presence == LIEN_CONTROL_UNKNOWN ? json_null() : json_integer(bytes);
}

static json_t *view_process(struct lien_process *process)
{
	const struct lien_allocation *allocation;
	struct process_sums sums = {0};
	struct lien_mapping *mapping;
	const bool recorded = process->presence == LIEN_CONTROL_UNKNOWN;
	const char *state = "running",
		   *reason = recorded ? NULL : lien_plan_unreachable_then(process);

	LIST_FOREACH (allocation, &process->owned, of_owner)
		sum_allocation(&sums, allocation);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (mapping == LIST_FIRST(&mapping->holding->mappings))
			sum_holding(&sums, mapping->holding);
	if (!sums.offloaded)
		sums.offloaded = process->held_bytes; /* only its control library knows of it */
	if (sums.offloaded || sums.imports_away)
		state = sums.bytes || sums.imported ? "partly offloaded" : "offloaded";
	return json_pack(
		"{s:I, s:s, s:I, s:s, s:b, s:s, s:o, s:s?, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:o, "
		"s:o, s:s?}",
		"pid", (json_int_t)process->pid, "command", process->command, "uid",
		(json_int_t)process->uid, "state", state, "complete", lien_process_whole(process),
		"control", presence(process), "movable",
		recorded ? json_null() : json_boolean(!reason), "reason", reason, "devices",
		view_devices(sums.devices), "ranks", view_ranks(process), "bytes",
		(json_int_t)sums.bytes, "nccl_bytes", (json_int_t)sums.nccl, "nccl_inferred_bytes",
		(json_int_t)sums.inferred, "imported_bytes", (json_int_t)sums.imported,
		"offloaded_bytes", (json_int_t)sums.offloaded, "arena_bytes",
		known_bytes(process, process->arena_bytes), "arena_used_bytes",
		known_bytes(process, process->arena_used), "used_in", process->used_in);
}

static json_t *view_processes(struct lien_graph *graph, const struct lien_viewer *viewer)
{
	json_t *list = json_array();
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, graph)
		if (process->cuda && lien_viewer_sees(viewer, process))
			json_array_append_new(list, view_process(process));
	return list;
}

json_t *lien_view_ps(struct lien_graph *graph, const struct lien_viewer *viewer)
{
	return json_pack("{s:o, s:o}", "processes", view_processes(graph, viewer), "dead",
		lien_view_dead(graph, viewer));
}

static json_t *view_access(const struct lien_mapping *mapping)
{
	static const char *const names[] = {"none", "read", "write", "read-write"};
	json_t *list = json_array();
	const struct lien_access_set *set = lien_mapping_access(mapping);
	unsigned i;

	for (i = 0; set && i < set->count; i++) {
		const struct lien_access *access = &set->access[i];
		/* CU_MEM_LOCATION_TYPE_DEVICE */
		json_t *place = access->location_type == 1
					? json_pack("{s:i}", "device", access->location_id)
					: json_pack("{s:i}", "host", access->location_id);

		json_object_set_new(place, "access", json_string(names[access->flags & 3]));
		json_array_append_new(list, place);
	}
	return list;
}

static const char *state(const struct lien_allocation *allocation)
{
	if (lien_allocation_offloaded(allocation))
		return "offloaded";
	if (allocation->origin == LIEN_ORIGIN_MULTICAST)
		return "bound to others";
	return lien_allocation_on_device(allocation) ? "on the device" : "in host memory";
}

/* The communicator for which NCCL made it; null: none, or not known. */
static json_t *communicator(const struct lien_allocation *allocation)
{
	const struct lien_comm *comm = lien_allocation_comm(allocation);

	if (!allocation->comm)
		return json_null();
	if (!comm) /* being made, or destroyed */
		return json_pack(
			"{s:n, s:n, s:b}", "group", "rank", "inferred", allocation->comm_inferred);
	return json_pack("{s:o, s:i, s:b}", "group", lien_view_group(comm), "rank", comm->rank,
		"inferred", allocation->comm_inferred);
}

static json_t *view_allocation(const struct lien_allocation *allocation)
{
	bool inferred;
	const char *owner = lien_allocation_attributed(allocation, &inferred);

	return json_pack("{s:I, s:o, s:o, s:I, s:s, s:b, s:s?, s:b, s:s, s:s, s:b, s:o}", "id",
		(json_int_t)allocation->id, "pid",
		allocation->owner_pid ? json_integer(allocation->owner_pid) : json_null(), "device",
		allocation->prop.location_type == 1 && lien_allocation_on_device(allocation)
			? json_integer(allocation->prop.location_id)
			: json_null(),
		"bytes", (json_int_t)allocation->bytes, "owner", owner, "owner_inferred", inferred,
		"tag", lien_allocation_tag(allocation), "arena", lien_is_arena(allocation),
		"origin", lien_origin_name(allocation->origin), "state", state(allocation), "alive",
		allocation->owner != NULL, "communicator", communicator(allocation));
}

static json_t *view_handles(
	const struct lien_allocation *allocation, const struct lien_viewer *viewer)
{
	const struct lien_holding *holding;
	const struct lien_handle *handle;
	json_t *list = json_array();

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		if (!lien_viewer_sees(viewer, holding->process))
			continue;
		TAILQ_FOREACH (handle, &holding->handles, of_holding)
			if (handle->references)
				lien_view_add(list, "{s:I, s:o, s:I, s:b}", "pid",
					(json_int_t)holding->process->pid, "handle",
					lien_view_hex(handle->value), "references",
					(json_int_t)handle->references, "imported",
					handle->imported);
	}
	return list;
}

static json_t *view_mapping(const struct lien_mapping *mapping)
{
	return json_pack("{s:I, s:o, s:I, s:o}", "pid", (json_int_t)mapping->holding->process->pid,
		"address", lien_view_hex(mapping->va), "bytes", (json_int_t)mapping->bytes,
		"access", view_access(mapping));
}

static json_t *view_binding(const struct lien_binding *binding, const struct lien_allocation *other)
{
	return json_pack("{s:I, s:I, s:I}", "id", (json_int_t)other->id, "offset",
		(json_int_t)binding->offset, "bytes", (json_int_t)binding->bytes);
}

/*
 * For a multicast object, lists the memory bound to it; for memory, the objects that it is bound
 * to.
 */
static json_t *view_bindings(const struct lien_allocation *allocation)
{
	struct lien_binding_tree *bound = (struct lien_binding_tree *)&allocation->bound;
	struct lien_binding *binding;
	json_t *list = json_array();

	if (allocation->origin == LIEN_ORIGIN_MULTICAST)
		RB_FOREACH (binding, lien_binding_tree, bound)
			json_array_append_new(list, view_binding(binding, binding->memory));
	else
		LIST_FOREACH (binding, &allocation->bindings, of_memory)
			json_array_append_new(list, view_binding(binding, binding->object));
	return list;
}

static json_t *view_mappings(
	const struct lien_allocation *allocation, const struct lien_viewer *viewer)
{
	const struct lien_holding *holding;
	const struct lien_mapping *mapping;
	json_t *list = json_array();

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (lien_viewer_sees(viewer, holding->process))
			LIST_FOREACH (mapping, &holding->mappings, of_holding)
				json_array_append_new(list, view_mapping(mapping));
	return list;
}

static json_t *view_registrations(struct lien_comm *comm)
{
	struct lien_registration *registration;
	json_t *list = json_array();

	RB_FOREACH (registration, lien_registration_tree, &comm->registrations)
		lien_view_add(list, "{s:o, s:I, s:b}", "address", lien_view_hex(registration->va),
			"bytes", (json_int_t)registration->bytes, "window", registration->window);
	return list;
}

static json_t *view_comms(struct lien_graph *graph, const struct lien_viewer *viewer)
{
	json_t *list = json_array();
	struct lien_process *process;
	struct lien_comm *comm;

	LIEN_FOREACH_PROCESS (process, graph) {
		if (!lien_viewer_sees(viewer, process))
			continue;
		RB_FOREACH (comm, lien_comm_tree, &process->comms)
			lien_view_add(list, "{s:o, s:I, s:o, s:i, s:i, s:o}", "group",
				lien_view_group(comm), "pid", (json_int_t)process->pid, "address",
				lien_view_hex(comm->address), "rank", comm->rank, "nranks",
				comm->nranks, "registrations", view_registrations(comm));
	}
	return list;
}

json_t *lien_view_graph(struct lien_graph *graph, const struct lien_viewer *viewer)
{
	struct lien_allocation *allocation;
	json_t *list = json_array(), *entry, *bindings;

	LIEN_FOREACH_ALLOCATION (allocation, graph) {
		if (!lien_allocation_held(allocation) || !lien_viewer_sees_part(viewer, allocation))
			continue;
		entry = view_allocation(allocation);
		json_object_set_new(entry, "exports", json_integer(allocation->exports));
		json_object_set_new(entry, "handles", view_handles(allocation, viewer));
		json_object_set_new(entry, "mappings", view_mappings(allocation, viewer));
		bindings = view_bindings(allocation);
		if (json_array_size(bindings))
			json_object_set(entry, "multicast", bindings);
		json_decref(bindings);
		json_array_append_new(list, entry);
	}
	return json_pack("{s:o, s:o, s:o}", "processes", view_processes(graph, viewer),
		"allocations", list, "communicators", view_comms(graph, viewer));
}

/* --- everything that keeps one allocation alive ------------------------------------------------
 */

static json_t *with_kind(json_t *holder, const char *kind)
{
	json_object_set_new(holder, "kind", json_string(kind));
	return holder;
}

/*
 * Adds another user's process by its pid only: what it does with the memory is that user's
 * business.
 */
static void add_other(json_t *holders, uint32_t pid)
{
	lien_view_add(
		holders, "{s:I, s:s}", "pid", (json_int_t)pid, "kind", "process of another user");
}

/* The ranges in which a process has mapped the allocation: disjoint and sorted. */
struct places {
	struct lien_span *span;
	unsigned count;
};

/* Ranges that touch are equal. */
static int span_cmp(const void *a, const void *b)
{
	const struct lien_span *x = a, *y = b;

	return x->end <= y->va ? -1 : x->va >= y->end;
}

static struct places places_of(const struct lien_holding *holding)
{
	struct places places = {.span = calloc(holding->mapped + 1, sizeof(*places.span))};
	const struct lien_mapping *mapping;

	LIST_FOREACH (mapping, &holding->mappings, of_holding)
		if (places.span)
			places.span[places.count++] = (struct lien_span){
				.va = mapping->va, .end = mapping->va + mapping->bytes};
	if (places.count)
		qsort(places.span, places.count, sizeof(places.span[0]), span_cmp);
	return places;
}

static bool touches(const struct lien_registration *registration, const struct places *places)
{
	const struct lien_span span = {
		.va = registration->va, .end = registration->va + registration->bytes};

	return places->count && bsearch(&span, places->span, places->count, sizeof(span), span_cmp);
}

static void add_cards(json_t *holders, struct lien_process *process, const struct places *places)
{
	struct lien_registration *registration;

	RB_FOREACH (registration, lien_registration_tree, &process->cards)
		if (touches(registration, places))
			lien_view_add(holders, "{s:I, s:s, s:s?, s:o, s:I}", "pid",
				(json_int_t)process->pid, "kind", "network card", "card",
				registration->card ? registration->card->text : NULL, "address",
				lien_view_hex(registration->va), "bytes",
				(json_int_t)registration->bytes);
}

static void add_registrations(
	json_t *holders, struct lien_process *process, const struct places *places)
{
	struct lien_registration *registration;
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		RB_FOREACH (registration, lien_registration_tree, &comm->registrations)
			if (touches(registration, places))
				lien_view_add(holders, "{s:I, s:s, s:o, s:i, s:o, s:I, s:b}", "pid",
					(json_int_t)process->pid, "kind", "registration", "group",
					lien_view_group(comm), "rank", comm->rank, "address",
					lien_view_hex(registration->va), "bytes",
					(json_int_t)registration->bytes, "window",
					registration->window);
}

/* Adds one line per export, whether it is open now or not. */
static void add_exports(json_t *holders, const struct lien_allocation *allocation)
{
	const struct lien_share *share;
	unsigned by_key = 0;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->number & LIEN_SHARE_BY_KEY && !share->control) {
			lien_view_add(holders, "{s:I, s:s, s:i, s:s}", "pid",
				(json_int_t)allocation->owner_pid, "kind", "export", "exports", 1,
				"by",
				share->call == LIEN_CALL_CU_IPC_GET	 ? "legacy IPC handle"
				: share->call == LIEN_CALL_CU_MEM_EXPORT ? "fabric handle"
									 : "pool pointer");
			by_key++;
		}
	if (allocation->exports > by_key)
		lien_view_add(holders, "{s:I, s:s, s:i, s:s}", "pid",
			(json_int_t)allocation->owner_pid, "kind", "export", "exports",
			allocation->exports - by_key, "by", "file descriptor");
}

static void add_open_files(json_t *holders, struct lien_graph *graph,
	const struct lien_viewer *viewer, const struct lien_allocation *allocation,
	const struct lien_view_files *files)
{
	const struct lien_process *process;
	const struct lien_share *share;
	unsigned i;

	for (i = 0; i < files->count; i++) {
		share = lien_share_find(graph, files->file[i].share);
		if (!share || share->allocation != allocation)
			continue;
		process = lien_graph_process(graph, files->file[i].pid);
		if (!files->file[i].pid)
			lien_view_add(holders, "{s:I, s:s, s:i}", "pid",
				(json_int_t)allocation->owner_pid, "kind", "export on its way",
				"exports", (int)files->file[i].fd);
		else if (lien_viewer_sees(viewer, process))
			lien_view_add(holders, "{s:I, s:s, s:i}", "pid",
				(json_int_t)files->file[i].pid, "kind", "open export", "fd",
				(int)files->file[i].fd);
		else
			add_other(holders, files->file[i].pid);
	}
}

static void add_bindings(json_t *holders, const struct lien_allocation *allocation)
{
	const struct lien_binding *binding;

	if (allocation->origin != LIEN_ORIGIN_MULTICAST)
		LIST_FOREACH (binding, &allocation->bindings, of_memory)
			lien_view_add(holders, "{s:I, s:s, s:I, s:I}", "pid",
				(json_int_t)binding->object->owner_pid, "kind", "multicast object",
				"id", (json_int_t)binding->object->id, "bytes",
				(json_int_t)binding->bytes);
}

static void add_mappings(
	json_t *holders, const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	const struct lien_mapping *mapping;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		if (!lien_viewer_sees(viewer, holding->process)) {
			add_other(holders, holding->process->pid);
			continue;
		}
		LIST_FOREACH (mapping, &holding->mappings, of_holding)
			json_array_append_new(holders,
				with_kind(view_mapping(mapping),
					mapping->parked ? "offloaded mapping" : "mapping"));
	}
}

/* Adds registrations with communicators, and with network cards. */
static void add_registered(
	json_t *holders, const struct lien_viewer *viewer, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	struct places places;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		if (!lien_viewer_sees(viewer, holding->process))
			continue;
		places = places_of(holding);
		add_registrations(holders, holding->process, &places);
		add_cards(holders, holding->process, &places);
		free(places.span);
	}
}

static json_t *view_holder_list(struct lien_graph *graph, const struct lien_viewer *viewer,
	const struct lien_allocation *allocation, const struct lien_view_files *files)
{
	json_t *holders = json_array(), *handles = view_handles(allocation, viewer), *handle,
	       *imported;
	size_t i;

	json_array_foreach (handles, i, handle) {
		imported = json_object_get(handle, "imported");
		with_kind(handle, json_is_true(imported) ? "import" : "handle");
		json_object_del(handle, "imported");
		json_array_append(holders, handle);
	}
	json_decref(handles);
	add_mappings(holders, viewer, allocation);
	add_exports(holders, allocation);
	add_open_files(holders, graph, viewer, allocation, files);
	add_bindings(holders, allocation);
	if (allocation->origin != LIEN_ORIGIN_MULTICAST && allocation->dmabufs)
		lien_view_add(holders, "{s:I, s:s, s:i}", "pid", (json_int_t)allocation->owner_pid,
			"kind", "dma-buf", "exports", allocation->dmabufs);
	add_registered(holders, viewer, allocation);
	return holders;
}

json_t *lien_view_holders(struct lien_graph *graph, const struct lien_viewer *viewer, uint32_t pid,
	uint64_t address, const struct lien_view_files *files, char *error, size_t error_size)
{
	struct lien_process *process = lien_graph_process(graph, pid);
	const struct lien_allocation *held;
	struct lien_mapping *mapping;
	json_t *allocation;
	const char *reason;
	uint32_t holder;

	error[0] = '\0';
	if (!process || !lien_viewer_sees(viewer, process)) {
		lien_known_processes(graph, viewer, NULL, pid, error, error_size);
		return NULL;
	}
	mapping = lien_process_mapping(process, address);
	if (!mapping) {
		snprintf(error, error_size,
			"no GPU memory is known at 0x%" PRIx64
			" of process %u: `lien graph --format json` lists what is",
			address, pid);
		return NULL;
	}
	held = mapping->holding->allocation;
	reason = lien_plan_unmovable(held);
	if (!reason)
		reason = lien_plan_open(held, files->file, files->count, &holder);
	if (!reason)
		reason = lien_plan_unreachable_then(held->owner);
	allocation = view_allocation(held);
	json_object_set_new(allocation, "movable", json_boolean(!reason));
	json_object_set_new(allocation, "reason", reason ? json_string(reason) : json_null());
	return json_pack("{s:o, s:o}", "allocation", allocation, "holders",
		view_holder_list(graph, viewer, held, files));
}
