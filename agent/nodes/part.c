// SPDX-License-Identifier: BSD-2-Clause
#include "agent/nodes/part.h"

#include <string.h>

/* --- names ------------------------------------------------------------------------------------ */

static const char *const states[LIEN_PART_STATES] = {
	[LIEN_PART_PLANNED] = "planned",
	[LIEN_PART_GOING] = "going",
	[LIEN_PART_SAVING] = "saving",
	[LIEN_PART_READY] = "ready",
	[LIEN_PART_COMMITTED] = "committed",
	[LIEN_PART_DONE] = "done",
	[LIEN_PART_UNDOING] = "undoing",
	[LIEN_PART_UNDONE] = "undone",
	[LIEN_PART_BROKEN] = "broken",
};

static const char *const words[LIEN_WORDS] = {
	[LIEN_WORD_WAIT] = "wait",
	[LIEN_WORD_GO] = "go",
	[LIEN_WORD_HOLD] = "hold",
	[LIEN_WORD_SAVE] = "save",
	[LIEN_WORD_COMMIT] = "commit",
	[LIEN_WORD_UNDO] = "undo",
	[LIEN_WORD_RESTORE] = "restore",
};

static unsigned find(const char *const *names, unsigned count, const char *name)
{
	unsigned i;

	for (i = 0; name && i < count; i++)
		if (!strcmp(names[i], name))
			return i;
	return count;
}

const char *lien_part_state_name(enum lien_part_state state)
{
	return states[state];
}

const char *lien_node_word_name(enum lien_node_word word)
{
	return words[word];
}

enum lien_part_state lien_part_state_of(const char *name)
{
	return find(states, LIEN_PART_STATES, name);
}

enum lien_node_word lien_node_word_of(const char *name)
{
	return find(words, LIEN_WORDS, name);
}

/* --- a part ----------------------------------------------------------------------------------- */

void lien_part_begin(struct lien_part *part, bool restore, uint64_t lease_ns, uint64_t now_ns)
{
	*part = (struct lien_part){.restore = restore,
		.t_seen = now_ns,
		.lease_ns = lease_ns,
		.t_heard = now_ns,
		.status = {.state = LIEN_PART_PLANNED, .version = 1}};
}

bool lien_part_is_over(enum lien_part_state state)
{
	return state == LIEN_PART_DONE || state == LIEN_PART_UNDONE || state == LIEN_PART_BROKEN;
}

/* Undoes, unless memory has been dropped or put back already. */
static void undo(struct lien_part *part)
{
	struct lien_node_status *status = &part->status;

	if (status->state == LIEN_PART_PLANNED ||
		(!part->restore && status->state < LIEN_PART_COMMITTED))
		status->state = LIEN_PART_UNDOING;
	else if (part->restore && status->state == LIEN_PART_READY)
		status->state = LIEN_PART_COMMITTED;
	status->held = false;
}

/* Words of an earlier round mean nothing any more. A part that holds does so until the next round.
 */
static void hold(struct lien_part *part, const struct lien_node_order *order)
{
	struct lien_node_status *status = &part->status;

	if (status->state != LIEN_PART_GOING || order->round < status->round ||
		(order->round == status->round && status->held))
		return;
	status->round = order->round;
	status->held = order->word == LIEN_WORD_HOLD && status->at_rest &&
		       order->version == status->version;
}

void lien_part_hear(struct lien_part *part, const struct lien_node_order *order, uint64_t now_ns)
{
	struct lien_node_status *status = &part->status;

	lien_part_tick(part, now_ns);
	if (part->expired)
		return;
	part->t_heard = now_ns;
	switch (order->word) {
	case LIEN_WORD_GO:
	case LIEN_WORD_HOLD:
		if (status->state == LIEN_PART_PLANNED)
			status->state = LIEN_PART_GOING;
		if (!part->restore)
			hold(part, order);
		break;
	case LIEN_WORD_SAVE:
		if (status->state == LIEN_PART_GOING && status->held &&
			status->round == order->round)
			status->state = LIEN_PART_SAVING;
		break;
	case LIEN_WORD_COMMIT:
		if (status->state == LIEN_PART_READY)
			status->state = LIEN_PART_COMMITTED;
		break;
	case LIEN_WORD_UNDO:
		undo(part);
		break;
	case LIEN_WORD_WAIT:
	case LIEN_WORD_RESTORE: /* a transaction of its own */
	case LIEN_WORDS:
		break;
	}
}

/* Has it been planned, or ready, for too long? */
static bool has_waited(struct lien_part *part, uint64_t now_ns)
{
	const enum lien_part_state state = part->status.state;

	if (state != part->seen) {
		part->seen = state;
		part->t_seen = now_ns;
	}
	return (state == LIEN_PART_PLANNED || state == LIEN_PART_READY) &&
	       now_ns - part->t_seen >= LIEN_PART_WAIT_NS;
}

void lien_part_tick(struct lien_part *part, uint64_t now_ns)
{
	if (part->expired || lien_part_is_over(part->status.state))
		return;
	part->late = has_waited(part, now_ns);
	if (!part->late && now_ns < part->t_heard + part->lease_ns)
		return;
	part->expired = true;
	undo(part);
}

enum lien_go_on lien_part_may_go_on(struct lien_part *part, enum lien_point point)
{
	struct lien_node_status *status = &part->status;

	switch (point) {
	case LIEN_POINT_PLANNED:
		return status->state == LIEN_PART_PLANNED || status->state == LIEN_PART_UNDOING
			       ? LIEN_GO_ON_NO
			       : LIEN_GO_ON_YES;
	case LIEN_POINT_REST:
		if (status->state == LIEN_PART_SAVING)
			return LIEN_GO_ON_YES;
		if (status->state != LIEN_PART_GOING || status->held)
			return LIEN_GO_ON_NO;
		if (!status->at_rest)
			status->version++;
		status->at_rest = true;
		return LIEN_GO_ON_LOOK;
	case LIEN_POINT_READY:
		if (status->state == LIEN_PART_SAVING ||
			(part->restore && status->state == LIEN_PART_GOING))
			status->state = LIEN_PART_READY;
		if (part->restore && part->expired && status->state == LIEN_PART_READY)
			status->state = LIEN_PART_COMMITTED;
		break;
	}
	return status->state == LIEN_PART_COMMITTED ? LIEN_GO_ON_YES : LIEN_GO_ON_NO;
}

void lien_part_changed(struct lien_part *part)
{
	part->status.version++;
	part->status.at_rest = false;
	part->status.held = false;
}

bool lien_part_must_undo(const struct lien_part *part)
{
	return part->status.state == LIEN_PART_UNDOING;
}

void lien_part_not_noted(struct lien_part *part)
{
	if (!part->restore && part->status.state == LIEN_PART_COMMITTED)
		part->status.state = LIEN_PART_UNDOING;
	part->not_noted = part->status.state == LIEN_PART_UNDOING;
}

/* Has the part been told to go? After that a restore never becomes undoing. */
static bool has_begun(const struct lien_part *part)
{
	const enum lien_part_state state = part->status.state;

	return state != LIEN_PART_PLANNED && !(part->restore && state == LIEN_PART_UNDOING);
}

void lien_part_ended(struct lien_part *part, bool moved, bool as_before)
{
	as_before |= !has_begun(part);
	part->status.held = false;
	if (moved)
		part->status.state = LIEN_PART_DONE;
	else
		part->status.state = as_before ? LIEN_PART_UNDONE : LIEN_PART_BROKEN;
}
