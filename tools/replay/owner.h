/* SPDX-License-Identifier: BSD-2-Clause */
/* Determines which library of a recorded process made a call. */
#ifndef LIEN_REPLAY_OWNER_H
#define LIEN_REPLAY_OWNER_H

#include <stdbool.h>
#include <stddef.h>

#include <lien/event.h>

/* The executable mappings of one process; all zero when there are none yet. */
struct lien_replay_owners {
	struct lien_replay_owner {
		uint64_t start, length;
		bool nccl;
	} * libraries;
	size_t count, room;
};

/* Records a LIEN_EVENT_LIBRARY. -ENOMEM. */
int lien_replay_owners_add(struct lien_replay_owners *owners, const struct lien_event *ev);

/* Returns true if NCCL made the call: the outermost traced frame is one of its functions, or
 * returns into a libnccl.so. If mappings overlap, the latest counts. */
bool lien_replay_owners_nccl(const struct lien_replay_owners *owners, const struct lien_event *ev);

void lien_replay_owners_clear(struct lien_replay_owners *owners);

#endif
