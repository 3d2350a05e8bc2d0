// SPDX-License-Identifier: BSD-2-Clause
/*
 * Goes through the phases of a transaction. Each phase's own work is in its struct phase; this file
 * has what they share: orders, answers, limits, deaths, failures and the end.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/transaction/transaction_internal.h"

/* A control library that hears nothing for a while drops what it has saved and lets its threads go
 * (control/driver/gate.h). */
#define ALIVE_NS 1000000000ull
/* Upper limit, however much a process reports. */
#define LIMIT_MS 600000

static const struct phase *const phases[LIEN_PHASE_COUNT] = {
#define ROW(NAME, name) [LIEN_PHASE_##NAME] = &lien_phase_##name,
	LIEN_PHASES(ROW)
#undef ROW
};

#define PHASES(...) ((const enum lien_phase[]){__VA_ARGS__, LIEN_PHASE_COUNT})

static const struct kind {
	const char *name;
	const enum lien_phase *phases;
	/* called when all are at rest; defaults to lien_phase_next() */
	void (*rest)(struct lien_transaction *t);
	/* called on a failure when nothing has been moved */
	void (*abandon)(struct lien_transaction *t);
} kinds[] = {
	[LIEN_TRANSACTION_OFFLOAD] = {.name = "offload",
		.phases = PHASES(LIEN_PHASE_STAGE, LIEN_PHASE_GATE, LIEN_PHASE_DRAIN,
			LIEN_PHASE_CHECK, LIEN_PHASE_SAVE, LIEN_PHASE_AGREE, LIEN_PHASE_UNMAP,
			LIEN_PHASE_DROP, LIEN_PHASE_OPEN),
		.rest = lien_offload_rest,
		.abandon = lien_offload_discard},
	/* From CREATE to FINISH each process goes at its own pace. */
	[LIEN_TRANSACTION_RESTORE] = {.name = "restore",
		.phases = PHASES(LIEN_PHASE_LIST, LIEN_PHASE_CREATE, LIEN_PHASE_EXPORT,
			LIEN_PHASE_IMPORT, LIEN_PHASE_FINISH, LIEN_PHASE_AGREE, LIEN_PHASE_OPEN)},
	[LIEN_TRANSACTION_RELEASE] = {.name = "release", .phases = PHASES(LIEN_PHASE_RELEASE)},
	[LIEN_TRANSACTION_ADOPTION] = {.name = "adoption",
		.phases = PHASES(LIEN_PHASE_GATE, LIEN_PHASE_DRAIN, LIEN_PHASE_ADOPT_COUNT,
			LIEN_PHASE_MARKS, LIEN_PHASE_MARK, LIEN_PHASE_MARK_UNKNOWN, LIEN_PHASE_LOOK,
			LIEN_PHASE_UNMARK, LIEN_PHASE_OPEN),
		.abandon = lien_transaction_open},
};

const char *lien_phase_name(enum lien_phase phase)
{
	return phases[phase]->name;
}

bool lien_phase_is_timed(enum lien_phase phase)
{
	return phases[phase]->timed;
}

const char *lien_transaction_kind_name(enum lien_transaction_kind kind)
{
	return kinds[kind].name;
}

const enum lien_phase *lien_transaction_phases(enum lien_transaction_kind kind)
{
	return kinds[kind].phases;
}

/* --- orders ----------------------------------------------------------------------------------- */

void lien_transaction_drop_out(struct lien_transaction *t, unsigned index)
{
	if (t->participants[index].seq && t->ops.cancel)
		t->ops.cancel(t->ops.context, t->processes[index].pid);
	/*
	 * It may have saved by now, and keeps memory that others import until a restore asks for
	 * it.
	 */
	if (t->kind == LIEN_TRANSACTION_OFFLOAD &&
		(t->participants[index].phase == LIEN_PHASE_SAVE || t->phase == LIEN_PHASE_AGREE))
		t->processes[index].lends = true;
	t->participants[index].gone = true;
	t->participants[index].seq = 0;
	t->processes[index].failed = true;
}

