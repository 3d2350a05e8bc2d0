// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/join/walks.h"
#include "agent/core/proc.h"
#include "agent/link/link.h"
#include "agent/orders/orders.h"

#define CHUNK_US     20000	  /* per order */
#define AGAIN_NS     100000000ull /* between two passes over an address */
#define CALM_NS	     300000000ull /* after the last loss */
#define DELAY_MIN_NS 1000000000ull
#define DELAY_MAX_NS 60000000000ull
#define CHUNK_RANGES                                                                               \
	((LIEN_WIRE_MESSAGE_MAX - sizeof(struct lien_wire_header)) / sizeof(struct lien_wire_range))

struct lien_walk {
	struct lien_tracked *tracked;
	struct lien_reread *reread;
	lien_walked_fn *done; /* NULL: the agent began it on its own */
	void *done_for;
	bool repair;
	bool plain;		  /* also look for memory that was there before the agent */
	bool begun;		  /* this pass has begun */
	unsigned next;		  /* next range of the pass */
	uint64_t at;		  /* position in it; 0: its beginning */
	unsigned sent;		  /* ranges in the current order */
	uint64_t t_start, t_pass; /* no pass begins before */
	uint64_t walk_ns;
	unsigned orders;
};

/* Device memory is mapped unreadable, and host memory is shared with the device. */
static int want_region(const struct lien_maps_entry *entry, void *arg)
{
	uint64_t start = (entry->start + LIEN_WIRE_STEP - 1) & ~(LIEN_WIRE_STEP - 1);
	uint64_t end = entry->end & ~(LIEN_WIRE_STEP - 1);

	if (entry->executable || (!entry->shared && (entry->readable || entry->writable)) ||
		start >= end)
		return 0;
	return lien_reread_want(arg, start, end - start, LIEN_WIRE_AREA);
}

static void walk_free(struct lien_walk *walk)
{
	if (walk->tracked->walk == walk) {
		walk->tracked->walk = NULL;
		walk->tracked->agent->walks--;
	}
	lien_reread_free(walk->reread);
	free(walk);
}

int lien_walk_start(struct lien_agent *agent, struct lien_process *process, bool repair,
	lien_walked_fn *done, void *done_for)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_walk *walk;
	int err;

	if (tracked->walk || lien_orders_asked(tracked) == LIEN_ASK_WALK)
		return -EBUSY;
	walk = calloc(1, sizeof(*walk));
	if (!walk)
		return -ENOMEM;
	walk->tracked = tracked;
	walk->done = done;
	walk->done_for = done_for;
	walk->repair = repair;
	walk->plain = process->incomplete & LIEN_INCOMPLETE_LATE;
	walk->t_start = lien_now_ns();
	err = lien_reread_new(&walk->reread);
	if (!err)
		err = lien_maps_read(process->pid, want_region, walk->reread);
	if (!err)
		err = lien_reread_want_known(walk->reread, process);
	if (err) {
		walk_free(walk);
		return err;
	}
	tracked->walk = walk;
	agent->walks++;
	return 0;
}

static void emit(void *agent, struct lien_event *event)
{
	lien_agent_event(agent, event);
}

bool lien_walk_maps(struct lien_process *process, enum lien_library library)
{
	struct lien_library_map *map;

	RB_FOREACH (map, lien_library_tree, &process->libraries)
		if (lien_library_of(map->file->text) == library)
			return true;
	return false;
}

/* Facts that the driver cannot report, and that may have been lost as well. */
static uint32_t doubts_of(struct lien_process *process)
{
	uint32_t doubts = 0;

	if (!(process->incomplete & LIEN_INCOMPLETE_LOST))
		return 0;
	if (lien_walk_maps(process, LIEN_LIB_NCCL))
		doubts |= LIEN_INCOMPLETE_NCCL;
	if (lien_proc_cards() && (lien_walk_maps(process, LIEN_LIB_IBVERBS) ||
					 lien_walk_maps(process, LIEN_LIB_GDRAPI)))
		doubts |= LIEN_INCOMPLETE_CARDS;
	return doubts;
}

/* The graph now agrees with the driver, so the earlier losses no longer matter. */
static void note_agreement(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_event event;

	if (!(process->incomplete & LIEN_INCOMPLETE_REREAD) ||
		process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_SHARE))
		return;
	event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_REREAD);
	event.size = LIEN_EVENT_SIZE(reread);
	event.reread.doubts = doubts_of(process);
	lien_agent_event(agent, &event);
}

