// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lien/calls.h>

#include "agent/graph/event_check.h"
#include "agent/graph/graph.h"
#include "agent/graph/named.h"
#include "agent/graph/nearest.h"
#include "agent/journal/recording.h"
#include "loader/discover/libraries.h"
#include "tools/cli/commands.h"
#include "tools/cli/event_stream.h"
#include "tools/cli/event_text.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/offline.h"
#include "tools/cli/options.h"
#include "tools/cli/query.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

#define INDENT 16 /* of continuation lines */

static const char *const examples[] = {"lien events -f",
	"every call that acquires, shares or gives back GPU memory, as it happens",
	"lien events -f --library nccl --call 'cuMem*'", "what NCCL does with the driver's memory",
	"lien events --pid 812 --call state-allocation", "what a process holds now",
	"lien events --from job.lien --json | jq .event", "a recording, one JSON object per line",
	NULL};

static const struct lien_usage usage = {
	.command = "lien events",
	.arguments = "",
	.summary =
		"Prints events, one after the other: time, process, caller, call, arguments, "
		"result. "
		"The caller is the library that made the call, or NCCL if it was made inside NCCL. "
		"Without -f: the present state, in records called state-process, "
		"state-allocation, ... "
		"Times of recordings are seconds since that machine's boot; states have none.",
	.apart = (const char *const[]){"from", "follow", NULL},
	.examples = examples,
};

#define CALLERS_LISTED 16

struct libraries {
	struct lien_names names;
	bool found[LIEN_NAMES_MAX]; /* parallel to the names */
	char callers[CALLERS_LISTED][LIEN_CALLER_SIZE];
	unsigned callers_count;
};

/* Is it the library that was called, or the one that called? */
static bool is_library(const char *name, unsigned type, const char *caller)
{
	int library = lien_event_library(type);

	return !strcmp(name, caller) || (library && !strcmp(name, lien_library_name(library)));
}

/* A process's maps are noise: only --call library shows them. */
static bool has_call(const struct lien_names *calls, unsigned type)
{
	unsigned i;

	for (i = 0; i < calls->count; i++)
		if (lien_event_is_named(type, calls->name[i]))
			return true;
	return !calls->count && type != LIEN_EVENT_LIBRARY;
}

/* Is a call to be shown: was one of the libraries called, or did one make the call? */
static bool has_library(const struct libraries *libraries, unsigned type, const char *caller)
{
	unsigned i;

	for (i = 0; i < libraries->names.count; i++)
		if (is_library(libraries->names.name[i], type, caller))
			return true;
	return !libraries->names.count;
}

/* Notes a call of a recording, shown or not, for the check. */
static void note_library(struct libraries *libraries, unsigned type, const char *caller)
{
	unsigned i;

	for (i = 0; i < libraries->names.count; i++)
		libraries->found[i] |= is_library(libraries->names.name[i], type, caller);
	for (i = 0; i < libraries->callers_count && strcmp(libraries->callers[i], caller) != 0; i++)
		;
	if (i == libraries->callers_count && i < CALLERS_LISTED)
		snprintf(libraries->callers[libraries->callers_count++], LIEN_CALLER_SIZE, "%s",
			caller);
}

static bool is_traced(const char *name)
{
	unsigned library = 1;

	while (library < LIEN_LIB_COUNT && strcmp(name, lien_library_name(library)) != 0)
		library++;
	return library < LIEN_LIB_COUNT;
}

/* Does each name belong to a library that is traced, or was a call of it noted? Prints an error for
 * one for which that is not true, with the libraries that made calls; returns the exit code. */
static int check_libraries(const struct lien_usage *usage, const struct libraries *libraries)
{
	char *list = NULL;
	unsigned i;

	for (i = 0; i < libraries->names.count &&
		    (libraries->found[i] || is_traced(libraries->names.name[i]));
		i++)
		;
	if (i == libraries->names.count)
		return LIEN_EXIT_OK;
	for (unsigned j = 0; j < libraries->callers_count; j++)
		list = lien_append(list, ", ", "%s", libraries->callers[j]);
	lien_complain(usage->command,
		"no call in the recording belongs to a library %s, or was made by it; %s%s",
		libraries->names.name[i], list ? "calls are made by " : "there are no calls",
		list ? list : "");
	free(list);
	return LIEN_EXIT_USAGE;
}

