// SPDX-License-Identifier: BSD-2-Clause
#include "agent/nodes/coordinate.h"

#include "agent/nodes/part.h"

/* So much of each lease is left when the caller is asked to write the decision, */
#define MARGIN(lease) ((lease) / 2)
/* and so much when it is written: the nodes have yet to hear of it. */
#define MARGIN_WRITTEN(lease) ((lease) / 4)
/* How long after the decision a lost node is waited for: it has then undone, or committed. */
#define LOST(lease) (3 * (lease))

static bool takes_part(const struct lien_coordinator_node *node)
{
	return !node->nothing;
}

static void enter(struct lien_coordinator *c, enum lien_coordinator_phase phase, uint64_t now_ns)
{
	c->phase = phase;
	c->t_phase = c->t_ready = now_ns;
}

static void end(struct lien_coordinator *c, enum lien_coordinator_outcome outcome, uint64_t now_ns)
{
	c->outcome = outcome;
	enter(c, LIEN_COORDINATOR_ENDED, now_ns);
}

static void blame(struct lien_coordinator *c, unsigned node)
{
	if (c->failed < 0)
		c->failed = node;
}

/* Is this true of all nodes that take part? */
static bool all(const struct lien_coordinator *c, bool (*is)(const struct lien_coordinator_node *))
{
	unsigned i;

	for (i = 0; i < c->count; i++)
		if (takes_part(&c->nodes[i]) && !is(&c->nodes[i]))
			return false;
	return true;
}

static bool is_planned(const struct lien_coordinator_node *node)
{
	return node->heard && !node->lost;
}

static bool is_at_rest(const struct lien_coordinator_node *node)
{
	return node->status.state == LIEN_PART_GOING && node->status.at_rest;
}

static bool is_ready(const struct lien_coordinator_node *node)
{
	return node->status.state == LIEN_PART_READY;
}

/* In a restore, nobody waits for a part that has failed. */
static bool is_ready_or_over(const struct lien_coordinator_node *node)
{
	return node->lost || node->status.state >= LIEN_PART_READY;
}

static bool is_done(const struct lien_coordinator_node *node)
{
	return !node->lost && node->status.state == LIEN_PART_DONE;
}

static bool is_over(const struct lien_coordinator_node *node)
{
	return lien_part_is_over(node->status.state);
}

static bool is_over_or_lost(const struct lien_coordinator_node *node)
{
	return node->lost || is_over(node);
}

/* Before the decision: the node is as before, or will be when its lease has run out. */
static bool is_as_before(const struct lien_coordinator_node *node)
{
	return node->status.state == LIEN_PART_UNDONE || node->status.state < LIEN_PART_COMMITTED;
}

/* After the decision: the node's memory is on its GPUs. */
static bool is_back(const struct lien_coordinator_node *node)
{
	return node->mended || node->status.state == LIEN_PART_UNDONE;
}

static bool is_back_or_broken(const struct lien_coordinator_node *node)
{
	return is_back(node) || node->status.state == LIEN_PART_BROKEN;
}

/* --- transitions ------------------------------------------------------------------------------ */

static bool holds(const struct lien_coordinator *c, const struct lien_coordinator_node *node)
{
	return node->status.state == LIEN_PART_GOING && node->status.held &&
	       node->status.round == c->round;
}

/* The node has answered, and does not hold. */
static bool refuses(const struct lien_coordinator *c, const struct lien_coordinator_node *node)
{
	return node->status.round == c->round && !node->status.held;
}

static void go_holding(struct lien_coordinator *c, uint64_t now_ns)
{
	bool every = true;
	unsigned i;

	for (i = 0; i < c->count; i++) {
		if (!takes_part(&c->nodes[i]))
			continue;
		if (refuses(c, &c->nodes[i])) {
			c->round++; /* those that hold let threads in again */
			enter(c, LIEN_COORDINATOR_GOING, now_ns);
			return;
		}
		every &= holds(c, &c->nodes[i]);
	}
	if (every)
		enter(c, LIEN_COORDINATOR_SAVING, now_ns);
}

