// SPDX-License-Identifier: BSD-2-Clause
/* The node's devices, and which of them the processes' ordinals refer to. */
#include <stdlib.h>
#include <string.h>

#include "agent/views/internal.h"

/* Devices of a process, by ordinal; the last place is for memory whose device is not known. */
#define PLACES	(LIEN_ORDINALS_MAX + 1)
#define UNKNOWN LIEN_ORDINALS_MAX

struct traced {
	uint64_t bytes[PLACES];
	bool used[PLACES];
};

struct gpu {
	struct lien_uuid uuid;
	const struct lien_node_device *device; /* NULL: NVML does not know it */
	json_t *processes;
};

struct gpus {
	struct gpu *gpu;
	unsigned count;
	json_t *unidentified; /* processes' devices that cannot be identified */
};

static json_t *bytes_or_null(uint64_t bytes)
{
	return bytes == LIEN_BYTES_UNKNOWN ? json_null() : json_integer(bytes);
}

static struct gpu *gpu_of(
	struct gpus *gpus, const struct lien_node *node, const struct lien_uuid *uuid)
{
	struct gpu *grown;
	unsigned i;

	for (i = 0; i < gpus->count; i++)
		if (lien_uuid_equal(&gpus->gpu[i].uuid, uuid))
			return &gpus->gpu[i];
	grown = realloc(gpus->gpu, (gpus->count + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	gpus->gpu = grown;
	grown = &gpus->gpu[gpus->count++];
	grown->device = node ? lien_node_find(node, uuid) : NULL;
	grown->uuid = grown->device ? grown->device->uuid : *uuid;
	grown->processes = json_array();
	return grown;
}

static void trace(const struct lien_process *process, struct traced *traced)
{
	const struct lien_allocation *allocation;
	int ordinal;

	LIST_FOREACH (allocation, &process->owned, of_owner) {
		ordinal = allocation->prop.location_id;
		if (!lien_allocation_held(allocation) || !lien_allocation_on_device(allocation) ||
			lien_allocation_offloaded(allocation))
			continue;
		if (ordinal < 0 || ordinal >= LIEN_ORDINALS_MAX)
			ordinal = UNKNOWN;
		traced->bytes[ordinal] += allocation->bytes;
		traced->used[ordinal] = true;
	}
}

static uint64_t total_of(const struct lien_node_device *device, uint32_t pid)
{
	unsigned i;

	for (i = 0; device && i < device->processes_count; i++)
		if (device->processes[i].pid == pid)
			return device->processes[i].bytes;
	return LIEN_BYTES_UNKNOWN;
}

/* Adds what NVML says is used, and how much of it the graph does not explain. */
static void explain(json_t *entry, uint64_t traced, uint64_t total)
{
	json_object_set_new(entry, "traced_bytes", json_integer(traced));
	json_object_set_new(entry, "total_bytes", bytes_or_null(total));
	json_object_set_new(entry, "unexplained_bytes",
		total == LIEN_BYTES_UNKNOWN ? json_null() : json_integer(total - traced));
}

static json_t *view_ordinal(const struct lien_process *process, int ordinal)
{
	return json_pack("{s:I, s:o}", "pid", (json_int_t)process->pid, "ordinal",
		ordinal == UNKNOWN ? json_null() : json_integer(ordinal));
}

static bool add_process(struct gpus *gpus, const struct lien_node *node,
	const struct lien_process *process, bool explained)
{
	const struct lien_ordinals *ordinals = process->ordinals;
	unsigned known = ordinals ? ordinals->count : 0, i;
	struct traced traced = {0};
	struct gpu *gpu;
	json_t *entry;

	if (explained)
		trace(process, &traced);
	for (i = 0; i < known; i++) {
		gpu = gpu_of(gpus, node, &ordinals->uuid[i]);
		if (!gpu)
			return false;
		entry = view_ordinal(process, i);
		json_object_set_new(
			entry, "by", json_string(ordinals->by_driver ? "driver" : "environment"));
		if (explained)
			explain(entry, traced.bytes[i], total_of(gpu->device, process->pid));
		json_array_append_new(gpu->processes, entry);
	}
	for (; explained && i < PLACES; i++) {
		if (!traced.used[i])
			continue;
		entry = view_ordinal(process, i);
		explain(entry, traced.bytes[i], LIEN_BYTES_UNKNOWN);
		json_array_append_new(gpus->unidentified, entry);
	}
	return true;
}

static bool listed(const json_t *processes, uint32_t pid)
{
	const json_t *entry;
	size_t i;

	json_array_foreach (processes, i, entry)
		if (json_integer_value(json_object_get(entry, "pid")) == pid)
			return true;
	return false;
}

/* Adds processes of which only NVML knows that they use a device, or which one. */
static void add_untraced(struct gpu *gpu)
{
	const struct lien_node_process *process;
	json_t *entry;
	unsigned i;

	for (i = 0; gpu->device && i < gpu->device->processes_count; i++) {
		process = &gpu->device->processes[i];
		if (listed(gpu->processes, process->pid))
			continue;
		entry = json_pack(
			"{s:I, s:n, s:n}", "pid", (json_int_t)process->pid, "ordinal", "by");
		explain(entry, 0, process->bytes);
		json_array_append_new(gpu->processes, entry);
	}
}

static json_t *view_gpu(const struct gpu *gpu)
{
	const struct lien_node_device *device = gpu->device;
	char name[LIEN_UUID_TEXT];

	lien_uuid_print(&gpu->uuid, name);
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:O}", "uuid", name, "index",
		device ? json_integer(device->index) : json_null(), "total_bytes",
		bytes_or_null(device ? device->total : LIEN_BYTES_UNKNOWN), "used_bytes",
		bytes_or_null(device ? device->used : LIEN_BYTES_UNKNOWN), "free_bytes",
		bytes_or_null(device ? device->free : LIEN_BYTES_UNKNOWN), "processes",
		gpu->processes);
}

static json_t *view_all(struct gpus *gpus, const struct lien_viewer *viewer, bool explained)
{
	json_t *list = json_array();
	unsigned i;

	for (i = 0; i < gpus->count; i++) {
		if (explained && lien_viewer_sees(viewer, NULL))
			add_untraced(&gpus->gpu[i]);
		json_array_append_new(list, view_gpu(&gpus->gpu[i]));
	}
	if (json_array_size(gpus->unidentified))
		lien_view_add(list, "{s:n, s:n, s:n, s:n, s:n, s:O}", "uuid", "index",
			"total_bytes", "used_bytes", "free_bytes", "processes", gpus->unidentified);
	return list;
}

json_t *lien_view_gpus(struct lien_graph *graph, const struct lien_viewer *viewer,
	const struct lien_node *node, bool explained)
{
	struct gpus gpus = {.unidentified = json_array()};
	struct lien_process *process;
	json_t *view = NULL;
	bool done = true;
	unsigned i;

	for (i = 0; done && node && i < node->count; i++)
		done = gpu_of(&gpus, node, &node->devices[i].uuid);
	for (process = lien_graph_first(graph); done && process; process = lien_graph_next(process))
		if (process->cuda && lien_viewer_sees(viewer, process))
			done = add_process(&gpus, node, process, explained);
	if (done)
		view = view_all(&gpus, viewer, explained);
	for (i = 0; i < gpus.count; i++)
		json_decref(gpus.gpu[i].processes);
	json_decref(gpus.unidentified);
	free(gpus.gpu);
	return view;
}
