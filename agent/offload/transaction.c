// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/offload/transaction_internal.h"

static const struct {
	const char *name;
	enum lien_wire_type order;
	/* The longest wait: this, and this much for each MiB and item that has to be moved. */
	unsigned limit_ms, limit_ms_per_mib, limit_ms_per_item;
} phases[LIEN_PHASE_COUNT] = {
	[LIEN_PHASE_STAGE] = {"stage", LIEN_WIRE_STAGE, 10000, 0, 1},
	[LIEN_PHASE_GATE] = {"gate", LIEN_WIRE_GATE, 10000, 0, 0},
	[LIEN_PHASE_DRAIN] = {"drain", LIEN_WIRE_DRAIN, 2000, 0, 0},
	[LIEN_PHASE_CHECK] = {"check", LIEN_WIRE_CHECK, 10000, 0, 10},
	[LIEN_PHASE_SAVE] = {"save", LIEN_WIRE_SAVE, 30000, 5, 10},
	[LIEN_PHASE_UNMAP] = {"unmap", LIEN_WIRE_UNMAP, 30000, 0, 50},
	[LIEN_PHASE_DROP] = {"drop", LIEN_WIRE_DROP, 30000, 0, 50},
	[LIEN_PHASE_DISCARD] = {"discard", LIEN_WIRE_DISCARD, 10000, 0, 1},
	[LIEN_PHASE_LIST] = {"list", LIEN_WIRE_LIST, 30000, 0, 0},
	[LIEN_PHASE_CREATE] = {"create", LIEN_WIRE_CREATE, 30000, 5, 50},
	[LIEN_PHASE_EXPORT] = {"export", LIEN_WIRE_EXPORT, 30000, 0, 50},
	[LIEN_PHASE_IMPORT] = {"import", LIEN_WIRE_IMPORT, 30000, 0, 50},
	[LIEN_PHASE_FINISH] = {"finish", LIEN_WIRE_FINISH, 30000, 5, 0},
	[LIEN_PHASE_RELEASE] = {"release", LIEN_WIRE_RELEASE, 60000, 0, 0},
	[LIEN_PHASE_ADOPT_COUNT] = {"count", LIEN_WIRE_COUNT, 10000, 0, 10},
	[LIEN_PHASE_MARKS] = {"marks", LIEN_WIRE_MARKS, 10000, 0, 1},
	[LIEN_PHASE_MARK] = {"mark", LIEN_WIRE_MARK, 10000, 0, 10},
	[LIEN_PHASE_LOOK] = {"look", LIEN_WIRE_LOOK, 10000, 0, 10},
	[LIEN_PHASE_UNMARK] = {"unmark", LIEN_WIRE_UNMARK, 10000, 0, 10},
	[LIEN_PHASE_OPEN] = {"open", LIEN_WIRE_GATE, 10000, 0, 0},
	[LIEN_PHASE_ALIVE] = {"alive", LIEN_WIRE_GATE, 10000, 0, 0},
};

#define ROUND_MS 10	    /* of draining; 1, while others wait for those that are let in */
#define AGAIN_NS 1000000ull /* before who is in a call is looked at again */
/* A control library that hears nothing for a while lets its threads go, and what it has saved
 * (control/driver/gate.h). */
#define ALIVE_NS  1000000000ull
#define MAKING_NS 60000000000ull /* for the kernel to put the gate on: the job runs meanwhile */
/* However much a process says it has. */
#define LIMIT_MS 600000

const char *lien_phase_name(enum lien_phase phase)
{
	return phases[phase].name;
}

