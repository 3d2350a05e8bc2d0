// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/gate.h"
#include "agent/link/link.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/core/proc.h"
#include "agent/server/server.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"

#define RESTORE_MS 10000
#define AGAIN_NS   1000000000ull /* after a restore that was not possible */

const char *const lien_on_use_names[] = {[LIEN_ON_USE_WAIT] = "wait",
	[LIEN_ON_USE_RESTORE] = "restore",
	[LIEN_ON_USE_FAIL] = "fail"};

static struct lien_tracked *tracked_of(const struct lien_agent *agent, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process ? process->agent : NULL;
}

/* --- making and removing ---------------------------------------------------------------------- */

struct attaching {
	struct lien_agent *agent;
	uint32_t pid;
	bool all;
	int err;
	char path[256]; /* of the first file that failed */
};

#define TRIES 3

/* A library whose calls cannot be held is a hole in the gate. */
static int attach_file(const struct lien_maps_entry *entry, void *arg)
{
	enum lien_library library = lien_library_of(entry->path);
	struct attaching *attaching = arg;
	char path[512];
	int err;

	if (!entry->executable || (library != LIEN_LIB_CUDA && library != LIEN_LIB_NCCL))
		return 0;
	err = lien_maps_open_path(attaching->pid, entry, path, sizeof(path));
	if (!err)
		err = lien_probes_gate_file(
			attaching->agent->probes, attaching->pid, library, path, attaching->all);
	if (err && err != -ENODATA && !attaching->err) {
		attaching->err = err;
		snprintf(attaching->path, sizeof(attaching->path), "%s", entry->path);
	}
	return err == -EINPROGRESS; /* one at a time */
}

/* Attaches the gate to all libraries that the process has mapped. */
static int attach_libraries(
	struct lien_agent *agent, struct lien_tracked *tracked, char *why, size_t size)
{
	struct attaching attaching = {
		.agent = agent, .pid = tracked->pid, .all = tracked->gate_all};
	struct lien_probe_gate gate;
	unsigned tries = 0;
	int err;

	if (!lien_probes_gate_get(agent->probes, tracked->pid, &gate))
		return -ENOENT;
	/* before reading: a later mapping changes the count again */
	tracked->gate_mapped = gate.mapped;
	/* A mapping that changed after it was listed has another name (mprotect() of a part). */
	do {
		attaching.err = 0;
		err = lien_maps_read(tracked->pid, attach_file, &attaching);
	} while (attaching.err == -ENOENT && ++tries < TRIES);
	if (attaching.err == -EINPROGRESS) {
		snprintf(why, size, "the kernel has not yet put its gate on %s", attaching.path);
		return -ETIMEDOUT;
	}
	if (attaching.err) {
		snprintf(why, size, "its threads cannot be held back in %s: %s", attaching.path,
			strerror(-attaching.err));
		return attaching.err;
	}
	if (err)
		snprintf(why, size, "its mappings cannot be read: %s", strerror(-err));
	return err;
}

/* Checks for threads and communicators that the gate would not see. 0, or -EBUSY and why. */
static int check_known(struct lien_agent *agent, uint32_t pid, char *why, size_t size)
{
	struct lien_probe_process known;

	if (!lien_probes_process(agent->probes, pid, &known)) {
		snprintf(why, size,
			"its user has more processes that use CUDA than lien follows: it is not "
			"one of those");
		return -EBUSY;
	}
	if (known.untracked)
		snprintf(why, size,
			"its user has more threads that use CUDA than lien follows, and some of "
			"this process are not among those: try again with fewer threads");
	else if (known.uncounted)
		snprintf(why, size,
			"its user has more communicators than lien counts, and some of this "
			"process are not among those");
	return known.untracked || known.uncounted ? -EBUSY : 0;
}

static int make(struct lien_agent *agent, struct lien_process *process, char *why, size_t size)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_control_state state;
	int err;

	err = tracked ? lien_link_state(process->pid, &tracked->place, &state) : -ENOENT;
	if (err == -ETIMEDOUT) {
		snprintf(why, size, "its control library cannot be read in time");
		return err;
	}
	if (err) {
		snprintf(why, size,
			"its threads cannot be held back: its first thread has ended, or its "
			"control "
			"library cannot be read");
		return -EOPNOTSUPP;
	}
	err = check_known(agent, process->pid, why, size);
	if (err)
		return err;
	err = lien_probes_gate(agent->probes, process->pid, process->start);
	if (err)
		snprintf(why, size, "its threads cannot be held back: %s", strerror(-err));
	return err ? err : attach_libraries(agent, tracked, why, size);
}

