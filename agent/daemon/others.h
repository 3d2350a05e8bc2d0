/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Other agents that watch the same processes: those in the agent's pid namespace and in those below
 * it. A process takes orders from one agent only, and each agent traces all calls. Agents in a pid
 * namespace above are not seen; they see this one. /proc is searched in a thread; the log names
 * each agent that comes and goes.
 */
#ifndef LIEN_OTHERS_H
#define LIEN_OTHERS_H

#include <jansson.h>

struct lien_agent;

int lien_others_start(struct lien_agent *agent);
void lien_others_stop(struct lien_agent *agent);
void lien_others_tick(struct lien_agent *agent);

/* Their pids, as of a few seconds ago; has them looked for again. */
json_t *lien_others_view(struct lien_agent *agent);

#endif
