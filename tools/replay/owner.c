// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "tools/replay/owner.h"

int lien_replay_owners_add(struct lien_replay_owners *owners, const struct lien_event *ev)
{
	struct lien_replay_owner *owner;
	size_t room;
	void *more;

	if (owners->count == owners->room) {
		room = owners->room ? owners->room * 2 : 16;
		more = reallocarray(owners->libraries, room, sizeof(*owners->libraries));
		if (!more)
			return -ENOMEM;
		owners->libraries = more;
		owners->room = room;
	}
	owner = &owners->libraries[owners->count++];
	owner->start = ev->library.start;
	owner->length = ev->library.length;
	owner->nccl = !strncmp(ev->library.name, "libnccl.so", strlen("libnccl.so"));
	return 0;
}

bool lien_replay_owners_nccl(const struct lien_replay_owners *owners, const struct lien_event *ev)
{
	const struct lien_replay_owner *owner;
	size_t i;

	if (lien_event_library(ev->type) == LIEN_LIB_NCCL ||
		lien_event_library(ev->outer) == LIEN_LIB_NCCL)
		return true;
	for (i = owners->count; i > 0; i--) {
		owner = &owners->libraries[i - 1];
		if (ev->caller - owner->start < owner->length)
			return owner->nccl;
	}
	return false;
}

void lien_replay_owners_clear(struct lien_replay_owners *owners)
{
	free(owners->libraries);
	memset(owners, 0, sizeof(*owners));
}
