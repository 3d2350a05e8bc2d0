// SPDX-License-Identifier: BSD-2-Clause
/*
 * Random schedules of an offload over several nodes: messages are lost, late, doubled and overtake
 * each other; links are cut, and die, some for good; agents, and the coordinator, die at any
 * moment; parts fail; the disk is slow. At all times: nothing is dropped before all have saved and
 * the decision is written, nor after somebody undid before it; nobody saves while a rank may run;
 * no decision counts that would come too late. In the end: all is away, or nothing is, or the
 * coordinator names a node; and a restore brings everything back.
 *
 * See seeds.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/nodes/coordinate.h"
#include "agent/nodes/part.h"
#include "tests/unit/seeds.h"

#define NODES	 5
#define MESSAGES 4096
#define STEP	 100000000ull /* ns */
#define LEASE	 5000000000ull
#define TROUBLE	 300   /* steps with trouble; then there is none any more */
#define STEPS	 20000 /* it has ended by then */
#define SECOND	 10    /* steps */

/* What a node's processes do. */
enum work { NOTHING, PLANNED, RESTING, AT_REST, SAVING, SAVED, DROPPING, AWAY, UNDOING, BACK };

struct node {
	struct lien_part part;
	bool agent; /* it runs */
	bool knows; /* and it began this transaction itself */
	enum work work;
	bool dropped;	/* some memory is away */
	bool committed; /* in its journal */
	bool done;	/* in its journal */
	bool saved;	/* it was, once */
	bool undid;	/* before the decision */
	bool restores;	/* it has been asked to put it back */
	uint64_t cut;	/* until this step nothing gets through */
	bool unlinked;	/* nor before the coordinator makes a new link */
	unsigned t_dead;
};

struct message {
	bool used, to_node, begin, mended;
	unsigned node, step; /* when it arrives */
	struct lien_node_order order;
	struct lien_node_status status;
	uint64_t sent;
};

static struct world {
	struct lien_coordinator c;
	struct lien_coordinator_node of[NODES];
	struct node node[NODES];
	struct message queue[MESSAGES];
	unsigned n, step, seed, top;
	bool coordinator, decided, trouble;
	unsigned slow; /* until this step the coordinator waits for its disk */
	unsigned loss; /* one in so many; 0: none */
	uint64_t random;
} w;

static unsigned any(unsigned below)
{
	w.random = w.random * 6364136223846793005ull + 1442695040888963407ull;
	return (w.random >> 33) % below;
}