static int item_cmp(const void *a, const void *b)
{
	const struct lien_wire_item *x = a, *y = b;

	if (x->token != y->token)
		return x->token < y->token ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

int lien_participant_sort(struct participant *participant)
{
	if (participant->count)
		qsort(participant->items, participant->count, sizeof(participant->items[0]),
			item_cmp);
	free(participant->imports);
	participant->imports = calloc(participant->count + 1, sizeof(*participant->imports));
	return participant->imports ? 0 : -ENOMEM;
}

struct lien_wire_item *lien_participant_find(const struct participant *participant, uint64_t token)
{
	struct lien_wire_item key = {.token = token};

	return participant->count ? bsearch(&key, participant->items, participant->count,
					    sizeof(key), item_cmp)
				  : NULL;
}

int lien_participant_add(
	struct participant *participant, const struct lien_wire_item *items, unsigned count)
{
	unsigned room = participant->room ? participant->room : 64;
	struct lien_wire_item *grown;

	if (count > LIEN_WIRE_ITEMS_MAX - participant->count)
		return -E2BIG;
	while (room < participant->count + count)
		room *= 2;
	if (room != participant->room) {
		grown = realloc(participant->items, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		participant->items = grown;
		participant->room = room;
	}
	if (count)
		memcpy(participant->items + participant->count, items, count * sizeof(*items));
	participant->count += count;
	return 0;
}

static struct lien_transaction *transaction_new(
	unsigned count, unsigned timeout_ms, const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->ops = *ops;
	t->timeout_ms = timeout_ms;
	t->count = count;
	t->next_seq = 1;
	t->processes = calloc(count + 1, sizeof(*t->processes));
	t->participants = calloc(count + 1, sizeof(*t->participants));
	if (!t->processes || !t->participants) {
		lien_transaction_free(t);
		return NULL;
	}
	return t;
}

/* What a process is to move, instead of what it was before. */
static int take_part(
	struct lien_transaction *t, unsigned index, const struct lien_plan_process *part)
{
	struct lien_transaction_process *process = &t->processes[index];
	struct participant *participant = &t->participants[index];
	unsigned i;

	process->allocations = part->allocations;
	process->imports = part->imports;
	process->mappings = part->items_count;
	process->bytes = part->bytes;
	process->discarded = part->discarded;
	participant->count = participant->staged = 0;
	if (lien_participant_add(participant, part->items, part->items_count))
		return -ENOMEM;
	for (i = 0; i < participant->count; i++)
		participant->items[i].token += t->token_base;
	return lien_participant_sort(participant);
}

void lien_transaction_name(struct lien_transaction *t, unsigned index, uint32_t pid)
{
	t->processes[index].pid = pid;
	t->processes[index].start = t->ops.began ? t->ops.began(t->ops.context, pid) : 0;
}

bool lien_transaction_alive(const struct lien_transaction *t, unsigned index)
{
	const struct lien_transaction_process *process = &t->processes[index];

	return t->ops.alive(t->ops.context, process->pid, process->start);
}

int lien_transaction_offload(struct lien_transaction **out, const struct lien_plan *plan,
	uint64_t token_base, unsigned timeout_ms, const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = transaction_new(plan->processes_count, timeout_ms, ops);
	unsigned i;

	if (!t)
		return -ENOMEM;
	t->kind = LIEN_TRANSACTION_OFFLOAD;
	t->token_base = token_base;
	for (i = 0; i < t->count; i++) {
		t->participants[i].member = true;
		lien_transaction_name(t, i, plan->processes[i].pid);
		if (take_part(t, i, &plan->processes[i])) {
			lien_transaction_free(t);
			return -ENOMEM;
		}
	}
	*out = t;
	return 0;
}

int lien_transaction_restore(struct lien_transaction **out, const uint32_t *all, unsigned all_count,
	const uint32_t *pids, unsigned pids_count, unsigned timeout_ms,
	const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = transaction_new(all_count, timeout_ms, ops);
	unsigned i;

	if (!t)
		return -ENOMEM;
	t->kind = LIEN_TRANSACTION_RESTORE;
	t->restoring = true;
	for (i = 0; i < all_count; i++)
		lien_transaction_name(t, i, all[i]);
	t->pids = calloc(pids_count + 1, sizeof(*t->pids));
	if (!t->pids) {
		lien_transaction_free(t);
		return -ENOMEM;
	}
	if (pids_count)
		memcpy(t->pids, pids, pids_count * sizeof(*pids));
	t->pids_count = pids_count;
	*out = t;
	return 0;
}

int lien_transaction_release(struct lien_transaction **out, const uint32_t *pids,
	unsigned pids_count, const struct lien_transaction_ops *ops)
{
	int err = lien_transaction_restore(out, pids, pids_count, pids, pids_count, 0, ops);

	if (!err)
		(*out)->kind = LIEN_TRANSACTION_RELEASE;
	return err;
}

int lien_transaction_adopt(struct lien_transaction **out, const uint32_t *pids, unsigned pids_count,
	unsigned timeout_ms, const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = transaction_new(pids_count, timeout_ms, ops);
	unsigned i;

	if (!t)
		return -ENOMEM;
	t->kind = LIEN_TRANSACTION_ADOPTION;
	for (i = 0; i < pids_count; i++) {
		lien_transaction_name(t, i, pids[i]);
		t->participants[i].member = true;
	}
	*out = t;
	return 0;
}

void lien_transaction_set(struct lien_transaction *t, uint32_t flags)
{
	t->flags = flags;
}

void lien_transaction_free(struct lien_transaction *t)
{
	unsigned i, j;

	if (!t)
		return;
	for (i = 0; t->participants && i < t->count; i++) {
		for (j = 0; j < t->participants[i].shares_count; j++)
			if (t->participants[i].shares[j].fd >= 0)
				t->ops.fd_close(t->participants[i].shares[j].fd);
		free(t->participants[i].shares);
		free(t->participants[i].raw);
		free(t->participants[i].items);
		free(t->participants[i].imports);
	}
	free(t->participants);
	free(t->processes);
	free(t->pids);
	free(t);
}

void lien_transaction_fail(struct lien_transaction *t, int error, const char *format, ...)
{
	char *text = t->result.error ? t->result.undo_text : t->result.text;
	size_t size = t->result.error ? sizeof(t->result.undo_text) : sizeof(t->result.text);
	bool undo = t->restoring && (t->kind == LIEN_TRANSACTION_OFFLOAD || t->result.lost);
	va_list args;

	if (t->kind == LIEN_TRANSACTION_ADOPTION && t->phase == LIEN_PHASE_OPEN)
		return; /* what is known stays known, whoever ends now */
	if (!t->restoring)
		t->stopping = true;
	if (t->kind == LIEN_TRANSACTION_OFFLOAD && t->restoring)
		t->result.undo_failed = true;
	t->failing |= t->restoring && error != -EOWNERDEAD;
	if (t->result.error && (!undo || t->result.undo_text[0]))
		return;
	if (!t->result.error)
		t->result.error = error;
	va_start(args, format);
	vsnprintf(text, size, format, args);
	va_end(args);
}

/* A process takes no further part. If it was saving, it may have saved by now, and keeps what
 * others import until a restore asks it. */
static void drop_out(struct lien_transaction *t, unsigned index)
{
	if (t->participants[index].seq && t->ops.cancel)
		t->ops.cancel(t->ops.context, t->processes[index].pid);
	if (t->kind == LIEN_TRANSACTION_OFFLOAD && t->participants[index].phase == LIEN_PHASE_SAVE)
		t->processes[index].lends = true;
	t->participants[index].gone = true;
	t->participants[index].seq = 0;
	t->processes[index].failed = true;
}

/* With a gate the devices are looked at again and again: between, others are let in. */
static uint64_t argument(const struct lien_transaction *t, enum lien_phase phase, const void *body)
{
	switch (phase) {
	case LIEN_PHASE_DRAIN:
		if (!t->ops.gate || t->timeout_ms <= ROUND_MS)
			return t->timeout_ms;
		return t->passed ? 1 : ROUND_MS;
	case LIEN_PHASE_GATE:
		return body ? LIEN_WIRE_GATE_PASS : LIEN_WIRE_GATE_SHUT;
	case LIEN_PHASE_OPEN:
		return LIEN_WIRE_GATE_OPEN;
	case LIEN_PHASE_ALIVE:
		return LIEN_WIRE_GATE_ALIVE;
	default:
		return t->generation;
	}
}

void lien_transaction_order(struct lien_transaction *t, unsigned index, enum lien_phase phase,
	uint32_t flags, const void *body, size_t size, const int *fds, unsigned fds_count)
{
	struct participant *participant = &t->participants[index];
	struct lien_wire_header order = {
		.length = sizeof(order) + size,
		.type = phases[phase].order,
		.flags = flags,
		.seq = t->next_seq++,
		.arg = argument(t, phase, body),
		.arg2 = t->kind == LIEN_TRANSACTION_ADOPTION && phase == LIEN_PHASE_GATE
				? t->generation
				: 0,
	};

	participant->seq = order.seq;
	participant->phase = phase;
	participant->t_sent = t->ops.now_ns(t->ops.context);
	if (t->ops.send(t->ops.context, t->processes[index].pid, &order, body, fds, fds_count)) {
		drop_out(t, index);
		/* The dead hold nothing that could be restored. */
		if (phase != LIEN_PHASE_LIST || lien_transaction_alive(t, index))
			lien_transaction_fail(
				t, -ESRCH, "process %u cannot be reached", t->processes[index].pid);
	}
}

bool lien_transaction_idle(const struct lien_transaction *t)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (t->participants[i].seq)
			return false;
	return true;
}

void lien_transaction_progress(struct lien_transaction *t)
{
	unsigned i, done = 0, of = 0;

	for (i = 0; i < t->count; i++)
		if (t->participants[i].member && !t->participants[i].gone) {
			done += t->participants[i].finished;
			of++;
		}
	t->ops.progress(t->ops.context, t->phase, done, of);
}

void lien_transaction_end(struct lien_transaction *t)
{
	unsigned i, n = 0;

	for (i = 0; i < t->count; i++)
		if (t->participants[i].member) {
			struct lien_transaction_process process = t->processes[i];

			t->result.bytes += process.bytes;
			t->result.discarded += process.discarded;
			t->result.verified += process.verified;
			t->processes[i] = t->processes[n];
			t->processes[n++] = process;
			if (n - 1 != i) { /* keeps both arrays parallel */
				struct participant other = t->participants[i];

				t->participants[i] = t->participants[n - 1];
				t->participants[n - 1] = other;
			}
		}
	t->result.all_back =
		t->kind == LIEN_TRANSACTION_RESTORE && !t->pids_count && !t->result.error;
	t->result.only_lost = t->result.lost && !t->failing;
	t->result.processes = t->processes;
	t->result.processes_count = n;
	t->result.ns = t->ops.now_ns(t->ops.context) - t->t_start;
	t->result.pause_ns = t->t_shut ? t->ops.now_ns(t->ops.context) - t->t_shut : 0;
	t->ended = true;
	t->ops.done(t->ops.context, t);
}

#define STAGE_ITEMS ((LIEN_WIRE_MESSAGE_MAX / 2) / sizeof(struct lien_wire_item))
#define STAGE_RAW   ((LIEN_WIRE_MESSAGE_MAX / 2) / sizeof(struct lien_wire_raw))

static void stage_raw(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];
	unsigned first = participant->raw_sent, n = participant->raw_count - first;

	if (n > STAGE_RAW)
		n = STAGE_RAW;
	participant->raw_sent += n;
	lien_transaction_order(t, index, LIEN_PHASE_STAGE, LIEN_WIRE_RAW, participant->raw + first,
		n * sizeof(participant->raw[0]), NULL, 0);
}

