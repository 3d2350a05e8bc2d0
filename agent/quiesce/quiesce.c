// SPDX-License-Identifier: BSD-2-Clause
/* Which held threads go on, because others wait for them, and whether a job is at rest. */
#include "agent/quiesce/rest_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "agent/graph/array.h"
#include "agent/link/link.h"
#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/gate.h"
#include "loader/discover/status.h"
#include "loader/discover/untrusted.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"

#define UNSEEN_MAX 64
#define COUNTED_NS 100000000ull

/* Threads that may be in a call and that the gates have not seen; not all of them. */
struct unseen {
	struct lien_probe_held_key who[UNSEEN_MAX];
	unsigned count;
};

/* --- where a thread stands -------------------------------------------------------------------- */

/* Reads where a thread that does not run stands: number and first argument of its system call
 * (UINT64_MAX: none), and its stack pointer (UINT64_MAX: it has ended). Returns false if it runs.
 */
static bool stands(uint32_t pid, uint32_t tid, uint64_t *number, uint64_t *argument, uint64_t *sp)
{
	char path[64], text[256] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/syscall", pid, tid);
	file = fopen(path, "re");
	*number = *argument = *sp = UINT64_MAX;
	if (!file || !fgets(text, sizeof(text), file))
		text[0] = '\0';
	if (file)
		fclose(file);
	/* "NUMBER ARGUMENTS SP PC", "-1 SP PC", or "running" */
	return !text[0] || sscanf(text, "-1 %" SCNx64, sp) == 1 ||
	       sscanf(text, "%" SCNu64 " %" SCNx64 " %*x %*x %*x %*x %*x %" SCNx64, number,
		       argument, sp) == 3;
}

struct area {
	uint64_t address;
	bool found;
};

static int find_area(const struct lien_maps_entry *entry, void *arg)
{
	struct area *area = arg;

	area->found = area->address >= entry->start && area->address < entry->end &&
		      !strcmp(entry->path, "[uprobes]");
	return area->found;
}

/* Is it the address to which functions with a probed return go back? */
static bool is_trampoline(uint32_t pid, uint64_t address)
{
	struct area area = {.address = address};

	lien_maps_read(pid, find_area, &area);
	return area.found;
}

/*
 * The return of a collective that was entered before the gate existed is not seen. The collective
 * has returned if the stack is shorter than it was then, or if its return address was overwritten
 * by something other than an earlier gate's probe.
 */
static bool may_be_inside(const struct lien_probe_thread *thread)
{
	uint64_t number, argument, sp, word = 0;
	uint32_t pid = thread->pid;

	if (thread->inside)
		return true;
	if (!thread->sp || (stands(pid, thread->tid, &number, &argument, &sp) && sp > thread->sp))
		return false;
	return lien_untrusted_memory(pid, thread->sp, &word, sizeof(word)) == sizeof(word) &&
	       (word == thread->caller || is_trampoline(pid, word));
}

/* --- threads in a call ------------------------------------------------------------------------ */

struct looking {
	struct rest *rest;
	struct unseen *unseen;
	bool all_seen; /* the gates have seen the threads that are inside */
	char *why;     /* buffer for the reason; NULL: another is known */
	size_t size;
};

/*
 * The gate's probe and the one that counts a call are two, and the thread can be off the processor
 * between them for long. Usually the gate's comes first. If it is the second, the call seems
 * uncounted for as long as it is held: not after COUNTED_NS.
 */
static bool may_be_miscounted(const struct rest *rest, const struct lien_probe_thread *thread)
{
	if (thread->t_counted >= rest->since)
		return true;
	return LIEN_CALL_IS_TRAFFIC(thread->call) && thread->t_counted < thread->t_entered &&
	       rest->since < thread->t_entered + COUNTED_NS;
}

