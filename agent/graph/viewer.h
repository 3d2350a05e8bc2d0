/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who asks: a user sees and moves the processes of that user, and what these hold of other users'
 * memory (docs/security.md). Of other users' holders no more is told than that they are there.
 */
#ifndef LIEN_VIEWER_H
#define LIEN_VIEWER_H

#include "agent/graph/graph.h"

struct lien_viewer {
	bool one_user; /* false: root, who sees all */
	uint32_t uid;
};

/* viewer NULL: root. process NULL: nobody's, so root's alone. */
bool lien_sees(const struct lien_viewer *viewer, const struct lien_process *process);
/* Its owner is seen; of memory whose owner has exited or is not known, one that holds it. */
bool lien_sees_owned(const struct lien_viewer *viewer, const struct lien_allocation *allocation);
/* Something of it: its owner, or one that holds it. */
bool lien_sees_part(const struct lien_viewer *viewer, const struct lien_allocation *allocation);

#endif
