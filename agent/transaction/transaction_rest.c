// SPDX-License-Identifier: BSD-2-Clause
/* Brings the job to rest, behind its gates, and lets it go on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/transaction/transaction_internal.h"

#define ROUND_MS 10		/* one round of draining */
#define NEAR_MS	 1		/* while others wait for threads that are let in */
#define LONG_MS	 320		/* at most, when only devices keep the job from its rest */
#define REST_NS	 10000000000ull /* for the agent to find out what it needs then */
#define AGAIN_NS 1000000ull	/* until the next look at who is in a call */
#define DOUBT_NS 100000000ull	/* that counts are believed which show nobody who must go on */

/* Captures may have begun since the plan was made, and draining would spoil them. */
static bool captures(struct lien_transaction *t)
{
	const char *reason;
	unsigned i;

	for (i = 0; i < t->count && !t->stopping; i++) {
		reason = t->ops.not_now(t->ops.context, t->processes[i].pid);
		if (reason)
			lien_transaction_fail(t, -EBUSY, t->processes[i].pid, "process %u %s",
				t->processes[i].pid, reason);
	}
	return t->stopping;
}

/* --- gates ------------------------------------------------------------------------------------ */

/* Only once: when something is staged again, the job is already at rest. */
static bool has_gate(const struct lien_transaction *t)
{
	return t->ops.gate && !t->restaged;
}

void lien_gates_begin(struct lien_transaction *t)
{
	if (t->t_making || !has_gate(t) || t->stopping)
		return;
	t->t_making = t->ops.now_ns(t->ops.context);
	lien_gates_step(t, LIEN_GATE_BEGIN);
}

/* Checks captures first: a thread held in a capture could never end it. */
static bool gate_enter(struct lien_transaction *t)
{
	if (captures(t))
		return false;
	lien_gates_begin(t);
	return !lien_gates_step(t, LIEN_GATE_MAKE);
}

static void gate_arguments(const struct lien_transaction *t, enum lien_phase phase,
	struct lien_wire_header *order, const void *body)
{
	order->arg = phase == LIEN_PHASE_OPEN	 ? LIEN_WIRE_GATE_OPEN
		     : phase == LIEN_PHASE_ALIVE ? LIEN_WIRE_GATE_ALIVE
		     : body			 ? LIEN_WIRE_GATE_PASS
						 : LIEN_WIRE_GATE_SHUT;
	/* In an adoption, this is the very first order. */
	if (phase == LIEN_PHASE_GATE && t->kind == LIEN_TRANSACTION_ADOPTION)
		order->arg2 = t->generation;
}

const struct phase lien_phase_gate = {
	.name = "gate",
	.type = LIEN_WIRE_GATE,
	.limit_ms = 10000,
	.held = true,
	.applies = has_gate,
	.enter = gate_enter,
	.arguments = gate_arguments,
};

/* --- draining --------------------------------------------------------------------------------- */

static bool is_unrested(const struct lien_transaction *t)
{
	return !t->restaged;
}

static void pass(void *to, uint32_t pid, const uint32_t *tids, unsigned count)
{
	struct lien_transaction *t = to;
	int index = lien_transaction_index(t, pid);

	if (index >= 0 && !t->participants[index].seq && !t->participants[index].gone)
		lien_transaction_order(t, index, LIEN_PHASE_GATE, 0, tids, count * sizeof(*tids));
}

/*
 * Begins a round of draining when its time has come, and when the threads that were let in have
 * been named to their processes.
 */
static bool drain_enter(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context);

	t->t_round = now;
	if (t->phase == LIEN_PHASE_DRAIN)
		return lien_transaction_idle(t) && now >= t->t_again &&
		       !(t->ask && t->launches && captures(t));
	t->t_shut = now;
	t->result.gate_ns = now - t->t_start;
	if ((t->ops.gate && lien_gates_step(t, LIEN_GATE_LEVEL)) || captures(t))
		return false;
	t->t_drain = t->ops.now_ns(t->ops.context);
	t->rested = t->ask = t->launches = t->doubtful = false;
	t->t_level = t->t_moved = t->t_drain;
	t->resting = (struct lien_resting){.levelling = true, .pass = pass, .to = t};
	t->round_ms = NEAR_MS;
	return true;
}

static void drain_order(struct lien_transaction *t, unsigned index)
{
	uint64_t comms[LIEN_WIRE_COMMS_MAX];
	unsigned n = 0;

	if (t->ops.background)
		n = t->ops.background(
			t->ops.context, t->processes[index].pid, comms, LIEN_WIRE_COMMS_MAX);
	lien_transaction_order(t, index, LIEN_PHASE_DRAIN, t->launches ? LIEN_WIRE_LAUNCHES : 0,
		comms, n * sizeof(comms[0]));
}