static void note_unseen(struct looking *looking, const struct lien_probe_thread *thread)
{
	const int index = lien_rest_index_of(looking->rest, thread->pid);
	struct unseen *unseen = looking->unseen;

	/* After UNSEEN_MAX, a thread counts as in a call, and the next look reads its stack. */
	if (unseen->count < UNSEEN_MAX) {
		if (!may_be_inside(thread))
			return;
		unseen->who[unseen->count++] =
			(struct lien_probe_held_key){thread->pid, thread->tid};
	}
	looking->all_seen = false;
	if (index >= 0)
		looking->rest->busy[index] = true;
	if (!looking->why || looking->why[0])
		return; /* who is held says more */
	looking->rest->resting->who = thread->pid;
	snprintf(looking->why, looking->size, "thread %u of process %u may be in a call of NCCL",
		thread->tid, thread->pid);
}

static int look_at_thread(void *context, const struct lien_probe_thread *thread)
{
	struct looking *looking = context;
	struct rest *rest = looking->rest;

	rest->miscounted |= may_be_miscounted(rest, thread);
	if (!thread->seen) {
		note_unseen(looking, thread);
		return 0;
	}
	if (!thread->inside || lien_probes_is_held(rest->agent->probes, thread->pid, thread->tid))
		return 0;
	rest->resting->begins |= LIEN_CALL_BEGINS_CAPTURE(thread->call);
	if (!looking->why)
		return 0;
	rest->resting->who = thread->pid;
	snprintf(looking->why, looking->size, "thread %u of process %u %s %s", thread->tid,
		thread->pid, thread->call ? "is in" : "has opened",
		thread->call ? lien_calls_name(thread->call) : "an NCCL group");
	return 0;
}

/* Have the gates seen every thread that is in a call? Puts one that they have not into `why` (NULL:
 * why not to go on is known). Sets .miscounted if need be: call it when all has been counted. */
static bool all_seen(struct rest *rest, struct unseen *unseen, char *why, size_t size)
{
	struct looking looking = {rest, unseen, true, why, size};

	return lien_probes_threads(rest->agent->probes, rest->pids, rest->count, look_at_thread,
		       &looking) >= 0 &&
	       looking.all_seen;
}

struct unheld {
	const struct rest *rest;
	struct lien_probe_held_key who; /* .tid 0: nobody */
};

static int note_unheld(void *context, const struct lien_probe_held_key *who)
{
	struct unheld *unheld = context;

	if (lien_rest_index_of(unheld->rest, who->pid) < 0)
		return 0;
	unheld->who = *who;
	return 1;
}

/* Could the gates hold every thread, including those that have made no call yet? Puts one that they
 * could not into `why`. */
static bool can_hold(struct rest *rest, char *why, size_t size)
{
	struct unheld unheld = {.rest = rest};
	int found = lien_probes_unheld(rest->agent->probes, note_unheld, &unheld);

	if (found < 0)
		snprintf(why, size, "threads cannot be looked at: %s", strerror(-found));
	else if (found) {
		rest->resting->who = unheld.who.pid;
		lien_gate_say_unheld(unheld.who.pid, unheld.who.tid, NULL, why, size);
	}
	return !found;
}

/* Returns true if the gate counts no thread of the process in a call. *covered becomes false if the
 * gate may miss some. */
static bool is_quiet(
	const struct rest *rest, uint32_t pid, bool *busy, bool *covered, char *why, size_t size)
{
	struct lien_probe_gate gate;

	if (!lien_probes_gate_get(rest->agent->probes, pid, &gate))
		return true;
	if (!lien_gate_covers(rest->agent, pid, &gate, why, size)) {
		rest->resting->who = pid;
		*covered = false;
		return false;
	}
	if (gate.inside <= lien_rest_first_waiting(rest, pid + 1, 0, 0, 0) -
				   lien_rest_first_waiting(rest, pid, 0, 0, 0))
		return true;
	*busy = true;
	rest->resting->who = pid;
	snprintf(why, size, "a thread of process %u is in a call of NCCL or the driver", pid);
	return false;
}

/* --- who goes on ------------------------------------------------------------------------------ */

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

