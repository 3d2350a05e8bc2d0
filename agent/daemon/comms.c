// SPDX-License-Identifier: BSD-2-Clause
/* The kernel side's counts, for the view of communicators. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/join/join.h"
#include "agent/views/views.h"
#include "agent/core/counted.h"
#include "agent/daemon/requests.h"

json_t *lien_agent_comms(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_view_ras ras = lien_ras_refresh(agent, viewer);
	struct lien_counted *counted;
	json_t *view = NULL;
	size_t count;
	int err;

	err = lien_agent_counted(agent, &counted, &count);
	if (err)
		lien_log(4, "cannot read what was counted of collectives: %s", strerror(-err));
	if (err != -ENOMEM)
		view = lien_view_comms(agent->graph, viewer, counted, count, &ras, lien_now_ns());
	free(counted);
	return view;
}

static int count_entry(
	void *context, const struct lien_probe_comm *comm, const struct lien_probe_traffic *traffic)
{
	(void)comm;
	(void)traffic;
	++*(unsigned *)context;
	return 0;
}

unsigned lien_agent_comms_counted(struct lien_agent *agent)
{
	unsigned count = 0;

	lien_probes_traffic(agent->probes, count_entry, &count);
	return count;
}
