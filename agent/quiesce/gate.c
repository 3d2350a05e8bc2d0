// SPDX-License-Identifier: BSD-2-Clause
/* Shuts and opens gates, lets threads go that they hold no more, and serves those that wait while
 * memory is away. */
#include "agent/quiesce/gate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/core/transfer.h"
#include "agent/link/link.h"
#include "agent/server/server.h"
#include "loader/probes/calls.h"

#define PASSES_MAX 1024
#define RESTORE_MS 10000
#define RESET	   "cuDevicePrimaryCtxReset"

/* --- what a gate holds ------------------------------------------------------------------------ */

/* bpf/gate.h decides when a thread comes to a call; this says the same afterwards, with what only
 * the graph knows. */

/* Is memory of [from, end) away? */
static bool is_away(struct lien_process *process, uint64_t from, uint64_t end)
{
	struct lien_mapping *mapping = lien_process_overlap(process, from, end - from);

	for (; mapping && mapping->va < end;
		mapping = RB_NEXT(lien_mapping_tree, &process->mappings, mapping))
		if (mapping->parked)
			return true;
	return false;
}

static bool registers_or_closes(const struct lien_probe_held *held)
{
	return held->bytes || held->call == LIEN_CALL_CU_IPC_CLOSE;
}

/* Does the thread unmap, register or close what is away? */
static bool holds_away(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process && (registers_or_closes(held) || held->call == LIEN_CALL_CU_MEM_UNMAP) &&
	       is_away(process, held->address, held->address + (held->bytes ? held->bytes : 1));
}

/* Does it register or close memory that is not away? The gate holds a range, in which there is
 * other memory, too. */
static bool holds_other(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held)
{
	return registers_or_closes(held) && !holds_away(agent, pid, held);
}

/* Would a gate of the process that is shut like this hold the thread? `all`: it guards more than
 * NCCL's memory. */
static bool holds(const struct lien_agent *agent, uint32_t pid, const struct lien_probe_shut *shut,
	bool all, const struct lien_probe_held *held)
{
	if (shut->trusting)
		return holds_away(agent, pid, held);
	if (!all && LIEN_CALL_BEGINS_CAPTURE(held->call))
		return shut->busy;
	if (!all && !(held->flags & LIEN_PROBE_HELD_MEETS))
		return false;
	/* While a transaction runs, memory goes and comes. */
	if (!agent->transaction && holds_other(agent, pid, held))
		return false;
	return !shut->by_comm ||
	       !(LIEN_CALL_MAKES_COMM(held->call) ||
		       (held->comm && !lien_probes_comm_away(agent->probes, pid, held->comm)));
}

bool lien_gate_held_before(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held)
{
	const struct lien_process *process = lien_graph_process(agent->graph, pid);
	const struct lien_tracked *tracked = process ? process->agent : NULL;
	struct lien_probe_shut before;

	if (!tracked || !tracked->gate_was_shut)
		return process && process->parked;
	before = tracked->gate_held;
	before.busy = 0; /* that transaction is over, even if an agent did not live to say so */
	return holds(agent, pid, &before, tracked->gate_was_all, held);
}

/* --- shutting and opening --------------------------------------------------------------------- */

/* Has the gate held since all were at rest? Threads that are held but not listed wait for the end
 * like others. */
static int still_holds(struct lien_agent *agent, uint32_t pid, char *why, size_t size)
{
	struct lien_tracked *tracked = lien_gate_tracked(agent, pid);
	struct lien_probe_gate gate;

	if (!tracked || !lien_probes_gate_get(agent->probes, pid, &gate))
		return 0; /* the process has ended */
	if (gate.unheld)
		snprintf(why, size,
			"thread %u, which blocks the signal that would hold it back, has entered "
			"%s",
			gate.unheld_tid, lien_calls_name(gate.unheld_call));
	else if (gate.mapped != tracked->gate_mapped)
		snprintf(why, size, "it has loaded another library of CUDA's or NCCL's");
	return gate.unheld || gate.mapped != tracked->gate_mapped ? -EAGAIN : 0;
}

