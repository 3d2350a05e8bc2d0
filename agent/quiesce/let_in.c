// SPDX-License-Identifier: BSD-2-Clause
/* Which held threads are let in, because others wait for them. */
#include "agent/quiesce/rest_internal.h"

#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/holds.h"
#include "agent/quiesce/late.h"
#include "loader/probes/gate.h"

#define GUESSES	    32 /* of idle ranks, after 1 ms each; then 1 ms more each time */
#define IDLE_MAX_MS 100
#define BUSY_NS	    20000000ull /* at first; twice as long each time */
#define PASSES_MAX  256
#define SINGLY_MAX  255 /* calls */

/* Lets in the threads that are marked. Returns true if there are any. */
static bool let_in(struct rest *rest)
{
	const unsigned before = rest->resting->passes;
	uint32_t tids[PASSES_MAX];
	const struct waiting *waiting;
	unsigned i, j, n;

	for (i = 0; i < rest->count; i++) {
		n = 0;
		j = lien_rest_first_waiting(rest, rest->pids[i], 0, 0, 0);
		for (; j < rest->waiting_count && n < PASSES_MAX; j++) {
			waiting = &rest->waiting[j];
			if (waiting->who.pid != rest->pids[i])
				break;
			if (!rest->targets.held[j].let_in)
				continue;
			tids[n++] = waiting->held.tid;
			rest->resting->begins |= LIEN_CALL_BEGINS_CAPTURE(waiting->held.call);
			/* It counts as inside from now on, until it returns. */
			lien_probes_let_in(rest->agent->probes, waiting->who.pid, waiting->who.tid);
		}
		rest->resting->passes += n;
		if (n)
			rest->resting->pass(rest->resting->to, rest->pids[i], tids, n);
	}
	return rest->resting->passes > before;
}

/* May memory of the process be away? Then a thread that waits may wait for that memory. */
static bool may_wait_for_restore(const struct rest *rest, uint32_t pid)
{
	const struct lien_process *process = lien_graph_process(rest->agent->graph, pid);
	const struct lien_tracked *tracked = process ? process->agent : NULL;

	return !tracked || tracked->gate_was_shut || process->parked || process->held_items;
}

/* Threads that wait for a gate which had not seen them some time ago. */
struct late {
	struct lien_probe_held_key who[UNSEEN_MAX];
	uint32_t own[UNSEEN_MAX]; /* the number that the process knows it by */
	bool unseen[UNSEEN_MAX];  /* even now */
	unsigned count;
};

static void find_late(struct rest *rest, struct late *late)
{
	const struct lien_probe_held_key *who = rest->unseen;
	unsigned i;

	for (i = 0; i < rest->unseen_count; i++, who++) {
		if (may_wait_for_restore(rest, who->pid) ||
			!lien_late_waits(rest->agent, who->pid, who->tid, &late->own[late->count]))
			continue;
		late->who[late->count] = *who;
		late->unseen[late->count++] = false;
	}
}

static int note_unseen(void *context, const struct lien_probe_thread *thread)
{
	struct late *late = context;
	unsigned i;

	for (i = 0; i < late->count && !thread->seen; i++)
		if (late->who[i].pid == thread->pid && late->who[i].tid == thread->tid)
			late->unseen[i] = true;
	return 0;
}

/* A thread may have come to this gate after the gate's threads were listed: it is held then, and
 * let in like all that are. */
bool lien_rest_let_late_in(struct rest *rest)
{
	struct lien_resting *resting = rest->resting;
	struct late late = {.count = 0};
	uint32_t tids[UNSEEN_MAX];
	unsigned i, j, n, all = 0;

	find_late(rest, &late);
	if (!late.count || lien_probes_threads(rest->agent->probes, rest->pids, rest->count,
				   note_unseen, &late) < 0)
		return false;
	for (i = 0; i < rest->count; i++, all += n) {
		for (j = n = 0; j < late.count; j++)
			if (late.unseen[j] && late.who[j].pid == rest->pids[i])
				tids[n++] = late.own[j];
		if (n)
			resting->pass(resting->to, rest->pids[i], tids, n);
	}
	resting->passes += all;
	return all;
}

