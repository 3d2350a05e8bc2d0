// SPDX-License-Identifier: BSD-2-Clause
/* Brings the job to rest, behind its gates, and lets it go on. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/offload/transaction_internal.h"

/* one round of draining; 1 ms while others wait for threads that are let in */
#define ROUND_MS  10
#define REST_NS	  10000000000ull /* for the agent to find out what it needs then */
#define AGAIN_NS  1000000ull	 /* until the next look at who is in a call */
#define MAKING_NS 60000000000ull /* for the kernel to attach the gate: the job runs meanwhile */

/* Captures may have begun since the plan was made, and draining would spoil them. */
static bool captures(struct lien_transaction *t)
{
	const char *reason;
	unsigned i;

	for (i = 0; i < t->count && !t->stopping; i++) {
		reason = t->ops.not_now(t->ops.context, t->processes[i].pid);
		if (reason)
			lien_transaction_fail(
				t, -EBUSY, "process %u %s", t->processes[i].pid, reason);
	}
	return t->stopping;
}

/* --- gates ------------------------------------------------------------------------------------ */

/* A process can be too slow to be read. */
static bool may_make_later(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context);

	if (!t->t_making)
		t->t_making = now;
	return now - t->t_making < MAKING_NS;
}

int lien_gates_step(struct lien_transaction *t, enum lien_gate_step step)
{
	char why[200];
	unsigned i;
	int err;

	for (i = 0; i < t->count && !t->stopping; i++) {
		if (!t->participants[i].member || t->participants[i].gone)
			continue;
		err = t->ops.gate(t->ops.context, t->processes[i].pid, step, why, sizeof(why));
		if (err == -ETIMEDOUT && step == LIEN_GATE_MAKE && may_make_later(t))
			return -EAGAIN;
		if (err && step == LIEN_GATE_HOLDS && t->phase == LIEN_PHASE_DROP)
			lien_transaction_fail(t, err,
				"process %u, gate: %s after memory was saved; if it has written to "
				"that memory, what it wrote is lost",
				t->processes[i].pid, why);
		else if (err)
			lien_transaction_fail(
				t, err, "process %u, gate: %s", t->processes[i].pid, why);
	}
	return t->stopping ? t->result.error : 0;
}

/* Only once: when something is staged again, the job is already at rest. */
static bool has_gate(const struct lien_transaction *t)
{
	return t->ops.gate && !t->restaged;
}

/* Checks captures first: a thread held in a capture could never end it. */
static bool gate_enter(struct lien_transaction *t)
{
	return !captures(t) && !lien_gates_step(t, LIEN_GATE_MAKE);
}

/* In an adoption, this is the very first order. */
static void gate_arguments(
	const struct lien_transaction *t, struct lien_wire_header *order, const void *body)
{
	order->arg = body ? LIEN_WIRE_GATE_PASS : LIEN_WIRE_GATE_SHUT;
	order->arg2 = t->kind == LIEN_TRANSACTION_ADOPTION ? t->generation : 0;
}

/* Threads can be let in later, too, so replies may come in another phase. */
static void gate_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	if (t->phase == LIEN_PHASE_GATE && reply->header->flags & LIEN_WIRE_LAST)
		lien_phase_finished(t, index);
}

const struct phase lien_phase_gate = {
	.name = "gate",
	.type = LIEN_WIRE_GATE,
	.limit_ms = 10000,
	.held = true,
	.applies = has_gate,
	.enter = gate_enter,
	.arguments = gate_arguments,
	.reply = gate_reply,
};

/* --- draining --------------------------------------------------------------------------------- */

static bool is_unrested(const struct lien_transaction *t)
{
	return !t->restaged;
}

/*
 * Begins a round of draining when its time has come, and when the threads that were let in have
 * been named to their processes.
 */
static bool drain_enter(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context);

	if (t->phase == LIEN_PHASE_DRAIN)
		return lien_transaction_idle(t) && now >= t->t_again;
	t->t_shut = now;
	if ((t->ops.gate && lien_gates_step(t, LIEN_GATE_SHUT)) || captures(t))
		return false;
	t->t_drain = t->ops.now_ns(t->ops.context);
	t->rested = false;
	return true;
}

static void drain_order(struct lien_transaction *t, unsigned index)
{
	uint64_t comms[LIEN_WIRE_COMMS_MAX];
	unsigned n = 0;

	if (t->ops.background)
		n = t->ops.background(
			t->ops.context, t->processes[index].pid, comms, LIEN_WIRE_COMMS_MAX);
	lien_transaction_order(t, index, LIEN_PHASE_DRAIN, 0, comms, n * sizeof(comms[0]), NULL, 0);
}

/* With a gate the devices are checked in short rounds; in between, threads are let in. */
static void drain_arguments(
	const struct lien_transaction *t, struct lien_wire_header *order, const void *body)
{
	(void)body;
	order->arg = !t->ops.gate || t->timeout_ms <= ROUND_MS ? t->timeout_ms
		     : t->passed			       ? 1
							       : ROUND_MS;
}

