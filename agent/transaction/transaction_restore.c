// SPDX-License-Identifier: BSD-2-Clause
/* A restore, or the undo of an offload: memory is created, exchanged and filled again. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>

#include "agent/graph/array.h"
#include "agent/transaction/transaction_internal.h"

/* Does the process copy memory of its own to the device? */
static bool has_copies(const struct participant *participant)
{
	unsigned i;

	for (i = 0; i < participant->count; i++)
		if (participant->items[i].flags & LIEN_WIRE_OWNED &&
			!(participant->items[i].flags & LIEN_WIRE_HERE))
			return true;
	return false;
}

static void count_imports(struct lien_transaction *t, unsigned index)
{
	const struct participant *participant = &t->participants[index];
	int owner = -1;
	unsigned i;

	for (i = 0; i < participant->count; i++) {
		const struct lien_wire_item *item = &participant->items[i];

		if (item->index || !(item->flags & LIEN_WIRE_IMPORTED))
			continue;
		if (owner < 0 || t->processes[owner].pid != item->owner_pid)
			owner = lien_transaction_index(t, item->owner_pid);
		if (owner >= 0)
			t->participants[owner].imports_of++;
	}
}

static bool create_enter(struct lien_transaction *t)
{
	unsigned i;

	t->restoring = true; /* also if an offload is undone */
	t->finishing = false;
	for (i = 0; i < t->count; i++)
		t->participants[i].imports_of = 0;
	for (i = 0; t->ops.fds_max && i < t->count; i++)
		if (t->participants[i].member)
			count_imports(t, i);
	for (i = 0; i < t->count; i++)
		t->participants[i].filled = !has_copies(&t->participants[i]);
	return true;
}

/* Returns true for an import that has not arrived. */
static bool is_missing(const struct participant *participant, unsigned i)
{
	const struct lien_wire_item *item = &participant->items[i];

	return !item->index && item->flags & LIEN_WIRE_IMPORTED &&
	       participant->imports[i] == IMPORT_MISSING;
}

/* Its owner runs and has listed everything it holds, but not this, so it will never come back. In
 * an undo owners do not list. */
static bool owner_lacks(
	const struct lien_transaction *t, unsigned index, const struct lien_wire_item *item)
{
	const int owner = lien_transaction_index(t, item->owner_pid);
	const struct lien_wire_item *there;

	if (t->kind == LIEN_TRANSACTION_OFFLOAD || owner < 0 || t->participants[owner].gone ||
		!lien_restore_may_share(t, index, owner))
		return false;
	there = lien_participant_find(&t->participants[owner], item->token);
	return !there || !(there->flags & LIEN_WIRE_SHARED);
}

/* Has no process the memory of a missing import any more? */
static bool is_lost(struct lien_transaction *t, unsigned index, const struct lien_wire_item *item)
{
	bool lives = t->ops.alive(t->ops.context, item->owner_pid, item->owner_start);

	if (lives && !owner_lacks(t, index, item))
		return false;
	t->participants[index].lost_owner = item->owner_pid;
	t->participants[index].owner_lives = lives;
	return true;
}

void lien_transaction_lost(const struct lien_transaction *t,
	void (*each)(void *context, uint32_t pid, uint64_t va), void *context)
{
	const struct participant *participant;
	unsigned i, j, first;

	for (i = 0; i < t->count; i++) {
		participant = &t->participants[i];
		for (j = first = 0; participant->imports && j < participant->count; j++) {
			if (!participant->items[j].index)
				first = j;
			if (participant->imports[first] == IMPORT_LOST)
				each(context, t->processes[i].pid, participant->items[j].va);
		}
	}
}

/* Returns false for a living process that only takes no orders. */
static bool is_dead(const struct lien_transaction *t, unsigned index)
{
	return t->participants[index].gone && !lien_transaction_alive(t, index);
}

/* May a living process still lack what this process exports? Then it has to be able to export it
 * once more. */
static bool exports_wanted(const struct lien_transaction *t, unsigned index)
{
	const struct participant *owner = &t->participants[index], *other;
	struct lien_wire_item *item;
	unsigned i, j;

	for (i = 0; i < owner->count; i++) {
		if (owner->items[i].index || !(owner->items[i].flags & LIEN_WIRE_SHARED))
			continue;
		/* In an undo all take part. */
		if (t->kind != LIEN_TRANSACTION_OFFLOAD && t->ops.unheard &&
			t->ops.unheard(
				t->ops.context, t->processes[index].pid, owner->items[i].token))
			return true;
		for (j = 0; j < t->count; j++) {
			other = &t->participants[j];
			if (other == owner || is_dead(t, j))
				continue;
			item = lien_participant_find(other, owner->items[i].token);
			if (item && other->imports[item - other->items] == IMPORT_MISSING)
				return true;
		}
	}
	return false;
}