static void stage_more(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];
	unsigned first = participant->staged, n = participant->count - first;
	uint32_t flags = t->flags & LIEN_WIRE_ALL;

	if (participant->raw_sent < participant->raw_count) {
		stage_raw(t, index);
		return;
	}
	if (n > STAGE_ITEMS)
		n = STAGE_ITEMS;
	participant->staging = true;
	participant->staged += n;
	if (!first)
		flags |= LIEN_WIRE_FIRST;
	if (participant->staged == participant->count)
		flags |= LIEN_WIRE_LAST;
	lien_transaction_order(t, index, LIEN_PHASE_STAGE, flags, participant->items + first,
		n * sizeof(participant->items[0]), NULL, 0);
}

static void stage_begin(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];

	free(participant->raw);
	participant->raw = NULL;
	participant->raw_count = participant->raw_sent = 0;
	participant->staging = false;
	if (t->ops.raw && t->ops.raw(t->ops.context, t->processes[index].pid, &participant->raw,
				  &participant->raw_count))
		lien_transaction_fail(t, -ENOMEM, "out of memory");
	else
		stage_more(t, index);
}

/* -ENOTUNIQ: the process means two allocations by one value. */
static void raw_clashes(struct lien_transaction *t, unsigned index, uint64_t handle)
{
	uint32_t pid = t->processes[index].pid;
	const char *to = t->ops.raw_to ? t->ops.raw_to(t->ops.context, pid, handle) : "a library";

	lien_transaction_fail(t, -EBUSY,
		"process %u: %s has handle 0x%" PRIx64 " from the driver itself, and since a "
		"restore that means other memory to the rest of the process: try again when %s "
		"has released it, or start the process with `lien run`",
		pid, to, handle, to);
}

