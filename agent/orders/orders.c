// SPDX-License-Identifier: BSD-2-Clause
/* The agent's transaction, and who gave a process the order that it works on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/link/link.h"
#include "agent/orders/orders.h"
#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/gate.h"
#include "agent/server/server.h"

/* An offload goes on for so long, whoever waits; and for so long after its user's last one gave
 * way.
 */
#define GIVE_WAY_NS  2000000000ull
#define HAS_GIVEN_NS 10000000000ull

struct lien_tracked *lien_orders_tracked(struct lien_agent *agent, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process ? process->agent : NULL;
}

enum lien_asker lien_orders_asked(const struct lien_tracked *tracked)
{
	return tracked->link ? lien_link_asked(tracked->link) : LIEN_ASK_NOBODY;
}

enum lien_asker lien_orders_waiting(const struct lien_tracked *tracked)
{
	return tracked->link ? lien_link_waiting(tracked->link) : LIEN_ASK_NOBODY;
}

const char *lien_orders_words(enum lien_asker asker)
{
	static const char *const words[] = {
		[LIEN_ASK_NOBODY] = "nothing",
		[LIEN_ASK_HELLO] = "saying what it is",
		[LIEN_ASK_GATE] = "letting its threads go",
		[LIEN_ASK_WALK] = "reading its memory from the driver",
		[LIEN_ASK_PREPARE] = "preparing host memory",
		[LIEN_ASK_END] = "being detached",
		[LIEN_ASK_TRANSACTION] = "an order of a transaction",
	};
	_Static_assert(sizeof(words) / sizeof(words[0]) == LIEN_ASK_COUNT, "each asker has words");

	return words[asker];
}

int lien_orders_ready(struct lien_agent *agent, char *error, size_t size)
{
	agent->blame = (struct lien_blame){0};
	if (!agent->transaction)
		return 0;
	agent->blame.cause = LIEN_CAUSE_BUSY;
	snprintf(error, size, "another transaction is under way: see `lien status`");
	return -EBUSY;
}

void lien_orders_end(struct lien_agent *agent)
{
	lien_turn_part(agent, "transaction", "end");
	lien_adoption_clear(&agent->adoption);
	free(agent->at_rest);
	free(agent->adopted);
	agent->at_rest = agent->adopted = NULL;
	agent->at_rest_count = agent->adopted_count = 0;
	agent->adopting = false;
	lien_transaction_free(agent->transaction);
	lien_plan_clear(&agent->plan);
	lien_offload_request_clear(&agent->request);
	lien_elsewhere_end(agent);
	agent->transaction = NULL;
	agent->transaction_ended = agent->transaction_own = false;
	if (!agent->stopping) {
		lien_gate_cover_late(agent);
		lien_gate_serve(agent); /* a job stands still for it */
	}
	lien_server_resume(agent);
}

bool lien_orders_must_react(const struct lien_agent *agent)
{
	return agent->transaction && !agent->transaction_ended &&
	       lien_transaction_must_react(agent->transaction);
}

void lien_orders_react(struct lien_agent *agent)
{
	lien_transaction_react(agent->transaction);
}

static bool gave_way(const struct lien_agent *agent, const struct lien_viewer *who)
{
	const uint64_t now = lien_now_ns();
	unsigned i;

	for (i = 0; i < LIEN_GAVE_WAY; i++)
		if (agent->gave_way[i].t && now - agent->gave_way[i].t < HAS_GIVEN_NS &&
			lien_viewer_same(&agent->gave_way[i].who, who))
			return true;
	return false;
}

/* Otherwise a user whose job never comes to rest could keep everybody else's memory away; and one
 * who always asks for something, or whose own offloads always give way, could keep another's job
 * from coming to rest. root gives way to nobody. */
static void give_way(struct lien_agent *agent)
{
	if (!lien_transaction_hesitates(agent->transaction, GIVE_WAY_NS) ||
		!agent->transaction_of.one_user || gave_way(agent, &agent->transaction_of) ||
		!(lien_server_others_wait(agent, gave_way) || lien_gate_others_wait(agent)) ||
		lien_elsewhere_is_committed(agent) ||
		!lien_transaction_cancel(agent->transaction, -EBUSY,
			"the job did not come to rest within 2 s, and another user waits"))
		return;
	agent->gave_way[agent->next_gave_way++ % LIEN_GAVE_WAY] =
		(struct lien_gave_way){agent->transaction_of, lien_now_ns()};
}

void lien_orders_tick(struct lien_agent *agent)
{
	if (!agent->transaction || agent->transaction_ended)
		return;
	give_way(agent);
	if (agent->elsewhere)
		lien_elsewhere_tick(agent);
	lien_transaction_tick(agent->transaction);
}
