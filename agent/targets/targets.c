// SPDX-License-Identifier: BSD-2-Clause
#include "agent/targets/targets.h"

#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"

/* times the patience: */
#define UNLIKELY 25
#define HARDLY	 100

static uint64_t begun(const struct lien_targets *targets, const struct lien_standing *standing,
	uint32_t peer, bool receives)
{
	return targets->transfers(targets->context, standing, peer, receives);
}

/* Returns how many transfers the other rank of the pair has begun that this one has not. */
static uint64_t transfers_behind(const struct lien_targets *targets,
	const struct lien_standing *standing, const struct lien_standing *other, bool receives)
{
	uint64_t own = begun(targets, standing, other->rank, receives);
	uint64_t its = begun(targets, other, standing->rank, !receives);

	return its > own ? its - own : 0;
}

/* Have the two ranks transfers in common? */
static bool may_pair(const struct lien_standing *standing, const struct lien_standing *other)
{
	return standing != other && standing->rank >= 0 && other->rank >= 0 &&
	       (other->transfers || standing->transfers);
}

unsigned lien_targets_pairs(const struct lien_standing *standing)
{
	return standing->peers_count <= LIEN_TARGETS_PEERS &&
			       standing->here_count <= LIEN_TARGETS_HERE
		       ? standing->peers_count
		       : 0;
}

/* Is there a count of all that it does on the communicator? */
static bool is_counted(const struct lien_standing *standing)
{
	return standing->counted &&
	       (!standing->transfers || (standing->rank >= 0 && lien_targets_pairs(standing)));
}

/* --- sorting ---------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
	const struct lien_standing *x = *(struct lien_standing *const *)a;
	const struct lien_standing *y = *(struct lien_standing *const *)b;

	if (x->process != y->process)
		return x->process < y->process ? -1 : 1;
	return (x->comm > y->comm) - (x->comm < y->comm);
}

static int by_group(const void *a, const void *b)
{
	const struct lien_standing *x = *(struct lien_standing *const *)a;
	const struct lien_standing *y = *(struct lien_standing *const *)b;

	return memcmp(x->group, y->group, LIEN_TARGETS_GROUP);
}

static int by_rank(const void *a, const void *b)
{
	const struct lien_standing *x = *(struct lien_standing *const *)a;
	const struct lien_standing *y = *(struct lien_standing *const *)b;
	const int cmp = by_group(a, b);

	return cmp ? cmp : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Compares the collectives of a group. */
static void compare_collectives(struct lien_standing **first, struct lien_standing **end)
{
	struct lien_standing **one;
	unsigned here = 0;
	uint64_t most = 0;

	for (one = first; one < end; one++) {
		most = (*one)->collectives > most ? (*one)->collectives : most;
		here += !(*one)->elsewhere;
	}
	for (one = first; one < end; one++) {
		(*one)->peers = first;
		(*one)->peers_count = end - first;
		(*one)->here_count = here;
		(*one)->target = most;
		(*one)->lags = most > (*one)->collectives && !(*one)->elsewhere;
	}
}

static void find_groups(struct lien_targets *targets)
{
	struct lien_standing **first = targets->order + targets->standings_count, **last, **end;
	struct lien_standing *standing = targets->standings;
	unsigned i;

	for (i = 0, last = first; i < targets->standings_count; i++, standing++) {
		standing->target = standing->collectives;
		standing->peers = NULL;
		standing->peers_count = standing->here_count = 0;
		standing->held = NULL;
		standing->lags = false;
		if (standing->counted)
			*last++ = standing;
	}
	if (last > first)
		qsort(first, last - first, sizeof(*first), by_rank);
	for (; first < last; first = end) {
		for (end = first + 1; end < last && !by_group(first, end);)
			end++;
		compare_collectives(first, end);
	}
}

static void find_standings(struct lien_targets *targets)
{
	struct lien_standing key, *wanted = &key, **found;
	struct lien_held_thread *held = targets->held;
	unsigned i;

	for (i = 0; i < targets->standings_count; i++)
		targets->order[i] = &targets->standings[i];
	if (i)
		qsort(targets->order, i, sizeof(*targets->order), by_place);
	for (i = 0; i < targets->held_count; i++, held++) {
		key.process = held->process;
		key.comm = held->comm;
		found = targets->standings_count
				? bsearch(&wanted, targets->order, targets->standings_count,
					  sizeof(*targets->order), by_place)
				: NULL;
		held->standing = found ? *found : NULL;
		held->next = NULL;
		if (!found)
			continue;
		held->next = held->standing->held;
		held->standing->held = held;
	}
}