/* Returns a node whose lease ends within the margin, or -1: every lease lasts longer. */
static int lease_ends(const struct lien_coordinator *c, uint64_t margin_ns, uint64_t now_ns)
{
	unsigned i;

	for (i = 0; i < c->count; i++)
		if (takes_part(&c->nodes[i]) &&
			now_ns + margin_ns > c->nodes[i].t_status + c->lease_ns)
			return i;
	return -1;
}

static void lose(struct lien_coordinator_node *node, uint64_t now_ns)
{
	node->lost = true;
	node->t_lost = now_ns;
}

/* The nodes that have dropped their memory are needed again, those with a dead link included. */
static void begin_mending(struct lien_coordinator *c, uint64_t now_ns)
{
	unsigned i;

	enter(c, LIEN_COORDINATOR_MENDING, now_ns);
	for (i = 0; i < c->count; i++)
		if (takes_part(&c->nodes[i]) && c->nodes[i].cut && !c->nodes[i].lost &&
			!is_back_or_broken(&c->nodes[i]))
			lose(&c->nodes[i], now_ns);
}

static void end_planning(struct lien_coordinator *c, uint64_t now_ns)
{
	unsigned i, parts = 0;

	for (i = 0; i < c->count; i++)
		parts += takes_part(&c->nodes[i]);
	if (!parts)
		end(c, LIEN_NODES_NOTHING, now_ns);
	else
		enter(c, LIEN_COORDINATOR_GOING, now_ns);
}

static void go_committing(struct lien_coordinator *c, uint64_t now_ns)
{
	unsigned i;

	if (c->restore) {
		if (all(c, is_over_or_lost))
			end(c, all(c, is_done) ? LIEN_NODES_DONE : LIEN_NODES_PART, now_ns);
		return;
	}
	if (all(c, is_done)) {
		end(c, LIEN_NODES_DONE, now_ns);
		return;
	}
	for (i = 0; i < c->count; i++)
		if (takes_part(&c->nodes[i]) && !c->nodes[i].lost && is_over(&c->nodes[i]) &&
			!is_done(&c->nodes[i])) {
			blame(c, i);
			begin_mending(c, now_ns);
			return;
		}
}

/* Advances as far as the nodes' states allow. */
static void go_on(struct lien_coordinator *c, uint64_t now_ns)
{
	switch (c->phase) {
	case LIEN_COORDINATOR_PLANNING:
		if (all(c, is_planned))
			end_planning(c, now_ns);
		break;
	case LIEN_COORDINATOR_GOING:
		if (c->restore ? all(c, is_ready_or_over) : all(c, is_at_rest)) {
			c->round += !c->restore;
			c->rounds++;
			enter(c,
				c->restore ? LIEN_COORDINATOR_COMMITTING : LIEN_COORDINATOR_HOLDING,
				now_ns);
		}
		break;
	case LIEN_COORDINATOR_HOLDING:
		go_holding(c, now_ns);
		break;
	case LIEN_COORDINATOR_SAVING:
		if (!all(c, is_ready))
			c->t_ready = now_ns;
		else if (lease_ends(c, MARGIN(c->lease_ns), now_ns) < 0)
			enter(c, LIEN_COORDINATOR_DECIDING, now_ns);
		break;
	case LIEN_COORDINATOR_COMMITTING:
		go_committing(c, now_ns);
		break;
	case LIEN_COORDINATOR_UNDOING:
		if (all(c, is_over_or_lost))
			end(c, all(c, is_as_before) ? LIEN_NODES_UNDONE : LIEN_NODES_PART, now_ns);
		break;
	case LIEN_COORDINATOR_MENDING:
		if (all(c, is_back_or_broken))
			end(c, all(c, is_back) ? LIEN_NODES_MENDED : LIEN_NODES_PART, now_ns);
		break;
	case LIEN_COORDINATOR_DECIDING:
	case LIEN_COORDINATOR_ENDED:
		break;
	}
}

/* A node has failed or is lost. */
static void failed(struct lien_coordinator *c, unsigned node, uint64_t now_ns)
{
	blame(c, node);
	if (c->phase < LIEN_COORDINATOR_COMMITTING &&
		(!c->restore || c->phase == LIEN_COORDINATOR_PLANNING))
		enter(c, LIEN_COORDINATOR_UNDOING, now_ns);
}

