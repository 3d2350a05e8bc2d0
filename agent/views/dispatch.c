// SPDX-License-Identifier: BSD-2-Clause
/* The requests that a graph answers: one table, for the agent and for a recording. */
#include "agent/views/views.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/named.h"

#define IDLE_MINUTES	 10
#define IDLE_MINUTES_MAX 525600

/* An answer in the making. */
struct view {
	const struct lien_view_source *source;
	const json_t *request;
	char *error;
	size_t error_size;
};

__attribute__((format(printf, 2, 3))) static json_t *refuse(
	const struct view *view, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(view->error, view->error_size, format, args);
	va_end(args);
	return NULL;
}

static bool read_flag(const struct view *view, const char *name, bool *value)
{
	const json_t *flag = json_object_get(view->request, name);

	*value = json_is_true(flag);
	if (!flag || json_is_boolean(flag))
		return true;
	refuse(view, "%s must be true or false", name);
	return false;
}

static bool sees(const struct lien_view_source *source, uint32_t pid)
{
	const struct lien_process *process = lien_graph_process(source->graph, pid);

	return process && lien_viewer_sees(source->viewer, process);
}

/* Takes the answer, which may be NULL, and adds the devices. */
static json_t *with_gpus(const struct view *view, json_t *answer, bool explained)
{
	const struct lien_view_source *source = view->source;

	if (answer) {
		json_object_set_new(answer, "gpus",
			lien_view_gpus(source->graph, source->viewer, source->node, explained));
		json_object_set_new(answer, "nvml",
			source->node && source->node->nvml
				? json_pack("{s:f}", "age_ms", source->node->age_ms)
				: json_null());
	}
	return answer;
}

static json_t *ps(const struct view *view)
{
	const struct lien_view_source *source = view->source;
	json_t *answer;
	bool fresh;

	if (!read_flag(view, "fresh", &fresh))
		return NULL;
	answer = lien_view_ps(source->graph, source->viewer);
	if (answer)
		json_object_set_new(answer, "pending", json_boolean(source->pending));
	return with_gpus(view, answer, false);
}

static json_t *graph(const struct view *view)
{
	return with_gpus(view, lien_view_graph(view->source->graph, view->source->viewer), false);
}

/* How much an offload frees depends on which processes take orders. */
static void forget_frees(json_t *answer)
{
	json_t *row;
	size_t i;

	json_array_foreach (json_object_get(answer, "rows"), i, row)
		json_object_set_new(row, "offload_frees", json_null());
	json_object_set_new(answer, "offload_frees", json_null());
}

/* A recording is read long after its processes have ended. */
static json_t *unknown_process(const struct view *view, uint32_t pid)
{
	const struct lien_view_source *source = view->source;

	lien_known_processes(source->graph, source->viewer,
		source->recorded ? "the recording has no process" : NULL, pid, view->error,
		view->error_size);
	return NULL;
}

static json_t *mem(const struct view *view)
{
	const struct lien_view_source *source = view->source;
	const json_t *pid = json_object_get(view->request, "pid");
	const json_t *name = json_object_get(view->request, "by");
	bool explained;
	enum lien_mem_by by = LIEN_MEM_BY_KIND;
	json_t *answer;

	if (name && (!json_is_string(name) || lien_mem_by_parse(json_string_value(name), &by)))
		return refuse(view, "by must be owner, rank, comm, device, callsite or tag");
	if (!read_flag(view, "explain", &explained))
		return NULL;
	if (pid && (!json_is_integer(pid) || json_integer_value(pid) < 1 ||
			   json_integer_value(pid) > UINT32_MAX))
		return refuse(view, "pid must be a process id");
	answer = lien_view_mem(
		source->graph, source->viewer, by, json_integer_value(pid), source->node);
	if (pid && !json_array_size(json_object_get(answer, "rows")) &&
		!sees(source, json_integer_value(pid))) {
		json_decref(answer);
		return unknown_process(view, json_integer_value(pid));
	}
	if (answer && source->recorded)
		forget_frees(answer);
	if (answer)
		json_object_set_new(answer, "pending", json_boolean(source->pending));
	return with_gpus(view, answer, explained);
}

static json_t *comms(const struct view *view)
{
	const struct lien_view_source *source = view->source;

	return lien_view_comms(source->graph, source->viewer, NULL, 0, false, source->now_ns);
}

static json_t *holders(const struct view *view)
{
	const struct lien_view_source *source = view->source;
	const char *text = json_string_value(json_object_get(view->request, "address"));
	const json_t *pid = json_object_get(view->request, "pid");
	json_t *answer, *allocation;
	char *end = NULL;
	uint64_t address;

	address = text ? strtoull(text, &end, 16) : 0;
	if (!json_is_integer(pid) || !text || strncmp(text, "0x", 2) || !text[2] || *end)
		return refuse(view,
			"`holders` needs pid, a number, and address, a string such as \"0x7f00\"");
	if (!sees(source, json_integer_value(pid)))
		return unknown_process(view, json_integer_value(pid));
	answer = lien_view_holders(source->graph, source->viewer, json_integer_value(pid), address,
		&source->files, view->error, view->error_size);
	allocation = json_object_get(answer, "allocation");
	if (source->recorded && json_is_true(json_object_get(allocation, "movable")))
		json_object_set_new(allocation, "movable", json_null());
	return answer;
}

/* Without information on a communicator's last call, or on open files, neither is judged. */
static json_t *check(const struct view *view)
{
	const json_t *idle = json_object_get(view->request, "idle_minutes");
	const json_int_t minutes = idle ? json_integer_value(idle) : IDLE_MINUTES;
	struct lien_view_source source = *view->source;

	if ((idle && !json_is_integer(idle)) || minutes < 0 || minutes > IDLE_MINUTES_MAX)
		return refuse(view, "idle_minutes must be between 0 and 525600");
	source.idle_ns = minutes * 60000000000ull;
	return lien_findings(&source);
}

static const struct {
	const char *op;
	json_t *(*make)(const struct view *view);
} views[] = {
	{"ps", ps},
	{"mem", mem},
	{"comms", comms},
	{"graph", graph},
	{"holders", holders},
	{"check", check},
};

#define VIEWS (sizeof(views) / sizeof(views[0]))

static unsigned find(const char *op)
{
	unsigned i = 0;

	while (i < VIEWS && (!op || strcmp(views[i].op, op)))
		i++;
	return i;
}

bool lien_view_has(const char *op)
{
	return find(op) < VIEWS;
}

json_t *lien_view_dispatch(const struct lien_view_source *source, const json_t *request,
	char *error, size_t error_size)
{
	const struct view view = {source, request, error, error_size};
	const unsigned i = find(json_string_value(json_object_get(request, "op")));

	error[0] = 0;
	return i < VIEWS ? views[i].make(&view) : refuse(&view, "no such view");
}