static void drain_one(struct lien_transaction *t, unsigned index)
{
	uint64_t comms[LIEN_WIRE_COMMS_MAX];
	unsigned n = 0;

	if (t->ops.background)
		n = t->ops.background(
			t->ops.context, t->processes[index].pid, comms, LIEN_WIRE_COMMS_MAX);
	lien_transaction_order(t, index, LIEN_PHASE_DRAIN, 0, comms, n * sizeof(comms[0]), NULL, 0);
}

void lien_transaction_phase_begin(struct lien_transaction *t, enum lien_phase phase)
{
	uint32_t flags = phase == LIEN_PHASE_SAVE   ? t->flags & LIEN_WIRE_VERIFY
			 : phase == LIEN_PHASE_LIST ? LIEN_WIRE_ROOM
						    : 0;
	unsigned i;

	t->phase = phase;
	for (i = 0; i < t->count; i++)
		t->participants[i].finished = false;
	lien_transaction_progress(t);
	for (i = 0; i < t->count; i++) {
		if (!t->participants[i].member || t->participants[i].gone ||
			(t->untouched_only && t->participants[i].count))
			continue;
		if (phase == LIEN_PHASE_STAGE)
			stage_begin(t, i);
		else if (phase == LIEN_PHASE_DRAIN)
			drain_one(t, i);
		else if (t->kind == LIEN_TRANSACTION_ADOPTION && phase != LIEN_PHASE_OPEN)
			lien_adopt_order(t, i, phase);
		else
			lien_transaction_order(t, i, phase, flags, NULL, 0, NULL, 0);
	}
}

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