static void log_reread(
	const struct lien_process *process, const struct lien_walk *walk, unsigned differences)
{
	unsigned rest = process->incomplete & (LIEN_INCOMPLETE_REREAD | LIEN_INCOMPLETE_SHARE);

	if (lien_reread_unstable(walk->reread))
		lien_log(4, "process %u was read from the driver, but did not come to rest",
			process->pid);
	else if (rest)
		lien_log(4,
			"process %u was read from the driver, %u differences were mended; it "
			"stays incomplete: it imported memory whose export was not seen",
			process->pid, differences);
	else
		lien_log(5,
			"process %u was read from the driver, %u differences were mended: it is "
			"complete again",
			process->pid, differences);
}

/* All passes are done: puts what is certain into the graph, if that was asked for. */
static void conclude(struct lien_agent *agent, struct lien_process *process, struct lien_walk *walk)
{
	struct lien_walked walked = {
		.reread = walk->reread,
		.orders = walk->orders,
		.ns = lien_now_ns() - walk->t_start,
		.walk_ns = walk->walk_ns,
	};
	struct lien_tracked *tracked = process->agent;
	unsigned differences;
	int err = 0;

	lien_reread_differences(walk->reread, &differences);
	tracked->objects = lien_reread_objects(walk->reread);
	tracked->own_objects = lien_reread_own_objects(walk->reread);
	tracked->walk = NULL; /* events made below must not count as touches */
	agent->walks--;
	lien_reread_learn(walk->reread, process, lien_now_ns(), emit, agent);
	if (differences && walk->repair) {
		err = lien_reread_repair(
			walk->reread, agent->graph, process, lien_now_ns(), emit, agent);
		walked.repaired = !err;
	}
	if (!err && (!differences || walk->repair) && !lien_reread_unstable(walk->reread))
		note_agreement(agent, process);
	if (walk->done)
		walk->done(walk->done_for, process, &walked);
	else
		log_reread(process, walk, differences);
	if (!(process->incomplete & LIEN_INCOMPLETE_REREAD))
		tracked->reread_delay = 0;
	walk_free(walk);
}

void lien_walk_end(struct lien_agent *agent, struct lien_process *process, const char *error)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_walk *walk = tracked ? tracked->walk : NULL;
	struct lien_walked walked = {.error = error};

	(void)agent;
	if (!walk)
		return;
	if (walk->done)
		walk->done(walk->done_for, process, &walked);
	else if (!process->ended)
		lien_log(
			4, "process %u could not be read from the driver: %s", process->pid, error);
	walk_free(walk);
}

static int send_chunk(struct lien_walk *walk)
{
	static struct lien_wire_range chunk[CHUNK_RANGES];
	struct lien_wire_header order = {.type = LIEN_WIRE_WALK,
		.flags = walk->plain ? LIEN_WIRE_ALL : 0,
		.seq = 1,
		.arg = CHUNK_US};
	const struct lien_wire_range *ranges;
	unsigned count, n;
	int err;

	ranges = lien_reread_ranges(walk->reread, &count);
	n = count - walk->next < CHUNK_RANGES ? count - walk->next : CHUNK_RANGES;
	memcpy(chunk, ranges + walk->next, n * sizeof(*chunk));
	if (walk->at > chunk[0].va && walk->at < chunk[0].va + chunk[0].bytes) {
		chunk[0].bytes -= walk->at - chunk[0].va;
		chunk[0].va = walk->at;
	}
	order.length = sizeof(order) + n * sizeof(*chunk);
	err = lien_link_send(walk->tracked->link, LIEN_ASK_WALK, &order, chunk, NULL, 0);
	if (err)
		return err;
	walk->sent = n;
	walk->orders++;
	return 0;
}

/* Begins the next pass, or ends the walk. */
static int next_pass(struct lien_agent *agent, struct lien_process *process, struct lien_walk *walk)
{
	int more = lien_reread_end(walk->reread, process);

	if (more < 0)
		return more;
	if (!more) {
		conclude(agent, process, walk);
		return 0;
	}
	walk->begun = false;
	walk->t_pass = lien_now_ns() + AGAIN_NS;
	return 0;
}

