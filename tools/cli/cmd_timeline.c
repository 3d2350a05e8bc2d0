// SPDX-License-Identifier: BSD-2-Clause
/* A recording as a trace for Perfetto. */
#include <inttypes.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/graph/event_check.h"
#include "agent/journal/recording.h"
#include "tools/cli/commands.h"
#include "tools/cli/event_text.h"
#include "tools/cli/offline.h"
#include "tools/cli/options.h"
#include "tools/cli/out_file.h"
#include "tools/cli/trace.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

static const char *const examples[] = {"lien timeline job.lien -o trace.json",
	"then open https://ui.perfetto.dev and load it; nothing is sent anywhere",
	"lien timeline job.lien | gzip > trace.json.gz", "Perfetto reads that, too", NULL};

static const struct lien_usage usage = {
	.command = "lien timeline",
	.arguments = "RECORDING",
	.summary =
		"Writes a recording as a trace for Perfetto (Chrome's JSON format): memory by "
		"process and library, and by tag, over time; every allocation with its call site "
		"and tag from its making to its end; every call; arrows from exports to imports; "
		"and offloads and restores with those phases in which memory is unmapped or "
		"mapped.",
	.min = 1,
	.max = 1,
	.needs = (const char *const[]){"force", "output", "json", "output", NULL},
	.examples = examples,
};

/*
 * The memory is looked at after each call that may have changed it, but at most so many allocations
 * in all: in a longer recording some calls share a look, and a time.
 */
#define VISITS_MAX 30000000ull

struct timeline {
	const char *path;
	struct lien_graph *graph;
	struct lien_trace *trace;
	struct lien_trace_memory *memory;
	struct lien_trace_moves *moves;
	void *exports; /* tsearch(): struct export */
	void *names;   /* tsearch(): struct named */
	uint64_t t;    /* of the latest event so far */
	uint64_t calls, flows, processes;
	uint64_t changes, every; /* looks are due after so many changes */
};

/* Where an export was made. */
struct export
{
	uint64_t share, t;
	uint32_t pid, tid;
};

struct named {
	uint32_t pid;
	char command[16];
};

static int by_share(const void *a, const void *b)
{
	const struct export *x = a, *y = b;

	return (x->share > y->share) - (x->share < y->share);
}

static int by_pid(const void *a, const void *b)
{
	const struct named *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

/* Returns what a tree has for a key of that size; adds a copy of it if necessary. */
static void *find(void **tree, const void *key, size_t size, int (*cmp)(const void *, const void *))
{
	void **node = tfind(key, tree, cmp), *copy;

	if (node)
		return *node;
	copy = lien_trace_alloc(size);
	memcpy(copy, key, size);
	if (!tsearch(copy, tree, cmp))
		lien_trace_no_memory();
	return copy;
}

static void name_process(struct timeline *timeline, uint32_t pid)
{
	const struct lien_process *process = lien_graph_process(timeline->graph, pid);
	struct named key = {.pid = pid}, *named;

	if (!process || !process->command[0])
		return;
	if (!tfind(&key, &timeline->names, by_pid))
		timeline->processes++;
	named = find(&timeline->names, &key, sizeof(key), by_pid);
	if (!strcmp(named->command, process->command))
		return;
	memcpy(named->command, process->command, sizeof(named->command));
	lien_trace_add(timeline->trace, 0, LIEN_TRACE_NO_DURATION,
		json_pack("{s:s, s:s, s:I, s:{s:s}}", "ph", "M", "name", "process_name", "pid",
			(json_int_t)pid, "args", "name", process->command));
}

static void add_flow(struct timeline *timeline, const char *ph, const struct export *end)
{
	char *id = lien_format("0x%" PRIx64, timeline->flows);

	lien_trace_add(timeline->trace, end->t, LIEN_TRACE_NO_DURATION,
		json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "ph", ph, "bp", "e", "cat",
			"share", "name", "import", "id", id, "pid", (json_int_t)end->pid, "tid",
			(json_int_t)end->tid));
	free(id);
}