/* A process can be too slow to be looked at: again with the next tick, for a while. */
static bool may_make_later(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context);

	if (!t->t_making)
		t->t_making = now;
	return now - t->t_making < MAKING_NS;
}

static void gate_each(struct lien_transaction *t, enum lien_gate_step step)
{
	char why[200];
	unsigned i;
	int err;

	for (i = 0; i < t->count && (!t->stopping || step == LIEN_GATE_OPEN); i++) {
		if (!t->participants[i].member || t->participants[i].gone)
			continue;
		err = t->ops.gate(t->ops.context, t->processes[i].pid, step, why, sizeof(why));
		if (err == -ETIMEDOUT && step == LIEN_GATE_MAKE && may_make_later(t)) {
			t->making = true;
			return;
		}
		if (err && step == LIEN_GATE_HOLDS && t->phase == LIEN_PHASE_DROP)
			lien_transaction_fail(t, err,
				"process %u, gate: %s after memory was saved; if it has written to "
				"that memory, what it wrote is lost",
				t->processes[i].pid, why);
		else if (err && step != LIEN_GATE_OPEN)
			lien_transaction_fail(
				t, err, "process %u, gate: %s", t->processes[i].pid, why);
	}
}

/* Captures first: a thread that is held in one could never end it. */
static void gate_begin(struct lien_transaction *t)
{
	if (captures(t))
		return;
	t->making = false;
	gate_each(t, LIEN_GATE_MAKE);
	if (!t->stopping && !t->making)
		lien_transaction_phase_begin(t, LIEN_PHASE_GATE);
}

static void drain_begin(struct lien_transaction *t)
{
	t->t_shut = t->ops.now_ns(t->ops.context);
	if (t->ops.gate)
		gate_each(t, LIEN_GATE_SHUT);
	if (t->stopping || captures(t))
		return;
	t->t_drain = t->ops.now_ns(t->ops.context);
	t->rested = t->waiting = false;
	lien_transaction_phase_begin(t, LIEN_PHASE_DRAIN);
}

static int index_of(const struct lien_transaction *t, uint32_t pid);

static void pass(void *to, uint32_t pid, const uint32_t *tids, unsigned count)
{
	struct lien_transaction *t = to;
	int index = index_of(t, pid);

	t->passed = true;
	if (index >= 0 && !t->participants[index].seq && !t->participants[index].gone)
		lien_transaction_order(
			t, index, LIEN_PHASE_GATE, 0, tids, count * sizeof(*tids), NULL, 0);
}

/* Begins the next round, when those that were let in have been told and its time has come. */
static void drain_again(struct lien_transaction *t)
{
	if (!t->waiting || !lien_transaction_idle(t) || t->ops.now_ns(t->ops.context) < t->t_again)
		return;
	t->waiting = false;
	lien_transaction_phase_begin(t, LIEN_PHASE_DRAIN);
}

/* A process that has nothing to move any more still takes part. */
static int take_plan(struct lien_transaction *t, const struct lien_plan *plan)
{
	static const struct lien_plan_process nothing;
	unsigned i;
	int index;

	for (i = 0; i < t->count; i++)
		if (take_part(t, i, &nothing))
			return -ENOMEM;
	for (i = 0; i < plan->processes_count; i++) {
		index = index_of(t, plan->processes[i].pid);
		if (index < 0)
			return -EBUSY;
		if (take_part(t, index, &plan->processes[i]))
			return -ENOMEM;
	}
	return 0;
}

/* Nobody changes anything any more: what is to be moved is settled now. */
static void at_rest(struct lien_transaction *t)
{
	const struct lien_plan *plan;
	char why[400] = "";
	int err;

	if (t->kind == LIEN_TRANSACTION_ADOPTION) {
		lien_adopt_rest(t);
		return;
	}
	err = t->ops.replan ? t->ops.replan(t->ops.context, &plan, why, sizeof(why)) : 0;

	if (!err) {
		lien_transaction_phase_begin(t, LIEN_PHASE_CHECK);
		return;
	}
	if (err > 0) {
		err = take_plan(t, plan);
		snprintf(why, sizeof(why), "%s",
			err == -EBUSY ? "meanwhile others have come to share the memory: try again"
				      : strerror(-err));
	}
	if (err) {
		lien_transaction_fail(t, err, "%s", why);
		return;
	}
	t->restaged = true;
	gate_each(t, LIEN_GATE_SHUT); /* the memory may lie elsewhere */
	if (!t->stopping)
		lien_transaction_phase_begin(t, LIEN_PHASE_STAGE);
}

