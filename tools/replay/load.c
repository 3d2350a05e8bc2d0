// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>

#include <lien/state.h>
#include "agent/graph/graph.h"
#include "agent/journal/recording.h"
#include "tools/replay/build.h"
#include "tools/replay/snapshot.h"

static bool keeps_libraries(unsigned type)
{
	return type == LIEN_EVENT_LIBRARY || type == LIEN_EVENT_EXEC || type == LIEN_EVENT_EXIT;
}

int lien_script_add(struct lien_script *script, const struct lien_event *ev)
{
	int err = 0;

	script->records++;
	if (LIEN_IS_STATE(ev->type))
		return lien_replay_snapshot_add(script, ev);
	if (ev->type != LIEN_EVENT_LIBRARY) /* snapshots have these, too */
		err = lien_replay_snapshot_end(script);
	if (!err && keeps_libraries(ev->type))
		err = lien_graph_apply(script->graph, ev);
	return err ? err : lien_script_take(script, ev);
}

int lien_script_load(const char *path, struct lien_script **out, uint64_t *record)
{
	struct lien_recording *rec = NULL;
	struct lien_script *script = NULL;
	struct lien_event ev;
	int err, cut;

	*record = 0;
	err = lien_recording_open(path, &rec);
	if (err)
		return err;
	err = lien_script_new(&script);
	while (!err) {
		++*record;
		err = lien_recording_read(rec, &ev);
		if (err == 1)
			err = lien_script_add(script, &ev);
		else if (!err)
			break;
	}
	/* It was only read, so closing has no error to report. */
	cut = lien_recording_close(rec);
	(void)cut;
	cut = err == -ENODATA ? err : 0;
	if (!err || cut)
		err = lien_replay_snapshot_end(script);
	if (err) {
		lien_script_free(script);
		return err;
	}
	lien_script_finish(script);
	*out = script;
	return cut;
}