/* --- who is behind ---------------------------------------------------------------------------- */

static void compare_transfers(const struct lien_targets *targets, struct lien_standing *standing)
{
	const struct lien_standing *other;
	unsigned i;

	for (i = 0; i < lien_targets_pairs(standing) && !standing->lags && !standing->elsewhere;
		i++) {
		other = standing->peers[i];
		if (may_pair(standing, other))
			standing->lags = transfers_behind(targets, standing, other, false) ||
					 transfers_behind(targets, standing, other, true);
	}
}

static void sum_up(struct lien_targets *targets)
{
	const struct lien_standing *standing = targets->standings;
	const struct lien_held_thread *held = targets->held;
	struct lien_targets_process *of;
	unsigned i;

	memset(targets->of, 0, targets->processes * sizeof(*targets->of));
	targets->lags = targets->unsure = targets->uneven = false;
	targets->counted = !targets->uncounted_elsewhere;
	for (i = 0; i < targets->standings_count; i++, standing++) {
		of = &targets->of[standing->process];
		if (standing->elsewhere)
			continue;
		targets->lags |= standing->lags;
		of->lags |= standing->lags;
		targets->counted &= is_counted(standing);
		of->uncounted |= !is_counted(standing);
	}
	for (i = 0; i < targets->held_count; i++, held++) {
		of = &targets->of[held->process];
		targets->counted &= held->at != LIEN_HELD_UNCOUNTED;
		targets->unsure |= held->unsure;
		of->held = true;
		of->lags_where_held |= held->standing && held->standing->lags;
	}
}

/* The thread may be NCCL's own, which starts what has begun: nothing of it can end before. */
static bool may_be_nccls(const struct lien_targets *targets, const struct lien_held_thread *held)
{
	return held->at == LIEN_HELD_OTHER && targets->working[held->process];
}

/*
 * Others may wait for this call, or for a later one of the thread. A process that lags on the
 * communicator of a held call is let in there. One that lags only on other communicators is let in
 * everywhere, until it gets there; processes that share these communicators are then behind, and
 * are let in, too. Apart from these, no rank gets further than the first one was.
 */
static bool is_behind(const struct lien_targets *targets, const struct lien_held_thread *held)
{
	const struct lien_targets_process *of = &targets->of[held->process];

	if (held->stays)
		return false;
	return may_be_nccls(targets, held) || (held->standing && held->standing->lags) ||
	       (of->lags && !of->lags_where_held);
}

static bool let_in(struct lien_targets *targets, struct lien_held_thread *held, bool let_in)
{
	held->let_in = let_in;
	targets->uneven |= let_in && !held->meets && !held->singly;
	return let_in;
}

bool lien_targets_compute(struct lien_targets *targets)
{
	bool any = false;
	unsigned i;

	for (i = 0; targets->disbelieved && i < targets->standings_count; i++)
		targets->standings[i].counted = false;
	find_groups(targets);
	find_standings(targets);
	for (i = 0; i < targets->standings_count; i++)
		compare_transfers(targets, &targets->standings[i]);
	sum_up(targets);
	for (i = 0; i < targets->held_count; i++)
		any |= let_in(targets, &targets->held[i], is_behind(targets, &targets->held[i]));
	return any;
}

/* --- guesses ---------------------------------------------------------------------------------- */

/* Is there no count for the thread's progress? There is none on a communicator that is not counted,
 * and none before a call outside NCCL in a process that has such a communicator. */
static bool is_uncounted(const struct lien_targets *targets, const struct lien_held_thread *held)
{
	if (held->standing || held->comm)
		return !held->standing || !is_counted(held->standing);
	return targets->of[held->process].uncounted;
}

/* A process that waits for others is busy. So the ones behind are those that are held and not busy,
 * or any if there is none such. */
