// SPDX-License-Identifier: BSD-2-Clause
/* The answer to `metrics`: figures for a monitoring system. */
#include "agent/core/node.h"
#include "agent/daemon/requests.h"
#include "agent/views/views.h"

json_t *lien_agent_metrics(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	const struct lien_node *node;

	lien_node_refresh(agent); /* for the next time */
	node = lien_node_now(agent);
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "memory",
		lien_view_mem_devices(agent->graph, viewer, node), "node_memory",
		lien_view_mem_node(agent->graph, node), "gpus",
		lien_view_gpus(agent->graph, viewer, node, false), "totals",
		lien_view_totals(&agent->totals), "status", lien_agent_status(agent, viewer));
}