static void allow(struct rest *rest, const struct lien_standing *standing, enum lien_held_at at,
	uint32_t peer)
{
	const struct lien_probe_pair which = lien_rest_calls(rest, standing, at, peer);
	const uint64_t more = lien_targets_more(&rest->targets, standing, at, peer);

	if (more)
		lien_probes_allow(rest->agent->probes, &which, more);
	rest->allowed |= more != 0;
}

/* Lagging ranks make the other calls up to their targets without asking. */
static void allow_the_rest(struct rest *rest)
{
	const struct lien_targets *targets = &rest->targets;
	const struct lien_standing *standing;
	struct lien_probe_held next;
	unsigned i, j;

	for (i = 0; i < targets->standings_count; i++) {
		standing = &targets->standings[i];
		next = (struct lien_probe_held){.call = LIEN_CALL_NCCL_ALL_REDUCE,
			.comm = standing->comm,
			.flags = LIEN_PROBE_HELD_MEETS};
		if (!standing->lags ||
			lien_holds_from_before(rest->agent, rest->pids[standing->process], &next))
			continue;
		allow(rest, standing, LIEN_HELD_COLLECTIVE, 0);
		for (j = 0; j < lien_targets_pairs(standing); j++) {
			if (!lien_targets_may_pair(standing, standing->peers[j]))
				continue;
			allow(rest, standing, LIEN_HELD_SEND, standing->peers[j]->rank);
			allow(rest, standing, LIEN_HELD_RECEIVE, standing->peers[j]->rank);
		}
	}
}

/* A process may have hundreds of launches to make until it gets to the kernel that is waited for.
 * If it makes too many, another process is behind, by fewer. */
static void allow_singly(struct rest *rest)
{
	struct lien_singly *singly = rest->resting->singly;
	struct lien_probe_pair others = {.peer = LIEN_PROBE_OTHERS};
	bool several = false;
	unsigned i;

	for (i = 0; i < rest->waiting_count; i++) {
		if (!rest->targets.held[i].singly)
			continue;
		several |= others.pid && others.pid != rest->waiting[i].who.pid;
		others.pid = rest->waiting[i].who.pid;
	}
	if (!others.pid) {
		if (!rest->resting->unasked) /* else it is not known whether any is idle */
			singly->pid = 0;
		return;
	}
	if (several || others.pid != singly->pid)
		*singly = (struct lien_singly){.pid = several ? 0 : others.pid};
	else if (singly->more < SINGLY_MAX)
		singly->more = 2 * singly->more + 1;
	if (singly->more)
		lien_probes_allow(rest->agent->probes, &others, singly->more);
}

/* A wrong guess lets a rank go on for nothing. Waiting longer after each guess makes sure that
 * guessing ends. */
static void set_patience(struct lien_targets *targets, const struct lien_resting *resting)
{
	unsigned idle = resting->guesses > GUESSES ? 1 + resting->guesses - GUESSES : 1;
	unsigned busy = resting->busy_guesses < 7 ? resting->busy_guesses : 7;

	targets->idle_ns = (idle < IDLE_MAX_MS ? idle : IDLE_MAX_MS) * 1000000ull;
	targets->busy_ns = BUSY_NS << busy;
	targets->guessed = resting->guesses;
}

/* Until the counts of other nodes have been compared, a guess would be too early. */
static bool is_informed(const struct rest *rest)
{
	return !rest->agent->elsewhere || rest->agent->elsewhere->compared;
}

enum lien_rest lien_rest_advance(struct rest *rest)
{
	struct lien_resting *resting = rest->resting;
	struct lien_targets *targets = &rest->targets;

	set_patience(targets, resting);
	targets->round_ns = resting->round_ns;
	if (!(resting->levelling && lien_targets_free(targets)) && !rest->behind &&
		!resting->unasked && is_informed(rest) && lien_targets_guess(targets)) {
		resting->guesses += targets->guessed_any;
		resting->busy_guesses += targets->guessed_busy;
	}
	if (!resting->levelling && lien_targets_uneven(targets))
		return LIEN_REST_UNEVEN;
	allow_the_rest(rest);
	allow_singly(rest);
	return let_in(rest) ? LIEN_REST_NEAR : LIEN_REST_FAR;
}
