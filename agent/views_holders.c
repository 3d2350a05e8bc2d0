// SPDX-License-Identifier: BSD-2-Clause
/* Everything that keeps one allocation alive. */
#include <inttypes.h>
#include <stdio.h>

#include "agent/views_internal.h"

static json_t *with_kind(json_t *holder, const char *kind)
{
	json_object_set_new(holder, "kind", json_string(kind));
	return holder;
}

/* What another user's process does with it is that user's. */
static bool told(json_t *holders, const struct lien_viewer *viewer, struct lien_process *process)
{
	const json_t *holder;
	size_t i;

	if (lien_sees(viewer, process))
		return true;
	json_array_foreach (holders, i, holder)
		if (json_integer_value(json_object_get(holder, "pid")) == process->pid)
			return false;
	json_array_append_new(holders, json_pack("{s:I, s:s}", "pid", (json_int_t)process->pid,
					       "kind", "process of another user"));
	return false;
}

static void add_cards(json_t *holders, const struct lien_mapping *mapping)
{
	const struct lien_registration *registration;

	LIST_FOREACH (registration, &mapping->process->cards, next)
		if (lien_registration_touches(registration, mapping))
			json_array_append_new(holders,
				json_pack("{s:I, s:s, s:o, s:I}", "pid",
					(json_int_t)mapping->process->pid, "kind", "network card",
					"address", lien_view_hex(registration->va), "bytes",
					(json_int_t)registration->bytes));
}

static void add_registrations(json_t *holders, const struct lien_mapping *mapping)
{
	const struct lien_registration *registration;
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &mapping->process->comms)
		LIST_FOREACH (registration, &comm->registrations, next)
			if (lien_registration_touches(registration, mapping))
				json_array_append_new(
					holders, json_pack("{s:I, s:s, s:o, s:i, s:o, s:I, s:b}",
							 "pid", (json_int_t)mapping->process->pid,
							 "kind", "registration", "group",
							 lien_view_group(comm), "rank", comm->rank,
							 "address", lien_view_hex(registration->va),
							 "bytes", (json_int_t)registration->bytes,
							 "window", registration->window));
}

/* One line for each way: what was handed out, whether it is open now or not. */
static void add_exports(json_t *holders, const struct lien_allocation *allocation)
{
	const struct lien_share *share;
	unsigned by_key = 0;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->number & LIEN_SHARE_BY_KEY) {
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

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		for (i = 0; i < files->count; i++) {
			if (files->file[i].share != share->number)
				continue;
			process = lien_graph_process(graph, files->file[i].pid);
			json_array_append_new(holders,
				lien_sees(viewer, process)
					? json_pack("{s:I, s:s, s:i}", "pid",
						  (json_int_t)files->file[i].pid, "kind",
						  "open export", "fd", (int)files->file[i].fd)
					: json_pack("{s:I, s:s}", "pid",
						  (json_int_t)files->file[i].pid, "kind",
						  "process of another user"));
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

static json_t *view_holder_list(struct lien_graph *graph, const struct lien_viewer *viewer,
	const struct lien_allocation *allocation, const struct lien_view_files *files)
{
	json_t *holders = json_array(), *handles = lien_view_handles(allocation, viewer), *handle,
	       *imported;
	const struct lien_handle *other;
	const struct lien_mapping *mapping;
	size_t i;

	json_array_foreach (handles, i, handle) {
		imported = json_object_get(handle, "imported");
		with_kind(handle, json_is_true(imported) ? "import" : "handle");
		json_object_del(handle, "imported");
		json_array_append(holders, handle);
	}
	json_decref(handles);
	LIST_FOREACH (other, &allocation->handles, of_allocation)
		if (other->references)
			told(holders, viewer, other->process);
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (told(holders, viewer, mapping->process))
			json_array_append_new(holders,
				with_kind(lien_view_mapping(mapping),
					mapping->parked ? "offloaded mapping" : "mapping"));
	add_exports(holders, allocation);
	add_open_files(holders, graph, viewer, allocation, files);
	add_bindings(holders, allocation);
	if (allocation->dmabufs)
		json_array_append_new(holders,
			json_pack("{s:I, s:s, s:i}", "pid", (json_int_t)allocation->owner_pid,
				"kind", "dma-buf", "exports", allocation->dmabufs));
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		if (!lien_sees(viewer, mapping->process))
			continue;
		add_registrations(holders, mapping);
		add_cards(holders, mapping);
	}
	return holders;
}

json_t *lien_view_holders(struct lien_graph *graph, const struct lien_viewer *viewer, uint32_t pid,
	uint64_t address, const struct lien_view_files *files, char *error, size_t error_size)
{
	struct lien_process *process = lien_graph_process(graph, pid);
	struct lien_mapping *mapping;
	json_t *allocation;
	const char *reason;
	uint32_t holder;

	error[0] = '\0';
	if (!process || !lien_sees(viewer, process)) {
		snprintf(error, error_size, LIEN_UNKNOWN_PROCESS, pid);
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
	reason = lien_plan_unmovable(mapping->allocation);
	if (!reason)
		reason = lien_plan_open(mapping->allocation, files->file, files->count, &holder);
	if (!reason)
		reason = lien_plan_unreachable(mapping->allocation->owner);
	allocation = lien_view_allocation(mapping->allocation);
	json_object_set_new(allocation, "movable", json_boolean(!reason));
	json_object_set_new(allocation, "reason", reason ? json_string(reason) : json_null());
	return json_pack("{s:o, s:o}", "allocation", allocation, "holders",
		view_holder_list(graph, viewer, mapping->allocation, files));
}