void lien_transaction_order(struct lien_transaction *t, unsigned index, enum lien_phase phase,
	uint32_t flags, const void *body, size_t size, const int *fds, unsigned fds_count)
{
	struct participant *participant = &t->participants[index];
	struct lien_wire_header order = {
		.length = sizeof(order) + size,
		.type = phases[phase]->type,
		.flags = flags,
		.seq = t->next_seq++,
		.arg = t->generation,
	};

	if (phases[phase]->arguments)
		phases[phase]->arguments(t, &order, body);
	participant->seq = order.seq;
	participant->phase = phase;
	participant->t_sent = t->ops.now_ns(t->ops.context);
	if (!t->ops.send(t->ops.context, t->processes[index].pid, &order, body, fds, fds_count))
		return;
	lien_transaction_drop_out(t, index);
	if (!phases[phase]->spares_dead || lien_transaction_alive(t, index))
		lien_transaction_fail(t, -ESRCH, t->processes[index].pid, "process %u %s",
			t->processes[index].pid,
			lien_transaction_alive(t, index) ? "cannot be reached" : "has ended");
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

void lien_phase_finished(struct lien_transaction *t, unsigned index)
{
	t->participants[index].finished = true;
	lien_transaction_progress(t);
}

/* --- failures and the end --------------------------------------------------------------------- */

void lien_transaction_fail(
	struct lien_transaction *t, int error, uint32_t pid, const char *format, ...)
{
	char *text = t->result.error ? t->result.undo_text : t->result.text;
	size_t size = t->result.error ? sizeof(t->result.undo_text) : sizeof(t->result.text);
	bool undo = t->restoring && (t->kind == LIEN_TRANSACTION_OFFLOAD || t->result.lost);
	va_list args;

	if (t->kind == LIEN_TRANSACTION_ADOPTION && t->phase == LIEN_PHASE_OPEN)
		return; /* keep what is known, even if a process ends now */
	if (!t->restoring)
		t->stopping = true;
	if (t->kind == LIEN_TRANSACTION_OFFLOAD && t->restoring)
		t->result.undo_failed = true;
	t->failing |= t->restoring && error != -EOWNERDEAD;
	if (t->result.error && (!undo || t->result.undo_text[0]))
		return;
	if (!t->result.error) {
		t->result.error = error;
		t->result.blame = (struct lien_blame){lien_cause_of(error), pid, 0};
	}
	va_start(args, format);
	vsnprintf(text, size, format, args);
	va_end(args);
}

/* Moves members to the front of both arrays. */
static unsigned members_first(struct lien_transaction *t)
{
	struct lien_transaction_process process;
	struct participant participant;
	unsigned i, n = 0;

	for (i = 0; i < t->count; i++) {
		if (!t->participants[i].member)
			continue;
		process = t->processes[i];
		participant = t->participants[i];
		t->processes[i] = t->processes[n];
		t->participants[i] = t->participants[n];
		t->processes[n] = process;
		t->participants[n++] = participant;
	}
	return n;
}

/* A restore of the others is no success for who asked for all. */
static void name_aside(struct lien_transaction *t)
{
	char with[60] = "";

	t->result.only_aside = true;
	if (t->aside_others)
		snprintf(with, sizeof(with), " with %u other %s", t->aside_others,
			t->aside_others == 1 ? "process" : "processes");
	lien_transaction_fail(t, -ETIMEDOUT, t->aside,
		"process %u is stopped (%s) and stays offloaded%s; all else is back", t->aside,
		t->aside_remedy, with);
}

void lien_transaction_end(struct lien_transaction *t)
{
	const uint64_t now = t->ops.now_ns(t->ops.context);
	unsigned i, n;

	for (i = 0; i < t->count; i++)
		t->participants[i].member |= t->participants[i].involved;
	n = members_first(t);
	if (t->aside && !t->result.error)
		name_aside(t);
	for (i = 0; i < n; i++) {
		t->result.bytes += t->processes[i].bytes;
		t->result.discarded += t->processes[i].discarded;
		t->result.verified += t->processes[i].verified;
	}
	t->result.all_back = t->kind == LIEN_TRANSACTION_RESTORE && !t->pids_count &&
			     !lien_transaction_chosen(t) && !t->result.error;
	t->result.chosen = lien_transaction_chosen(t);
	t->result.only_lost = t->result.lost && !t->failing;
	t->result.processes = t->processes;
	t->result.processes_count = n;
	t->result.ns = now - t->t_start;
	t->result.pause_ns = t->t_shut ? now - t->t_shut : 0;
	t->ended = true;
}

/* --- moving through the phases ---------------------------------------------------------------- */

void lien_phase_begin(struct lien_transaction *t, enum lien_phase phase)
{
	const struct phase *row = phases[phase];
	unsigned i;

	t->entering = phase;
	if (row->enter && !row->enter(t))
		return;
	t->entering = LIEN_PHASE_COUNT;
	t->phase = phase;
	for (i = 0; i < t->count; i++)
		t->participants[i].finished = false;
	lien_transaction_progress(t);
	for (i = 0; !row->step && i < t->count; i++) {
		if (!t->participants[i].member || t->participants[i].gone)
			continue;
		if (row->order)
			row->order(t, i);
		else
			lien_transaction_order(t, i, phase, 0, NULL, 0, NULL, 0);
	}
	if (row->ordered)
		row->ordered(t);
}

/* Begins the first phase that applies; ends the transaction if none does. */
static void begin_first(struct lien_transaction *t, const enum lien_phase *from)
{
	while (*from != LIEN_PHASE_COUNT && phases[*from]->applies && !phases[*from]->applies(t))
		from++;
	if (*from == LIEN_PHASE_COUNT)
		lien_transaction_end(t);
	else
		lien_phase_begin(t, *from);
}

void lien_phase_next(struct lien_transaction *t)
{
	const enum lien_phase *phase = kinds[t->kind].phases;

	while (*phase != t->phase)
		phase++;
	begin_first(t, phase + 1);
}

void lien_phase_rest(struct lien_transaction *t)
{
	if (kinds[t->kind].rest)
		kinds[t->kind].rest(t);
	else
		lien_phase_next(t);
}

/* All processes have answered. */
static void go_on(struct lien_transaction *t)
{
	const struct phase *row = phases[t->phase];

	/* The first check comes before anything is removed because of what was saved. The second
	 * one comes at the end: a thread that came through in between may have written to memory
	 * that was already saved. */
	if (row->gated && t->ops.gate && !t->stopping)
		lien_gates_step(t, LIEN_GATE_HOLDS);
	if (t->stopping) {
		t->stopping = false;
		t->entering = LIEN_PHASE_COUNT;
		if (row->stop)
			row->stop(t);
		else
			kinds[t->kind].abandon(t);
	} else if (t->entering != LIEN_PHASE_COUNT) {
		lien_phase_begin(t, t->entering);
	} else if (row->next) {
		row->next(t);
	} else {
		lien_phase_next(t);
	}
}

/* Advances as far as possible without another answer or tick. */
static void advance(struct lien_transaction *t)
{
	while (!t->ended) {
		if (phases[t->phase]->step) {
			phases[t->phase]->step(t);
			if (phases[t->phase]->step)
				return;
		} else {
			if (!lien_transaction_idle(t))
				return;
			go_on(t);
			if (t->entering != LIEN_PHASE_COUNT && !t->stopping)
				return;
		}
	}
}

/* --- events ----------------------------------------------------------------------------------- */

/* The last step of every event; the transaction may be freed in here. */
static void proceed(struct lien_transaction *t)
{
	if (t->ended)
		return;
	t->noted = false;
	advance(t);
	if (t->ended)
		t->ops.done(t->ops.context, t);
}

void lien_transaction_start(struct lien_transaction *t)
{
	t->t_start = t->ops.now_ns(t->ops.context);
	if (!t->restoring)
		t->generation = t->t_start | 1;
	t->phase = kinds[t->kind].phases[0]; /* also while that waits to begin */
	begin_first(t, kinds[t->kind].phases);
	proceed(t);
}

static void answered_error(struct lien_transaction *t, unsigned index, const struct phase *row,
	const struct lien_wire_header *reply)
{
	if (row->excuse && row->excuse(t, index, reply))
		return;
	t->processes[index].failed = true;
	lien_transaction_fail(t, reply->result < 0 ? reply->result : -EIO, t->processes[index].pid,
		reply->arg > LIEN_PHASE_COUNT ? "process %u, %s: %.*s (at 0x%" PRIx64 ")"
					      : "process %u, %s: %.*s",
		t->processes[index].pid, row->name, (int)strnlen(reply->text, sizeof(reply->text)),
		reply->text[0] ? reply->text : "no reason given", reply->arg);
}

static bool is_awaited(
	const struct lien_transaction *t, int index, const struct lien_wire_header *reply)
{
	return !t->ended && index >= 0 && reply->seq && t->participants[index].seq == reply->seq &&
	       reply->type == phases[t->participants[index].phase]->type;
}

static void take_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	struct participant *participant = &t->participants[index];
	const struct lien_wire_header *header = reply->header;
	const struct phase *row = phases[participant->phase];
	const bool last = header->flags & LIEN_WIRE_LAST;

	if (last) {
		participant->seq = 0;
		t->processes[index].phase_ns[participant->phase] += header->ns;
		if (header->result)
			answered_error(t, index, row, header);
	}
	if (row->reply)
		row->reply(t, index, reply);
	else if (last)
		lien_phase_finished(t, index);
}