/*
 * Does the thread, which the gate has not seen, wait for it? An earlier gate has signalled it, and
 * on a busy machine the signal came only when that gate was open and this one shut. It was let go
 * with the earlier gate, so others may wait for the call before which it stands. *own: the number
 * that its process knows it by. True only once for each thread and gate, so that nobody can be let
 * in twice; more than LIEN_LATE_MAX are not found.
 */
static bool waits_late(struct rest *rest, const struct lien_probe_held_key *who, uint32_t *own)
{
	struct lien_process *process = lien_graph_process(rest->agent->graph, who->pid);
	struct lien_tracked *tracked = process ? process->agent : NULL;
	struct lien_control_state state;
	uint64_t number, argument, sp;
	long long inner;

	/* Where memory is away, it may wait for that. */
	if (!tracked || tracked->gate_was_shut || process->parked || process->held_items ||
		tracked->late_count == LIEN_LATE_MAX ||
		lien_pids_have(tracked->late, tracked->late_count, who->tid) ||
		!stands(who->pid, who->tid, &number, &argument, &sp) || number != SYS_futex ||
		lien_link_state(who->pid, &tracked->place, &state) || argument != state.gate)
		return false;
	inner = lien_status_of(who->pid, who->tid, "NSpid", 10);
	if (inner <= 0)
		return false;
	*own = inner;
	tracked->late[tracked->late_count++] = who->tid;
	return true;
}

struct late {
	struct lien_probe_held_key who[UNSEEN_MAX];
	uint32_t own[UNSEEN_MAX];
	bool unseen[UNSEEN_MAX]; /* even now */
	unsigned count;
};

static int is_unseen(void *context, const struct lien_probe_thread *thread)
{
	struct late *late = context;
	unsigned i;

	for (i = 0; i < late->count && !thread->seen; i++)
		if (late->who[i].pid == thread->pid && late->who[i].tid == thread->tid)
			late->unseen[i] = true;
	return 0;
}

/* Lets in threads that wait for a gate that does not know of them. Returns true if there are any.
 * One may have come to this gate after the gate's threads were listed: it is held then, and let in
 * like all that are. */
static bool let_late_in(struct rest *rest, const struct unseen *unseen)
{
	struct lien_resting *resting = rest->resting;
	struct late late = {.count = 0};
	uint32_t tids[UNSEEN_MAX];
	unsigned i, j, n, all = 0;

	for (i = 0; i < unseen->count; i++)
		if (waits_late(rest, &unseen->who[i], &late.own[late.count]))
			late.who[late.count++] = unseen->who[i];
	if (!late.count || lien_probes_threads(rest->agent->probes, rest->pids, rest->count,
				   is_unseen, &late) < 0)
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
	const uint64_t more = lien_targets_more(&rest->targets, standing, at, peer);
	const struct lien_probe_pair which = {.comm = standing->comm,
		.pid = rest->pids[standing->process],
		.peer = at == LIEN_HELD_COLLECTIVE ? LIEN_PROBE_COLLECTIVES
						   : peer * 2 + (at == LIEN_HELD_RECEIVE)};

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
			lien_gate_held_before(rest->agent, rest->pids[standing->process], &next))
			continue;
		allow(rest, standing, LIEN_HELD_COLLECTIVE, 0);
		for (j = 0; j < lien_targets_pairs(standing); j++) {
			allow(rest, standing, LIEN_HELD_SEND, standing->peers[j]->rank);
			allow(rest, standing, LIEN_HELD_RECEIVE, standing->peers[j]->rank);
		}
	}
}

/* A process may have hundreds of launches to make until it gets to the kernel that is waited for.
 * If it makes too many, another process is behind, by fewer. */
static void allow_singly(struct rest *rest)
{
	struct lien_singly *singly = &rest->resting->singly;
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

/*
 * NEAR: somebody is let in; FAR: nobody; UNEVEN. While the ranks come level, threads that are still
 * held at calls in which they do not meet go on: they were held before.
 */
static enum lien_rest advance(struct rest *rest)
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
	if (!resting->levelling && targets->uneven)
		return LIEN_REST_UNEVEN;
	allow_the_rest(rest);
	allow_singly(rest);
	return let_in(rest) ? LIEN_REST_NEAR : LIEN_REST_FAR;
}