/* Has every process exported and imported what it could? */
static bool all_exchanged(const struct lien_transaction *t)
{
	unsigned i;

	for (i = 0; i < t->count; i++) {
		const struct participant *participant = &t->participants[i];

		if (lien_participant_active(participant) &&
			(!participant->created || !participant->exported || participant->seq ||
				participant->shares_count))
			return false;
	}
	return true;
}

static void import_batch(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];
	struct lien_wire_share shares[LIEN_WIRE_FDS_MAX];
	int fds[LIEN_WIRE_FDS_MAX];
	unsigned n = participant->shares_count, i;

	if (n > LIEN_WIRE_FDS_MAX)
		n = LIEN_WIRE_FDS_MAX;
	for (i = 0; i < n; i++) {
		shares[i].token = participant->shares[i].token;
		fds[i] = participant->shares[i].fd;
	}
	participant->batch = n;
	lien_transaction_order_fds(
		t, index, LIEN_PHASE_IMPORT, 0, shares, n * sizeof(shares[0]), fds, n);
	for (i = 0; i < n; i++) {
		t->ops.fd_close(fds[i]);
		participant->shares[i].fd = -1;
	}
}

/* Names lost memory, a limited number at a time; the last of it finishes the process. */
static void finish(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];
	uint32_t flags = lien_part_flag(t);
	struct lien_wire_share lost[LIEN_WIRE_LOST_MAX];
	unsigned n = 0, i;

	while (participant->named < participant->count && n < LIEN_WIRE_LOST_MAX) {
		i = participant->named++;
		if (!is_missing(participant, i) || !is_lost(t, index, &participant->items[i]))
			continue;
		participant->imports[i] = IMPORT_NAMED;
		lost[n++].token = participant->items[i].token;
	}
	if (participant->named == participant->count)
		flags |= LIEN_WIRE_LAST;
	t->processes[index].lends = exports_wanted(t, index);
	if (t->processes[index].lends)
		flags |= LIEN_WIRE_KEEP;
	lien_transaction_order(t, index, LIEN_PHASE_FINISH, flags, lost, n * sizeof(lost[0]));
}

/* The importers' word about the owner counts, not the exporter's. */
static bool imports_from(const struct lien_transaction *t, unsigned index, unsigned from,
	const struct lien_wire_item *item)
{
	return item && item->flags & LIEN_WIRE_IMPORTED &&
	       item->owner_pid == t->processes[from].pid && lien_restore_may_share(t, index, from);
}

/* Have all copies of the participants arrived or failed? */
static bool all_filled(const struct lien_transaction *t)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (lien_participant_active(&t->participants[i]) && !t->participants[i].filled)
			return false;
	return true;
}

/* Its own copies failed, or it lives and does not say whether they arrived. */
static bool is_unfilled(const struct lien_transaction *t, unsigned index)
{
	const struct participant *participant = &t->participants[index];

	return participant->unfilled || (participant->member && participant->gone &&
						!participant->filled && !is_dead(t, index));
}

/* A multicast object joins its memory with other memory that is not there or lacks its bytes. */
static bool lacks_team(const struct lien_transaction *t, unsigned index)
{
	const struct participant *participant = &t->participants[index], *other;
	unsigned i;

	for (i = 0; participant->teams.count && i < t->count; i++) {
		other = &t->participants[i];
		if (i != index && (other->uncreated || is_unfilled(t, i)) && !is_dead(t, i) &&
			lien_restore_may_share(t, i, index) &&
			lien_numbers_meet(&participant->teams, &other->teams))
			return true;
	}
	return false;
}

/* Memory that it maps may lack its bytes: it stays as it is, and its threads stay held, for a later
 * restore. */
static bool lacks_bytes(const struct lien_transaction *t, unsigned index)
{
	const struct participant *participant = &t->participants[index];
	unsigned i, j;

	for (i = 0; i < t->count; i++) {
		if (!is_unfilled(t, i))
			continue;
		if (i == index)
			return true;
		for (j = 0; j < participant->count; j++)
			if (imports_from(t, index, i, &participant->items[j]))
				return true;
	}
	return false;
}