void lien_transaction_reply(struct lien_transaction *t, uint32_t pid,
	const struct lien_wire_header *header, const void *body, const int *fds, unsigned fds_count)
{
	const struct reply reply = {header, body, fds, fds_count};
	const int index = lien_transaction_index(t, pid);
	const bool awaited = is_awaited(t, index, header);
	unsigned i;

	if (awaited)
		take_reply(t, index, &reply);
	for (i = 0; i < fds_count; i++)
		t->ops.fd_close(fds[i]);
	if (awaited)
		proceed(t);
}

void lien_transaction_gone(struct lien_transaction *t, uint32_t pid)
{
	/* One that waits to begin is the one that the process is missing from. */
	const struct phase *row = phases[t->entering == LIEN_PHASE_COUNT ? t->phase : t->entering];
	int index = lien_transaction_index(t, pid);
	bool lives, undo = t->kind == LIEN_TRANSACTION_OFFLOAD && t->restoring;

	if (t->ended || index < 0 || t->participants[index].gone)
		return;
	lives = lien_transaction_alive(t, index);
	lien_transaction_drop_out(t, index);
	/* A dead process has nothing to restore, put back or release. */
	if (lives || !(row->spares_dead || undo))
		lien_transaction_fail(t, -ESRCH, pid,
			lives ? "process %u takes no orders any more, in `%s`"
			      : "process %u ended in `%s`",
			pid, row->name);
	t->noted = true;
}