/* --- events ----------------------------------------------------------------------------------- */

void lien_coordinator_begin(struct lien_coordinator *c, struct lien_coordinator_node *nodes,
	unsigned count, bool restore, uint64_t lease_ns, uint64_t now_ns)
{
	*c = (struct lien_coordinator){.nodes = nodes,
		.count = count,
		.restore = restore,
		.lease_ns = lease_ns,
		.failed = -1,
		.t_phase = now_ns};
}

/* Messages can overtake each other: a part's state and version never go back. */
static bool is_old(const struct lien_node_status *old, const struct lien_node_status *status)
{
	if (status->state != old->state)
		return status->state < old->state;
	return status->version < old->version ||
	       (status->version == old->version && status->round < old->round);
}

void lien_coordinator_hear(struct lien_coordinator *c, unsigned index,
	const struct lien_node_status *status, uint64_t sent_ns, uint64_t now_ns)
{
	struct lien_coordinator_node *node = &c->nodes[index];

	if (c->phase == LIEN_COORDINATOR_ENDED || node->nothing)
		return;
	if (sent_ns > node->t_status)
		node->t_status = sent_ns;
	node->lost = node->cut = false;
	if (!node->heard || !is_old(&node->status, status)) {
		c->reports += !node->heard || node->status.version != status->version;
		node->status = *status;
	}
	node->heard = true;
	if (lien_part_is_over(node->status.state) && node->status.state != LIEN_PART_DONE)
		failed(c, index, now_ns);
	go_on(c, now_ns);
}

void lien_coordinator_nothing(struct lien_coordinator *c, unsigned index, uint64_t now_ns)
{
	if (c->nodes[index].heard)
		return;
	c->nodes[index].nothing = true;
	go_on(c, now_ns);
}

void lien_coordinator_refuse(struct lien_coordinator *c, unsigned index, uint64_t now_ns)
{
	failed(c, index, now_ns);
	go_on(c, now_ns);
}

/* Has the node something left to do? While mending, a node that is done has memory to put back. */
static bool is_needed(const struct lien_coordinator *c, const struct lien_coordinator_node *node)
{
	return c->phase == LIEN_COORDINATOR_MENDING ? !is_back_or_broken(node) : !is_over(node);
}

void lien_coordinator_lost(struct lien_coordinator *c, unsigned index, uint64_t now_ns)
{
	struct lien_coordinator_node *node = &c->nodes[index];

	if (node->nothing || c->phase == LIEN_COORDINATOR_ENDED)
		return;
	node->cut = true;
	if (node->lost || !is_needed(c, node))
		return;
	lose(node, now_ns);
	failed(c, index, now_ns);
	go_on(c, now_ns);
}

void lien_coordinator_mended(
	struct lien_coordinator *c, unsigned index, bool mended, uint64_t now_ns)
{
	struct lien_coordinator_node *node = &c->nodes[index];

	if (c->phase != LIEN_COORDINATOR_MENDING)
		return;
	node->lost = node->cut = false;
	node->mended = mended;
	if (!mended)
		node->status.state = LIEN_PART_BROKEN;
	go_on(c, now_ns);
}

int lien_coordinator_late(const struct lien_coordinator *c, uint64_t now_ns)
{
	return c->phase == LIEN_COORDINATOR_DECIDING
		       ? lease_ends(c, MARGIN_WRITTEN(c->lease_ns), now_ns)
		       : -1;
}

bool lien_coordinator_decided(struct lien_coordinator *c, bool written, uint64_t now_ns)
{
	const int late = lien_coordinator_late(c, now_ns);

	if (c->phase != LIEN_COORDINATOR_DECIDING)
		return false;
	if (written && late >= 0)
		blame(c, late);
	written &= late < 0;
	enter(c, written ? LIEN_COORDINATOR_COMMITTING : LIEN_COORDINATOR_UNDOING, now_ns);
	return written;
}