bool lien_gate_covers(struct lien_agent *agent, uint32_t pid, const struct lien_probe_gate *gate,
	char *why, size_t size)
{
	struct lien_tracked *tracked = tracked_of(agent, pid);

	if (tracked && gate->mapped != tracked->gate_mapped) {
		if (!attach_libraries(agent, tracked, why, size))
			snprintf(why, size, "process %u has just loaded a library", pid);
		return false;
	}
	if (gate->unheld)
		snprintf(why, size,
			"thread %u of process %u blocks the signal that would hold it back, or the "
			"process handles that otherwise; it has entered %s",
			gate->unheld_tid, pid, lien_calls_name(gate->unheld_call));
	else if (gate->untracked || gate->unlisted)
		snprintf(why, size,
			"more threads of process %u, or of its user, use CUDA than lien follows",
			pid);
	return !gate->unheld && !gate->untracked && !gate->unlisted;
}

/* Has the gate held since all were at rest? Threads that are held but not listed wait for the end
 * like others. */
static int still_holds(struct lien_agent *agent, uint32_t pid, char *why, size_t size)
{
	struct lien_tracked *tracked = tracked_of(agent, pid);
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

static int shut_gate(
	struct lien_agent *agent, uint32_t pid, uint64_t low, uint64_t high, char *why, size_t size)
{
	int err = lien_probes_gate_shut(agent->probes, pid, low, high);

	if (err)
		snprintf(why, size, "its gate cannot be shut: %s", strerror(-err));
	return err;
}

/* Range of the memory that the plan moves. */
static void range_of(const struct lien_agent *agent, uint32_t pid, uint64_t *low, uint64_t *high)
{
	const struct lien_plan_process *part;
	unsigned i, j;

	*low = agent->adopting ? 0 : UINT64_MAX;
	*high = agent->adopting ? UINT64_MAX : 0;
	for (i = 0; i < agent->plan.processes_count; i++) {
		part = &agent->plan.processes[i];
		for (j = 0; part->pid == pid && j < part->items_count; j++) {
			if (part->items[j].va < *low)
				*low = part->items[j].va;
			if (part->items[j].va + part->items[j].bytes > *high)
				*high = part->items[j].va + part->items[j].bytes;
		}
	}
}

void lien_gate_set(struct lien_agent *agent, bool all)
{
	struct lien_tracked *tracked;
	unsigned i;

	for (i = 0; i < agent->plan.processes_count; i++) {
		tracked = tracked_of(agent, agent->plan.processes[i].pid);
		if (tracked)
			tracked->gate_all |= all;
	}
}

void lien_gate_set_on_use(struct lien_agent *agent, enum lien_on_use on_use)
{
	struct lien_tracked *tracked;
	unsigned i;

	for (i = 0; i < agent->plan.processes_count; i++) {
		tracked = tracked_of(agent, agent->plan.processes[i].pid);
		if (tracked)
			tracked->on_use = on_use;
	}
}

/* The process may have ended. */
static void open_gate(struct lien_agent *agent, uint32_t pid)
{
	struct lien_tracked *tracked = tracked_of(agent, pid);

	lien_probes_ungate(agent->probes, pid);
	if (tracked) {
		tracked->gate_all = false;
		tracked->gate_unheld = 0;
	}
}

int lien_gate_step(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	uint64_t low, high;

	if (!process) {
		snprintf(why, size, "it has ended");
		return -ESRCH;
	}
	if (step == LIEN_GATE_MAKE)
		return make(agent, process, why, size);
	if (step == LIEN_GATE_OPEN) {
		open_gate(agent, pid);
		return 0;
	}
	if (step == LIEN_GATE_HOLDS)
		return still_holds(agent, pid, why, size);
	range_of(agent, pid, &low, &high);
	return shut_gate(agent, pid, low, high, why, size);
}

/* --- while memory is away --------------------------------------------------------------------- */

/* The thread that has been held the longest among those that need something done. */
struct use {
	struct lien_agent *agent;
	struct lien_tracked *tracked; /* NULL: there is none */
	struct lien_probe_held held;
	enum lien_on_use on_use;
};

/* A process must not hang at its end until somebody asks for a restore. */
static enum lien_on_use on_use_of(const struct lien_tracked *tracked, uint32_t call)
{
	switch (call) {
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
	case LIEN_CALL_NCCL_FINALIZE:
	case LIEN_CALL_CU_MEM_UNMAP:
	case LIEN_CALL_CU_MEM_RELEASE:
		return LIEN_ON_USE_RESTORE;
	}
	return tracked->on_use;
}

static int find_use(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct use *first = context;
	struct lien_tracked *tracked = tracked_of(first->agent, who->pid);
	enum lien_on_use on_use = tracked ? on_use_of(tracked, held->call) : LIEN_ON_USE_WAIT;

	if (!tracked || lien_now_ns() < tracked->t_use)
		return 0;
	if (on_use == LIEN_ON_USE_WAIT) {
		if (held->t <= tracked->t_told)
			return 0;
		tracked->t_told = held->t;
		lien_log(5, "process %u waits in %s for a restore", who->pid,
			lien_calls_name(held->call));
	} else if (!first->tracked || held->t < first->held.t) {
		first->tracked = tracked;
		first->held = *held;
		first->on_use = on_use;
	}
	return 0;
}

/*
 * Finds a held thread of which nothing else is known, because its user has more threads than are
 * followed.
 */
static void find_unlisted(struct use *first)
{
	struct lien_process *process;
	struct lien_tracked *tracked;
	struct lien_probe_gate gate;

	for (process = lien_graph_first(first->agent->graph); process && !first->tracked;
		process = lien_graph_next(process)) {
		tracked = process->agent;
		if (!tracked || tracked->on_use == LIEN_ON_USE_WAIT ||
			lien_now_ns() < tracked->t_use ||
			!lien_probes_gate_get(first->agent->probes, process->pid, &gate) ||
			!gate.unlisted)
			continue;
		first->tracked = tracked;
		first->on_use = tracked->on_use;
	}
}

/*
 * A thread that the signal does not reach cannot be stopped; the log can only warn of the
 * consequence.
 */
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

/* Uses a descriptor: another process may have the pid by now. 0 or -errno. */
static int end_process(const struct lien_process *process)
{
	int pidfd = syscall(SYS_pidfd_open, process->pid, 0), err = 0;

	if (pidfd < 0)
		return -errno;
	if (!lien_proc_runs(process->pid, process->start))
		err = -ESRCH;
	else if (syscall(SYS_pidfd_send_signal, pidfd, SIGABRT, NULL, 0))
		err = -errno;
	close(pidfd);
	return err;
}

void lien_gate_tick(struct lien_agent *agent)
{
	struct lien_selection selection = {.pids_count = 1};
	struct use first = {.agent = agent};
	char error[400] = "";
	const char *call;
	bool nothing;
	uint32_t pid;
	int err;

	if (agent->transaction || lien_server_has_postponed(agent) ||
		!lien_probes_gates(agent->probes))
		return;
	name_unheld(agent);
	lien_probes_held(agent->probes, find_use, &first);
	if (!first.tracked)
		find_unlisted(&first);
	if (!first.tracked)
		return;
	pid = first.tracked->pid;
	call = lien_calls_name(first.held.call);
	first.tracked->t_use = lien_now_ns() + AGAIN_NS;
	if (first.on_use == LIEN_ON_USE_FAIL) {
		err = end_process(lien_graph_process(agent->graph, pid));
		lien_log(4, "process %u needs memory that is away, in %s: %s%s", pid, call,
			err ? "it cannot be ended: " : "ended by SIGABRT, as asked",
			err ? strerror(-err) : "");
		return;
	}
	lien_log(5, "process %u needs memory that is away, in %s: restoring", pid, call);
	selection.pids = &pid;
	err = agent->above->restore(
		agent, &selection, 0, RESTORE_MS, &nothing, error, sizeof(error));
	agent->transaction_own = !err && !nothing;
	if (err || nothing)
		lien_log(4, "no restore for process %u: %s", pid,
			err ? error : "nothing of it is away");
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

bool lien_gate_found(struct lien_agent *agent, struct lien_process *process, bool away, bool shut)
{
	struct lien_wire_header open = {
		.length = sizeof(open), .type = LIEN_WIRE_GATE, .arg = LIEN_WIRE_GATE_OPEN};
	struct lien_tracked *tracked = process->agent;
	char why[200];

	if (!lien_probes_can_gate(agent->probes))
		return false;
	if (away) {
		tracked->gate_all = true; /* only the client that asked knew what was moved */
		if (make(agent, process, why, sizeof(why)) ||
			shut_gate(agent, process->pid, 0, UINT64_MAX, why, sizeof(why)))
			lien_log(4, "process %u: %s", process->pid, why);
		return false;
	}
	open_gate(agent, process->pid);
	/* An earlier agent has shut it. */
	return shut && !lien_link_send(tracked->link, LIEN_ASK_GATE, &open, NULL, NULL, 0);
}
