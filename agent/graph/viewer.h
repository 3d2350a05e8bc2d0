/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The viewer: whoever asks. A user sees and moves only the user's own processes, and what these
 * hold of other users' memory (docs/security.md). A viewer learns of other users' holders only that
 * they exist.
 */
#ifndef LIEN_VIEWER_H
#define LIEN_VIEWER_H

#include "agent/graph/graph.h"

struct lien_viewer {
	bool one_user; /* false: root, who sees everything */
	uint32_t uid;
	uint32_t pid; /* of the client, for the log; 0: the agent itself asks */
};

/* Is it the same user? */
static inline bool lien_viewer_same(const struct lien_viewer *a, const struct lien_viewer *b)
{
	return a->one_user == b->one_user && (!a->one_user || a->uid == b->uid);
}

/* viewer NULL: root. process NULL: nobody's process, which only root sees. */
static inline bool lien_viewer_sees(
	const struct lien_viewer *viewer, const struct lien_process *process)
{
	return !viewer || !viewer->one_user || (process && process->uid == viewer->uid);
}

/*
 * Does the viewer see the owner? If the owner has exited or is not known: does the viewer see a
 * holder?
 */
bool lien_viewer_sees_owner(
	const struct lien_viewer *viewer, const struct lien_allocation *allocation);
/* Does the viewer see the owner or any holder? */
bool lien_viewer_sees_part(
	const struct lien_viewer *viewer, const struct lien_allocation *allocation);

#endif
