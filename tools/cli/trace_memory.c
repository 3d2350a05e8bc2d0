// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/trace_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/views/views.h"
#include "tools/text/output.h"

/* An allocation that exists; its slice is open. */
struct slice {
	uint64_t id;
	uint32_t pid;
	char *name; /* its call site */
};

struct lien_trace_memory {
	struct lien_trace *trace;
	struct slice *slices; /* sorted by id */
	size_t count;
	uint64_t seen;
	json_t *counters; /* "812 memory: nccl" -> the counter's last event */
};

struct lien_trace_memory *lien_trace_memory_new(struct lien_trace *trace)
{
	struct lien_trace_memory *memory = lien_trace_alloc(sizeof(*memory));

	memory->trace = trace;
	memory->counters = json_object();
	return memory;
}

void lien_trace_memory_free(struct lien_trace_memory *memory)
{
	size_t i;

	for (i = 0; i < memory->count; i++)
		free(memory->slices[i].name);
	json_decref(memory->counters);
	free(memory->slices);
	free(memory);
}

uint64_t lien_trace_memory_allocations(const struct lien_trace_memory *memory)
{
	return memory->seen;
}

/* --- counters --------------------------------------------------------------------------------- */

static void add(json_t *args, const char *name, uint64_t bytes)
{
	json_object_set_new(args, name, json_integer(lien_get_number(args, name) + bytes));
}

/* Adds a row of `mem` to the counter of what is named, "memory" or "memory with tag". */
static void count_as(json_t *counters, const json_t *row, const char *what, const char *whose)
{
	const char *kind = lien_get_text(row, "kind");
	const bool imported = !strcmp(kind, "imported"),
		   device = imported || !strcmp(kind, "local") || !strcmp(kind, "exported") ||
			    !strcmp(kind, "dead");
	char *name = lien_format("%s%s: %s", device ? "" : "host ", what, whose);
	char *key = lien_format("%" PRIu64 " %s", lien_get_number(row, "pid"), name);
	json_t *event = json_object_get(counters, key);
	json_t *args = json_object_get(event, "args");

	if (!event) {
		args = device ? json_pack("{s:i, s:i, s:i}", "device", 0, "imported", 0,
					"offloaded", 0)
			      : json_pack("{s:i}", "bytes", 0);
		event = json_pack("{s:s, s:s, s:s, s:I, s:o}", "ph", "C", "cat", "memory", "name",
			name, "pid", (json_int_t)lien_get_number(row, "pid"), "args", args);
		json_object_set_new(counters, key, event);
	}
	if (!device)
		add(args, "bytes", lien_get_number(row, "bytes"));
	else
		add(args, imported ? "imported" : "device", lien_get_number(row, "bytes"));
	if (device && !imported)
		add(args, "offloaded", lien_get_number(row, "offloaded_bytes"));
	free(key);
	free(name);
}

/* Memory with a tag counts twice: for its library and for its tag. */
static void count(json_t *counters, const json_t *row)
{
	const char *tag = lien_get_text(row, "tag");

	count_as(counters, row, "memory", lien_get_text(row, "owner"));
	if (*tag)
		count_as(counters, row, "memory with tag", tag);
}

static json_t *counters_now(struct lien_graph *graph)
{
	json_t *mem = lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL),
	       *counters = json_object(), *row;
	size_t i;

	json_array_foreach (json_object_get(mem, "rows"), i, row)
		count(counters, row);
	json_decref(mem);
	return counters;
}

/* A counter without a row has fallen to 0. */
static json_t *zeroed(const json_t *event)
{
	json_t *zero = json_deep_copy(event), *args = json_object_get(zero, "args"), *value;
	const char *name;

	json_object_foreach (args, name, value)
		json_integer_set(value, 0);
	return zero;
}

static void look_at_counters(struct lien_trace_memory *memory, json_t *now, uint64_t t)
{
	json_t *event, *old;
	const char *key;

	json_object_foreach (memory->counters, key, old)
		if (!json_object_get(now, key))
			json_object_set_new(now, key, zeroed(old));
	json_object_foreach (now, key, event) {
		old = json_object_get(memory->counters, key);
		if (!old || !json_equal(old, event))
			lien_trace_add(
				memory->trace, t, LIEN_TRACE_NO_DURATION, json_incref(event));
	}
	json_decref(memory->counters);
	memory->counters = now;
}

/* --- slices ----------------------------------------------------------------------------------- */

static void add_slice(struct lien_trace_memory *memory, const char *phase,
	const struct slice *slice, json_t *args, uint64_t t)
{
	char *id = lien_format("0x%" PRIx64, slice->id);

	lien_trace_add(memory->trace, t, LIEN_TRACE_NO_DURATION,
		json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:o*}", "ph", phase, "cat", "allocation",
			"id", id, "name", slice->name, "pid", (json_int_t)slice->pid, "tid",
			(json_int_t)slice->pid, "args", args));
	free(id);
}

static struct slice begin(
	struct lien_trace_memory *memory, const struct lien_allocation *allocation, uint64_t t)
{
	const char *kind = lien_host_kind(allocation);
	char *site = allocation->site ? lien_view_site(allocation->site) : NULL;
	const struct slice slice = {.id = allocation->id,
		.pid = allocation->owner_pid,
		.name = site ? site : lien_format("unknown call site")};
	bool inferred;

	add_slice(memory, "b", &slice,
		json_pack("{s:I, s:s, s:s?, s:s, s:o}", "bytes", (json_int_t)allocation->bytes,
			"owner", lien_allocation_attributed(allocation, &inferred), "tag",
			lien_allocation_tag(allocation), "kind", kind ? kind : "device", "device",
			kind ? json_null() : json_integer(allocation->prop.location_id)),
		t);
	memory->seen++;
	return slice;
}

static void end(struct lien_trace_memory *memory, const struct slice *slice, uint64_t t)
{
	add_slice(memory, "e", slice, NULL, t);
	free(slice->name);
}

/* Is it in a row of `mem`? */
static bool is_shown(const struct lien_allocation *allocation)
{
	return lien_allocation_held(allocation) && allocation->owner_pid &&
	       allocation->origin != LIEN_ORIGIN_MULTICAST && !lien_is_arena(allocation);
}

/* Both lists are sorted by id. */
static void look_at_slices(struct lien_trace_memory *memory, struct lien_graph *graph, uint64_t t)
{
	const struct lien_graph_stats *stats = lien_graph_stats(graph);
	struct slice *now = lien_trace_alloc((stats->allocations + 1) * sizeof(*now));
	struct lien_allocation *allocation;
	size_t count = 0, old = 0;

	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		if (!is_shown(allocation))
			continue;
		while (old < memory->count && memory->slices[old].id < allocation->id)
			end(memory, &memory->slices[old++], t);
		if (old < memory->count && memory->slices[old].id == allocation->id)
			now[count++] = memory->slices[old++];
		else
			now[count++] = begin(memory, allocation, t);
	}
	while (old < memory->count)
		end(memory, &memory->slices[old++], t);
	free(memory->slices);
	memory->slices = now;
	memory->count = count;
}

void lien_trace_memory_look(struct lien_trace_memory *memory, struct lien_graph *graph, uint64_t t)
{
	look_at_slices(memory, graph, t);
	look_at_counters(memory, counters_now(graph), t);
}