bool lien_transaction_is_resting(const struct lien_transaction *t)
{
	return t->phase == LIEN_PHASE_GATE || t->phase == LIEN_PHASE_DRAIN ||
	       (t->t_making && !t->t_shut);
}

bool lien_transaction_hesitates(const struct lien_transaction *t, uint64_t ns)
{
	return t->kind == LIEN_TRANSACTION_OFFLOAD && !t->result.error &&
	       (t->phase == LIEN_PHASE_STAGE || lien_transaction_is_resting(t)) &&
	       t->ops.now_ns(t->ops.context) - t->t_start > ns;
}

enum lien_go_on lien_transaction_may_go_on(struct lien_transaction *t, enum lien_point point)
{
	return t->ops.may_go_on ? t->ops.may_go_on(t->ops.context, point) : LIEN_GO_ON_YES;
}

void lien_transaction_wake(struct lien_transaction *t)
{
	t->noted = true;
}

/* Before a restore has touched anything. */
static bool is_planned(const struct lien_transaction *t)
{
	return t->entering == LIEN_PHASE_LIST && t->kind == LIEN_TRANSACTION_RESTORE;
}

bool lien_transaction_cancel(struct lien_transaction *t, int error, const char *why)
{
	if (!t->ended && is_planned(t)) {
		lien_transaction_fail(t, error, 0, "%s", why);
		t->noted = true;
		return true;
	}
	if (t->ended || t->kind != LIEN_TRANSACTION_OFFLOAD || t->restoring || t->result.error ||
		t->phase == LIEN_PHASE_OPEN)
		return false;
	lien_transaction_fail(t, error, 0, "%s", why);
	t->noted = true;
	return true;
}