#define CHECK(true_one)                                                                            \
	do {                                                                                       \
		if (!(true_one))                                                                   \
			fail_msg("LIEN_SEED=%u, step %u: %s", w.seed, w.step, #true_one);          \
	} while (0)

static bool once_in(unsigned times)
{
	return w.trouble && !any(times);
}

static uint64_t now(void)
{
	return (w.step + 1) * STEP;
}

/* --- messages --------------------------------------------------------------------------------- */

static void post(const struct message *message)
{
	unsigned i, copies = once_in(30) ? 2 : 1;

	if (w.node[message->node].cut > w.step || w.node[message->node].unlinked ||
		(w.loss && once_in(w.loss)))
		return;
	for (i = 0; i < MESSAGES && copies; i++) {
		if (w.queue[i].used)
			continue;
		w.queue[i] = *message;
		w.queue[i].used = true;
		w.top = i >= w.top ? i + 1 : w.top;
		w.queue[i].step = w.step + 1 + (w.trouble ? any(any(10) ? 3 : 40) : 0);
		copies--;
	}
}

static void say(unsigned i, uint64_t sent, bool mended)
{
	struct message message = {.node = i, .sent = sent, .mended = mended};
	const struct node *node = &w.node[i];

	message.status = node->part.status;
	/* Another agent has its journal alone. */
	if (!node->knows)
		message.status = (struct lien_node_status){.version = UINT64_MAX,
			.state = node->done	   ? LIEN_PART_DONE
				 : node->committed ? LIEN_PART_BROKEN
						   : LIEN_PART_UNDONE};
	post(&message);
}

static void take_order(unsigned i, const struct message *message)
{
	struct node *node = &w.node[i];

	if (!node->agent)
		return;
	if (message->begin) {
		if (node->work == NOTHING && node->knows) {
			lien_part_begin(&node->part, false, LEASE, now());
			node->work = once_in(40) ? BACK : PLANNED;
			if (node->work == BACK)
				lien_part_ended(&node->part, false, true);
		}
	} else if (message->order.word == LIEN_WORD_RESTORE) {
		node->restores = node->dropped;
		if (!node->dropped)
			say(i, message->sent, true);
		return;
	} else if (node->knows && node->work != NOTHING) {
		lien_part_hear(&node->part, &message->order, now());
	}
	say(i, message->sent, false);
}

static void deliver(void)
{
	unsigned i;

	for (i = 0; i < w.top; i++) {
		struct message message = w.queue[i];

		if (!message.used || message.step > w.step)
			continue; /* not there yet */
		if (!message.to_node && w.coordinator && w.slow > w.step)
			continue; /* not read yet */
		w.queue[i].used = false;
		if (message.to_node)
			take_order(message.node, &message);
		else if (!w.coordinator || w.node[message.node].unlinked)
			continue;
		else if (message.mended)
			lien_coordinator_mended(&w.c, message.node, true, now());
		else
			lien_coordinator_hear(
				&w.c, message.node, &message.status, message.sent, now());
	}
}

/* --- nodes ------------------------------------------------------------------------------------ */

static bool takes_part(const struct node *node)
{
	return node->agent && node->knows && node->work != NOTHING;
}

static void check_rest(void)
{
	for (unsigned i = 0; i < w.n; i++) {
		const struct node *node = &w.node[i];

		if (takes_part(node) && node->part.status.state == LIEN_PART_GOING)
			CHECK(node->part.status.held && node->work == AT_REST);
	}
}

static void check_drop(void)
{
	CHECK(w.decided);
	for (unsigned i = 0; i < w.n; i++) {
		CHECK(w.node[i].saved);
		CHECK(!w.node[i].undid);
	}
}

static void go_back(struct node *node)
{
	node->work = UNDOING;
	node->undid |= !w.decided;
}

static void work(struct node *node)
{
	enum lien_go_on may;

	if (node->work >= PLANNED && node->work < DROPPING && lien_part_must_undo(&node->part))
		go_back(node);
	if (any(3) == 0 && w.trouble)
		return; /* slow */
	switch (node->work) {
	case PLANNED:
		if (lien_part_may_go_on(&node->part, LIEN_POINT_PLANNED) == LIEN_GO_ON_YES)
			node->work = RESTING;
		break;
	case RESTING:
		if (once_in(200))
			go_back(node);
		else if (!any(3))
			node->work = AT_REST;
		else
			lien_part_changed(&node->part);
		break;
	case AT_REST:
		may = lien_part_may_go_on(&node->part, LIEN_POINT_REST);
		if (may == LIEN_GO_ON_YES) {
			check_rest();
			node->work = SAVING;
		} else if (may == LIEN_GO_ON_LOOK && once_in(10)) {
			lien_part_changed(&node->part);
			node->work = RESTING;
		}
		break;
	case SAVING:
		if (once_in(100))
			go_back(node);
		else if (!any(3))
			node->work = SAVED;
		break;
	case SAVED:
		node->saved = true;
		if (lien_part_may_go_on(&node->part, LIEN_POINT_READY) != LIEN_GO_ON_YES)
			break;
		if (w.trouble && once_in(50)) { /* the file of outcomes cannot be written */
			lien_part_not_noted(&node->part);
			break;
		}
		check_drop();
		node->committed = node->dropped = true;
		node->work = DROPPING;
		break;
	case DROPPING:
		if (once_in(60)) {
			node->work = UNDOING;
		} else if (!any(3)) {
			node->work = AWAY;
			node->done = true;
			lien_part_ended(&node->part, true, false);
		}
		break;
	case UNDOING:
		if (any(3))
			break;
		node->work = BACK;
		node->dropped = node->committed = false;
		lien_part_ended(&node->part, false, true);
		break;
	case NOTHING:
	case AWAY:
	case BACK:
		break;
	}
}

/* Control libraries without an agent let their threads go, if nothing is away. */
static void kill_agent(struct node *node)
{
	node->agent = node->knows = false;
	node->t_dead = w.step;
	if (node->work != AWAY)
		node->work = BACK;
}

static void step_node(unsigned i)
{
	struct node *node = &w.node[i];
	struct lien_node_status before = node->part.status;

	if (!node->agent && (w.step > node->t_dead + 80 || !w.trouble))
		node->agent = true;
	if (node->agent && once_in(1500))
		kill_agent(node);
	if (once_in(800))
		node->cut = w.step + any(200);
	if (once_in(8000))
		node->cut = UINT64_MAX;
	if (node->agent && node->restores && !any(4)) {
		node->dropped = false;
		node->restores = false;
		node->done = node->committed = false;
		say(i, 0, true);
	}
	if (!node->agent || !node->knows || node->work == NOTHING)
		return;
	lien_part_tick(&node->part, now());
	work(node);
	if (memcmp(&before, &node->part.status, sizeof(before)) != 0)
		say(i, 0, false);
}

/* --- the coordinator -------------------------------------------------------------------------- */

static void check_leases(uint64_t left)
{
	for (unsigned i = 0; i < w.n; i++)
		if (takes_part(&w.node[i]))
			CHECK(now() + left <= w.node[i].part.t_heard + LEASE);
}

static void decide(void)
{
	w.decided = lien_coordinator_decided(&w.c, !once_in(30), now());
	if (w.decided)
		check_leases(LEASE / 4);
}

/* The link of a node dies, whatever the node has done; that of one that is needed is made anew. */
static void step_links(void)
{
	unsigned i;

	for (i = 0; i < w.n; i++) {
		if (w.of[i].heard && once_in(500)) {
			w.node[i].unlinked = true;
			lien_coordinator_lost(&w.c, i, now());
		}
		if (w.node[i].unlinked && w.of[i].lost && w.step % SECOND == 0 &&
			(w.c.phase == LIEN_COORDINATOR_COMMITTING ||
				w.c.phase == LIEN_COORDINATOR_MENDING))
			w.node[i].unlinked = false;
	}
}

static void step_coordinator(unsigned begun)
{
	struct message message;
	unsigned i;

	if (!w.coordinator)
		return;
	if (once_in(1500)) {
		w.coordinator = false;
		return;
	}
	if (w.slow > w.step)
		return;
	if (w.slow) {
		decide();
		w.slow = 0;
	} else if (w.c.phase == LIEN_COORDINATOR_DECIDING) {
		check_leases(LEASE / 2);
		w.slow = w.step + (any(4) ? 1 : 1 + any(60));
		return;
	}
	step_links();
	if (w.trouble ? once_in(1000) : w.step > begun + TROUBLE + 3000)
		lien_coordinator_cancel(&w.c, now());
	if (w.step % SECOND == 0)
		lien_coordinator_tick(&w.c, now());
	for (i = 0; i < w.n; i++) {
		message = (struct message){.to_node = true, .node = i, .sent = now()};
		message.begin = !w.of[i].heard;
		if (message.begin && w.step > 100)
			lien_coordinator_lost(&w.c, i, now());
		if (message.begin && w.step > 100)
			continue;
		if (!message.begin && !lien_coordinator_order(&w.c, i, &message.order))
			continue;
		if (message.begin ? w.step % SECOND == 0 : !any(3))
			post(&message);
	}
}

static void check_end(void)
{
	unsigned i, away = 0;

	for (i = 0; i < w.n; i++)
		away += w.node[i].dropped;
	if (!w.coordinator) {
		CHECK(!away || w.decided);
		return;
	}
	CHECK(w.c.phase == LIEN_COORDINATOR_ENDED);
	switch (w.c.outcome) {
	case LIEN_NODES_DONE:
		CHECK(away == w.n);
		break;
	case LIEN_NODES_UNDONE:
	case LIEN_NODES_MENDED:
		CHECK(!away);
		break;
	case LIEN_NODES_PART:
		CHECK(w.c.failed >= 0);
		break;
	case LIEN_NODES_NONE:
	case LIEN_NODES_NOTHING:
		fail_msg("no outcome");
	}
}

static bool is_settled(void)
{
	for (unsigned i = 0; i < w.n; i++)
		if (w.node[i].agent && w.node[i].knows && w.node[i].work != NOTHING &&
			w.node[i].work != AWAY && w.node[i].work != BACK)
			return false;
	return !w.coordinator || w.c.phase == LIEN_COORDINATOR_ENDED;
}

static unsigned outcomes[LIEN_NODES_PART + 1], halves;

static void schedule(unsigned seed)
{
	unsigned i, away = 0;

	memset(&w, 0, sizeof(w));
	w.seed = seed;
	w.random = seed * 2654435761u + 12345;
	w.n = 1 + any(NODES);
	w.loss = any(3) ? 4 + any(60) : 0;
	w.coordinator = w.trouble = true;
	for (i = 0; i < w.n; i++)
		w.node[i].agent = w.node[i].knows = true;
	lien_coordinator_begin(&w.c, w.of, w.n, false, LEASE, now());
	for (w.step = 0; w.step < STEPS && (w.step < TROUBLE || !is_settled()); w.step++) {
		w.trouble = w.step < TROUBLE && any(4);
		deliver();
		for (i = 0; i < w.n; i++)
			step_node(i);
		step_coordinator(0);
	}
	if (!is_settled())
		fail_msg("seed %u hangs in phase %u", seed, w.c.phase);
	check_end();
	outcomes[w.coordinator ? w.c.outcome : LIEN_NODES_NONE]++;
	for (i = 0; i < w.n; i++)
		away += w.node[i].dropped;
	halves += away && away < w.n;
}

static void test_schedules(void **state)
{
	unsigned i, n = lien_test_sequences(10000), first = lien_test_seed();

	(void)state;
	for (i = 0; i < n; i++)
		schedule(first + i);
	print_message("done %u, undone %u, mended %u, part %u, without a coordinator %u; half "
		      "before the repair: %u\n",
		outcomes[LIEN_NODES_DONE], outcomes[LIEN_NODES_UNDONE], outcomes[LIEN_NODES_MENDED],
		outcomes[LIEN_NODES_PART], outcomes[LIEN_NODES_NONE], halves);
	/* The schedules get there at all. */
	if (n >= 10000)
		assert_true(outcomes[LIEN_NODES_DONE] > n / 20 && outcomes[LIEN_NODES_UNDONE] &&
			    outcomes[LIEN_NODES_MENDED] && outcomes[LIEN_NODES_NONE]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
