/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The releasing calls of a process that have announced themselves and not returned yet, and which
 * of them must have taken effect already because the driver gave their name out again.
 */
#ifndef LIEN_REPLAY_PENDING_H
#define LIEN_REPLAY_PENDING_H

#include <stdbool.h>
#include <bsd/sys/queue.h>

#include <lien/event.h>

struct lien_replay_pending_call {
	TAILQ_ENTRY(lien_replay_pending_call) order;
	bool applied;
	struct lien_event event; /* the announcement */
};

TAILQ_HEAD(lien_replay_pending_list, lien_replay_pending_call);

struct lien_replay_pending {
	struct lien_replay_pending_list calls; /* oldest first */
	unsigned int count;
};

void lien_replay_pending_init(struct lien_replay_pending *pending);
void lien_replay_pending_clear(struct lien_replay_pending *pending);

/*
 * -ENOMEM. A process has few calls under way, so of thousands (returns that were lost, or a
 * recording made to hurt) the oldest is forgotten.
 */
int lien_replay_pending_announce(struct lien_replay_pending *pending, const struct lien_event *ev);

/* The return of an announced call: forgets it. True: it was applied, and must not be once more. */
bool lien_replay_pending_return(struct lien_replay_pending *pending, const struct lien_event *ev);

/*
 * The oldest call of this type not applied yet that gives back the name (handle, communicator,
 * registration, or an address: cuMemUnmap's is any in its range). NULL: none.
 */
struct lien_replay_pending_call *lien_replay_pending_find(
	struct lien_replay_pending *pending, unsigned int type, uint64_t name);

/* The name that a releasing call gives back. */
uint64_t lien_replay_released_name(const struct lien_event *ev);

#endif