/* An arrow from the export to each import. */
static void connect(struct timeline *timeline, const struct lien_event *event, uint64_t t)
{
	const enum lien_kind kind = lien_call_kind(event->type);
	const struct export here = {event->share.share, t, event->pid, event->tid};
	struct export **there;

	if ((kind != LIEN_KIND_export && kind != LIEN_KIND_import) || !here.share ||
		!lien_event_succeeded(event))
		return;
	if (kind == LIEN_KIND_export) {
		find(&timeline->exports, &here, sizeof(here), by_share);
		return;
	}
	there = tfind(&here, &timeline->exports, by_share);
	if (!there)
		return; /* it was made before the recording began */
	timeline->flows++;
	add_flow(timeline, "s", *there);
	add_flow(timeline, "f", &here);
}

static void add_call(struct timeline *timeline, const struct lien_event *event)
{
	const uint64_t t = event->t_entry && event->t_entry < event->t_return ? event->t_entry
									      : event->t_return;
	struct lien_process *process = lien_graph_process(timeline->graph, event->pid);
	const bool control = event->flags & LIEN_EVENT_CONTROL;
	char caller[LIEN_CALLER_SIZE] = "unknown";
	json_t *args = lien_event_arguments(event);

	if (process)
		lien_process_caller(process, event, caller);
	json_object_set_new(args, "caller", json_string(control ? "lien" : caller));
	json_object_set_new(args, "result", json_integer(event->result));
	lien_trace_add(timeline->trace, t, event->t_return - t,
		json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "ph", "X", "cat",
			control ? "lien" : "call", "name", lien_event_name(event->type).text, "pid",
			(json_int_t)event->pid, "tid", (json_int_t)event->tid, "args", args));
	timeline->calls++;
	connect(timeline, event, t);
}

static bool is_call(const struct lien_event *event)
{
	return lien_call_kind(event->type) != LIEN_KIND_none && !LIEN_IS_STATE(event->type) &&
	       event->t_return && !(event->flags & LIEN_EVENT_ENTRY);
}

/* May it change what anybody holds? Announcements do so only when their call returns. */
static bool changes_memory(const struct lien_event *event)
{
	if (event->flags & LIEN_EVENT_ENTRY)
		return false;
	switch (event->type) {
	case LIEN_EVENT_LIBRARY:
	case LIEN_EVENT_LOST:
	case LIEN_EVENT_PROCESS:
	case LIEN_EVENT_PROP:
		return false;
	}
	switch (lien_call_kind(event->type)) {
	case LIEN_KIND_init:
	case LIEN_KIND_reserve:
	case LIEN_KIND_address_free:
	case LIEN_KIND_access:
	case LIEN_KIND_capture_begin:
	case LIEN_KIND_capture_end:
	case LIEN_KIND_stream_destroy:
	case LIEN_KIND_register:
	case LIEN_KIND_deregister:
		return false;
	default:
		return !LIEN_IS_STATE(event->type);
	}
}

/* Returns 1 while there is more, 0 at the end, or an error. */
static int take(struct timeline *timeline, struct lien_recording *recording)
{
	struct lien_event event;
	int err = lien_recording_read(recording, &event);
	bool state;

	if (err != 1)
		return err;
	/* Memory from before the recording appears at time 0. */
	state = lien_recording_is_state(recording);
	if (!state && !timeline->t && event.t_return) {
		lien_trace_memory_look(timeline->memory, timeline->graph, 0);
		timeline->t = event.t_entry ? event.t_entry : event.t_return;
	}
	if (!state && event.t_return > timeline->t)
		timeline->t = event.t_return;
	lien_trace_moves_event(timeline->moves, timeline->graph, &event);
	if (is_call(&event))
		add_call(timeline, &event);
	err = lien_graph_apply(timeline->graph, &event);
	if (err)
		return err;
	name_process(timeline, event.pid);
	if (changes_memory(&event) && ++timeline->changes % timeline->every == 0)
		lien_trace_memory_look(timeline->memory, timeline->graph, timeline->t);
	return 1;
}

