// SPDX-License-Identifier: BSD-2-Clause
/* What the kernel side has counted, for the view of communicators. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/join/ras.h"
#include "agent/daemon/requests.h"

struct counting {
	struct lien_counted *counted;
	size_t count, room;
};

static int count_one(
	void *context, const struct lien_probe_comm *comm, const struct lien_probe_traffic *traffic)
{
	struct counting *counting = context;
	struct lien_counted *more;

	if (counting->count == counting->room) {
		more = realloc(counting->counted, 2 * counting->room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		counting->counted = more;
		counting->room *= 2;
	}
	counting->counted[counting->count++] = (struct lien_counted){*comm, *traffic};
	return 0;
}

int lien_agent_counted(struct lien_agent *agent, struct lien_counted **counted, size_t *count)
{
	struct counting counting = {.room = 64};
	int err = -ENOMEM;

	counting.counted = malloc(counting.room * sizeof(*counting.counted));
	if (counting.counted)
		err = lien_probes_traffic(agent->probes, count_one, &counting);
	if (err) {
		free(counting.counted);
		counting.counted = NULL;
		counting.count = 0;
	}
	*counted = counting.counted;
	*count = counting.count;
	return err;
}

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
