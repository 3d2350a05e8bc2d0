// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/offline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/named.h"
#include "agent/journal/recording.h"
#include "agent/views/views.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

struct lien_recording *lien_offline_open(const char *command, const char *path)
{
	struct lien_recording *recording;
	int err = lien_recording_open(path, &recording);

	switch (err) {
	case 0:
		return recording;
	case -EBADMSG:
		lien_complain(command,
			"%s is not a recording: `lien snapshot` and `lien record` make them", path);
		break;
	case -EPROTONOSUPPORT:
		lien_complain(command,
			"%s was written by another version of lien: read it with that one", path);
		break;
	case -ENODATA:
		lien_complain(command, "%s is empty, or cut short before its first record", path);
		break;
	default:
		lien_complain(command, "cannot read %s: %s", path, strerror(-err));
	}
	return NULL;
}

bool lien_offline_ended(const char *command, const char *path, int err)
{
	switch (err) {
	case 0:
		return true;
	case -ENODATA:
		lien_warn(command, "%s is cut short: only what comes before that is used", path);
		return true;
	case -EBADMSG:
		lien_complain(command,
			"%s is damaged, or has records that this version does not know", path);
		return false;
	default:
		lien_complain(command, "cannot read %s: %s", path, strerror(-err));
		return false;
	}
}

/* One reading of a recording. */
struct reading {
	/* where to stop: after so many records, or before a later event */
	uint64_t stop_records, stop_ns;
	bool stopped;
	bool quiet;	/* the file's faults have been named */
	bool find_peak; /* fills in the next three: */
	uint64_t peak_bytes, peak_records, peak_ns;
	bool grown; /* since the last look at the sum */
	uint64_t records, first_ns, last_ns;
};

static const struct reading to_the_end = {.stop_records = UINT64_MAX, .stop_ns = UINT64_MAX};

/* Returns what `lien ps` shows as memory on the GPUs, of all processes. */
static uint64_t bytes_in_use(struct lien_graph *graph)
{
	const struct lien_allocation *allocation;
	struct lien_process *process;
	uint64_t sum = 0;

	LIEN_FOREACH_PROCESS (process, graph)
		LIST_FOREACH (allocation, &process->owned, of_owner)
			if (lien_allocation_held(allocation) &&
				lien_allocation_on_device(allocation) &&
				!lien_allocation_offloaded(allocation))
				sum += allocation->bytes;
	return sum;
}

static void look_at_sum(struct reading *reading, struct lien_graph *graph)
{
	uint64_t bytes = reading->grown ? bytes_in_use(graph) : 0;

	reading->grown = false;
	if (bytes <= reading->peak_bytes)
		return;
	reading->peak_bytes = bytes;
	reading->peak_records = reading->records;
	reading->peak_ns = reading->last_ns;
}

/* The sum is greatest before something is given back: calls that do so are announced. */
static void follow_sum(
	struct reading *reading, struct lien_graph *graph, const struct lien_event *event)
{
	if (event->flags & LIEN_EVENT_ENTRY || event->type == LIEN_EVENT_EXIT ||
		event->type == LIEN_EVENT_EXEC)
		look_at_sum(reading, graph);
	else
		reading->grown |= LIEN_IS_STATE(event->type) || lien_origin_of(event->type);
}

/* Returns 1 while there is more, 0 at the end, or an error. */
static int read_one(
	struct reading *reading, struct lien_recording *recording, struct lien_graph *graph)
{
	struct lien_event event;
	uint64_t t;
	int err = lien_recording_read(recording, &event);

	if (err != 1)
		return err;
	t = event.t_return ? event.t_return : event.t_entry;
	if (lien_recording_is_state(recording))
		t = 0;
	reading->stopped = reading->records == reading->stop_records || t > reading->stop_ns;
	if (reading->stopped)
		return 0;
	if (reading->find_peak)
		follow_sum(reading, graph, &event);
	if (t && !reading->first_ns && event.type != LIEN_EVENT_END)
		reading->first_ns = t;
	if (t > reading->last_ns)
		reading->last_ns = t;
	reading->records++;
	err = lien_graph_apply(graph, &event);
	return err ? err : 1;
}

static void describe(struct lien_taken *taken, const char *path,
	const struct lien_recording *recording, const struct reading *reading)
{
	const char *host = lien_recording_host(recording);

	snprintf(taken->where, sizeof(taken->where), "%s %s", *host ? "on" : "in",
		*host ? host : basename(path));
	taken->ns = lien_recording_time(recording, reading->last_ns);
}

/* Returns the graph where the reading stops; NULL after a message. */
static struct lien_graph *load(
	const char *command, const struct lien_from *from, struct reading *reading)
{
	const char *path = from->path;
	struct lien_recording *recording = lien_offline_open(command, path);
	struct lien_process *process;
	struct lien_graph *graph;
	int err;

	if (!recording)
		return NULL;
	err = lien_graph_new(&graph);
	if (err)
		graph = NULL;
	while (graph && (err = read_one(reading, recording, graph)) == 1)
		;
	if (graph && reading->find_peak)
		look_at_sum(reading, graph);
	if (err == -ENODATA && reading->quiet)
		err = 0;
	if (from->taken)
		describe(from->taken, path, recording, reading);
	if (lien_recording_close(recording) || !lien_offline_ended(command, path, err)) {
		lien_graph_free(graph);
		return NULL;
	}
	LIEN_FOREACH_PROCESS (process, graph)
		process->presence = LIEN_CONTROL_UNKNOWN;
	return graph;
}