/*
 * All have said whether their devices are idle. A rank whose collective waits for others would be
 * let down by a gate that holds these before theirs: so they are let in, until all are level. At
 * rest is a job of which nobody was in a call before its devices were found idle.
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
		free(pids);
		free(devices);
		if (!captures(t))
			at_rest(t);
		return;
	}
	t->passed = false;
	t->rested = pids && devices &&
		    t->ops.at_rest(t->ops.context, pids, devices, n, pass, t, why, sizeof(why));
	free(pids);
	free(devices);
	if (now - t->t_drain >= t->timeout_ms * 1000000ull) {
		lien_transaction_fail(
			t, -EBUSY, "%s%s%s", busy ? busy : "not at rest", why[0] ? ": " : "", why);
		return;
	}
	t->t_again = now + (busy || t->rested ? 0 : AGAIN_NS);
	t->waiting = true;
	drain_again(t);
}

/* Everything is still where it was: forget it, and end. */
static void discard(struct lien_transaction *t)
{
	t->stopping = false;
	lien_transaction_phase_begin(t, LIEN_PHASE_DISCARD);
}

/* Puts back what was dropped. */
static void undo(struct lien_transaction *t)
{
	t->stopping = false;
	t->restoring = true;
	lien_restore_begin(t);
}

void lien_transaction_open(struct lien_transaction *t)
{
	if (!t->ops.gate) {
		lien_transaction_end(t);
		return;
	}
	t->stopping = false;
	lien_transaction_phase_begin(t, LIEN_PHASE_OPEN);
	if (lien_transaction_idle(t))
		lien_transaction_end(t);
}

/* The end of an offload: those from which nothing was moved after all go on. */
static void open_untouched(struct lien_transaction *t)
{
	t->untouched_only = true;
	lien_transaction_open(t);
}

static void phase_next(struct lien_transaction *t)
{
	if (t->phase == LIEN_PHASE_STAGE && t->restaged)
		lien_transaction_phase_begin(t, LIEN_PHASE_CHECK);
	else if (t->phase == LIEN_PHASE_STAGE && t->ops.gate)
		gate_begin(t);
	else if (t->phase == LIEN_PHASE_STAGE || t->phase == LIEN_PHASE_GATE)
		drain_begin(t);
	else if (t->phase == LIEN_PHASE_DRAIN && t->ops.gate)
		drained(t);
	else
		lien_transaction_phase_begin(t, t->phase + 1);
}

/*
 * Whether nobody has come through the gates since all were at rest. Asked before anything is taken
 * away on the strength of what was saved; and once more at the end, for a thread that came through
 * in between may have written to memory that was already saved.
 */
static bool gates_hold(struct lien_transaction *t)
{
	if (t->ops.gate && t->phase >= LIEN_PHASE_SAVE && t->phase <= LIEN_PHASE_DROP)
		gate_each(t, LIEN_GATE_HOLDS);
	return !t->stopping;
}

/* Called whenever something changed: goes on when every order has been answered. */
static void offload_advance(struct lien_transaction *t)
{
	if (!lien_transaction_idle(t))
		return;
	if (!t->stopping)
		gates_hold(t);
	if (t->phase == LIEN_PHASE_OPEN) {
		lien_transaction_end(t);
	} else if (t->kind == LIEN_TRANSACTION_ADOPTION && (t->stopping || t->adoption)) {
		lien_adopt_advance(t);
	} else if (t->phase == LIEN_PHASE_DISCARD) {
		lien_transaction_open(t);
	} else if (t->stopping && t->phase < LIEN_PHASE_UNMAP) {
		discard(t);
		if (lien_transaction_idle(t)) /* nobody is left to discard anything */
			lien_transaction_open(t);
	} else if (t->stopping) {
		undo(t);
	} else if (t->phase == LIEN_PHASE_DROP) {
		open_untouched(t);
	} else if (t->waiting) {
		drain_again(t);
	} else {
		phase_next(t);
		if (t->stopping)
			offload_advance(t);
	}
}

static void offload_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	struct participant *participant = &t->participants[index];

	if (participant->phase != t->phase)
		return; /* somebody was let in, or it was told that we are alive */
	if (t->phase == LIEN_PHASE_DRAIN) {
		participant->busy = reply->result;
		snprintf(participant->busy_text, sizeof(participant->busy_text), "%.*s",
			(int)sizeof(reply->text), reply->text);
	}
	if (t->phase == LIEN_PHASE_STAGE && !t->stopping &&
		(!participant->staging || participant->staged < participant->count)) {
		stage_more(t, index);
		return;
	}
	if (t->phase == LIEN_PHASE_SAVE)
		participant->free_before = reply->arg2;
	if (t->phase == LIEN_PHASE_DROP)
		t->processes[index].freed_bytes = reply->arg2 - participant->free_before;
	participant->finished = true;
	lien_transaction_progress(t);
}