/* Finds the range of addresses that the plan moves in this process. */
static void range_of(const struct lien_agent *agent, uint32_t pid, struct lien_probe_shut *range)
{
	const struct lien_plan_process *part = lien_plan_part(&agent->plan, pid);
	unsigned i;

	range->low = agent->adoption.count ? 0 : UINT64_MAX;
	range->high = agent->adoption.count ? UINT64_MAX : 0;
	for (i = 0; part && i < part->items_count; i++) {
		if (part->items[i].object) { /* reached by the object's mappings, too */
			range->low = 0;
			range->high = UINT64_MAX;
			return;
		}
		if (!part->items[i].va)
			continue; /* its control library's, for memory without a mapping */
		if (part->items[i].va < range->low)
			range->low = part->items[i].va;
		if (part->items[i].va + part->items[i].bytes > range->high)
			range->high = part->items[i].va + part->items[i].bytes;
	}
}

/* Do all processes that use CUDA take part, several of them? */
static bool is_whole_node(struct lien_agent *agent)
{
	const struct lien_plan *plan = &agent->plan;
	struct lien_process *process;
	unsigned left = plan->processes_count;

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		if (!process->cuda)
			continue;
		if (!lien_plan_part(plan, process->pid))
			return false;
		left--;
	}
	return !left && plan->processes_count > 1;
}

/* Keeps what the process's gate holds now, for LIEN_GATE_BACK. */
static void remember(struct lien_agent *agent, struct lien_tracked *tracked)
{
	tracked->gate_was_shut =
		lien_probes_gate_holds(agent->probes, tracked->pid, &tracked->gate_held);
}

void lien_gate_set(struct lien_agent *agent, bool all)
{
	const bool shared = is_whole_node(agent);
	struct lien_tracked *tracked;
	unsigned i;

	for (i = 0; i < agent->plan.processes_count; i++) {
		tracked = lien_gate_tracked(agent, agent->plan.processes[i].pid);
		if (!tracked)
			continue;
		remember(agent, tracked); /* it may be told to go back before its gate is made */
		tracked->gate_was_all = tracked->gate_all;
		tracked->gate_all |= all;
		tracked->gate_shared = shared;
	}
}

/* The process may have ended. */
static void open_gate(struct lien_agent *agent, uint32_t pid)
{
	struct lien_tracked *tracked = lien_gate_tracked(agent, pid);

	lien_probes_ungate(agent->probes, pid, false);
	if (tracked) {
		tracked->t_gate = 0;
		tracked->gate_all = tracked->gate_shared = tracked->gate_mixed = false;
		tracked->use_all = false;
		tracked->gate_unheld = 0;
		tracked->comms_away = 0;
	}
}

/* Shuts a gate that has been made. It goes on holding what `before` says; NULL: it holds nothing
 * else. 0, or -errno and why. */
static int shut_to(struct lien_agent *agent, uint32_t pid, const struct lien_probe_shut *range,
	const struct lien_probe_shut *before, char *why, size_t size)
{
	int err = lien_probes_gate_shut(agent->probes, pid, range, before);

	if (err)
		snprintf(why, size, "its gate cannot be shut: %s", strerror(-err));
	return err;
}

/* --- letting go ------------------------------------------------------------------------------- */

struct passing {
	struct lien_agent *agent;
	const struct lien_tracked *tracked;
	struct lien_probe_shut shut;
	uint32_t keys[PASSES_MAX], tids[PASSES_MAX]; /* in our pid namespace, and in its own */
	unsigned count;
};

static int find_passing(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct passing *passing = context;

	if (who->pid != passing->tracked->pid ||
		holds(passing->agent, who->pid, &passing->shut, passing->tracked->gate_all, held))
		return 0;
	passing->keys[passing->count] = who->tid;
	passing->tids[passing->count++] = held->tid;
	return passing->count == PASSES_MAX;
}