/*
 * With a gate the devices are checked in short rounds; in between, threads are let in. If counts
 * show who is behind, they are not asked before all are held: a thread that is to launch what
 * others wait for would wait until its own device is idle, which may never be.
 */
static void drain_arguments(const struct lien_transaction *t, enum lien_phase phase,
	struct lien_wire_header *order, const void *body)
{
	(void)phase, (void)body;
	order->arg = t->ops.gate && t->round_ms < t->timeout_ms ? t->round_ms : t->timeout_ms;
	if (t->ops.gate && !t->ask)
		order->arg = 0;
	else if (!order->arg)
		order->arg = 1;
}

static void drain_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	struct participant *participant = &t->participants[index];

	participant->busy = reply->result;
	participant->working = reply->arg2;
	snprintf(participant->busy_text, sizeof(participant->busy_text), "%.*s",
		(int)sizeof(reply->text), reply->text);
	lien_phase_finished(t, index);
}

static bool drain_excuse(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	(void)index;
	return t->ops.gate && reply->result == -ETIMEDOUT; /* only this round timed out */
}

/*
 * Short rounds let threads in soon. When all are held already, only the devices are left: rounds
 * get longer, because a machine that is slow or busy needs more than a short one to ask its
 * devices, however idle they are. One that waits for another is not waited for.
 */
static unsigned next_round_ms(unsigned last_ms, enum lien_rest rest, bool singly)
{
	if (rest == LIEN_REST_FAR)
		return ROUND_MS;
	if (rest != LIEN_REST_REACHED || singly)
		return NEAR_MS;
	return 2 * last_ms < LONG_MS ? 2 * last_ms : LONG_MS;
}

/*
 * Counts can be wrong: a group was open before anybody watched, or NCCL has refused a call that was
 * counted. If they show nobody who must go on and the job does not come to rest all the same, the
 * devices are asked as if there were no counts. If half of the time passes so, nobody is held on
 * account of a count any more: a refused call shifts all counts of its rank after it, so that the
 * others would always be let in one call too far. If all are held and a device is busy, it may have
 * long work of its own, or wait for a rank that is held; but only for one whose own device is idle.
 */
static bool is_doubtful(
	struct lien_transaction *t, unsigned passes, enum lien_rest rest, bool idle_for_another)
{
	struct lien_resting *resting = &t->resting;
	const uint64_t now = t->ops.now_ns(t->ops.context);
	uint64_t still;

	if (resting->passes != passes || rest == LIEN_REST_LEVEL || rest == LIEN_REST_UNEVEN)
		t->t_moved = now;
	still = now - t->t_moved;
	t->doubtful |= rest != LIEN_REST_REACHED && still > DOUBT_NS;
	resting->disbelieved |= (rest != LIEN_REST_REACHED || idle_for_another) &&
				still > t->timeout_ms * 1000000ull / 2;
	return t->doubtful;
}

/* Returns false if the job is not at rest, and does what brings it nearer. `busy`: a device is. */
static bool look(struct lien_transaction *t, bool busy)
{
	struct lien_resting *resting = &t->resting;
	const unsigned passes = resting->passes;
	enum lien_rest rest;

	resting->counted = true; /* until a look says otherwise: nobody is asked unawares */
	resting->launches = resting->begins = resting->idle = false;
	resting->unasked = !t->ask;
	resting->ns = t->ops.now_ns(t->ops.context) - t->t_level;
	resting->round_ns = t->ops.now_ns(t->ops.context) - t->t_round;
	rest = t->ops.at_rest(t->ops.context, resting);
	t->round_ms = next_round_ms(t->round_ms, rest, resting->singly.pid);
	if (is_doubtful(t, passes, rest, busy && resting->idle))
		resting->counted = false;
	t->ask = rest == LIEN_REST_REACHED || (!resting->counted && !resting->begins);
	/* Ranks elsewhere may have to launch: what is level here can turn out not to be. */
	t->launches = !resting->counted || resting->launches || t->ops.may_go_on;
	if (rest == LIEN_REST_LEVEL && !lien_gates_step(t, LIEN_GATE_SHUT))
		resting->levelling = false;
	if (rest == LIEN_REST_UNEVEN && !lien_gates_step(t, LIEN_GATE_LEVEL)) {
		resting->levelling = true;
		t->t_level = t->ops.now_ns(t->ops.context);
		resting->levels++;
	}
	return rest == LIEN_REST_REACHED;
}

/* All are at rest, and something else is not ready: makes sure once more that they are. `why`: for
 * a failure, when that has taken too long. */
