// SPDX-License-Identifier: BSD-2-Clause
/* Lists everything that keeps one allocation alive. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/graph/named.h"
#include "agent/views/internal.h"

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
	json_array_append_new(holders,
		json_pack("{s:I, s:s}", "pid", (json_int_t)pid, "kind", "process of another user"));
}

/* The ranges in which a process has mapped the allocation: disjoint and sorted. */
struct places {
	struct lien_span *span;
	unsigned count;
};

static int span_cmp(const void *a, const void *b)
{
	const struct lien_span *x = a, *y = b;

	return x->va < y->va ? -1 : x->va > y->va;
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
	unsigned low = 0, high = places->count, mid;

	while (low < high) { /* the first range that ends after the beginning */
		mid = low + (high - low) / 2;
		if (places->span[mid].end <= registration->va)
			low = mid + 1;
		else
			high = mid;
	}
	return low < places->count && places->span[low].va < registration->va + registration->bytes;
}

static void add_cards(json_t *holders, struct lien_process *process, const struct places *places)
{
	struct lien_registration *registration;

	RB_FOREACH (registration, lien_registration_tree, &process->cards)
		if (touches(registration, places))
			json_array_append_new(holders,
				json_pack("{s:I, s:s, s:s?, s:o, s:I}", "pid",
					(json_int_t)process->pid, "kind", "network card", "card",
					registration->card ? registration->card->text : NULL,
					"address", lien_view_hex(registration->va), "bytes",
					(json_int_t)registration->bytes));
}

static void add_registrations(
	json_t *holders, struct lien_process *process, const struct places *places)
{
	struct lien_registration *registration;
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		RB_FOREACH (registration, lien_registration_tree, &comm->registrations)
			if (touches(registration, places))
				json_array_append_new(holders,
					json_pack("{s:I, s:s, s:o, s:i, s:o, s:I, s:b}", "pid",
						(json_int_t)process->pid, "kind", "registration",
						"group", lien_view_group(comm), "rank", comm->rank,
						"address", lien_view_hex(registration->va), "bytes",
						(json_int_t)registration->bytes, "window",
						registration->window));
}

/* Adds one line per export, whether it is open now or not. */
static void add_exports(json_t *holders, const struct lien_allocation *allocation)
{
	const struct lien_share *share;
	unsigned by_key = 0;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->number & LIEN_SHARE_BY_KEY && !share->control) {
			json_array_append_new(holders,
				json_pack("{s:I, s:s, s:i, s:s}", "pid",
					(json_int_t)allocation->owner_pid, "kind", "export",
					"exports", 1, "by",
					share->call == LIEN_CALL_CU_IPC_GET ? "legacy IPC handle"
					: share->call == LIEN_CALL_CU_MEM_EXPORT ? "fabric handle"
										 : "pool pointer"));
			by_key++;
		}
	if (allocation->exports > by_key)
		json_array_append_new(holders,
			json_pack("{s:I, s:s, s:i, s:s}", "pid", (json_int_t)allocation->owner_pid,
				"kind", "export", "exports", allocation->exports - by_key, "by",
				"file descriptor"));
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
			json_array_append_new(holders,
				json_pack("{s:I, s:s, s:i}", "pid",
					(json_int_t)allocation->owner_pid, "kind",
					"export on its way", "exports", (int)files->file[i].fd));
		else if (lien_viewer_sees(viewer, process))
			json_array_append_new(holders,
				json_pack("{s:I, s:s, s:i}", "pid", (json_int_t)files->file[i].pid,
					"kind", "open export", "fd", (int)files->file[i].fd));
		else
			add_other(holders, files->file[i].pid);
	}
}

static void add_bindings(json_t *holders, const struct lien_allocation *allocation)
{
	const struct lien_binding *binding;

	if (allocation->origin != LIEN_ORIGIN_MULTICAST)
		LIST_FOREACH (binding, &allocation->bindings, of_memory)
			json_array_append_new(holders,
				json_pack("{s:I, s:s, s:I, s:I}", "pid",
					(json_int_t)binding->object->owner_pid, "kind",
					"multicast object", "id", (json_int_t)binding->object->id,
					"bytes", (json_int_t)binding->bytes));
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
				with_kind(lien_view_mapping(mapping),
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
	json_t *holders = json_array(), *handles = lien_view_handles(allocation, viewer), *handle,
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
		json_array_append_new(holders,
			json_pack("{s:I, s:s, s:i}", "pid", (json_int_t)allocation->owner_pid,
				"kind", "dma-buf", "exports", allocation->dmabufs));
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
		reason = lien_plan_open(graph, held, files->file, files->count);
	if (!reason)
		reason = lien_plan_unreachable_then(held->owner);
	allocation = lien_view_allocation(held);
	json_object_set_new(allocation, "movable", json_boolean(!reason));
	json_object_set_new(allocation, "reason", reason ? json_string(reason) : json_null());
	return json_pack("{s:o, s:o}", "allocation", allocation, "holders",
		view_holder_list(graph, viewer, held, files));
}
