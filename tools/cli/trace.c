// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/views/views.h"
#include "tools/text/output.h"

struct item {
	uint64_t t, dur_ns;
	size_t number; /* in the order in which they were added */
	char *text;    /* without its opening brace */
};

struct lien_trace {
	struct item *items;
	size_t count, room;
};

void lien_trace_no_memory(void)
{
	fputs("lien timeline: out of memory\n", stderr);
	exit(EXIT_FAILURE);
}

void *lien_trace_alloc(size_t size)
{
	void *memory = calloc(1, size);

	if (!memory)
		lien_trace_no_memory();
	return memory;
}

struct lien_trace *lien_trace_new(void)
{
	return lien_trace_alloc(sizeof(struct lien_trace));
}

void lien_trace_free(struct lien_trace *trace)
{
	size_t i;

	for (i = 0; i < trace->count; i++)
		free(trace->items[i].text);
	free(trace->items);
	free(trace);
}

void lien_trace_add(struct lien_trace *trace, uint64_t t, uint64_t dur_ns, json_t *event)
{
	char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;

	json_decref(event);
	if (trace->count == trace->room) {
		trace->room = trace->room ? 2 * trace->room : 1024;
		trace->items = reallocarray(trace->items, trace->room, sizeof(*trace->items));
	}
	if (!text || !trace->items)
		lien_trace_no_memory();
	trace->items[trace->count] = (struct item){t, dur_ns, trace->count, text};
	trace->count++;
}

static uint64_t first_time(const struct lien_trace *trace)
{
	uint64_t first = 0;
	size_t i;

	for (i = 0; i < trace->count; i++)
		if (trace->items[i].t && (!first || trace->items[i].t < first))
			first = trace->items[i].t;
	return first;
}

uint64_t lien_trace_length(const struct lien_trace *trace)
{
	uint64_t last = 0;
	size_t i;

	for (i = 0; i < trace->count; i++)
		if (trace->items[i].t > last)
			last = trace->items[i].t;
	return last - first_time(trace);
}

static int by_time(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->t != y->t)
		return x->t < y->t ? -1 : 1;
	return x->number < y->number ? -1 : 1;
}

/* Microseconds with a fraction: exact, other than a double. */
static void print_time(FILE *out, const char *name, uint64_t ns)
{
	fprintf(out, "\"%s\":%" PRIu64 ".%03u,", name, ns / 1000, (unsigned)(ns % 1000));
}

void lien_trace_write(struct lien_trace *trace, FILE *out)
{
	const uint64_t first = first_time(trace);
	const struct item *item;
	size_t i;

	if (trace->count)
		qsort(trace->items, trace->count, sizeof(*trace->items), by_time);
	fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
	for (i = 0; i < trace->count; i++) {
		item = &trace->items[i];
		fprintf(out, "%s\n{", i ? "," : "");
		print_time(out, "ts", item->t ? item->t - first : 0);
		if (item->dur_ns != LIEN_TRACE_NO_DURATION)
			print_time(out, "dur", item->dur_ns);
		fputs(item->text + 1, out);
	}
	fprintf(out, "\n]}\n");
}

/* --- memory ----------------------------------------------------------------------------------- */

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

static void add_bytes(json_t *args, const char *name, uint64_t bytes)
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
		add_bytes(args, "bytes", lien_get_number(row, "bytes"));
	else
		add_bytes(args, imported ? "imported" : "device", lien_get_number(row, "bytes"));
	if (device && !imported)
		add_bytes(args, "offloaded", lien_get_number(row, "offloaded_bytes"));
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

static struct slice begin_slice(
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

static void end_slice(struct lien_trace_memory *memory, const struct slice *slice, uint64_t t)
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

	LIEN_FOREACH_ALLOCATION (allocation, graph) {
		if (!is_shown(allocation))
			continue;
		while (old < memory->count && memory->slices[old].id < allocation->id)
			end_slice(memory, &memory->slices[old++], t);
		if (old < memory->count && memory->slices[old].id == allocation->id)
			now[count++] = memory->slices[old++];
		else
			now[count++] = begin_slice(memory, allocation, t);
	}
	while (old < memory->count)
		end_slice(memory, &memory->slices[old++], t);
	free(memory->slices);
	memory->slices = now;
	memory->count = count;
}

void lien_trace_memory_look(struct lien_trace_memory *memory, struct lien_graph *graph, uint64_t t)
{
	look_at_slices(memory, graph, t);
	look_at_counters(memory, counters_now(graph), t);
}

/* --- offloads and restores -------------------------------------------------------------------- */

/* A process in which something has been moved. */
struct mover {
	struct mover *next;
	uint32_t pid;
	const char *kind;  /* "offload", "restore"; NULL: nothing is under way */
	const char *phase; /* as lien_phase_name() calls it */
	uint64_t t_last;   /* the return of its last call */
	bool looking;	   /* has asked the driver for handles since, and may only compare */
};

