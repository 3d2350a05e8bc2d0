// SPDX-License-Identifier: BSD-2-Clause
/* Offload: staging, the work at rest, and the undo. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/offload/transaction_internal.h"

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

static void stage_order(struct lien_transaction *t, unsigned index)
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

static void stage_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	const struct participant *participant = &t->participants[index];

	if (!(reply->header->flags & LIEN_WIRE_LAST))
		return;
	if (!t->stopping && (!participant->staging || participant->staged < participant->count))
		stage_more(t, index);
	else
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
	lien_transaction_fail(t, -EBUSY,
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
	.order = stage_order,
	.reply = stage_reply,
	.excuse = stage_excuse,
};

/* --- at rest ---------------------------------------------------------------------------------- */

/* A process that has nothing left to move still takes part. */
static int take_plan(struct lien_transaction *t, const struct lien_plan *plan)
{
	static const struct lien_plan_process nothing;
	unsigned i;
	int index;

	for (i = 0; i < t->count; i++)
		if (lien_participant_take(t, i, &nothing))
			return -ENOMEM;
	for (i = 0; i < plan->processes_count; i++) {
		index = lien_transaction_index(t, plan->processes[i].pid);
		if (index < 0)
			return -EBUSY;
		if (lien_participant_take(t, index, &plan->processes[i]))
			return -ENOMEM;
	}
	return 0;
}

/* Nothing changes any more: this settles what is to be moved. */
void lien_offload_rest(struct lien_transaction *t)
{
	const struct lien_plan *plan;
	char why[400] = "";
	int err = t->ops.replan ? t->ops.replan(t->ops.context, &plan, why, sizeof(why)) : 0;

	if (!err) {
		lien_phase_next(t);
		return;
	}
	if (err == -EINPROGRESS) {
		lien_rest_again(t);
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
	if (!lien_gates_step(t, LIEN_GATE_SHUT)) /* the memory may lie elsewhere by now */
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