static void finish_or_wait(struct lien_transaction *t, unsigned index)
{
	if (!all_filled(t))
		return;
	if (!lacks_bytes(t, index) && !lacks_team(t, index)) {
		finish(t, index);
		return;
	}
	t->participants[index].finished = true;
	t->processes[index].failed = true;
}

/*
 * Is there room for the descriptors of its exports? Those that wait are for processes that take
 * them when they have created their memory, whether they have exported or not: so there will be.
 */
static bool may_export(const struct lien_transaction *t, unsigned index)
{
	uint64_t waiting = 0;
	unsigned i;

	for (i = 0; i < t->count; i++) {
		const struct participant *participant = &t->participants[i];

		if (!lien_participant_active(participant))
			continue;
		waiting += participant->shares_count;
		waiting += participant->exporting ? participant->imports_of : 0;
	}
	return !t->ops.fds_max || !waiting ||
	       waiting + t->participants[index].imports_of <= t->ops.fds_max;
}

static void export(struct lien_transaction *t, unsigned index)
{
	t->participants[index].exporting = true;
	lien_transaction_order(t, index, LIEN_PHASE_EXPORT, lien_part_flag(t), NULL, 0);
}

/* Gives the next order to an idle process. */
static void next_order(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];

	if (!participant->created) {
		participant->rooms_count = 0; /* it will report the new state then */
		lien_transaction_order(
			t, index, LIEN_PHASE_CREATE, LIEN_WIRE_ROOM | lien_part_flag(t), NULL, 0);
	} else if (!participant->exported && may_export(t, index))
		export(t, index);
	else if (participant->shares_count)
		import_batch(t, index);
	else if (!participant->exported)
		return; /* when others have taken theirs */
	else if (t->finishing && !participant->filled)
		lien_transaction_order(
			t, index, LIEN_PHASE_FINISH, LIEN_WIRE_FILLED | lien_part_flag(t), NULL, 0);
	else if (t->finishing)
		finish_or_wait(t, index);
}

/* An undo is complete when every living process has everything back. */
static void restore_end(struct lien_transaction *t)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (t->kind == LIEN_TRANSACTION_OFFLOAD &&
			(t->participants[i].stuck || (t->participants[i].gone && !is_dead(t, i))))
			t->result.undo_failed = true;
	t->result.rolled_back = t->kind == LIEN_TRANSACTION_OFFLOAD && !t->result.undo_failed;
	lien_phase_begin(
		t, t->kind == LIEN_TRANSACTION_RESTORE ? LIEN_PHASE_AGREE : LIEN_PHASE_OPEN);
}

/* Makes every process do what it can now. */
static void step(struct lien_transaction *t)
{
	bool all = true;
	unsigned i;

	t->finishing |= all_exchanged(t);
	for (i = 0; i < t->count; i++) {
		struct participant *participant = &t->participants[i];

		if (lien_participant_active(participant) && !participant->finished &&
			!participant->seq)
			next_order(t, i);
	}
	for (i = 0; i < t->count; i++)
		if (lien_participant_active(&t->participants[i]) && !t->participants[i].finished)
			all = false;
	if (all)
		restore_end(t);
	else if (t->finishing ? lien_transaction_idle(t) : all_exchanged(t))
		step(t); /* the last process that was waited for could not be reached */
}

/* Hands an exported allocation to all its importers. */
static void route(struct lien_transaction *t, unsigned from, uint64_t token, int fd)
{
	struct lien_wire_item *item = lien_participant_find(&t->participants[from], token);
	unsigned i;

	if (!item || !(item->flags & LIEN_WIRE_SHARED))
		return; /* it may not hand this out */
	for (i = 0; i < t->count; i++) {
		struct participant *participant = &t->participants[i];
		int copy;

		if (i == from || !lien_participant_active(participant))
			continue;
		item = lien_participant_find(participant, token);
		if (!imports_from(t, i, from, item))
			continue;
		if (lien_array_grow(&participant->shares, participant->shares_count,
			    &participant->shares_room, sizeof(*participant->shares))) {
			lien_transaction_fail(t, -ENOMEM, 0, "out of memory");
			return;
		}
		copy = t->ops.fd_dup(fd);
		if (copy < 0) {
			lien_transaction_fail(t, copy, 0,
				"the agent has too many open files: raise its limit (ulimit -n)");
			return;
		}
		participant->shares[participant->shares_count++] =
			(struct share_in){.token = token, .fd = copy};
	}
}

