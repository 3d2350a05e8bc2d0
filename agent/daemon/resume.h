/* SPDX-License-Identifier: BSD-2-Clause */
/* Takes over where an earlier agent was stopped or killed. */
#ifndef LIEN_RESUME_H
#define LIEN_RESUME_H

#include "agent/core/agent.h"
#include "agent/daemon/run.h"

/* Reads the journal into the graph, and tells the probes which journal it was. 0 or -errno. */
int lien_resume_read(struct lien_agent *agent, const struct lien_agent_config *config,
	struct lien_probes_config *probes);
/* Call this once the probes are open: continues the journal, or begins anew. 0 or -errno. */
int lien_resume_begin(struct lien_agent *agent, uint64_t new_journal);
/* Call this before each record of the ring. Returns false if an earlier agent has applied it. */
bool lien_resume_record(struct lien_agent *agent, const struct lien_event *event);
/* Replaces a journal that has grown too large, if nothing else is to be done. */
void lien_resume_tick(struct lien_agent *agent);
/* Adds an event to the journal, if there is one. */
void lien_resume_note(struct lien_agent *agent, const struct lien_event *event);
/* Call this when all libraries are probed again. */
void lien_resume_finish(struct lien_agent *agent);
/* Leaves everything to the next agent, or nothing if none could take over. */
void lien_resume_stop(struct lien_agent *agent, bool started);

#endif