bool lien_coordinator_cancel(struct lien_coordinator *c, uint64_t now_ns)
{
	if (c->phase >= LIEN_COORDINATOR_COMMITTING ||
		(c->restore && c->phase != LIEN_COORDINATOR_PLANNING))
		return c->phase == LIEN_COORDINATOR_UNDOING;
	c->cancelled = c->failed < 0;
	enter(c, LIEN_COORDINATOR_UNDOING, now_ns);
	go_on(c, now_ns);
	return true;
}

/* Ends if only such nodes are left to wait for. */
static void give_up_lost(struct lien_coordinator *c, uint64_t now_ns)
{
	bool (*is_finished)(const struct lien_coordinator_node *) =
		c->phase == LIEN_COORDINATOR_MENDING ? is_back_or_broken : is_over;
	int lost = -1;
	unsigned i;

	if (c->restore ||
		(c->phase != LIEN_COORDINATOR_COMMITTING && c->phase != LIEN_COORDINATOR_MENDING))
		return;
	for (i = 0; i < c->count; i++) {
		if (!takes_part(&c->nodes[i]) || is_finished(&c->nodes[i]))
			continue;
		/* It has been lost for so long after the decision that it has acted by now. */
		if (!c->nodes[i].lost || now_ns - c->t_phase <= LOST(c->lease_ns) ||
			now_ns - c->nodes[i].t_lost <= LOST(c->lease_ns))
			return;
		lost = i;
	}
	if (lost < 0)
		return;
	blame(c, lost);
	end(c, LIEN_NODES_PART, now_ns);
}

/* Undoes if all are ready, and messages take too long for a decision. */
static void give_up_slow(struct lien_coordinator *c, uint64_t now_ns)
{
	const int late = lease_ends(c, MARGIN(c->lease_ns), now_ns);

	if (c->phase != LIEN_COORDINATOR_SAVING || !all(c, is_ready) ||
		now_ns - c->t_ready <= LOST(c->lease_ns) || late < 0)
		return;
	blame(c, late);
	enter(c, LIEN_COORDINATOR_UNDOING, now_ns);
}

void lien_coordinator_tick(struct lien_coordinator *c, uint64_t now_ns)
{
	unsigned i;

	for (i = 0; i < c->count; i++)
		if (c->nodes[i].heard && now_ns > c->nodes[i].t_status + c->lease_ns)
			lien_coordinator_lost(c, i, now_ns);
	go_on(c, now_ns);
	give_up_slow(c, now_ns);
	give_up_lost(c, now_ns);
	/* A node that says all the time that it is there, and never that its memory is back. */
	if (c->phase == LIEN_COORDINATOR_MENDING && now_ns - c->t_phase > LIEN_NODES_MEND_NS)
		end(c, LIEN_NODES_PART, now_ns);
}

bool lien_coordinator_order(
	const struct lien_coordinator *c, unsigned index, struct lien_node_order *order)
{
	static const enum lien_node_word words[] = {
		[LIEN_COORDINATOR_PLANNING] = LIEN_WORD_WAIT,
		[LIEN_COORDINATOR_GOING] = LIEN_WORD_GO,
		[LIEN_COORDINATOR_HOLDING] = LIEN_WORD_HOLD,
		[LIEN_COORDINATOR_SAVING] = LIEN_WORD_SAVE,
		[LIEN_COORDINATOR_DECIDING] = LIEN_WORD_SAVE,
		[LIEN_COORDINATOR_COMMITTING] = LIEN_WORD_COMMIT,
		[LIEN_COORDINATOR_UNDOING] = LIEN_WORD_UNDO,
		[LIEN_COORDINATOR_MENDING] = LIEN_WORD_UNDO,
	};
	const struct lien_coordinator_node *node = &c->nodes[index];
	const bool mending = c->phase == LIEN_COORDINATOR_MENDING;

	if (!node->heard || node->nothing || c->phase == LIEN_COORDINATOR_ENDED ||
		(mending && node->mended))
		return false;
	*order = (struct lien_node_order){.word = words[c->phase], .round = c->round};
	if (c->phase == LIEN_COORDINATOR_HOLDING)
		order->version = node->status.version;
	/* A part that is done answers UNDO, and does nothing: a lost node is asked so. */
	if (mending && node->status.state == LIEN_PART_DONE && !node->lost)
		order->word = LIEN_WORD_RESTORE;
	return true;
}
