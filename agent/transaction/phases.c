// SPDX-License-Identifier: BSD-2-Clause
/*
 * Goes through the phases of a transaction. Each phase's own work is in its struct phase; this file
 * has what they share: participants, orders, answers, limits, deaths, failures and the end.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/transaction/transaction_internal.h"

/* A control library that hears nothing for a while drops what it has saved and lets its threads go
 * (control/driver/gate.h). */
#define ALIVE_NS 1000000000ull
/* Upper limit, however much a process reports. */
#define LIMIT_MS  600000
#define MAKING_NS 60000000000ull /* for the kernel to attach the gate: the job runs meanwhile */

/* --- participants ----------------------------------------------------------------------------- */

static int item_cmp(const void *a, const void *b)
{
	const struct lien_wire_item *x = a, *y = b;

	if (x->token != y->token)
		return x->token < y->token ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

/* Lists the token, or the team, of each allocation that has one. A process may list any number of
 * them. */
static int list_numbers(struct numbers *numbers, const struct participant *participant, bool teams)
{
	const struct lien_wire_item *item;
	uint64_t *list = calloc(participant->count + 1, sizeof(*list));
	unsigned i, all = 0, n = 0;

	free(numbers->number);
	*numbers = (struct numbers){.number = list};
	if (!list)
		return -ENOMEM;
	for (i = 0; i < participant->count; i++) {
		item = &participant->items[i];
		if (!item->index && (teams ? item->team : item->token))
			list[all++] = teams ? item->team : item->token;
	}
	qsort(list, all, sizeof(*list), lien_u64_cmp);
	for (i = 0; i < all; i++)
		if (!n || list[n - 1] != list[i])
			list[n++] = list[i];
	numbers->count = n;
	return 0;
}

bool lien_numbers_meet(const struct numbers *a, const struct numbers *b)
{
	unsigned i = 0, j = 0;

	while (i < a->count && j < b->count) {
		if (a->number[i] == b->number[j])
			return true;
		if (a->number[i] < b->number[j])
			i++;
		else
			j++;
	}
	return false;
}

int lien_participant_sort(struct participant *participant)
{
	int err;

	if (participant->count)
		qsort(participant->items, participant->count, sizeof(participant->items[0]),
			item_cmp);
	free(participant->imports);
	participant->imports = calloc(participant->count + 1, sizeof(*participant->imports));
	err = participant->imports ? 0 : -ENOMEM;
	if (!err)
		err = list_numbers(&participant->tokens, participant, false);
	return err ? err : list_numbers(&participant->teams, participant, true);
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
	if (count > LIEN_WIRE_ITEMS_MAX - participant->count)
		return -E2BIG;
	if (lien_array_reserve(&participant->items, participant->count + count, &participant->room,
		    sizeof(*items)))
		return -ENOMEM;
	if (count)
		memcpy(participant->items + participant->count, items, count * sizeof(*items));
	participant->count += count;
	return 0;
}

int lien_transaction_index(const struct lien_transaction *t, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (t->processes[i].pid == pid)
			return i;
	return -1;
}

int lien_participant_take(
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
	for (i = 0; i < participant->count; i++) {
		participant->items[i].token += t->token_base;
		if (participant->items[i].team)
			participant->items[i].team += t->token_base;
	}
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

void lien_transaction_order_fds(struct lien_transaction *t, unsigned index, enum lien_phase phase,
	uint32_t flags, const void *body, size_t size, const int *fds, unsigned fds_count)
{
	struct participant *participant = &t->participants[index];
	struct lien_wire_header order = {
		.length = sizeof(order) + size,
		.type = t->phases[phase]->type,
		.flags = flags,
		.seq = t->next_seq++,
		.arg = t->generation,
	};

	if (t->phases[phase]->arguments)
		t->phases[phase]->arguments(t, phase, &order, body);
	participant->seq = order.seq;
	participant->phase = phase;
	participant->t_sent = t->ops.now_ns(t->ops.context);
	if (!t->ops.send(t->ops.context, t->processes[index].pid, &order, body, fds, fds_count))
		return;
	lien_transaction_drop_out(t, index);
	if (!t->phases[phase]->spares_dead || lien_transaction_alive(t, index))
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
		if (lien_participant_active(&t->participants[i])) {
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
	t->result.passes = t->resting.passes;
	t->result.guesses = t->resting.guesses;
	t->result.processes = t->processes;
	t->result.processes_count = n;
	t->result.ns = now - t->t_start;
	t->result.pause_ns = t->t_shut ? now - t->t_shut : 0;
	t->ended = true;
}

/* --- moving through the phases ---------------------------------------------------------------- */

/* An undo, and a failure before anything was moved, end with the opening of the gates, too. */
static enum lien_phase following(const struct lien_transaction *t, enum lien_phase phase)
{
	const enum lien_phase *one = t->rules->phases;

	while (*one != phase && *one != LIEN_PHASE_COUNT)
		one++;
	return *one == LIEN_PHASE_COUNT ? LIEN_PHASE_OPEN : one[1];
}

void lien_phase_begin(struct lien_transaction *t, enum lien_phase phase)
{
	const struct phase *row;
	unsigned i;

	while (phase != LIEN_PHASE_COUNT && t->phases[phase]->applies &&
		!t->phases[phase]->applies(t))
		phase = following(t, phase);
	if (phase == LIEN_PHASE_COUNT) {
		lien_transaction_end(t);
		return;
	}
	row = t->phases[phase];
	t->entering = phase;
	if (row->enter && !row->enter(t))
		return;
	t->entering = LIEN_PHASE_COUNT;
	t->phase = phase;
	for (i = 0; i < t->count; i++)
		t->participants[i].finished = false;
	lien_transaction_progress(t);
	for (i = 0; !row->step && i < t->count; i++) {
		if (!lien_participant_active(&t->participants[i]))
			continue;
		if (row->order)
			row->order(t, i);
		else
			lien_transaction_order(t, i, phase, 0, NULL, 0);
	}
	if (row->ordered)
		row->ordered(t);
}

void lien_phase_next(struct lien_transaction *t)
{
	lien_phase_begin(t, following(t, t->phase));
}

int lien_gates_step(struct lien_transaction *t, enum lien_gate_step step)
{
	const char *late = step == LIEN_GATE_HOLDS && t->phase == LIEN_PHASE_DROP
				   ? " after memory was saved; if it has written to that memory, "
				     "what it wrote is lost"
				   : "";
	char why[200];
	unsigned i;
	int err;

	for (i = 0; i < t->count && !t->stopping; i++) {
		if (!lien_participant_active(&t->participants[i]))
			continue;
		err = t->ops.gate(t->ops.context, t->processes[i].pid, step, why, sizeof(why));
		if (step == LIEN_GATE_BEGIN)
			continue;
		/* A process can be too slow to be read. */
		if (err == -ETIMEDOUT && step == LIEN_GATE_MAKE &&
			t->ops.now_ns(t->ops.context) - t->t_making < MAKING_NS)
			return -EAGAIN;
		if (err)
			lien_transaction_fail(t, err, t->processes[i].pid, "process %u, gate: %s%s",
				t->processes[i].pid, why, late);
	}
	return t->stopping ? t->result.error : 0;
}

/* All processes have answered. */
static void go_on(struct lien_transaction *t)
{
	const struct phase *row = t->phases[t->phase];

	/* The first check comes before anything is removed because of what was saved. The second
	 * one comes at the end: a thread that came through in between may have written to memory
	 * that was already saved. */
	if (row->gated && t->ops.gate && !t->stopping)
		lien_gates_step(t, LIEN_GATE_HOLDS);
	if (t->stopping) {
		t->stopping = false;
		t->entering = LIEN_PHASE_COUNT;
		lien_phase_begin(t, row->stop ? row->stop : t->rules->abandon);
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
		if (t->phases[t->phase]->step) {
			t->phases[t->phase]->step(t);
			if (t->phases[t->phase]->step)
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
	t->phase = t->rules->phases[0]; /* also while that waits to begin */
	lien_phase_begin(t, t->phase);
	proceed(t);
}

static void answered_error(struct lien_transaction *t, unsigned index, const struct phase *row,
	const struct lien_wire_header *reply)
{
	if (row->may_fail || (row->excuse && row->excuse(t, index, reply)))
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
	       reply->type == t->phases[t->participants[index].phase]->type;
}

static void take_reply(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	struct participant *participant = &t->participants[index];
	const struct lien_wire_header *header = reply->header;
	const struct phase *row = t->phases[participant->phase];
	const bool last = header->flags & LIEN_WIRE_LAST;

	if (last) {
		participant->seq = 0;
		t->processes[index].phase_ns[participant->phase] += header->ns;
		if (header->result)
			answered_error(t, index, row, header);
	}
	if (row->part)
		row->part(t, index, reply);
	if (last && row->reply)
		row->reply(t, index, header);
	else if (last && participant->phase == t->phase)
		lien_phase_finished(t, index);
}

void lien_transaction_reply(struct lien_transaction *t, uint32_t pid,
	const struct lien_wire_header *header, const void *body, const int *fds, unsigned fds_count)
{
	const struct reply reply = {header, body, header->length - sizeof(*header), fds, fds_count};
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
	const struct phase *row =
		t->phases[t->entering == LIEN_PHASE_COUNT ? t->phase : t->entering];
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

void lien_transaction_wake(struct lien_transaction *t)
{
	t->noted = true;
}

bool lien_transaction_cancel(struct lien_transaction *t, int error, const char *why)
{
	/* A restore only before it has touched anything. */
	bool can = t->kind == LIEN_TRANSACTION_OFFLOAD
			   ? !t->restoring && !t->result.error && t->phase != LIEN_PHASE_OPEN
			   : t->kind == LIEN_TRANSACTION_RESTORE && t->entering == LIEN_PHASE_LIST;

	if (t->ended || !can)
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
		if (lien_participant_active(&t->participants[i]) && !t->participants[i].seq &&
			now - t->participants[i].t_sent > ALIVE_NS)
			lien_transaction_order(t, i, LIEN_PHASE_ALIVE, 0, NULL, 0);
}

static uint64_t limit_ms_of(const struct lien_transaction *t, unsigned index)
{
	const struct participant *participant = &t->participants[index];
	const struct phase *row = t->phases[participant->phase];
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
		t->phases[participant->phase]->name, waited_ms, why[0] ? ": " : "", why);
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
	if (!any && t->entering == LIEN_PHASE_COUNT && (t->phases[t->phase]->held || t->restaged))
		keep_alive(t, now);
	t->noted = true; /* waits and rounds may be over */
}
