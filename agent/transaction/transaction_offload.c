// SPDX-License-Identifier: BSD-2-Clause
/* Offload: staging, the work at rest, and the undo of what was staged. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "agent/transaction/transaction_internal.h"

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
		n * sizeof(participant->raw[0]));
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
		n * sizeof(participant->items[0]));
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

static void stage_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	const struct participant *participant = &t->participants[index];

	if (!t->stopping && (!participant->staging || participant->staged < participant->count)) {
		stage_more(t, index);
		return;
	}
	if (t->ops.no_context)
		t->ops.no_context(t->ops.context, t->processes[index].pid, reply->arg2 != 0);
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
	lien_transaction_order(t, index, LIEN_PHASE_SAVE, t->flags & LIEN_WIRE_VERIFY, NULL, 0);
}

static void save_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	t->participants[index].free_before = reply->arg2;
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

const struct phase lien_phase_unmap = {
	.name = "unmap",
	.type = LIEN_WIRE_UNMAP,
	.limit_ms = 30000,
	.limit_ms_per_item = 50,
	.timed = true,
	.held = true,
	.gated = true,
	.stop = LIEN_PHASE_CREATE, /* puts back what was dropped */
};

static void drop_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	t->processes[index].freed_bytes = reply->arg2 - t->participants[index].free_before;
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
	.stop = LIEN_PHASE_CREATE, /* puts back what was dropped */
};

const struct phase lien_phase_discard = {
	.name = "discard",
	.type = LIEN_WIRE_DISCARD,
	.limit_ms = 10000,
	.limit_ms_per_item = 1,
	.may_fail = true,
	.stop = LIEN_PHASE_OPEN,
};
