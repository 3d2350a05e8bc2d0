/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The releasing calls of a process that have announced themselves and not returned yet. Some of
 * them must have taken effect already, because the driver gave their name out again.
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
 * Adds an announced call. -ENOMEM. A process has few calls in progress; out of thousands (lost
 * returns, or a hostile recording) the oldest is dropped.
 */
int lien_replay_pending_announce(struct lien_replay_pending *pending, const struct lien_event *ev);

/* Removes an announced call that has returned. Returns true: it was applied, and must not be
 * applied again. */
bool lien_replay_pending_return(struct lien_replay_pending *pending, const struct lien_event *ev);

/*
 * Finds the oldest call of this type, not yet applied, that gives back the name (handle,
 * communicator, registration, or an address: for cuMemUnmap any in its range). NULL: none.
 */
struct lien_replay_pending_call *lien_replay_pending_find(
	struct lien_replay_pending *pending, unsigned int type, uint64_t name);

/* Returns the name that a releasing call gives back. */
uint64_t lien_replay_released_name(const struct lien_event *ev);

#endif