static bool is_call_named(const char *pattern)
{
	unsigned type;

	for (type = 0; type < LIEN_CALL_MAX; type++)
		if (lien_event_is_named(type, pattern))
			return true;
	return false;
}

/* Does each name or pattern match an event? Prints an error for one that does not. */
static bool check_calls(const struct lien_usage *usage, const struct lien_names *calls)
{
	static struct lien_event_name names[LIEN_CALL_MAX]; /* outlive the search */
	struct lien_nearest nearest = {};
	unsigned i, type;

	for (i = 0; i < calls->count && is_call_named(calls->name[i]); i++)
		;
	if (i == calls->count)
		return true;
	nearest.word = calls->name[i];
	for (type = 0; type < LIEN_CALL_MAX; type++) {
		names[type] = lien_event_name(type);
		lien_nearest_try(&nearest, names[type].text);
	}
	lien_word_error(usage, &nearest, "", "no event is called '%s'", calls->name[i]);
	return false;
}

/* Warns of names that are nearly one of CUDA's or NCCL's: calls of that library may never come. */
static void warn_of_libraries(const struct lien_usage *usage, const struct libraries *libraries)
{
	struct lien_nearest nearest;
	unsigned i, library;

	for (i = 0; i < libraries->names.count; i++) {
		nearest = (struct lien_nearest){.word = libraries->names.name[i]};
		for (library = 1; library < LIEN_LIB_COUNT; library++)
			lien_nearest_try(&nearest, lien_library_name(library));
		if (nearest.found && nearest.edits)
			lien_warn(usage->command, "--library '%s': did you mean '%s'?",
				libraries->names.name[i], nearest.found);
	}
}

struct printer {
	struct lien_pids pids;
	bool seen[LIEN_PIDS_MAX]; /* parallel to them */
	struct lien_names calls;
	struct libraries libraries;
	unsigned long count; /* number to print; 0: all */
	bool json, live;     /* live: times are of this machine */
	uint64_t printed;
	struct lien_graph *known; /* processes and their libraries, nothing else */
};

static bool any_pid(const struct lien_pids *pids, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < pids->count; i++)
		if ((uint32_t)pids->pid[i] == pid)
			return true;
	return !pids->count;
}

static void note_pid(struct printer *printer, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < printer->pids.count; i++)
		printer->seen[i] |= (uint32_t)printer->pids.pid[i] == pid;
}

/* Has every process of --pid been seen? starting: one that only runs may still use CUDA. */
static int check_pids(const struct printer *printer, bool starting)
{
	char text[LIEN_KNOWN_SIZE];
	unsigned i;
	pid_t pid;

	for (i = 0; i < printer->pids.count; i++) {
		pid = printer->pids.pid[i];
		if (printer->seen[i] || (starting && (!kill(pid, 0) || errno != ESRCH)))
			continue;
		lien_known_processes(printer->known, NULL,
			printer->live ? NULL : "the recording has no process", pid, text,
			sizeof(text));
		lien_complain(usage.command, "%s", text);
		return LIEN_EXIT_USAGE;
	}
	return LIEN_EXIT_OK;
}

static bool is_call(const struct lien_event *event)
{
	return event->type >= LIEN_CALL_CU_INIT && !LIEN_IS_STATE(event->type);
}

/* Converts the time of an event of this machine to milliseconds since 1970. */
static double unix_ms(uint64_t monotonic)
{
	struct timespec real, now;

	clock_gettime(CLOCK_REALTIME, &real);
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (real.tv_sec - now.tv_sec) * 1e3 + (real.tv_nsec - now.tv_nsec) / 1e6 +
	       monotonic / 1e6;
}

static json_t *time_of(const struct lien_event *event, bool known)
{
	return event->t_return && known ? json_real(unix_ms(event->t_return)) : json_null();
}