static void rest_again(struct lien_transaction *t, const char *why)
{
	uint64_t now = t->ops.now_ns(t->ops.context);

	if (now - t->t_drain >= REST_NS + t->timeout_ms * 1000000ull) {
		lien_transaction_fail(t, -ETIMEDOUT, 0, "%s", why);
		t->result.blame.cause = LIEN_CAUSE_NOT_AT_REST;
		return;
	}
	t->round_ms = ROUND_MS;
	t->t_again = now + AGAIN_NS;
	lien_phase_begin(t, LIEN_PHASE_DRAIN);
}

/* A process that has nothing left to move still takes part. Returns 0: it moves what it was to move
 * before; 1: something else. */
static int take_part(
	struct lien_transaction *t, unsigned index, const struct lien_plan_process *part)
{
	struct participant *participant = &t->participants[index];
	struct lien_wire_item *before = participant->items;
	const unsigned count = participant->count;
	int err;

	participant->items = NULL;
	participant->room = participant->count = 0;
	err = lien_participant_take(t, index, part);
	if (!err)
		err = participant->count != count ||
		      (count && memcmp(participant->items, before, count * sizeof(*before)) != 0);
	free(before);
	return err;
}

/* Returns 0: it is as before; 1: something else is to be moved; -errno. */
static int take_plan(struct lien_transaction *t, const struct lien_plan *plan)
{
	static const struct lien_plan_process nothing;
	const struct lien_plan_process *part;
	unsigned i;
	int err, other = 0;

	for (i = 0; i < plan->processes_count; i++)
		if (lien_transaction_index(t, plan->processes[i].pid) < 0)
			return -EBUSY;
	for (i = 0; i < t->count; i++) {
		part = lien_plan_part(plan, t->processes[i].pid);
		err = take_part(t, i, part ? part : &nothing);
		if (err < 0)
			return err;
		other |= err;
	}
	return other;
}

/* Nothing changes any more: this settles what an offload is to move. */
static void at_rest(struct lien_transaction *t)
{
	const struct lien_plan *plan;
	struct lien_blame blame = {0};
	char why[400] = "";
	int err =
		t->ops.replan ? t->ops.replan(t->ops.context, &plan, &blame, why, sizeof(why)) : 0;

	if (!err && !t->replanned) {
		lien_phase_next(t);
		return;
	}
	if (err == -EINPROGRESS) {
		rest_again(t, "the node's open files were not read in time");
		return;
	}
	if (err > 0) {
		err = take_plan(t, plan);
		if (err < 0)
			snprintf(why, sizeof(why), "%s",
				err == -EBUSY ? "meanwhile others have come to share the memory: "
						"try again"
					      : strerror(-err));
	}
	if (err < 0) {
		lien_transaction_fail(t, err, 0, "%s", why);
		if (blame.cause != LIEN_CAUSE_FAILED)
			t->result.blame = blame;
		return;
	}
	if (lien_gates_step(t, LIEN_GATE_SHUT)) /* the memory may lie elsewhere by now */
		return;
	/* There, copies may be under way that were let in. */
	if (err) {
		t->replanned = true;
		t->rested = false;
		rest_again(t, "what is to be moved changes all the time");
		return;
	}
	t->restaged = true;
	lien_phase_begin(t, LIEN_PHASE_STAGE);
}

/*
 * The gate may hold some ranks before a collective that others are already waiting in; those ranks
 * are let in, until all are level. Then the gates are shut for all else. The job is at rest when no
 * thread was in a call before its devices were found idle.
 */
static void drained(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context);
	uint32_t *pids = calloc(t->count + 1, sizeof(*pids));
	bool *devices = calloc(2 * (t->count + 1), sizeof(*devices));
	bool *working = devices + t->count + 1;
	const bool asked = t->ask;
	enum lien_go_on elsewhere = LIEN_GO_ON_LOOK; /* what other nodes need, and */
	bool here;				     /* this one is at rest */
	const char *busy = NULL;
	char why[200] = "", device[128];
	uint32_t busy_pid = 0;
	struct lien_resting *resting = &t->resting;
	unsigned i, n = 0;

	resting->pids = pids;
	resting->busy = devices;
	resting->working = working;
	resting->why = why;
	resting->size = sizeof(why);
	resting->who = 0;
	for (i = 0; pids && devices && i < t->count; i++) {
		if (t->participants[i].gone)
			continue;
		devices[n] = t->participants[i].busy || !asked;
		working[n] = t->participants[i].working;
		/* That NCCL is at work says more than that a device is. */
		if (t->participants[i].busy && (!busy || t->participants[i].working)) {
			snprintf(device, sizeof(device), "process %u, drain: %s",
				t->processes[i].pid, t->participants[i].busy_text);
			busy = device;
			busy_pid = t->processes[i].pid;
		}
		pids[n++] = t->processes[i].pid;
	}
	here = t->rested && asked && !busy;
	if (here)
		elsewhere = captures(t) ? LIEN_GO_ON_NO
					: lien_transaction_may_go_on(t, LIEN_POINT_REST);
	if (elsewhere == LIEN_GO_ON_YES) {
		if (t->ops.rested)
			t->ops.rested(t->ops.context, pids, n);
		at_rest(t);
	} else if (!t->stopping) {
		resting->count = n;
		t->t_again = now + AGAIN_NS;
		if (elsewhere == LIEN_GO_ON_LOOK) {
			t->rested = pids && devices && look(t, asked && busy);
			if (!here && ((asked && busy) || t->rested))
				t->t_again = now;
		}
		if (now - t->t_drain >= t->timeout_ms * 1000000ull)
			lien_transaction_fail(t, -EBUSY, busy ? busy_pid : resting->who, "%s%s%s",
				here   ? "at rest, but other nodes are not"
				: busy ? busy
				       : "not at rest",
				why[0] && !here ? ": " : "", here ? "" : why);
		else if (!t->stopping)
			lien_phase_begin(t, LIEN_PHASE_DRAIN);
	}
	free(pids);
	free(devices);
}