/* No order is under way that this one would have to wait for. */
static bool is_free(const struct lien_link *link)
{
	return !link->asked && !link->waiting.asker;
}

void lien_gate_let_go(struct lien_agent *agent, struct lien_tracked *tracked)
{
	struct passing passing = {.agent = agent, .tracked = tracked};
	struct lien_wire_header order = {.type = LIEN_WIRE_GATE, .arg = LIEN_WIRE_GATE_PASS};
	unsigned i;

	tracked->let_go_later = false;
	if (!lien_probes_gate_holds(agent->probes, tracked->pid, &passing.shut))
		return;
	lien_probes_held(agent->probes, find_passing, &passing);
	if (!passing.count || !tracked->link)
		return;
	tracked->let_go_later = !is_free(tracked->link);
	if (tracked->let_go_later)
		return;
	/* They count as inside from now on, until they return. */
	for (i = 0; i < passing.count; i++)
		lien_probes_let_in(agent->probes, tracked->pid, passing.keys[i]);
	order.length = sizeof(order) + passing.count * sizeof(passing.tids[0]);
	lien_link_send(tracked->link, LIEN_ASK_GATE, &order, passing.tids, NULL, 0);
}

void lien_gate_stays(struct lien_agent *agent, uint32_t pid)
{
	struct lien_probe_shut range;

	if (!lien_probes_gate_holds(agent->probes, pid, &range))
		return;
	range.busy = 0;
	lien_probes_gate_shut(agent->probes, pid, &range, NULL);
}

void lien_gate_set_on_use(struct lien_agent *agent, enum lien_on_use on_use)
{
	const bool named =
		agent->transfer->selection.groups_count || agent->transfer->selection.tags_count;
	struct lien_probe_shut range;
	struct lien_tracked *tracked;
	struct lien_process *process;
	unsigned i;

	for (i = 0; i < agent->plan.processes_count; i++) {
		tracked = lien_gate_tracked(agent, agent->plan.processes[i].pid);
		if (!tracked)
			continue;
		tracked->on_use = on_use;
		process = lien_graph_process(agent->graph, tracked->pid);
		if (process)
			process->used_in = NULL;
		tracked->use_all = on_use == LIEN_ON_USE_RESTORE && !named &&
				   (tracked->use_all || !tracked->gate_was_shut);
		if (on_use != LIEN_ON_USE_IGNORE ||
			!lien_probes_gate_holds(agent->probes, tracked->pid, &range))
			continue;
		range.trusting = 1;
		lien_probes_gate_shut(agent->probes, tracked->pid, &range, NULL);
	}
}

/* Threads that the earlier offload holds stay held. Threads at calls that only this transaction
 * holds go on. */
static void go_back(struct lien_agent *agent, struct lien_tracked *tracked, char *why, size_t size)
{
	if (!tracked->gate_was_shut ||
		shut_to(agent, tracked->pid, &tracked->gate_held, NULL, why, size))
		return;
	if (!tracked->gate_was_all) {
		tracked->gate_all = false;
		lien_probes_gate_nccl_alone(agent->probes, tracked->pid);
	}
	lien_gate_let_go(agent, tracked);
}