/* --- the look --------------------------------------------------------------------------------- */

/* The time that ranks have to come level if no counts show when they are. It doubles with each step
 * LEVEL, LEVELS_MAX times at most. */
#define LEVEL_NS   100000000ull
#define LEVELS_MAX 5

static uint64_t level_ns(const struct lien_resting *resting)
{
	return LEVEL_NS << (resting->levels < LEVELS_MAX ? resting->levels : LEVELS_MAX);
}

/*
 * First the ranks come to the same point, while all but the calls in which they meet goes on: a
 * rank that lags gets there at full speed. Returns true when it is time to hold the rest: nobody is
 * behind, or nobody shows that somebody may be.
 */
static bool is_level(const struct rest *rest, bool any_busy)
{
	unsigned i;

	if (!any_busy)
		return true;
	/* Its threads make calls that would be held. */
	for (i = 0; i < rest->count; i++)
		if (rest->resting->working[i])
			return false;
	return !rest->targets.lags &&
	       (rest->targets.counted || rest->resting->ns > level_ns(rest->resting));
}

/* Is a thread about to free the communicator? NCCL must not be asked about it then. A held thread
 * has not begun to. */
static bool is_ending(const struct lien_agent *agent, const struct lien_process *process,
	const struct lien_comm *comm)
{
	const struct lien_pending *pending;

	TAILQ_FOREACH (pending, &process->pending, next)
		if ((pending->event.type == LIEN_CALL_NCCL_DESTROY ||
			    pending->event.type == LIEN_CALL_NCCL_ABORT) &&
			pending->event.comm_end.comm == comm->address &&
			!lien_probes_is_held(agent->probes, process->pid, pending->event.tid))
			return true;
	return false;
}

unsigned lien_quiesce_background(void *context, uint32_t pid, uint64_t *comms, unsigned max)
{
	struct lien_agent *agent = context;
	struct lien_probe_process known;
	struct lien_process *process;
	struct lien_comm *comm;
	unsigned n = 0;

	if (!lien_probes_process(agent->probes, pid, &known) || !known.nonblocking)
		return 0;
	lien_agent_catch_up(agent); /* with threads that have begun to free one */
	process = lien_graph_process(agent->graph, pid);
	if (!process)
		return 0;
	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (n < max && !is_ending(agent, process, comm))
			comms[n++] = comm->address;
	return n;
}

static void say_who(const struct rest *rest, char *why, size_t size)
{
	const struct waiting *first = rest->waiting;
	const struct lien_standing *standing;

	if (!rest->waiting_count)
		return;
	standing = rest->targets.held[0].standing;
	rest->resting->who = first->who.pid;
	if (standing && standing->rank >= 0)
		snprintf(why, size,
			"rank %d (process %u) waits before %s, which others may wait for",
			standing->rank, first->who.pid, lien_calls_name(first->held.call));
	else
		snprintf(why, size, "process %u waits before %s, which others may wait for",
			first->who.pid, lien_calls_name(first->held.call));
}

const char *lien_quiesce_not_now(void *context, uint32_t pid)
{
	struct lien_agent *agent = context;
	struct lien_process *process;

	/* A capture may have begun just before the gate was shut. If the agent is far behind, it is
	 * noticed when the job is at rest. */
	lien_agent_catch_up(agent);
	process = lien_graph_process(agent->graph, pid);
	return process && !RB_EMPTY(&process->captures)
		       ? "is capturing a CUDA graph: try again when it is done"
		       : NULL;
}

/* Has every capture that it may have begun been seen? Asking its devices spoils those that have
 * not.
 */
static bool captures_are_known(const struct lien_process *process)
{
	return process && process->t_first && !(process->incomplete & LIEN_INCOMPLETE_REREAD);
}

