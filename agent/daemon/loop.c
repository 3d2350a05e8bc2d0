// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/loop.h"
#include "agent/processes/watch.h"
#include "agent/orders/orders.h"
#include "agent/server/server.h"

#include <sys/epoll.h>

#include "agent/daemon/answers.h"
#include "agent/core/node.h"
#include "agent/processes/contexts.h"
#include "agent/join/join.h"
#include "agent/quiesce/gate.h"
#include "agent/daemon/others.h"
#include "agent/processes/probing.h"
#include "agent/processes/rewritten.h"
#include "agent/daemon/resume.h"
#include "agent/processes/sites.h"
#include "loader/probes/gate.h"
#include "loader/probes/make_link.h"
#include "loader/discover/timeout.h"

#define TICK_MS	     1000
#define TICK_FAST_MS 20 /* while waiting for something */
#define TICK_REST_MS 1	/* while bringing a job to rest */
#define RING_MS	     1	/* while ignoring the ring */
#define WAIT_MS	     20 /* for anything that a job can delay */
#define WAITS_MS     40 /* per turn, for reading all processes */
#define MAKING_MS    10 /* per turn, for making probes */
/* Sources handled before a request, if one is waiting. */
#define SOURCES_FIRST 16

/* --- ticks ------------------------------------------------------------------------------------ */

static const struct {
	const char *name;
	void (*tick)(struct lien_agent *agent);
} ticks[] = {
	{"ring", lien_ring_tick},
	{"watch", lien_watch_tick},
	{"join", lien_join_tick},
	{"contexts", lien_contexts_tick},
	{"gate", lien_gate_tick},
	{"prepare", lien_prepare_tick},
	{"sites", lien_sites_tick},
	{"probing", lien_probing_tick},
	{"rewritten", lien_rewritten_tick},
	{"server", lien_server_tick},
	{"answers", lien_answers_tick},
	{"others", lien_others_tick},
	{"journal", lien_resume_tick},
};

/* The other ticks read the graph, so it has to be up to date. */
static void tick(struct lien_agent *agent)
{
	unsigned i;

	for (i = 0; i < sizeof(ticks) / sizeof(ticks[0]) && !lien_graph_unfinished(agent->graph);
		i++) {
		lien_turn_part(agent, "tick", ticks[i].name);
		ticks[i].tick(agent);
	}
}

static int tick_ms(const struct lien_agent *agent)
{
	if (agent->transaction && !agent->transaction_ended &&
		lien_transaction_is_resting(agent->transaction))
		return TICK_REST_MS;
	return agent->waking || lien_server_waits_for_quiet(agent) || agent->transaction ||
			       agent->walks || !LIST_EMPTY(&agent->joins) ||
			       lien_probes_gates(agent->probes) ||
			       lien_probes_in_progress(agent->probes)
		       ? TICK_FAST_MS
		       : TICK_MS;
}

/* --- the loop --------------------------------------------------------------------------------- */

/* State that the loop keeps between turns. */
struct turn {
	struct epoll_event event;
	bool has_event;
	bool ticked, probed;  /* in the previous turn */
	uint64_t t_tick;      /* of the last tick */
	unsigned sources;     /* handled while a request waits */
	int probing;	      /* ms until the next file is tried; -1: none is waiting */
	uint64_t tick_mark;   /* a tick that is due waits for the ring; 0: it does not */
	uint64_t orders_mark; /* so does the transaction */
};

/* Is there work, whatever epoll says? */
static bool is_pending(const struct lien_agent *agent, const struct turn *turn)
{
	return lien_server_has_requests(agent) || turn->tick_mark ||
	       lien_graph_unfinished(agent->graph) || lien_orders_must_react(agent);
}

/*
 * Milliseconds until the next tick, until the ring is read again, or until a waiting file is
 * probed.
 */
static int wait_ms(const struct lien_agent *agent, const struct turn *turn, int tick)
{
	if (is_pending(agent, turn))
		return 0;
	if (agent->t_ring && RING_MS < tick)
		tick = RING_MS;
	return turn->probing >= 0 && turn->probing < tick ? turn->probing : tick;
}