static void advance(struct lien_transaction *t);

void lien_transaction_start(struct lien_transaction *t)
{
	t->t_start = t->ops.now_ns(t->ops.context);
	if (t->kind == LIEN_TRANSACTION_ADOPTION) {
		t->generation = t->t_start | 1;
		gate_begin(t);
		if (t->stopping)
			offload_advance(t);
		return;
	}
	if (t->kind == LIEN_TRANSACTION_OFFLOAD) {
		t->generation = t->t_start | 1;
		lien_transaction_phase_begin(t, LIEN_PHASE_STAGE);
		if (t->stopping)
			offload_advance(t);
		return;
	}
	for (unsigned i = 0; i < t->count; i++)
		t->participants[i].member = true;
	lien_transaction_phase_begin(
		t, t->kind == LIEN_TRANSACTION_RELEASE ? LIEN_PHASE_RELEASE : LIEN_PHASE_LIST);
	if (lien_transaction_idle(t))
		advance(t);
}

/* After any change: the state machine that is in charge goes on. */
static void advance(struct lien_transaction *t)
{
	if (t->ended)
		return;
	if (t->phase == LIEN_PHASE_OPEN) {
		if (lien_transaction_idle(t))
			lien_transaction_end(t);
	} else if (!t->restoring)
		offload_advance(t);
	else if (t->kind == LIEN_TRANSACTION_RELEASE) {
		if (lien_transaction_idle(t))
			lien_transaction_end(t);
	} else if (t->phase == LIEN_PHASE_LIST) {
		if (lien_transaction_idle(t))
			lien_restore_listed(t);
	} else
		lien_restore_advance(t);
}

static int index_of(const struct lien_transaction *t, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (t->processes[i].pid == pid)
			return i;
	return -1;
}

static bool is_failure(const struct lien_transaction *t, enum lien_phase phase,
	const struct lien_wire_header *reply)
{
	if (phase == LIEN_PHASE_DRAIN && t->ops.gate && reply->result == -ETIMEDOUT)
		return false; /* of one round */
	return phase != LIEN_PHASE_DISCARD && phase != LIEN_PHASE_OPEN;
}

/* Its threads go on; those of a process from which something is still away do not. */
static void opened(struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	char why[200];

	if (!reply->result || t->kind == LIEN_TRANSACTION_ADOPTION)
		t->ops.gate(
			t->ops.context, t->processes[index].pid, LIEN_GATE_OPEN, why, sizeof(why));
	t->participants[index].finished = true;
}

void lien_transaction_reply(struct lien_transaction *t, uint32_t pid,
	const struct lien_wire_header *reply, const void *body, const int *fds, unsigned fds_count)
{
	int index = index_of(t, pid);
	struct participant *participant = index < 0 ? NULL : &t->participants[index];
	enum lien_phase phase = participant ? participant->phase : LIEN_PHASE_COUNT;
	unsigned i;

	if (t->ended || !participant || participant->seq != reply->seq || !reply->seq ||
		reply->type != phases[phase].order) {
		for (i = 0; i < fds_count; i++)
			t->ops.fd_close(fds[i]);
		return;
	}
	if (reply->flags & LIEN_WIRE_LAST) {
		participant->seq = 0;
		t->processes[index].phase_ns[phase] += reply->ns;
		t->processes[index].failed |= reply->result && is_failure(t, phase, reply);
		if (reply->result && phase == LIEN_PHASE_LIST)
			drop_out(t, index);
		if (reply->result == -ENOTUNIQ && phase == LIEN_PHASE_STAGE)
			raw_clashes(t, index, reply->arg);
		else if (reply->result && is_failure(t, phase, reply) &&
			 !(reply->result == CUDA_ERROR_OUT_OF_MEMORY &&
				 phase == LIEN_PHASE_CREATE && lien_room_failed(t, index)))
			lien_transaction_fail(t, reply->result < 0 ? reply->result : -EIO,
				reply->arg > LIEN_PHASE_COUNT
					? "process %u, %s: %.*s (at 0x%" PRIx64 ")"
					: "process %u, %s: %.*s",
				pid, phases[phase].name,
				(int)strnlen(reply->text, sizeof(reply->text)),
				reply->text[0] ? reply->text : "no reason given", reply->arg);
	}
	if (phase == LIEN_PHASE_OPEN) {
		for (i = 0; i < fds_count; i++)
			t->ops.fd_close(fds[i]);
		opened(t, index, reply);
	} else if (t->kind == LIEN_TRANSACTION_RELEASE) {
		t->processes[index].bytes = reply->result ? 0 : reply->arg;
		t->participants[index].finished = true;
		lien_transaction_progress(t);
		for (i = 0; i < fds_count; i++)
			t->ops.fd_close(fds[i]);
	} else if (t->restoring) {
		lien_restore_reply(t, index, reply, body, fds, fds_count);
	} else {
		for (i = 0; i < fds_count; i++)
			t->ops.fd_close(fds[i]);
		if (t->kind == LIEN_TRANSACTION_ADOPTION && t->adoption && phase == t->phase)
			lien_adopt_reply(t, index, reply, body);
		else if (reply->flags & LIEN_WIRE_LAST)
			offload_reply(t, index, reply);
	}
	advance(t);
}