/* Goes on with the walk, if it is its turn. */
static void proceed(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_walk *walk = tracked->walk;
	unsigned count;
	int err = 0;

	if (!walk || lien_orders_asked(tracked) || lien_orders_waiting(tracked) ||
		agent->transaction || agent->finishing ||
		(!walk->begun && lien_now_ns() < walk->t_pass))
		return;
	if (!tracked->link) {
		lien_walk_end(agent, process, "its control thread has ended");
		return;
	}
	if (!walk->begun) {
		err = lien_reread_begin(walk->reread, process);
		walk->begun = true;
		walk->next = 0;
		walk->at = 0;
	}
	lien_reread_ranges(walk->reread, &count);
	if (!err)
		err = walk->next < count ? send_chunk(walk) : next_pass(agent, process, walk);
	if (err && err != -EBUSY) /* another order is under way: after it */
		lien_walk_end(agent, process, strerror(-err));
}

static struct lien_process *tracked_process(struct lien_agent *agent, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process && process->agent ? process : NULL;
}

void lien_walks_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply)
{
	const struct lien_wire_header *header = &reply->header;
	struct lien_process *process = tracked_process(agent, pid);
	struct lien_tracked *tracked = process->agent;
	struct lien_walk *walk = tracked->walk;
	int err = 0;

	if (walk)
		err = lien_reread_found(walk->reread, reply->body,
			(header->length - sizeof(*header)) / sizeof(struct lien_wire_found));
	if (err)
		lien_walk_end(agent, process, strerror(-err));
	if (!(header->flags & LIEN_WIRE_LAST))
		return;
	walk = tracked->walk;
	if (!walk)
		return;
	walk->walk_ns += header->ns;
	if (header->result) {
		lien_walk_end(agent, process,
			header->text[0] ? header->text
					: strerror(header->result < 0 ? -header->result : EIO));
		return;
	}
	walk->next += header->arg2 < walk->sent ? header->arg2 : walk->sent;
	walk->at = header->arg2 < walk->sent ? header->arg : 0;
	proceed(agent, process);
}

void lien_walks_event(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process = tracked_process(agent, event->pid);
	struct lien_tracked *tracked = process ? process->agent : NULL;

	if (!tracked)
		return;
	if (event->type == LIEN_EVENT_LOST) {
		tracked->t_lost = lien_now_ns();
		lien_walk_end(agent, process, "events were lost while it was read");
	} else if (tracked->walk && lien_reread_touched(tracked->walk->reread, event)) {
		lien_walk_end(agent, process, "out of memory");
	}
}

bool lien_walks_own(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process;

	if (!(event->flags & LIEN_EVENT_CONTROL))
		return false;
	/* An adoption counts references by releasing them, and maps exported descriptors. */
	if (agent->adopting)
		return true;
	if (event->type != LIEN_CALL_CU_MEM_RETAIN && event->type != LIEN_CALL_CU_MEM_RELEASE &&
		event->type != LIEN_CALL_CU_MEM_EXPORT)
		return false;
	process = tracked_process(agent, event->pid);
	return process && lien_orders_asked(process->agent) == LIEN_ASK_WALK;
}

/*
 * Events were lost, and the process is calm now. Memory from before the agent does not count here.
 */
static bool wants_reading(const struct lien_process *process, uint64_t now)
{
	const struct lien_tracked *tracked = process->agent;

	return tracked && !tracked->walk && lien_orders_asked(tracked) != LIEN_ASK_WALK &&
	       process->cuda && process->presence == LIEN_CONTROL_READY &&
	       process->incomplete & LIEN_INCOMPLETE_REREAD &&
	       !(process->incomplete & LIEN_INCOMPLETE_LATE) && RB_EMPTY(&process->captures) &&
	       now - tracked->t_lost > CALM_NS && now >= tracked->t_reread;
}

void lien_walks_tick(struct lien_agent *agent)
{
	struct lien_process *process, *next;
	struct lien_tracked *tracked;
	uint64_t now = lien_now_ns();

	if (agent->transaction)
		return;
	for (process = lien_graph_first(agent->graph); process; process = next) {
		next = lien_graph_next(process);
		tracked = process->agent;
		if (tracked && tracked->walk)
			proceed(agent, process);
		if (!wants_reading(process, now))
			continue;
		tracked->reread_delay =
			tracked->reread_delay ? 2 * tracked->reread_delay : DELAY_MIN_NS;
		if (tracked->reread_delay > DELAY_MAX_NS)
			tracked->reread_delay = DELAY_MAX_NS;
		tracked->t_reread = now + tracked->reread_delay;
		if (!lien_walk_start(agent, process, true, NULL, NULL))
			proceed(agent, process);
	}
}