static void print_line_json(const struct printer *printer, const struct lien_event *event,
	const struct lien_process *process, const char *caller)
{
	json_t *line = json_pack("{s:s, s:i, s:i, s:s}", "event", lien_event_name(event->type).text,
		"pid", event->pid, "tid", event->tid, "command", process ? process->command : "");

	json_object_set_new(line, "unix_ms", time_of(event, printer->live));
	json_object_set_new(
		line, "boot_ms", event->t_return ? json_real(event->t_return / 1e6) : json_null());
	if (is_call(event)) {
		json_object_set_new(line, "caller", json_string(caller));
		json_object_set_new(line, "inside",
			event->outer && event->outer != event->type
				? json_string(lien_event_name(event->outer).text)
				: json_null());
		json_object_set_new(line, "result", json_integer(event->result));
		json_object_set_new(
			line, "control", json_boolean(event->flags & LIEN_EVENT_CONTROL));
		json_object_set_new(
			line, "partial", json_boolean(event->flags & LIEN_EVENT_PARTIAL));
	}
	json_object_set_new(line, "arguments", lien_event_arguments(event));
	lien_print_json_line(stdout, line);
	json_decref(line);
}

/* "12:01:33.123", "4711.123", or "-" for the state before the stream. */
static void print_time(const struct lien_event *event, bool live, char *text, size_t size)
{
	double ms;
	time_t seconds;
	struct tm tm;

	snprintf(text, size, "-");
	if (event->t_return && live) {
		ms = unix_ms(event->t_return);
		seconds = ms / 1000;
		localtime_r(&seconds, &tm);
		snprintf(text, size, "%02d:%02d:%02d.%03d", tm.tm_hour, tm.tm_min, tm.tm_sec,
			(int)(ms - seconds * 1e3));
	} else if (event->t_return) {
		snprintf(text, size, "%.3f", event->t_return / 1e9);
	}
}

static char *result_text(const struct lien_event *event)
{
	const char *name = lien_event_result_name(event);

	if (name)
		return lien_format(" = %s (%d)", name, event->result);
	return lien_format(" = %d", event->result);
}

static void print_line(const struct printer *printer, const struct lien_event *event,
	const struct lien_process *process, const char *caller)
{
	char *arguments = lien_event_arguments_text(event), *result, time[24];
	const char *details = *arguments || !process ? arguments : process->command;
	struct lien_event_name name = lien_event_name(event->type);

	print_time(event, printer->live, time, sizeof(time));
	if (is_call(event)) {
		result = result_text(event);
		lien_print_line(stdout, INDENT, "%12s %7u %-8s %s(%s)%s%s", time, event->pid,
			caller, name.text, arguments, result,
			event->flags & LIEN_EVENT_PARTIAL ? ", not all could be read" : "");
		free(result);
	} else {
		lien_print_line(stdout, INDENT, "%12s %7u %-8s %s%s%s", time, event->pid, "-",
			name.text, *details ? " " : "", details);
	}
	free(arguments);
}

static void print_event(struct printer *printer, const struct lien_event *event)
{
	struct lien_process *process = lien_graph_process(printer->known, event->pid);
	char caller[LIEN_CALLER_SIZE] = "-";

	if (event->flags & LIEN_EVENT_ENTRY || event->type == LIEN_EVENT_END)
		return;
	if (is_call(event) && process) {
		lien_process_caller(process, event, caller);
		note_library(&printer->libraries, event->type, caller);
	}
	if (!any_pid(&printer->pids, event->pid) || !has_call(&printer->calls, event->type) ||
		!has_library(&printer->libraries, event->type, caller))
		return;
	if (printer->json)
		print_line_json(printer, event, process, caller);
	else
		print_line(printer, event, process, caller);
	printer->printed++;
}

/* Records what the event says about processes, then prints it; for the end of a process in the
 * reverse order. */
static int take(struct printer *printer, const struct lien_event *event, bool print)
{
	bool ends = event->type == LIEN_EVENT_EXIT || event->type == LIEN_EVENT_EXEC;
	bool kept = ends || event->type == LIEN_EVENT_PROCESS ||
		    event->type == LIEN_STATE_process || event->type == LIEN_EVENT_LIBRARY;
	int err = 0;

	note_pid(printer, event->pid);
	if (kept && !ends)
		err = lien_graph_apply(printer->known, event);
	if (print && err != -ENOMEM)
		print_event(printer, event);
	if (ends)
		err = lien_graph_apply(printer->known, event);
	/* A process that a forged recording has twice is kept once. */
	return err == -ENOMEM ? lien_complain(usage.command, "out of memory") : LIEN_EXIT_OK;
}

static bool enough(const struct printer *printer)
{
	return printer->count && printer->printed >= printer->count;
}