int lien_gate_step(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct lien_probe_shut range = {.meetings_alone = step == LIEN_GATE_LEVEL, .busy = 1}, now;
	struct lien_tracked *tracked = process ? process->agent : NULL;
	const struct lien_probe_shut *held;

	if (!process) {
		snprintf(why, size, "it has ended");
		return -ESRCH;
	}
	if (step == LIEN_GATE_BEGIN || step == LIEN_GATE_MAKE) {
		if (tracked) {
			remember(agent, tracked);
			tracked->late_count = 0; /* it knows of nobody */
		}
		return lien_gate_make(agent, process, step == LIEN_GATE_MAKE, why, size);
	}
	if (step == LIEN_GATE_OPEN) {
		open_gate(agent, pid);
		return 0;
	}
	if (step == LIEN_GATE_BACK) {
		if (tracked)
			go_back(agent, tracked, why, size);
		return 0;
	}
	if (step == LIEN_GATE_HOLDS)
		return still_holds(agent, pid, why, size);
	/* An earlier transaction, or agent, may have ended on the way to rest. */
	if (step == LIEN_GATE_LEVEL && lien_probes_allow_none(agent->probes)) {
		snprintf(why, size, "what was let in before cannot be taken back");
		return -EIO;
	}
	if (!tracked || !tracked->gate_all)
		range.meetings_alone = 0; /* nothing else is held */
	range_of(agent, pid, &range);
	/* LEVEL again: what this transaction has held meanwhile is not held any more. */
	if (step == LIEN_GATE_LEVEL && tracked)
		held = tracked->gate_was_shut ? &tracked->gate_held : NULL;
	else
		held = lien_probes_gate_holds(agent->probes, pid, &now) ? &now : NULL;
	return shut_to(agent, pid, &range, held, why, size);
}

/* --- memory that is away ---------------------------------------------------------------------- */

/* Makes the gate of a process whose memory is away, and shuts it for everything: only the client
 * that asked knew what was moved. What the kernel, or the process, takes too long for is tried
 * again (tick_process()). */
static int make_for_all(
	struct lien_agent *agent, struct lien_process *process, char *why, size_t size)
{
	struct lien_probe_shut all = {.high = UINT64_MAX}, before;
	struct lien_tracked *tracked = process->agent;
	int err;

	/* The earlier agent was told that nobody uses the memory. */
	if (lien_probes_gate_holds(agent->probes, process->pid, &before) && before.trusting) {
		all.trusting = 1;
		tracked->on_use = LIEN_ON_USE_IGNORE;
	}
	tracked->gate_all = true;
	err = lien_gate_make(agent, process, true, why, size);
	if (!err)
		err = shut_to(agent, process->pid, &all, NULL, why, size);
	tracked->t_gate = err ? lien_now_ns() + (err == -ETIMEDOUT ? 0 : LIEN_GATE_AGAIN_NS) : 0;
	return err;
}

bool lien_gate_found(struct lien_agent *agent, struct lien_process *process, bool away, bool shut)
{
	struct lien_wire_header open = {
		.length = sizeof(open), .type = LIEN_WIRE_GATE, .arg = LIEN_WIRE_GATE_OPEN};
	struct lien_tracked *tracked = process->agent;
	char why[200];

	if (!lien_probes_can_gate(agent->probes))
		return false;
	if (away) {
		if (make_for_all(agent, process, why, sizeof(why)))
			lien_log(4, "process %u, whose memory is away: %s", process->pid, why);
		return false;
	}
	open_gate(agent, process->pid);
	/* An earlier agent has shut it. */
	return shut && !lien_link_send(tracked->link, LIEN_ASK_GATE, &open, NULL, NULL, 0);
}

const char *const lien_on_use_names[] = {[LIEN_ON_USE_WAIT] = "wait",
	[LIEN_ON_USE_RESTORE] = "restore",
	[LIEN_ON_USE_IGNORE] = "ignore"};

/* The thread that has been held the longest among those for which a restore is to begin. */
struct use {
	struct lien_agent *agent;
	struct lien_tracked *tracked; /* NULL: there is none */
	struct lien_tracked *other;   /* has threads that its gate would not hold now; NULL: none */
	struct lien_probe_held held;
};

/* Calls that end a communicator or free memory always restore: a process must not hang at its end
 * until somebody asks for a restore. */