bool lien_targets_idle(const struct lien_targets *targets)
{
	unsigned i;

	for (i = 0; i < targets->processes; i++)
		if (!targets->busy[i] && targets->of[i].held)
			return true;
	return false;
}

/*
 * Idle ranks that are held may have to come. Busy ones may wait for others, or have work of their
 * own to do: only time can tell. A group that was opened unseen is the least likely reason, until a
 * guess was right, and above all if the device of the process itself has work.
 */
static bool may_be_behind(
	const struct lien_targets *targets, const struct lien_held_thread *held, bool idle)
{
	bool busy = targets->busy[held->process], uncounted = is_uncounted(targets, held);

	if (held->stays || held->age_ns < targets->round_ns)
		return false;
	if (held->at == LIEN_HELD_UNCOUNTED || (uncounted && !(busy && idle)))
		return held->age_ns > (busy ? targets->busy_ns : targets->idle_ns);
	if (held->standing && held->standing->since &&
		held->age_ns > (busy ? 2 : 1) * HARDLY * targets->busy_ns)
		return true;
	return held->unsure &&
	       held->age_ns > (busy || !targets->guessed ? UNLIKELY : 1) * targets->busy_ns;
}

/* Another device may wait for what it launches next. */
static bool may_set_a_flag(const struct lien_targets *targets, const struct lien_held_thread *held)
{
	return held->at == LIEN_HELD_OTHER && !held->meets && !held->stays &&
	       !targets->busy[held->process] && held->age_ns > targets->idle_ns &&
	       held->age_ns >= targets->round_ns;
}

bool lien_targets_guess(struct lien_targets *targets)
{
	const bool idle = lien_targets_idle(targets);
	bool any = false;
	unsigned i;

	targets->guessed_busy = targets->guessed_any = targets->uneven = false;
	for (i = 0; i < targets->held_count; i++) {
		struct lien_held_thread *held = &targets->held[i];

		const bool behind = may_be_behind(targets, held, idle);

		targets->guessed_any |= behind;
		held->singly = !behind && may_set_a_flag(targets, held);
		any |= let_in(targets, held, behind || held->singly);
		targets->guessed_busy |= held->let_in && targets->busy[held->process];
	}
	return any;
}

/* Returns how many calls of a kind a standing has begun, to or from one rank; *target: how many it
 * must begin. Zeros: it has none in common with that rank. */
static uint64_t begun_of(const struct lien_targets *targets, const struct lien_standing *standing,
	enum lien_held_at at, uint32_t peer, uint64_t *target)
{
	const struct lien_standing *other, key = {.group = standing->group, .rank = peer},
					   *wanted = &key;
	const unsigned count = lien_targets_pairs(standing);
	uint64_t own = 0, its;
	bool any = false;
	unsigned i;

	*target = 0;
	if (at == LIEN_HELD_COLLECTIVE) {
		*target = standing->target;
		return standing->collectives;
	}
	i = lien_array_at_least(standing->peers, count, sizeof(wanted), &wanted, by_rank);
	for (; i < count && standing->peers[i]->rank == key.rank; i++) {
		other = standing->peers[i];
		if (!may_pair(standing, other))
			continue;
		if (!any)
			*target = own = begun(targets, standing, peer, at == LIEN_HELD_RECEIVE);
		any = true;
		its = begun(targets, other, standing->rank, at == LIEN_HELD_SEND);
		*target = its > *target ? its : *target;
	}
	return own;
}

uint64_t lien_targets_more(const struct lien_targets *targets, const struct lien_standing *standing,
	enum lien_held_at at, uint32_t peer)
{
	const struct lien_held_thread *held;
	uint64_t own, target, now = 0;

	own = begun_of(targets, standing, at, peer, &target);
	for (held = standing->held; held; held = held->next)
		now += held->let_in && held->at == at &&
		       (at == LIEN_HELD_COLLECTIVE || held->peer == peer);
	return target > own + now ? target - own - now : 0;
}

bool lien_targets_free(struct lien_targets *targets)
{
	struct lien_held_thread *held;
	bool any = false;
	unsigned i;

	for (i = 0; i < targets->held_count; i++) {
		held = &targets->held[i];
		if (held->meets || held->stays)
			continue;
		held->let_in = any = true;
	}
	return any;
}