void lien_transaction_gone(struct lien_transaction *t, uint32_t pid)
{
	int index = index_of(t, pid);
	bool lives;

	if (t->ended || index < 0 || t->participants[index].gone)
		return;
	lives = lien_transaction_alive(t, index);
	drop_out(t, index);
	/* The dead hold nothing that could be restored, put back, or given back. */
	if (lives || (t->phase != LIEN_PHASE_LIST && t->kind != LIEN_TRANSACTION_RELEASE &&
			     !(t->kind == LIEN_TRANSACTION_OFFLOAD && t->restoring)))
		lien_transaction_fail(t, -ESRCH,
			lives ? "process %u takes no orders any more, in `%s`"
			      : "process %u ended in `%s`",
			pid, phases[t->phase].name);
	advance(t);
}

/* Are there processes that would let go of something if they heard nothing? */
static bool holds_any(const struct lien_transaction *t)
{
	if (t->restoring)
		return t->phase >= LIEN_PHASE_CREATE && t->phase <= LIEN_PHASE_FINISH;
	return t->kind == LIEN_TRANSACTION_ADOPTION || t->restaged ||
	       (t->phase >= LIEN_PHASE_GATE && t->phase <= LIEN_PHASE_DROP);
}

/* Those that wait for others hear that we are there. */
static void keep_alive(struct lien_transaction *t, uint64_t now)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (t->participants[i].member && !t->participants[i].gone &&
			!t->participants[i].seq && now - t->participants[i].t_sent > ALIVE_NS)
			lien_transaction_order(t, i, LIEN_PHASE_ALIVE, 0, NULL, 0, NULL, 0);
}

static uint64_t limit_ms_of(const struct lien_transaction *t, unsigned index)
{
	const struct participant *participant = &t->participants[index];
	uint64_t limit_ms =
		phases[participant->phase].limit_ms +
		phases[participant->phase].limit_ms_per_mib * (t->processes[index].bytes >> 20) +
		phases[participant->phase].limit_ms_per_item * participant->count;

	if (participant->phase == LIEN_PHASE_DRAIN)
		limit_ms += t->timeout_ms;
	return limit_ms < LIMIT_MS ? limit_ms : LIMIT_MS;
}

static void no_answer(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];
	uint32_t pid = t->processes[index].pid;
	const char *busy = t->ops.busy_with ? t->ops.busy_with(t->ops.context, pid) : NULL;

	drop_out(t, index);
	participant->stuck = true;
	lien_transaction_fail(t, -ETIMEDOUT,
		"process %u did not answer `%s` within %" PRIu64 " ms%s%s", pid,
		phases[participant->phase].name, limit_ms_of(t, index),
		busy ? ": it was busy all the time with " : "", busy ? busy : "");
}

void lien_transaction_tick(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context);
	bool any = false;
	unsigned i;

	for (i = 0; i < t->count && !t->ended; i++) {
		if (!t->participants[i].seq ||
			now - t->participants[i].t_sent < limit_ms_of(t, i) * 1000000)
			continue;
		no_answer(t, i);
		any = true;
	}
	if (any)
		advance(t); /* which may be the end of the transaction */
	else if (t->making && !t->stopping)
		advance(t);
	else if (t->waiting && !t->stopping)
		drain_again(t);
	else if (holds_any(t))
		keep_alive(t, now);
}

const struct lien_transaction_result *lien_transaction_result(const struct lien_transaction *t)
{
	return &t->result;
}

enum lien_transaction_kind lien_transaction_kind(const struct lien_transaction *t)
{
	return t->kind;
}

const char *lien_transaction_kind_name(enum lien_transaction_kind kind)
{
	static const char *const names[] = {
		[LIEN_TRANSACTION_OFFLOAD] = "offload",
		[LIEN_TRANSACTION_RESTORE] = "restore",
		[LIEN_TRANSACTION_RELEASE] = "release",
		[LIEN_TRANSACTION_ADOPTION] = "adoption",
	};

	return names[kind];
}

enum lien_phase lien_transaction_phase(const struct lien_transaction *t)
{
	return t->phase;
}