struct lien_trace_moves {
	struct lien_trace *trace;
	struct mover *movers;
	uint64_t count;
};

struct lien_trace_moves *lien_trace_moves_new(struct lien_trace *trace)
{
	struct lien_trace_moves *moves = lien_trace_alloc(sizeof(*moves));

	moves->trace = trace;
	return moves;
}

void lien_trace_moves_free(struct lien_trace_moves *moves)
{
	struct mover *mover;

	while ((mover = moves->movers)) {
		moves->movers = mover->next;
		free(mover);
	}
	free(moves);
}

uint64_t lien_trace_moves_count(const struct lien_trace_moves *moves)
{
	return moves->count;
}

static struct mover *mover_of(struct lien_trace_moves *moves, uint32_t pid)
{
	struct mover *mover;

	for (mover = moves->movers; mover; mover = mover->next)
		if (mover->pid == pid)
			return mover;
	mover = lien_trace_alloc(sizeof(*mover));
	mover->pid = pid;
	mover->next = moves->movers;
	moves->movers = mover;
	return mover;
}

/* Phases lie within their transaction: one track for each process. */
static void add_move(struct lien_trace_moves *moves, const struct mover *mover, const char *ph,
	const char *name, uint64_t t)
{
	char *id = lien_format("0x%x", mover->pid);

	lien_trace_add(moves->trace, t, LIEN_TRACE_NO_DURATION,
		json_pack("{s:s, s:s, s:s, s:s, s:I, s:I}", "ph", ph, "cat", "transaction", "id",
			id, "name", name, "pid", (json_int_t)mover->pid, "tid",
			(json_int_t)mover->pid));
	free(id);
}

static void finish(struct lien_trace_moves *moves, struct mover *mover)
{
	if (!mover->kind)
		return;
	add_move(moves, mover, "e", mover->phase, mover->t_last);
	add_move(moves, mover, "e", mover->kind, mover->t_last);
	mover->kind = mover->phase = NULL;
}

static void enter(struct lien_trace_moves *moves, struct mover *mover, const char *kind,
	const char *phase, uint64_t t)
{
	if (mover->kind != kind) {
		finish(moves, mover);
		add_move(moves, mover, "b", kind, t);
		mover->kind = kind;
		moves->count++;
	} else if (mover->phase != phase) {
		add_move(moves, mover, "e", mover->phase, mover->t_last);
	}
	if (mover->phase != phase)
		add_move(moves, mover, "b", phase, t);
	mover->phase = phase;
}

static const char offload[] = "offload", restore[] = "restore", unmap[] = "unmap", drop[] = "drop",
		  create[] = "create", export[] = "export", import[] = "import";

/* Owners drop their memory, importers unmap it. */
static const char *unmapped(struct lien_graph *graph, const struct lien_event *event)
{
	struct lien_process *process = lien_graph_process(graph, event->pid);
	const struct lien_mapping *mapping =
		process ? lien_process_mapping(process, event->range.va) : NULL;

	return mapping && mapping->imported ? unmap : drop;
}

/* Returns the phase that the call belongs to; NULL: it may belong to several. */
static const char *phase_of(
	struct lien_graph *graph, const struct lien_event *event, const char **kind)
{
	*kind = restore;
	switch (lien_call_kind(event->type)) {
	case LIEN_KIND_unmap:
		*kind = offload;
		return unmapped(graph, event);
	case LIEN_KIND_create:
		return create;
	case LIEN_KIND_export:
		return export;
	case LIEN_KIND_import:
		return import;
	default:
		*kind = NULL;
		return NULL;
	}
}

void lien_trace_moves_event(
	struct lien_trace_moves *moves, struct lien_graph *graph, const struct lien_event *event)
{
	const bool call = event->flags & LIEN_EVENT_CONTROL && event->t_return &&
			  !LIEN_IS_STATE(event->type) && lien_event_succeeded(event);
	const char *kind, *phase;
	struct mover *mover;

	if (!call)
		return;
	mover = mover_of(moves, event->pid);
	phase = phase_of(graph, event, &kind);
	switch (lien_call_kind(event->type)) {
	case LIEN_KIND_map:
	case LIEN_KIND_access:
	case LIEN_KIND_release:
		if (mover->kind && !mover->looking)
			mover->t_last = event->t_return;
		return;
	case LIEN_KIND_retain:
		mover->looking = true;
		return;
	default:
		break;
	}
	if (!phase)
		return;
	enter(moves, mover, kind, phase, event->t_entry ? event->t_entry : event->t_return);
	mover->t_last = event->t_return;
	mover->looking = false;
}

void lien_trace_moves_end(struct lien_trace_moves *moves)
{
	struct mover *mover;

	for (mover = moves->movers; mover; mover = mover->next)
		finish(moves, mover);
}
