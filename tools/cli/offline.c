// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/offline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/views/dispatch.h"
#include "agent/journal/recording.h"
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

/* Returns the graph at the recording's end; NULL after a message. */
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
	/* A recording does not say which GPU a process's ordinal stands for. */
	const struct lien_node unknown = {0};
	struct lien_view_source source = {.node = &unknown, .recorded = true};
	char error[256];
	json_t *result;

	if (!lien_view_has(op)) {
		lien_complain(command, "only an agent can answer `%s`: leave --from out", op);
		return NULL;
	}
	source.graph = load(command, path);
	if (!source.graph)
		return NULL;
	result = lien_view_dispatch(&source, request, error, sizeof(error));
	if (!result)
		lien_complain(command, "%s", error[0] ? error : "out of memory");
	lien_graph_free(source.graph);
	return result;
}
