/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory from before the agent for which the driver reports no types of handles. It was made
 * without any, and cannot be handed out, or it was imported: the driver (580) reports the same for
 * both.
 */
#ifndef LIEN_UNTYPED_H
#define LIEN_UNTYPED_H

#include "agent/reread/adoption.h"

/* Did this process import it from an unknown owner, as far as is known? */
bool lien_unknown_in(const struct lien_allocation *allocation, const struct lien_process *process);
/* Is it an import of unknown owner that its process may have made? Re-reading has found it. */
bool lien_untyped(const struct lien_allocation *allocation);

/* Sets .unread and .unmarked of a plan whose processes are sorted by pid and have their entries. */
void lien_untyped_plan(struct lien_adoption *adoption, struct lien_graph *graph);

#endif
