// SPDX-License-Identifier: BSD-2-Clause
/* Offload: staging, the work at rest, and the undo. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/transaction/transaction_internal.h"

#define STAGE_ITEMS ((LIEN_WIRE_MESSAGE_MAX / 2) / sizeof(struct lien_wire_item))
#define STAGE_RAW   ((LIEN_WIRE_MESSAGE_MAX / 2) / sizeof(struct lien_wire_raw))

/* --- staging ---------------------------------------------------------------------------------- */

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

/* With other nodes, nothing is touched before all have planned. */
static bool stage_enter(struct lien_transaction *t)
{
	return t->restaged || lien_transaction_may_go_on(t, LIEN_POINT_PLANNED) == LIEN_GO_ON_YES;
}

static void stage_order(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];

	free(participant->raw);
	participant->raw = NULL;
	participant->raw_count = participant->raw_sent = 0;
	participant->staging = false;
	if (t->ops.raw && t->ops.raw(t->ops.context, t->processes[index].pid, &participant->raw,
				  &participant->raw_count))
		lien_transaction_fail(t, -ENOMEM, t->processes[index].pid, "out of memory");
	else
		stage_more(t, index);
}

static void stage_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	const struct participant *participant = &t->participants[index];

	if (!(reply->header->flags & LIEN_WIRE_LAST))
		return;
	if (!t->stopping && (!participant->staging || participant->staged < participant->count)) {
		stage_more(t, index);
		return;
	}
	if (t->ops.no_context)
		t->ops.no_context(
			t->ops.context, t->processes[index].pid, reply->header->arg2 != 0);
	lien_phase_finished(t, index);
}

/* The process uses one value for two allocations. */
static bool stage_excuse(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	uint32_t pid = t->processes[index].pid;
	const char *to;

	if (reply->result != -ENOTUNIQ)
		return false;
	to = t->ops.raw_to ? t->ops.raw_to(t->ops.context, pid, reply->arg) : "a library";
	lien_transaction_fail(t, -EBUSY, pid,
		"process %u: %s has handle 0x%" PRIx64 " from the driver itself, and since a "
		"restore that means other memory to the rest of the process: try again when %s "
		"has released it, or start the process with `lien run`",
		pid, to, reply->arg, to);
	return true;
}

const struct phase lien_phase_stage = {
	.name = "stage",
	.type = LIEN_WIRE_STAGE,
	.limit_ms = 10000,
	.limit_ms_per_item = 1,
	.enter = stage_enter,
	.order = stage_order,
	.ordered = lien_gates_begin,
	.reply = stage_reply,
	.excuse = stage_excuse,
};

/* --- at rest ---------------------------------------------------------------------------------- */

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
	unsigned i, j;
	int err, other = 0;

	for (i = 0; i < plan->processes_count; i++)
		if (lien_transaction_index(t, plan->processes[i].pid) < 0)
			return -EBUSY;
	for (i = 0; i < t->count; i++) {
		part = &nothing;
		for (j = 0; j < plan->processes_count; j++)
			if (plan->processes[j].pid == t->processes[i].pid)
				part = &plan->processes[j];
		err = take_part(t, i, part);
		if (err < 0)
			return err;
		other |= err;
	}
	return other;
}

/* Nothing changes any more: this settles what is to be moved. */
void lien_offload_rest(struct lien_transaction *t)
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
		lien_rest_again(t, "the node's open files were not read in time");
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
		lien_rest_again(t, "what is to be moved changes all the time");
		return;
	}
	t->restaged = true;
	lien_phase_begin(t, LIEN_PHASE_STAGE);
}

const struct phase lien_phase_check = {
	.name = "check",
	.type = LIEN_WIRE_CHECK,
	.limit_ms = 10000,
	.limit_ms_per_item = 10,
	.timed = true,
	.held = true,
};

static void save_order(struct lien_transaction *t, unsigned index)
{
	lien_transaction_order(
		t, index, LIEN_PHASE_SAVE, t->flags & LIEN_WIRE_VERIFY, NULL, 0, NULL, 0);
}

static void save_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	if (!(reply->header->flags & LIEN_WIRE_LAST))
		return;
	t->participants[index].free_before = reply->header->arg2;
	lien_phase_finished(t, index);
}

const struct phase lien_phase_save = {
	.name = "save",
	.type = LIEN_WIRE_SAVE,
	.limit_ms = 30000,
	.limit_ms_per_mib = 5,
	.limit_ms_per_item = 10,
	.timed = true,
	.held = true,
	.gated = true,
	.order = save_order,
	.reply = save_reply,
};

/* --- unmap and drop --------------------------------------------------------------------------- */

/* Puts back what was dropped. */
static void undo(struct lien_transaction *t)
{
	t->restoring = true;
	lien_phase_begin(t, LIEN_PHASE_CREATE);
}

const struct phase lien_phase_unmap = {
	.name = "unmap",
	.type = LIEN_WIRE_UNMAP,
	.limit_ms = 30000,
	.limit_ms_per_item = 50,
	.timed = true,
	.held = true,
	.gated = true,
	.stop = undo,
};

static void drop_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	if (!(reply->header->flags & LIEN_WIRE_LAST))
		return;
	t->processes[index].freed_bytes = reply->header->arg2 - t->participants[index].free_before;
	lien_phase_finished(t, index);
}

const struct phase lien_phase_drop = {
	.name = "drop",
	.type = LIEN_WIRE_DROP,
	.limit_ms = 30000,
	.limit_ms_per_item = 50,
	.timed = true,
	.held = true,
	.gated = true,
	.reply = drop_reply,
	.stop = undo,
};

/* --- discard ---------------------------------------------------------------------------------- */

void lien_offload_discard(struct lien_transaction *t)
{
	lien_phase_begin(t, LIEN_PHASE_DISCARD);
}

static bool discard_excuse(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	(void)t, (void)index, (void)reply;
	return true;
}

const struct phase lien_phase_discard = {
	.name = "discard",
	.type = LIEN_WIRE_DISCARD,
	.limit_ms = 10000,
	.limit_ms_per_item = 1,
	.excuse = discard_excuse,
	.next = lien_transaction_open,
	.stop = lien_transaction_open,
};