/* What the kernel side says, and what follows from it. Returns false if out of memory. */
static bool take_all(struct rest *rest)
{
	struct lien_targets *targets = &rest->targets;

	if (!lien_rest_take(rest) || (rest->agent->elsewhere && !lien_rest_take_others(rest)))
		return false;
	targets->of = calloc(rest->count + 2, sizeof(*targets->of));
	targets->order = calloc(2 * (targets->standings_count + 1), sizeof(*targets->order));
	if (!targets->of || !targets->order)
		return false;
	rest->behind = lien_targets_compute(targets);
	return true;
}

static enum lien_rest look(struct rest *rest, char *why, size_t size)
{
	struct unseen unseen = {.count = 0};
	bool quiet, covered = true, any_busy = false, known = true;
	const struct lien_process *process;
	enum lien_rest advanced;
	unsigned i;

	lien_turn_part(rest->agent, "rest", "held threads");
	if (!take_all(rest))
		return LIEN_REST_FAR;
	rest->resting->counted = rest->targets.counted;
	rest->resting->launches = rest->targets.unsure;
	say_who(rest, why, size);
	lien_turn_part(rest->agent, "rest", "gates");
	for (i = 0, quiet = true; i < rest->count; i++) {
		process = lien_graph_process(rest->agent->graph, rest->pids[i]);
		rest->resting->launches |= process && process->captured;
		known &= captures_are_known(process);
		rest->busy[i] = rest->resting->busy[i];
		if (!is_quiet(rest, rest->pids[i], &rest->busy[i], &covered, why, size))
			quiet = false;
	}
	rest->resting->launches |= known;
	any_busy |= rest->busy[lien_rest_elsewhere(rest)];
	lien_turn_part(rest->agent, "rest", "threads");
	if (!all_seen(rest, &unseen, covered ? why : NULL, size))
		quiet = false;
	if (rest->miscounted)
		return LIEN_REST_NEAR;
	for (i = 0; i < rest->count; i++)
		any_busy |= rest->busy[i];
	rest->resting->idle = lien_targets_idle(&rest->targets);
	lien_turn_part(rest->agent, "rest", "let in");
	/* A rank that waits for others is busy: if none is, counts that differ mean nothing. */
	advanced = any_busy && !lien_elsewhere_holds(rest->agent) ? advance(rest) : LIEN_REST_FAR;
	if (advanced != LIEN_REST_FAR)
		return advanced;
	/* One order at a time: not together with others that are let in. */
	if (!lien_elsewhere_holds(rest->agent) && let_late_in(rest, &unseen))
		return LIEN_REST_NEAR;
	if (rest->resting->levelling)
		return covered && is_level(rest, any_busy) ? LIEN_REST_LEVEL : LIEN_REST_NEAR;
	/* Whoever is allowed to enter could do so at any time. */
	return quiet && !rest->allowed && can_hold(rest, why, size) ? LIEN_REST_REACHED
								    : LIEN_REST_FAR;
}

enum lien_rest lien_quiesce_look(void *context, struct lien_resting *resting)
{
	struct lien_agent *agent = context;
	struct rest rest = {.agent = agent,
		.resting = resting,
		.pids = resting->pids,
		.busy = calloc(resting->count + 1, sizeof(bool)),
		.count = resting->count};
	enum lien_rest found = LIEN_REST_FAR;

	/* The kernel's next answers describe the present, so the graph must, too. */
	lien_turn_part(agent, "rest", "records");
	if (!lien_agent_catch_up(agent)) {
		snprintf(resting->why, resting->size,
			"the agent has yet to read what the jobs have done");
		if (agent->elsewhere)
			lien_elsewhere_looked(agent, false, NULL);
	} else if (rest.busy) {
		found = look(&rest, resting->why, resting->size);
		if (agent->elsewhere)
			lien_rest_tell_others(&rest, found == LIEN_REST_REACHED);
	}
	lien_rest_clear(&rest);
	return found;
}