bool lien_transaction_must_react(const struct lien_transaction *t)
{
	return t->noted && !t->ended;
}

void lien_transaction_react(struct lien_transaction *t)
{
	proceed(t);
}

/* Tells processes that wait for others that we are alive. */
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
	const struct phase *row = phases[participant->phase];
	uint64_t limit_ms = row->limit_ms +
			    row->limit_ms_per_mib * (t->processes[index].bytes >> 20) +
			    (uint64_t)row->limit_ms_per_item * participant->count;

	if (row->waits_for_rest)
		limit_ms += t->timeout_ms;
	return limit_ms < LIMIT_MS ? limit_ms : LIMIT_MS;
}

static void no_answer(struct lien_transaction *t, unsigned index, uint64_t waited_ms)
{
	struct participant *participant = &t->participants[index];
	uint32_t pid = t->processes[index].pid;
	char why[160] = "";

	if (t->ops.silent)
		t->ops.silent(t->ops.context, pid, why, sizeof(why));
	lien_transaction_drop_out(t, index);
	participant->stuck = true;
	lien_transaction_fail(t, -ETIMEDOUT, pid,
		"process %u did not answer `%s` within %" PRIu64 " ms%s%s", pid,
		phases[participant->phase]->name, waited_ms, why[0] ? ": " : "", why);
}

/* As long as nothing was moved, one that is stopped gets no more time than the job to come to rest.
 */
static bool is_over(struct lien_transaction *t, unsigned index, uint64_t waited_ms)
{
	char remedy[LIEN_REMEDY];

	if (waited_ms >= limit_ms_of(t, index))
		return true;
	return t->participants[index].phase <= LIEN_PHASE_CHECK && waited_ms >= t->timeout_ms &&
	       t->ops.stopped && t->ops.stopped(t->ops.context, t->processes[index].pid, remedy);
}

void lien_transaction_tick(struct lien_transaction *t)
{
	uint64_t now = t->ops.now_ns(t->ops.context), waited_ms;
	bool any = false;
	unsigned i;

	if (t->ended)
		return;
	for (i = 0; i < t->count; i++) {
		waited_ms = (now - t->participants[i].t_sent) / 1000000;
		if (!t->participants[i].seq || !is_over(t, i, waited_ms))
			continue;
		no_answer(t, i, waited_ms);
		any = true;
	}
	/* After staging again, all are at rest. */
	if (!any && t->entering == LIEN_PHASE_COUNT && (phases[t->phase]->held || t->restaged))
		keep_alive(t, now);
	t->noted = true; /* waits and rounds may be over */
}