static void drain_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	struct participant *participant = &t->participants[index];

	if (!(reply->header->flags & LIEN_WIRE_LAST))
		return;
	participant->busy = reply->header->result;
	snprintf(participant->busy_text, sizeof(participant->busy_text), "%.*s",
		(int)sizeof(reply->header->text), reply->header->text);
	lien_phase_finished(t, index);
}

static bool drain_excuse(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	(void)index;
	return t->ops.gate && reply->result == -ETIMEDOUT; /* only this round timed out */
}

static void pass(void *to, uint32_t pid, const uint32_t *tids, unsigned count)
{
	struct lien_transaction *t = to;
	int index = lien_transaction_index(t, pid);

	t->passed = true;
	if (index >= 0 && !t->participants[index].seq && !t->participants[index].gone)
		lien_transaction_order(
			t, index, LIEN_PHASE_GATE, 0, tids, count * sizeof(*tids), NULL, 0);
}

/*
 * All have said whether their devices are idle. The gate may hold some ranks before a collective
 * that others are already waiting in; those ranks are let in, until all are level. The job is at
 * rest when no thread was in a call before its devices were found idle.
 */
static void drained(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context);
	uint32_t *pids = calloc(t->count + 1, sizeof(*pids));
	bool *devices = calloc(t->count + 1, sizeof(*devices));
	const char *busy = NULL;
	char why[200] = "", device[128];
	unsigned i, n = 0;

	for (i = 0; pids && devices && i < t->count; i++) {
		if (t->participants[i].gone)
			continue;
		devices[n] = t->participants[i].busy;
		if (t->participants[i].busy) {
			snprintf(device, sizeof(device), "process %u, drain: %s",
				t->processes[i].pid, t->participants[i].busy_text);
			busy = device;
		}
		pids[n++] = t->processes[i].pid;
	}
	if (t->rested && !busy) {
		if (!captures(t))
			lien_phase_rest(t);
	} else {
		t->passed = false;
		t->rested =
			pids && devices &&
			t->ops.at_rest(t->ops.context, pids, devices, n, pass, t, why, sizeof(why));
		t->t_again = now + (busy || t->rested ? 0 : AGAIN_NS);
		if (now - t->t_drain >= t->timeout_ms * 1000000ull)
			lien_transaction_fail(t, -EBUSY, "%s%s%s", busy ? busy : "not at rest",
				why[0] ? ": " : "", why);
		else
			lien_phase_begin(t, LIEN_PHASE_DRAIN);
	}
	free(pids);
	free(devices);
}

void lien_rest_again(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context);

	if (now - t->t_drain >= REST_NS + t->timeout_ms * 1000000ull) {
		lien_transaction_fail(t, -ETIMEDOUT, "the node's open files were not read in time");
		return;
	}
	t->passed = false;
	t->t_again = now + AGAIN_NS;
	lien_phase_begin(t, LIEN_PHASE_DRAIN);
}

static void drain_next(struct lien_transaction *t)
{
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
		lien_transaction_order(t, index, LIEN_PHASE_OPEN, 0, NULL, 0, NULL, 0);
}

static void open_arguments(
	const struct lien_transaction *t, struct lien_wire_header *order, const void *body)
{
	(void)t, (void)body;
	order->arg = LIEN_WIRE_GATE_OPEN;
}

/* Lets the process's threads go on; if something of it is still away, they stay held. */
static void open_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	char why[200];

	if (!reply->header->result || t->kind == LIEN_TRANSACTION_ADOPTION)
		t->ops.gate(
			t->ops.context, t->processes[index].pid, LIEN_GATE_OPEN, why, sizeof(why));
	t->participants[index].finished = true;
}

static bool open_excuse(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	(void)t, (void)index, (void)reply;
	return true;
}

const struct phase lien_phase_open = {
	.name = "open",
	.type = LIEN_WIRE_GATE,
	.limit_ms = 10000,
	.applies = gate_exists,
	.order = open_order,
	.arguments = open_arguments,
	.reply = open_reply,
	.excuse = open_excuse,
	.stop = lien_transaction_end,
};

void lien_transaction_open(struct lien_transaction *t)
{
	if (t->ops.gate)
		lien_phase_begin(t, LIEN_PHASE_OPEN);
	else
		lien_transaction_end(t);
}

static void alive_arguments(
	const struct lien_transaction *t, struct lien_wire_header *order, const void *body)
{
	(void)t, (void)body;
	order->arg = LIEN_WIRE_GATE_ALIVE;
}

static void alive_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	(void)t, (void)index, (void)reply;
}

const struct phase lien_phase_alive = {
	.name = "alive",
	.type = LIEN_WIRE_GATE,
	.limit_ms = 10000,
	.arguments = alive_arguments,
	.reply = alive_reply,
};