static enum lien_on_use on_use_of(const struct lien_tracked *tracked, uint32_t call)
{
	switch (call) {
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
	case LIEN_CALL_NCCL_FINALIZE:
	case LIEN_CALL_NCCL_DEREGISTER:
	case LIEN_CALL_NCCL_WINDOW_DEREGISTER:
	case LIEN_CALL_NCCL_MEM_FREE:
	case LIEN_CALL_CU_MEM_UNMAP:
	case LIEN_CALL_CU_MEM_RELEASE:
	case LIEN_CALL_CU_IPC_CLOSE:
		return LIEN_ON_USE_RESTORE;
	}
	return strncmp(lien_calls_name(call), RESET, strlen(RESET)) ? tracked->on_use
								    : LIEN_ON_USE_RESTORE;
}

static int find_use(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct use *first = context;
	struct lien_tracked *tracked = lien_gate_tracked(first->agent, who->pid);
	enum lien_on_use on_use = tracked ? on_use_of(tracked, held->call) : LIEN_ON_USE_WAIT;

	if (tracked && tracked->let_go_later)
		first->other = tracked;
	if (!tracked || tracked->let_go_later || lien_now_ns() < tracked->t_use)
		return 0;
	if (holds_other(first->agent, who->pid, held) ||
		(tracked->on_use == LIEN_ON_USE_IGNORE && held->call != LIEN_CALL_CU_MEM_RELEASE &&
			!holds_away(first->agent, who->pid, held))) {
		first->other = tracked;
		return 0;
	}
	if (on_use != LIEN_ON_USE_RESTORE) {
		if (held->t <= tracked->t_told)
			return 0;
		tracked->t_told = held->t;
		lien_log(5, "process %u waits in %s for a restore", who->pid,
			lien_calls_name(held->call));
	} else if (!first->tracked || held->t < first->held.t) {
		first->tracked = tracked;
		first->held = *held;
	}
	return 0;
}

/* Finds a process with a held thread that is not listed, because its user has more threads than
 * lien follows. */
static void find_unlisted(struct use *first)
{
	struct lien_process *process;
	struct lien_tracked *tracked;
	struct lien_probe_gate gate;

	for (process = lien_graph_first(first->agent->graph); process && !first->tracked;
		process = lien_graph_next(process)) {
		tracked = process->agent;
		if (!tracked || tracked->on_use != LIEN_ON_USE_RESTORE ||
			lien_now_ns() < tracked->t_use ||
			!lien_probes_gate_get(first->agent->probes, process->pid, &gate) ||
			!gate.unlisted)
			continue;
		first->tracked = tracked;
	}
}

/* Does the thread need no more than the memory of one communicator? */
static bool group_in_use(const struct lien_agent *agent, const struct use *use, uint64_t *group)
{
	struct lien_process *process = lien_graph_process(agent->graph, use->tracked->pid);
	const struct lien_comm *comm;
	struct lien_probe_shut shut;

	if (!process || !use->held.comm ||
		!lien_probes_gate_holds(agent->probes, process->pid, &shut) || !shut.by_comm)
		return false;
	comm = lien_comm_find(process, use->held.comm);
	if (!comm || lien_comm_unnamed(comm))
		return false;
	*group = lien_comm_group(comm);
	return true;
}

bool lien_gate_others_wait(struct lien_agent *agent)
{
	const struct lien_process *process;
	struct use first = {.agent = agent};

	if (!lien_probes_facts(agent->probes)->gates)
		return false;
	lien_probes_held(agent->probes, find_use, &first);
	process = first.tracked ? lien_graph_process(agent->graph, first.tracked->pid) : NULL;
	return process && process->uid != agent->transaction_of.uid;
}

