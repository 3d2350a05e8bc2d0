// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/counted.h"

#include <errno.h>
#include <stdlib.h>

#include "agent/views/views.h"

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