/* --- phases ----------------------------------------------------------------------------------- */

/* A process has created and exported even if that failed: what succeeded helps others. */
static void create_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	t->participants[index].created = true;
	t->participants[index].uncreated = reply->result;
}

static bool create_excuse(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	if (reply->result != CUDA_ERROR_OUT_OF_MEMORY || !lien_room_failed(t, index))
		return false;
	t->processes[index].failed = true;
	return true;
}

const struct phase lien_phase_create = {
	.name = "create",
	.type = LIEN_WIRE_CREATE,
	.limit_ms = 30000,
	.limit_ms_per_mib = 5,
	.limit_ms_per_item = 50,
	.timed = true,
	.held = true,
	.enter = create_enter,
	.part = lien_room_part,
	.reply = create_reply,
	.excuse = create_excuse,
	.step = step,
};

static void export_part(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	const struct lien_wire_share *shares = reply->body;
	unsigned i;

	for (i = 0; i < reply->fds_count && (i + 1) * sizeof(*shares) <= reply->size; i++)
		route(t, index, shares[i].token, reply->fds[i]);
}

static void export_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	(void)reply;
	t->participants[index].exported = true;
	t->participants[index].exporting = false;
}

const struct phase lien_phase_export = {
	.name = "export",
	.type = LIEN_WIRE_EXPORT,
	.limit_ms = 30000,
	.limit_ms_per_item = 50,
	.timed = true,
	.held = true,
	.part = export_part,
	.reply = export_reply,
	.step = step,
};

static void import_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	struct participant *participant = &t->participants[index];
	unsigned i;

	for (i = 0; !reply->result && i < participant->batch; i++) {
		struct lien_wire_item *item =
			lien_participant_find(participant, participant->shares[i].token);

		if (item)
			participant->imports[item - participant->items] = IMPORT_ARRIVED;
	}
	participant->shares_count -= participant->batch;
	memmove(participant->shares, participant->shares + participant->batch,
		participant->shares_count * sizeof(participant->shares[0]));
	participant->batch = 0;
}

const struct phase lien_phase_import = {
	.name = "import",
	.type = LIEN_WIRE_IMPORT,
	.limit_ms = 30000,
	.limit_ms_per_item = 50,
	.timed = true,
	.held = true,
	.reply = import_reply,
	.step = step,
};

/* Reported whatever else has failed. */
static void report_lost(struct lien_transaction *t, unsigned index)
{
	const struct lien_transaction_process *process = &t->processes[index];
	const struct participant *participant = &t->participants[index];

	if (!t->result.lost)
		t->result.undo_text[0] = 0;
	t->result.lost = true;
	lien_transaction_fail(t, -EOWNERDEAD, participant->lost_owner,
		"memory of process %u, which %s, is gone for good: process %u mapped it at "
		"%" PRIu64 " places, which are empty now",
		participant->lost_owner,
		participant->owner_lives ? "does not have it any more"
					 : "has ended or become another program",
		process->pid, process->lost_mappings);
}

static void finish_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	struct participant *participant = &t->participants[index];
	unsigned i;

	if (!participant->filled) {
		participant->filled = true;
		participant->unfilled = reply->result;
		t->processes[index].verified = reply->result ? 0 : reply->arg;
		return;
	}
	for (i = 0; i < participant->named; i++)
		if (participant->imports[i] == IMPORT_NAMED)
			participant->imports[i] = IMPORT_LOST;
	t->processes[index].lost_mappings += reply->arg2;
	if (participant->named < participant->count && !reply->result)
		return; /* there is more to name */
	participant->finished = true;
	t->phase = LIEN_PHASE_FINISH;
	if (!reply->result)
		t->processes[index].verified += reply->arg;
	if (participant->lost_owner && t->processes[index].lost_mappings)
		report_lost(t, index);
	lien_transaction_progress(t);
}

const struct phase lien_phase_finish = {
	.name = "finish",
	.type = LIEN_WIRE_FINISH,
	.limit_ms = 30000,
	.limit_ms_per_mib = 5,
	.timed = true,
	.held = true,
	.reply = finish_reply,
	.step = step,
};

static void release_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	t->processes[index].bytes = reply->result ? 0 : reply->arg;
	lien_phase_finished(t, index);
}

const struct phase lien_phase_release = {
	.name = "release",
	.type = LIEN_WIRE_RELEASE,
	.limit_ms = 60000,
	.spares_dead = true,
	.reply = release_reply,
};