/* Looks for threads that wait for memory that is away, and acts as the offload's client asked. */
static void serve(struct lien_agent *agent)
{
	struct lien_how how = {.timeout_ms = RESTORE_MS};
	struct lien_selection selection = {0};
	struct use first = {.agent = agent};
	struct lien_process *process;
	uint64_t group;
	char error[400] = "";
	const char *call;
	bool nothing;
	uint32_t pid;
	int err;

	if (!lien_probes_facts(agent->probes)->gates)
		return;
	lien_probes_held(agent->probes, find_use, &first);
	if (first.other)
		lien_gate_let_go(agent, first.other);
	if (!first.tracked)
		find_unlisted(&first);
	if (!first.tracked)
		return;
	pid = first.tracked->pid;
	call = lien_calls_name(first.held.call);
	first.tracked->t_use = lien_now_ns() + LIEN_GATE_AGAIN_NS;
	lien_log(5, "process %u needs memory that is away, in %s: restoring", pid, call);
	/* The offload was of all communicators: so is the restore, and this one comes first. */
	how.lazy = first.tracked->use_all;
	if (!how.lazy && group_in_use(agent, &first, &group)) {
		selection.groups = &group;
		selection.groups_count = 1;
	} else {
		selection.pids = &pid;
		selection.pids_count = 1;
	}
	err = agent->above->restore(agent, &selection, &how, &nothing, error, sizeof(error));
	if (!err && nothing && selection.groups_count) {
		/* It is held because another one's may be its memory, too. */
		selection = (struct lien_selection){.pids = &pid, .pids_count = 1};
		err = agent->above->restore(
			agent, &selection, &how, &nothing, error, sizeof(error));
	}
	agent->transaction_own = !err && !nothing;
	process = lien_graph_process(agent->graph, pid);
	if (err || nothing)
		lien_log(4, "no restore for process %u: %s", pid,
			err ? error : "nothing of it is away");
	else if (process)
		process->used_in = call;
}

/* Does what is due while the process has memory away. */
static void tick_process(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_probe_gate gate;
	char why[200];

	if (!tracked)
		return;
	if (tracked->t_gate && lien_now_ns() >= tracked->t_gate &&
		!make_for_all(agent, process, why, sizeof(why)))
		lien_log(5, "process %u: its threads are held back now", process->pid);
	if (!lien_probes_facts(agent->probes)->gates)
		return;
	lien_gate_cover(agent, process);
	if (!lien_probes_gate_get(agent->probes, process->pid, &gate) ||
		gate.unheld == tracked->gate_unheld)
		return;
	/* Nothing else can be done about threads that block the signal. */
	tracked->gate_unheld = gate.unheld;
	lien_log(3,
		"process %u: thread %u has entered %s while memory is away, and blocks the "
		"signal that would have held it back: if it uses that memory, the call "
		"fails",
		process->pid, gate.unheld_tid, lien_calls_name(gate.unheld_call));
}

void lien_gate_tick(struct lien_agent *agent)
{
	struct lien_process *process;

	lien_probes_gate_tick(agent->probes);
	if (agent->transaction)
		return;
	LIEN_FOREACH_PROCESS (process, agent->graph)
		tick_process(agent, process);
	serve(agent);
}

struct view {
	struct lien_agent *agent;
	const struct lien_viewer *viewer;
	json_t *list;
};

static int view_held(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct view *view = context;
	struct lien_process *process = lien_graph_process(view->agent->graph, who->pid);
	struct lien_tracked *tracked = process ? process->agent : NULL;

	if (tracked && lien_viewer_sees(view->viewer, process))
		json_array_append_new(
			view->list, json_pack("{s:i, s:i, s:s, s:f, s:s}", "pid", who->pid, "tid",
					    held->tid, "call", lien_calls_name(held->call), "ms",
					    (lien_now_ns() - held->t) / 1e6, "on_use",
					    lien_on_use_names[on_use_of(tracked, held->call)]));
	return 0;
}

json_t *lien_gate_view(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct view view = {agent, viewer, json_array()};

	if (lien_probes_facts(agent->probes)->gates)
		lien_probes_held(agent->probes, view_held, &view);
	return view.list;
}