static void drain_next(struct lien_transaction *t)
{
	t->result.rest_ns = t->ops.now_ns(t->ops.context) - t->t_start; /* the last time, it is */
	if (t->ops.gate)
		drained(t);
	else
		lien_phase_next(t);
}

const struct phase lien_phase_drain = {
	.name = "drain",
	.type = LIEN_WIRE_DRAIN,
	.limit_ms = 2000,
	.waits_for_rest = true,
	.timed = true,
	.held = true,
	.applies = is_unrested,
	.enter = drain_enter,
	.order = drain_order,
	.arguments = drain_arguments,
	.reply = drain_reply,
	.excuse = drain_excuse,
	.next = drain_next,
};

/* --- opening the gates ------------------------------------------------------------------------ */

static bool gate_exists(const struct lien_transaction *t)
{
	return t->ops.gate;
}

/* Processes from which nothing was moved in the end go on; after a failed offload, all do. */
static void open_order(struct lien_transaction *t, unsigned index)
{
	if (t->kind == LIEN_TRANSACTION_OFFLOAD && !t->result.error && t->participants[index].count)
		t->participants[index].finished = true;
	else
		lien_transaction_order(t, index, LIEN_PHASE_OPEN, 0, NULL, 0);
}

/* Lets the process's threads go on; if something of it is still away, they stay held: after an
 * offload that has failed and left nothing of its own away, those that were held before. */
static void open_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	const uint32_t pid = t->processes[index].pid;
	char why[200];

	if (!reply->result || t->kind == LIEN_TRANSACTION_ADOPTION)
		t->ops.gate(t->ops.context, pid, LIEN_GATE_OPEN, why, sizeof(why));
	else if (t->kind == LIEN_TRANSACTION_OFFLOAD && !t->result.undo_failed && !t->result.lost)
		t->ops.gate(t->ops.context, pid, LIEN_GATE_BACK, why, sizeof(why));
	t->participants[index].finished = true;
}

static void opened(struct lien_transaction *t)
{
	if (!lien_restore_part_over(t))
		lien_phase_next(t);
}

const struct phase lien_phase_open = {
	.name = "open",
	.type = LIEN_WIRE_GATE,
	.limit_ms = 10000,
	.applies = gate_exists,
	.order = open_order,
	.may_fail = true,
	.arguments = gate_arguments,
	.reply = open_reply,
	.next = opened,
	.stop = LIEN_PHASE_COUNT,
};

/* --- agreeing with other nodes ---------------------------------------------------------------- */

static bool has_others(const struct lien_transaction *t)
{
	return t->ops.may_go_on;
}

/* Its orders say that we are alive: they must have been answered before others are given. */
static void agree_step(struct lien_transaction *t)
{
	if (!lien_transaction_idle(t))
		return;
	if (t->stopping) {
		t->stopping = false;
		lien_phase_begin(t, LIEN_PHASE_DISCARD);
	} else if (lien_transaction_may_go_on(t, LIEN_POINT_READY) == LIEN_GO_ON_YES) {
		lien_phase_next(t);
	}
}

const struct phase lien_phase_agree = {
	.name = "agree",
	.type = LIEN_WIRE_GATE,
	.held = true,
	.applies = has_others,
	.ordered = lien_transaction_wake,
	.step = agree_step,
};

const struct phase lien_phase_alive = {
	.name = "alive",
	.type = LIEN_WIRE_GATE,
	.limit_ms = 10000,
	.arguments = gate_arguments,
};
