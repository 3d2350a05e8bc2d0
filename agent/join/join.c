// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/join.h"

#include "agent/join/job.h"

int lien_join_start(struct lien_agent *agent, bool ras)
{
	const int err = lien_netns_start(agent);

	return !err && ras ? lien_ras_start(agent) : err;
}

void lien_join_tick(struct lien_agent *agent)
{
	lien_walks_tick(agent);
	lien_join_jobs_tick(agent);
	lien_ras_tick(agent);
}

void lien_join_stop(struct lien_agent *agent)
{
	struct lien_process *process;

	lien_ras_stop(agent);
	lien_netns_stop(agent);
	for (process = agent->graph ? lien_graph_first(agent->graph) : NULL; process;
		process = lien_graph_next(process))
		lien_walk_end(agent, process, "the agent ends");
	while (!LIST_EMPTY(&agent->joins))
		lien_join_free(LIST_FIRST(&agent->joins));
}
