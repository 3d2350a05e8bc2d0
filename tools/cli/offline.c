// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/offline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/views/findings.h"
#include "agent/journal/recording.h"
#include "agent/views/views.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

#define ERROR_SIZE 256

/* Which GPU is meant by a process's ordinal is not in a recording. */
static json_t *with_gpus(json_t *view, struct lien_graph *graph)
{
	const struct lien_node unknown = {0};

	json_object_set_new(view, "gpus", lien_view_gpus(graph, NULL, &unknown, false));
	json_object_set_new(view, "nvml", lien_view_nvml(&unknown));
	return view;
}

static json_t *view_ps(struct lien_graph *graph, const json_t *request, char *error)
{
	(void)request;
	(void)error;
	return with_gpus(lien_view_ps(graph, NULL), graph);
}

static json_t *view_graph(struct lien_graph *graph, const json_t *request, char *error)
{
	(void)request;
	(void)error;
	return with_gpus(lien_view_graph(graph, NULL), graph);
}

/* What an offload frees depends on which processes take orders. */
static json_t *view_mem(struct lien_graph *graph, const json_t *request, char *error)
{
	const char *by_name = lien_get_text(request, "by");
	const struct lien_node unknown = {0};
	json_t *view, *row;
	enum lien_mem_by by;
	size_t i;

	if (!*by_name) {
		view = lien_view_mem(graph, NULL);
	} else if (lien_mem_by_parse(by_name, &by)) {
		snprintf(error, ERROR_SIZE, "--by %s: it is owner, rank, comm, device or callsite",
			by_name);
		return NULL;
	} else {
		view = lien_view_mem_by(graph, NULL, by, lien_get_number(request, "pid"), &unknown);
	}
	json_array_foreach (json_object_get(view, "rows"), i, row)
		json_object_set_new(row, "offload_frees", json_null());
	json_object_set_new(view, "offload_frees", json_null());
	json_object_set_new(view, "pending", json_false());
	return with_gpus(view, graph);
}

static json_t *view_holders(struct lien_graph *graph, const json_t *request, char *error)
{
	uint32_t pid = lien_get_number(request, "pid");
	const struct lien_view_files unknown = {0}; /* who has what open */
	unsigned long address = 0;
	json_t *view, *allocation;

	if (!lien_graph_process(graph, pid)) {
		snprintf(error, ERROR_SIZE, "the recording has no process %u", pid);
		return NULL;
	}
	lien_parse_address(lien_get_text(request, "address"), &address);
	view = lien_view_holders(graph, NULL, pid, address, &unknown, error, ERROR_SIZE);
	allocation = json_object_get(view, "allocation");
	if (lien_get_true(allocation, "movable"))
		json_object_set_new(allocation, "movable", json_null());
	return view;
}

/* What was counted of the communicators' calls is the kernel's knowledge. */
static json_t *view_comms(struct lien_graph *graph, const json_t *request, char *error)
{
	(void)request;
	(void)error;
	return lien_view_comms(graph, NULL, NULL, 0, NULL, 0);
}

/* Of a communicator's last call and of open files nothing is known, so neither is judged. */
static json_t *view_check(struct lien_graph *graph, const json_t *request, char *error)
{
	const struct lien_findings_input input = {0};

	(void)request;
	(void)error;
	return lien_findings(graph, &input);
}

/* A view returns NULL with a reason in error, or with none when it is out of memory. */
static const struct view {
	const char *op;
	json_t *(*make)(struct lien_graph *graph, const json_t *request, char *error);
} views[] = {
	{"ps", view_ps},
	{"mem", view_mem},
	{"holders", view_holders},
	{"graph", view_graph},
	{"check", view_check},
	{"comms", view_comms},
};

#define VIEWS (sizeof(views) / sizeof(views[0]))

struct lien_recording *lien_offline_open(const char *command, const char *path)
{
	struct lien_recording *recording;
	int err = lien_recording_open(path, &recording);

	switch (err) {
	case 0:
		return recording;
	case -EBADMSG:
		lien_complain(command,
			"%s is no recording: `lien snapshot` and `lien record` make them", path);
		break;
	case -EPROTONOSUPPORT:
		lien_complain(command,
			"%s was written by another version of lien: read it with that one", path);
		break;
	case -ENODATA:
		lien_complain(command, "%s is empty or cut short at its very beginning", path);
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
		lien_complain(command,
			"warning: %s is cut short: this is what it tells up to there", path);
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

/* The graph at the recording's end; NULL after a message. */
static struct lien_graph *load(const char *command, const char *path)
{
	struct lien_recording *recording = lien_offline_open(command, path);
	struct lien_process *process;
	struct lien_graph *graph;
	struct lien_event event;
	int err;

	if (!recording)
		return NULL;
	err = lien_graph_new(&graph);
	if (err) {
		graph = NULL;
	} else {
		while ((err = lien_recording_read(recording, &event)) == 1) {
			err = lien_graph_apply(graph, &event);
			if (err)
				break;
		}
	}
	if (lien_recording_close(recording) || !lien_offline_ended(command, path, err)) {
		lien_graph_free(graph);
		return NULL;
	}
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		process->presence = LIEN_CONTROL_UNKNOWN;
	return graph;
}

json_t *lien_offline_query(const char *command, const char *path, const json_t *request)
{
	const char *op = lien_get_text(request, "op");
	char error[ERROR_SIZE] = "out of memory";
	struct lien_graph *graph;
	json_t *result;
	size_t i = 0;

	while (i < VIEWS && strcmp(views[i].op, op))
		i++;
	if (i == VIEWS) {
		lien_complain(command, "only an agent can answer `%s`: leave --from out", op);
		return NULL;
	}
	graph = load(command, path);
	if (!graph)
		return NULL;
	result = views[i].make(graph, request, error);
	if (!result)
		lien_complain(command, "%s", error);
	lien_graph_free(graph);
	return result;
}