/* Finds out how often the memory can be looked at. Returns false after a message. */
static bool measure(struct timeline *timeline)
{
	struct lien_recording *recording = lien_offline_open(usage.command, timeline->path);
	uint64_t changes = 0, made = 0;
	struct lien_event event;

	if (!recording)
		return false;
	while (lien_recording_read(recording, &event) == 1) {
		changes += changes_memory(&event);
		made += LIEN_IS_STATE(event.type) || lien_origin_of(event.type) != 0;
	}
	timeline->every = changes * made / VISITS_MAX + 1;
	/* what is wrong with it is said when it is read the next time */
	return !lien_recording_close(recording);
}

/* Returns false after a message. */
static bool read_all(struct timeline *timeline)
{
	struct lien_recording *recording = lien_offline_open(usage.command, timeline->path);
	int err;

	if (!recording)
		return false;
	do {
		err = take(timeline, recording);
	} while (err == 1);
	lien_trace_memory_look(timeline->memory, timeline->graph, timeline->t);
	lien_trace_moves_end(timeline->moves);
	return !lien_recording_close(recording) &&
	       lien_offline_ended(usage.command, timeline->path, err);
}

static int write_file(const struct timeline *timeline, const char *path, bool force)
{
	FILE *out = lien_out_open(usage.command, path, force);

	if (!out)
		return LIEN_EXIT_FAILURE;
	lien_trace_write(timeline->trace, out);
	return lien_out_close(usage.command, path, out, 0);
}

static void print_summary(const struct timeline *timeline, const char *path, bool json)
{
	const uint64_t allocations = lien_trace_memory_allocations(timeline->memory);
	const uint64_t moves = lien_trace_moves_count(timeline->moves);
	const double ms = lien_trace_length(timeline->trace) / 1e6;
	json_t *summary;

	if (!json) {
		lien_print_wrapped(stdout, 2,
			"%s: %s, %" PRIu64 " %s, %" PRIu64 " %s, %" PRIu64
			" %s; load it at https://ui.perfetto.dev",
			path, lien_time(ms).text,
			LIEN_PLURAL(timeline->processes, "process", "processes"),
			LIEN_PLURAL(timeline->calls, "call", "calls"),
			LIEN_PLURAL(allocations, "allocation", "allocations"));
		return;
	}
	summary = json_pack("{s:s, s:f, s:I, s:I, s:I, s:I, s:I}", "path", path, "ms", ms,
		"processes", (json_int_t)timeline->processes, "calls", (json_int_t)timeline->calls,
		"allocations", (json_int_t)allocations, "imports", (json_int_t)timeline->flows,
		"moves", (json_int_t)moves);
	lien_print_json(stdout, summary);
	json_decref(summary);
}

int lien_cmd_timeline(int argc, char **argv)
{
	struct timeline timeline = {0};
	bool json = false, force = false;
	const char *output = NULL;
	const struct lien_option options[] = {
		{"o,output", LIEN_OPTION_STRING, &output, "FILE",
			"write to this file instead of standard output", 0},
		{"force", LIEN_OPTION_FLAG, &force, NULL, "overwrite a file that exists", 0},
		{"json", LIEN_OPTION_JSON, &json, NULL, "print the summary as JSON", 0}, {}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	timeline.path = argv[0];
	if (!measure(&timeline))
		return LIEN_EXIT_FAILURE;
	if (lien_graph_new(&timeline.graph))
		return lien_complain(usage.command, "out of memory");
	timeline.trace = lien_trace_new();
	timeline.memory = lien_trace_memory_new(timeline.trace);
	timeline.moves = lien_trace_moves_new(timeline.trace);
	code = LIEN_EXIT_FAILURE;
	if (read_all(&timeline)) {
		code = LIEN_EXIT_OK;
		if (output)
			code = write_file(&timeline, output, force);
		else
			lien_trace_write(timeline.trace, stdout);
		if (output && !code)
			print_summary(&timeline, output, json);
	}
	tdestroy(timeline.exports, free);
	tdestroy(timeline.names, free);
	lien_trace_moves_free(timeline.moves);
	lien_trace_memory_free(timeline.memory);
	lien_trace_free(timeline.trace);
	lien_graph_free(timeline.graph);
	return code;
}