static bool has_processes(struct lien_graph *graph)
{
	const struct lien_process *process = lien_graph_first(graph);

	while (process && !process->cuda)
		process = lien_graph_next((struct lien_process *)process);
	return process;
}

static const char *option_of(const struct lien_from *from)
{
	return from->option ? from->option : "--at";
}

/* Returns the graph as it was when most memory was in use, after a first reading to the end. */
static struct lien_graph *load_peak(const char *command, const struct lien_from *from, bool asked)
{
	struct reading first = to_the_end, second = to_the_end;
	struct lien_graph *graph;

	first.find_peak = true;
	first.quiet = !asked; /* it is not the first one then */
	graph = load(command, from, &first);
	if (!graph || (!asked && !first.peak_bytes))
		return graph;
	lien_graph_free(graph);
	if (!asked)
		fprintf(stderr,
			"%s: at the end of %s all processes have ended: this is its peak, at "
			"+%.3f; %s shows another moment\n",
			command, from->path, (first.peak_ns - first.first_ns) / 1e9,
			option_of(from));
	second.stop_records = first.peak_records;
	second.quiet = true;
	return load(command, from, &second);
}

static struct lien_graph *load_moment(const char *command, const struct lien_from *from, int *code)
{
	const struct lien_moment *at = &from->at;
	const char *path = from->path;
	struct reading whole = to_the_end, part = to_the_end;
	struct lien_graph *graph = load(command, from, &whole);
	double ns = at->seconds * 1e9;

	if (!graph)
		return NULL;
	lien_graph_free(graph);
	if (!whole.first_ns) {
		lien_complain(command, "%s: %s is a snapshot: nothing in it has a time",
			option_of(from), path);
		*code = LIEN_EXIT_USAGE;
		return NULL;
	}
	ns += at->relative ? whole.first_ns : 0;
	/* times are shown, and typed, in milliseconds */
	if (ns + 1e6 < whole.first_ns || ns - 1e6 > whole.last_ns) {
		lien_complain(command, "%s: %s is from %.3f to %.3f, or +0 to +%.3f",
			option_of(from), path, whole.first_ns / 1e9, whole.last_ns / 1e9,
			(whole.last_ns - whole.first_ns) / 1e9);
		*code = LIEN_EXIT_USAGE;
		return NULL;
	}
	part.stop_ns = ns + 999999; /* and what is shown with that time has happened */
	part.quiet = true;
	return load(command, from, &part);
}

static struct lien_graph *load_from(const char *command, const struct lien_from *from, int *code)
{
	struct reading reading = to_the_end;
	struct lien_graph *graph;

	if (from->at.given)
		return load_moment(command, from, code);
	if (from->peak)
		return load_peak(command, from, true);
	graph = load(command, from, &reading);
	if (!graph || from->end || has_processes(graph))
		return graph;
	lien_graph_free(graph);
	return load_peak(command, from, false);
}

static json_t *answer(const char *command, const struct lien_view_source *source,
	const json_t *request, int *code)
{
	char error[LIEN_KNOWN_SIZE];
	json_t *result = lien_view_dispatch(source, request, error, sizeof(error));

	if (!result)
		lien_complain(command, "%s", error[0] ? error : "out of memory");
	if (!result && error[0] && code)
		*code = LIEN_EXIT_USAGE;
	return result;
}

json_t *lien_offline_queries(
	const char *command, const struct lien_from *from, const json_t *requests, int *code)
{
	/* A recording does not say which GPU a process's ordinal stands for. */
	const struct lien_node unknown = {0};
	struct lien_view_source source = {.node = &unknown, .recorded = true};
	json_t *results, *request, *result = NULL;
	size_t i;
	int ignored;

	json_array_foreach (requests, i, request) {
		const char *op = lien_get_text(request, "op");

		if (lien_view_has(op))
			continue;
		lien_complain(command, "only an agent can answer `%s`: leave --from out", op);
		if (code)
			*code = LIEN_EXIT_USAGE;
		return NULL;
	}
	source.graph = load_from(command, from, code ? code : &ignored);
	if (!source.graph)
		return NULL;
	results = json_array();
	json_array_foreach (requests, i, request) {
		result = answer(command, &source, request, code);
		if (!result)
			break;
		json_array_append_new(results, result);
	}
	lien_graph_free(source.graph);
	if (!result) {
		json_decref(results);
		return NULL;
	}
	return results;
}

json_t *lien_offline_query(
	const char *command, const struct lien_from *from, const json_t *request, int *code)
{
	json_t *requests = json_pack("[O]", (json_t *)request);
	json_t *results = lien_offline_queries(command, from, requests, code);
	json_t *result = json_incref(json_array_get(results, 0));

	json_decref(results);
	json_decref(requests);
	return result;
}