static int print_recording(struct printer *printer, const char *path)
{
	struct lien_recording *recording = lien_offline_open(usage.command, path);
	struct lien_event event;
	int code = LIEN_EXIT_OK, got = 0;

	if (!recording)
		return LIEN_EXIT_FAILURE;
	while (!code && !enough(printer) && (got = lien_recording_read(recording, &event)) == 1)
		code = take(printer, &event, true);
	if (lien_recording_close(recording) ||
		(got < 0 && !lien_offline_ended(usage.command, path, got)))
		code = LIEN_EXIT_FAILURE;
	if (!code && !enough(printer))
		code = check_pids(printer, false);
	return code || enough(printer) ? code : check_libraries(&usage, &printer->libraries);
}

/* A closed output and Ctrl-C take effect only between records. */
static int wait_for_more(struct lien_event_stream *stream, const sigset_t *waiting)
{
	struct pollfd fd = {.fd = stream->fd, .events = POLLIN};

	if (fflush(stdout))
		return LIEN_EXIT_FAILURE; /* main() reports it */
	if (ppoll(&fd, 1, NULL, waiting) < 0 || lien_interrupted())
		return LIEN_EXIT_OK;
	return lien_event_stream_receive(stream) ? LIEN_EXIT_OK : LIEN_EXIT_FAILURE;
}

static int print_stream(struct printer *printer, struct lien_event_stream *stream, bool follow,
	const sigset_t *waiting)
{
	bool present = true;
	struct lien_event event;
	int got, code = LIEN_EXIT_OK;

	while (!code && !lien_interrupted() && !enough(printer)) {
		got = lien_event_stream_next(stream, &event);
		if (got < 0)
			return LIEN_EXIT_FAILURE;
		if (!got) {
			code = wait_for_more(stream, waiting);
		} else if (event.type == LIEN_EVENT_END) {
			code = check_pids(printer, follow);
			if (!follow)
				break;
			present = false;
		} else {
			code = take(printer, &event, present != follow);
		}
	}
	return code;
}

static int print_agent(struct printer *printer, const char *socket, bool follow)
{
	struct lien_event_stream stream = {.command = usage.command, .socket = socket};
	sigset_t waiting;
	int code;

	if (!lien_event_stream_open(&stream, follow ? LIEN_FOLLOW_MARKED : LIEN_FOLLOW_NOT))
		return LIEN_EXIT_FAILURE;
	lien_interrupt_catch(&waiting);
	code = print_stream(printer, &stream, follow, &waiting);
	lien_event_stream_close(&stream);
	return code;
}

int lien_cmd_events(int argc, char **argv)
{
	static struct printer printer;
	const char *socket = NULL, *from = NULL;
	bool follow = false;
	const struct lien_option options[] = {
		{"f,follow", LIEN_OPTION_FLAG, &follow, NULL,
			"only what happens from now on, until Ctrl-C", 0},
		{"pid", LIEN_OPTION_PIDS, &printer.pids, "PID",
			"only this process; may be given several times", 0},
		{"call", LIEN_OPTION_NAMES, &printer.calls, "NAME",
			"only this call, event (exit, library, lost), state (state-mapping), or "
			"pattern",
			0},
		{"library", LIEN_OPTION_NAMES, &printer.libraries.names, "NAME",
			"only calls of this library, or made by it: cuda, nccl, c10_cuda, ...", 0},
		{"count", LIEN_OPTION_NUMBER, &printer.count, "N", "end after N events", 0},
		{"json", LIEN_OPTION_JSON, &printer.json, NULL, "a JSON object per line", 1},
		LIEN_SOCKET_OPTION(&socket),
		{"from", LIEN_OPTION_STRING, &from, "FILE",
			"print a snapshot or a recording, without an agent", 0},
		{}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (!check_calls(&usage, &printer.calls))
		return LIEN_EXIT_USAGE;
	if (printer.libraries.names.count && !follow && !from)
		return lien_usage_error(&usage, "--library needs --follow or --from");
	if (follow)
		warn_of_libraries(&usage, &printer.libraries);
	if (lien_graph_new(&printer.known))
		return lien_complain(usage.command, "out of memory");
	printer.live = !from;
	code = from ? print_recording(&printer, from) : print_agent(&printer, socket, follow);
	lien_graph_free(printer.known);
	return code;
}
