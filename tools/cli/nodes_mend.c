// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_mend.h"

#include <stdlib.h>
#include <string.h>

#include <lien/clock.h>

#include "tools/text/output.h"

/* The processes of which an agent has said that it has moved their memory; NULL: it has said
 * nothing. */
static json_t *moved_pids(const json_t *result)
{
	json_t *pids = json_array();
	const json_t *process;
	size_t i;

	json_array_foreach (json_object_get(result, "processes"), i, process)
		json_array_append(pids, json_object_get(process, "pid"));
	if (json_array_size(pids))
		return pids;
	json_decref(pids);
	return NULL;
}

/*
 * Returns a restore that puts back what the offload has dropped there: everything that its
 * processes have away; if they are not known, memory of the communicators and with the tags that
 * were selected. NULL: neither is known, and a restore would put back what others have offloaded.
 */
static json_t *make_mend(const struct member *member)
{
	json_t *pids = moved_pids(member->result);
	json_t *comms = json_object_get(member->request, "comms");
	json_t *tags = json_object_get(member->request, "tags");

	if (!pids)
		pids = json_incref(json_object_get(member->request, "pids"));
	if (pids)
		return json_pack("{s:s, s:o}", "op", "restore", "pids", pids);
	/* What was discarded has other tags, and can be of other communicators. */
	if ((!comms && !tags) || json_object_get(member->request, "discard"))
		return NULL;
	return json_pack("{s:s, s:O*, s:O*}", "op", "restore", "comms", comms, "tags", tags);
}

void lien_nodes_mend(struct mover *mover, struct member *member)
{
	const uint64_t now = lien_clock_ns();
	json_t *request;

	if (member->mending ||
		(member->t_restore && now < member->t_restore + LIEN_MOVER_AGAIN_MS * 1000000ull))
		return;
	member->t_mend = member->t_mend ? member->t_mend : now;
	if (!member->answered && now < member->t_mend + LIEN_MOVER_RESULT_MS * 1000000ull)
		return; /* its result names the processes */
	request = make_mend(member);
	if (!request) {
		member->unknown = true;
		lien_coordinator_mended(&mover->coordinator, member - mover->members, false, now);
		return;
	}
	lien_nodes_send(mover->nodes, member->node, LIEN_ON_MEND, request);
	json_decref(request);
	member->mending = true;
	member->t_restore = now;
}

void lien_nodes_mend_take(struct mover *mover, unsigned i, const json_t *line)
{
	struct member *member = &mover->members[i];
	const bool ok = lien_get_true(line, "ok");

	member->mending = false;
	if (!ok && !strcmp(lien_get_text(line, "code"), "busy"))
		return; /* again, a second later */
	if (!ok) {
		free(member->error);
		member->error = lien_format("%s", lien_get_text(line, "error"));
	}
	lien_coordinator_mended(&mover->coordinator, i, ok, lien_clock_ns());
}
