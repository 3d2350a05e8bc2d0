// SPDX-License-Identifier: BSD-2-Clause
/* Puts what the kernel side reports into the graph. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>

#include "agent/core/agent.h"
#include "agent/daemon/resume.h"
#include "agent/processes/watch.h"
#include "agent/server/server.h"
#include "agent/processes/contexts.h"
#include "agent/graph/event_check.h"
#include "agent/daemon/loop.h"
#include "agent/join/join.h"

/*
 * How long the ring is left alone after it was read. A write to the ring wakes a reader that has
 * caught up, which costs the traced process more than everything else a probe does, so the agent
 * does not wait on the ring for every event. Callers that need everything reported so far
 * (lien_agent_consume()) do not wait.
 */
#define RING_REST_MS 1

/* Limit per turn. A call takes half a microsecond, but a new process takes some milliseconds,
 * because its mappings are read. */
#define RECORDS_AT_ONCE 4096
#define RECORDS_NS	5000000ull
#define CLOCK_EVERY	16
/* Limits for all shares of a turn. */
#define TURN_RECORDS   16384
#define TURN_NS	       20000000ull
#define FINISH_AT_ONCE 4096 /* steps of lien_graph_finish() */
#define LOSSES_AT_ONCE 64   /* processes that have lost events */

/* Any process may map libraries for network cards. The kernel side does not report the end of such
 * a process, so it is not added before it uses CUDA; its mappings are read then. */
static bool of_stranger(struct lien_agent *agent, const struct lien_event *event)
{
	return event->type == LIEN_EVENT_LIBRARY &&
	       lien_library_of(event->library.name) >= LIEN_LIB_IBVERBS &&
	       !lien_graph_process(agent->graph, event->pid);
}

void lien_ring_event(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process;
	bool recording, known;
	uint32_t uid;
	int err;

	if (of_stranger(agent, event)) {
		lien_server_event(agent, event, NULL);
		lien_watch_event(agent, event);
		return;
	}
	lien_resume_note(agent, event);
	/* Look the process up first if the event may end it, and afterwards if it is new. */
	recording = lien_server_recording(agent);
	process = recording ? lien_graph_process(agent->graph, event->pid) : NULL;
	known = process && process->start == event->start;
	uid = known ? process->uid : 0;
	err = lien_graph_apply(agent->graph, event);
	if (err)
		lien_log(3, "event %u of process %u was not applied: %s", event->type, event->pid,
			strerror(-err));
	process = recording && !known ? lien_graph_process(agent->graph, event->pid) : NULL;
	if (process) {
		known = true;
		uid = process->uid;
	}
	if (recording)
		lien_server_event(agent, event, known ? &uid : NULL);
	lien_watch_event(agent, event);
	lien_contexts_event(agent, event);
	lien_walks_event(agent, event);
}

/* Has this turn done enough? */
static bool is_enough(struct lien_agent *agent, uint32_t type)
{
	struct lien_turns *turns = &agent->turns;

	if (++turns->turn_records > turns->most_records)
		turns->most_records = turns->turn_records;
	if (lien_graph_unfinished(agent->graph))
		return true;
	if (!agent->records_left || !--agent->records_left)
		return true;
	return (type < LIEN_CALL_CU_INIT || agent->records_left % CLOCK_EVERY == 0) &&
	       lien_now_ns() - agent->t_records > RECORDS_NS;
}

int lien_ring_record(void *context, const struct lien_event *event, size_t size)
{
	struct lien_agent *agent = context;
	struct lien_event copy; /* the ring's memory may change under us */

	if (size < LIEN_EVENT_HEADER || size > sizeof(copy))
		return is_enough(agent, 0);
	memcpy(&copy, event, size);
	if (copy.size == size && lien_event_valid(&copy) && !lien_walks_own(context, &copy) &&
		lien_resume_record(context, &copy))
		lien_agent_event(context, &copy);
	return is_enough(agent, copy.type);
}

