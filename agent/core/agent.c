// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/agent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "agent/graph/array.h"
#include "agent/views/views.h"

int lien_agent_watch(struct lien_agent *agent, struct lien_source *source, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};

	return epoll_ctl(agent->epoll, EPOLL_CTL_ADD, source->fd, &event) ? -errno : 0;
}

struct lien_event lien_agent_event_of(uint32_t pid, uint64_t start, unsigned type)
{
	struct lien_event event;

	memset(&event, 0, sizeof(event));
	event.size = LIEN_EVENT_HEADER;
	event.type = type;
	event.pid = event.tid = pid;
	event.start = start;
	event.t_entry = event.t_return = lien_now_ns();
	return event;
}

void lien_agent_event(struct lien_agent *agent, const struct lien_event *event)
{
	const struct lien_subscriber *to;

	for (to = agent->above->subscribers; to->event; to++)
		if (event->type >= to->first && event->type <= to->last)
			to->event(agent, event);
}

void lien_agent_set_incomplete(
	struct lien_agent *agent, const struct lien_process *process, uint32_t reasons)
{
	struct lien_event event;

	if (process->incomplete == reasons)
		return;
	event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_INCOMPLETE);
	event.size = LIEN_EVENT_SIZE(incomplete);
	event.incomplete.reasons = reasons;
	lien_agent_event(agent, &event);
}

bool lien_agent_catch_up(struct lien_agent *agent)
{
	return agent->above->consume(agent, false);
}

struct lien_tracked *lien_agent_track(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;

	if (tracked)
		return tracked;
	tracked = calloc(1, sizeof(*tracked));
	if (!tracked)
		return NULL;
	tracked->agent = agent;
	tracked->pid = process->pid;
	tracked->t_called = lien_now_ns();
	process->agent = tracked;
	return tracked;
}

struct counting {
	struct lien_counted *counted;
	unsigned count, room;
};

static int count_one(void *context, const void *comm, const void *traffic)
{
	struct counting *counting = context;
	int err = lien_array_grow(
		&counting->counted, counting->count, &counting->room, sizeof(*counting->counted));

	if (!err)
		counting->counted[counting->count++] =
			(struct lien_counted){*(const struct lien_probe_comm *)comm,
				*(const struct lien_probe_traffic *)traffic};
	return err;
}

int lien_agent_counted(struct lien_agent *agent, struct lien_counted **counted, size_t *count)
{
	struct counting counting = {0};
	/* Not NULL, even if nothing is counted. */
	int err = lien_array_grow(&counting.counted, 0, &counting.room, sizeof(**counted));

	if (!err)
		err = lien_probes_traffic(agent->probes, count_one, &counting);
	if (err) {
		free(counting.counted);
		counting = (struct counting){0};
	}
	*counted = counting.counted;
	*count = counting.count;
	return err;
}
