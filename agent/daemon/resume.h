/* SPDX-License-Identifier: BSD-2-Clause */
/* Going on where an earlier agent was stopped or killed. */
#ifndef LIEN_RESUME_H
#define LIEN_RESUME_H

#include "agent/core/agent.h"
#include "agent/daemon/run.h"

/* Reads the journal into the graph, and says to the probes which one it was. 0 or -errno. */
int lien_resume_read(struct lien_agent *agent, const struct lien_agent_config *config,
	struct lien_probes_config *probes);
/* Once the probes are open: goes on with it, or begins anew. 0 or -errno. */
int lien_resume_begin(struct lien_agent *agent, uint64_t new_journal);
/* Before each record of the ring. False: it was applied by the agent before. */
bool lien_resume_record(struct lien_agent *agent, const struct lien_event *event);
/* Adds an event to the journal, if one is kept. */
void lien_resume_note(struct lien_agent *agent, const struct lien_event *event);
/* The processes that ended unseen. */
void lien_resume_ends(struct lien_agent *agent);
/* When all libraries are probed again. */
void lien_resume_settle(struct lien_agent *agent);
/* Leaves it all to the next agent; nothing, if none could go on with it. */
void lien_resume_stop(struct lien_agent *agent, bool started);

#endif