static void handle(struct lien_agent *agent, const struct epoll_event *event)
{
	struct lien_source *source = event->data.ptr;

	if (source->reacts && !lien_ring_caught_up(agent, &source->mark))
		return; /* still ready in a later turn */
	lien_turn_part(agent, "source", source->name);
	source->ready(source, event->events);
}

static void take_request(struct lien_agent *agent)
{
	if (!lien_ring_caught_up(agent, lien_server_mark(agent)))
		return;
	agent->turns.turn_requests++;
	lien_server_request(agent);
}

static void react(struct lien_agent *agent, struct turn *turn)
{
	if (!lien_ring_caught_up(agent, &turn->orders_mark))
		return;
	lien_turn_part(
		agent, "transaction", lien_phase_name(lien_transaction_phase(agent->transaction)));
	lien_transaction_react(agent->transaction);
}

static void work(struct lien_agent *agent, struct turn *turn)
{
	const bool must_react = lien_orders_must_react(agent);

	if (!must_react)
		turn->orders_mark = 0;
	if (must_react) {
		react(agent, turn);
	} else if (turn->has_event &&
		   (++turn->sources < SOURCES_FIRST || !lien_server_has_requests(agent))) {
		handle(agent, &turn->event);
	} else if (lien_server_has_requests(agent)) {
		turn->sources = 0;
		take_request(agent);
	} else if (lien_graph_unfinished(agent->graph)) {
		lien_ring_step(agent);
	}
}

/* A source that is ready stays so until the next turn, which is not for probing again. */
static void any_turn(struct lien_agent *agent, struct turn *turn)
{
	turn->probed = !turn->probed && !turn->probing && !lien_graph_unfinished(agent->graph);
	if (turn->probed)
		lien_watch_turn(agent);
	else
		work(agent, turn);
}

/* A tick has a turn of its own. Two ticks never follow each other while other work is waiting. */
static bool is_due(const struct lien_agent *agent, const struct turn *turn, int every)
{
	if (turn->tick_mark)
		return true;
	if (turn->ticked && (turn->has_event || is_pending(agent, turn) || turn->probing >= 0))
		return false;
	return agent->turns.t_begun - turn->t_tick >= every * 1000000ull;
}

/* False: the turn went into catching up. */
static bool tick_turn(struct lien_agent *agent, struct turn *turn)
{
	/* Held jobs have to hear that we are alive, however much there is to read. */
	lien_turn_part(agent, "tick", "orders");
	lien_orders_tick(agent);
	if (!lien_ring_caught_up(agent, &turn->tick_mark))
		return false;
	tick(agent);
	turn->t_tick = agent->turns.t_begun;
	return true;
}

void lien_loop_run(struct lien_agent *agent)
{
	struct turn turn = {0};
	int every;

	lien_turns_start(&agent->turns);
	while (!agent->stopping || agent->transaction) {
		every = tick_ms(agent);
		turn.probing = lien_probing_wait_ms(agent);
		/* One at a time: handling an event may free the source of another. */
		turn.has_event =
			epoll_wait(agent->epoll, &turn.event, 1, wait_ms(agent, &turn, every)) > 0;
		lien_timeout_limit(WAIT_MS, WAITS_MS);
		lien_making_allow(MAKING_MS);
		lien_turn_begin(&agent->turns);
		lien_ring_wake(agent, agent->turns.t_begun);
		if (is_due(agent, &turn, every)) {
			turn.ticked = tick_turn(agent, &turn);
		} else {
			turn.ticked = false;
			any_turn(agent, &turn);
		}
		/* Before a client that waits for the end begins another transaction. */
		if (agent->transaction_ended) {
			lien_orders_end(agent);
			lien_node_outdated(agent);
		}
		lien_turn_end(&agent->turns);
	}
	lien_turns_stop(&agent->turns);
}
