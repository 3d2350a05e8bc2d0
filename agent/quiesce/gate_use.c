// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/gate_internal.h"

#include <stdio.h>
#include <string.h>

#include "agent/quiesce/holds.h"
#include "agent/server/server.h"
#include "loader/probes/calls.h"

#define RESTORE_MS 10000
#define RESET	   "cuDevicePrimaryCtxReset"

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
	if (lien_holds_other(first->agent, who->pid, held) ||
		(tracked->on_use == LIEN_ON_USE_IGNORE && held->call != LIEN_CALL_CU_MEM_RELEASE &&
			!lien_holds_away(first->agent, who->pid, held))) {
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

/* Warns of threads that block the signal: nothing else can be done about them. */
static void name_unheld(struct lien_agent *agent)
{
	struct lien_process *process;
	struct lien_tracked *tracked;
	struct lien_probe_gate gate;

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		tracked = process->agent;
		if (!tracked || !lien_probes_gate_get(agent->probes, process->pid, &gate) ||
			gate.unheld == tracked->gate_unheld)
			continue;
		tracked->gate_unheld = gate.unheld;
		lien_log(3,
			"process %u: thread %u has entered %s while memory is away, and blocks the "
			"signal that would have held it back: if it uses that memory, the call "
			"fails",
			process->pid, gate.unheld_tid, lien_calls_name(gate.unheld_call));
	}
}

/* Does the thread need no more than the memory of one communicator? */
static bool group_in_use(const struct lien_agent *agent, const struct use *use, uint64_t *group)
{
	struct lien_process *process = lien_graph_process(agent->graph, use->tracked->pid);
	const struct lien_comm key = {.address = use->held.comm}, *comm;
	struct lien_probe_shut shut;

	if (!process || !use->held.comm ||
		!lien_probes_gate_holds(agent->probes, process->pid, &shut) || !shut.by_comm)
		return false;
	comm = RB_FIND(lien_comm_tree, &process->comms, (struct lien_comm *)&key);
	if (!comm || lien_comm_unnamed(comm))
		return false;
	*group = lien_comm_group(comm);
	return true;
}

bool lien_gate_others_wait(struct lien_agent *agent)
{
	const struct lien_process *process;
	struct use first = {.agent = agent};

	if (!lien_probes_gates(agent->probes))
		return false;
	lien_probes_held(agent->probes, find_use, &first);
	process = first.tracked ? lien_graph_process(agent->graph, first.tracked->pid) : NULL;
	return process && process->uid != agent->transaction_of.uid;
}

void lien_gate_serve(struct lien_agent *agent)
{
	struct lien_restore_how how = {.timeout_ms = RESTORE_MS};
	struct lien_selection selection = {0};
	struct use first = {.agent = agent};
	struct lien_process *process;
	uint64_t group;
	char error[400] = "";
	const char *call;
	bool nothing;
	uint32_t pid;
	int err;

	if (!lien_probes_gates(agent->probes))
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

void lien_gate_tick(struct lien_agent *agent)
{
	lien_probes_gate_tick(agent->probes);
	if (agent->transaction)
		return;
	lien_gate_make_late(agent);
	if (!lien_probes_gates(agent->probes))
		return;
	lien_gate_cover_late(agent);
	name_unheld(agent);
	lien_gate_serve(agent);
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

	if (lien_probes_gates(agent->probes))
		lien_probes_held(agent->probes, view_held, &view);
	return view.list;
}