/* Tells the graph about lost events, so that nothing relies on these processes. */
static void note_losses(struct lien_agent *agent)
{
	uint64_t lost = lien_probes_counter(agent->probes, LIEN_COUNTER_LOST), count;
	struct lien_process *process;
	struct lien_event event;
	unsigned i;
	uint32_t pid;

	if (lost == agent->lost_seen)
		return;
	for (i = 0; i < LOSSES_AT_ONCE && lien_probes_lost(agent->probes, &pid, &count); i++) {
		process = lien_graph_process(agent->graph, pid);
		lien_log(4, "%llu events of process %u were lost: it is incomplete now",
			(unsigned long long)count, pid);
		event = lien_agent_event_of(pid, process ? process->start : 0, LIEN_EVENT_LOST);
		event.size = LIEN_EVENT_SIZE(lost);
		do {
			event.lost.count = count;
			lien_agent_event(agent, &event);
			count = lien_probes_lost_noted(agent->probes, pid, count);
		} while (count);
	}
	if (i < LOSSES_AT_ONCE) /* otherwise the rest comes in the next turn */
		agent->lost_seen = lost;
}

/* Applies a turn's share. Returns false if there is no more. */
static bool take_some(struct lien_agent *agent)
{
	int n;

	if (!lien_graph_finish(agent->graph, FINISH_AT_ONCE))
		return true;
	agent->consuming = true;
	agent->records_left = RECORDS_AT_ONCE;
	agent->t_records = lien_now_ns();
	n = lien_probes_consume(agent->probes);
	agent->consuming = false;
	return n > 0;
}

static bool is_behind(struct lien_agent *agent, uint64_t mark)
{
	return lien_graph_unfinished(agent->graph) || lien_probes_consumed(agent->probes) < mark;
}

/* Has the turn room for one more share? */
static bool has_room(const struct lien_agent *agent)
{
	return agent->turns.turn_records < TURN_RECORDS &&
	       lien_now_ns() - agent->turns.t_begun < TURN_NS;
}

bool lien_ring_consume(struct lien_agent *agent, bool all)
{
	bool behind, more = true;
	uint64_t until;

	/* A record can end a phase of a transaction, which asks for all records: the outer call
	 * applies the rest. */
	if (agent->consuming || agent->is_copy)
		return !agent->consuming;
	/* Up to here only: a job may report as fast as the agent reads. */
	until = lien_probes_produced(agent->probes);
	while ((behind = is_behind(agent, until)) && more && (all || has_room(agent)))
		more = take_some(agent);
	note_losses(agent);
	return !behind;
}

void lien_ring_step(struct lien_agent *agent)
{
	lien_turn_part(agent, "ring", "records");
	take_some(agent);
	note_losses(agent);
}

bool lien_ring_caught_up(struct lien_agent *agent, uint64_t *mark)
{
	if (!*mark)
		*mark = lien_probes_produced(agent->probes);
	if (is_behind(agent, *mark)) {
		lien_ring_step(agent);
		return false;
	}
	*mark = 0;
	return true;
}

static void ring_rest(struct lien_agent *agent, bool rest)
{
	struct epoll_event event = {.events = rest ? 0 : EPOLLIN, .data.ptr = &agent->ring};

	epoll_ctl(agent->epoll, EPOLL_CTL_MOD, agent->ring.fd, &event);
	agent->t_ring = rest ? lien_now_ns() + RING_REST_MS * 1000000ull : 0;
}

void lien_ring_wake(struct lien_agent *agent, uint64_t now)
{
	if (agent->t_ring && now >= agent->t_ring)
		ring_rest(agent, false);
}

static void ring_ready(struct lien_source *source, uint32_t events)
{
	struct lien_agent *agent =
		(void *)((char *)source - __builtin_offsetof(struct lien_agent, ring));

	(void)events;
	lien_ring_step(agent);
	if (!is_behind(agent, lien_probes_produced(agent->probes)))
		ring_rest(agent, true);
}

void lien_ring_tick(struct lien_agent *agent)
{
	note_losses(agent);
}

int lien_ring_start(struct lien_agent *agent)
{
	agent->ring = (struct lien_source){
		.fd = lien_probes_fd(agent->probes), .ready = ring_ready, .name = "ring"};
	return lien_agent_watch(agent, &agent->ring, EPOLLIN);
}
