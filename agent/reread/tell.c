// SPDX-License-Identifier: BSD-2-Clause
#include "agent/reread/tell.h"

#include <string.h>

struct lien_event lien_tell_event(
	struct lien_telling *telling, const struct lien_process *process, unsigned type)
{
	struct lien_event event;

	memset(&event, 0, sizeof(event));
	event.type = type;
	event.flags = LIEN_EVENT_FOUND;
	event.pid = event.tid = process->pid;
	event.start = process->start;
	event.t_entry = event.t_return = ++telling->now_ns;
	if (type >= LIEN_CALL_CU_INIT)
		event.outer = type;
	return event;
}

void lien_tell(struct lien_telling *telling, struct lien_event *event, size_t size)
{
	event->size = size;
	telling->tell(telling->context, event);
}

void lien_tell_given_back(struct lien_telling *telling, struct lien_event *event, size_t size)
{
	struct lien_event entry = *event;

	entry.flags |= LIEN_EVENT_ENTRY;
	entry.t_return = 0;
	lien_tell(telling, &entry, size);
	lien_tell(telling, event, size);
}

void lien_tell_release_all(struct lien_telling *telling, struct lien_handle *handle)
{
	struct lien_event event =
		lien_tell_event(telling, handle->holding->process, LIEN_CALL_CU_MEM_RELEASE);
	uint32_t references = handle->references;

	event.release.handle = handle->value;
	for (; references; references--) {
		lien_tell_given_back(telling, &event, LIEN_EVENT_SIZE(release));
		event.t_entry = event.t_return = ++telling->now_ns;
	}
}
