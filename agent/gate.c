// SPDX-License-Identifier: BSD-2-Clause
#include "agent/gate.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "agent/event_check.h"
#include "loader/gate.h"

#define RESTORE_MS 10000
#define AGAIN_NS   1000000000ull /* after a restore that was not possible */

/* --- making and removing ---------------------------------------------------------------------- */

struct attaching {
	struct lien_agent *agent;
	uint32_t pid;
	bool all;
	int err;
};

static int attach_file(const struct lien_maps_entry *entry, void *arg)
{
	enum lien_library library = lien_library_of(entry->path);
	struct attaching *attaching = arg;
	char path[512];
	int err;

	if (!entry->executable || (library != LIEN_LIB_CUDA && library != LIEN_LIB_NCCL) ||
		lien_maps_open_path(attaching->pid, entry, path, sizeof(path)))
		return 0;
	err = lien_probes_gate_file(
		attaching->agent->probes, attaching->pid, library, path, attaching->all);
	if (err && err != -ENODATA && !attaching->err)
		attaching->err = err;
	return 0;
}

static int make(struct lien_agent *agent, struct lien_process *process, char *why, size_t size)
{
	struct attaching attaching = {.agent = agent, .pid = process->pid, .all = agent->gate_all};
	struct lien_control_state state;
	struct lien_tracked *tracked = process->agent;
	int err;

	if (!tracked || lien_link_state(process->pid, &tracked->place, &state)) {
		snprintf(why, size,
			"its threads cannot be held back: its first thread has ended, or its "
			"control "
			"library cannot be read");
		return -EOPNOTSUPP;
	}
	err = lien_probes_gate(agent->probes, process->pid, process->start, state.signal);
	if (!err)
		lien_maps_read(process->pid, attach_file, &attaching);
	if (!err)
		err = attaching.err;
	if (err)
		snprintf(why, size, "its threads cannot be held back: %s", strerror(-err));
	return err;
}

static int shut_gate(
	struct lien_agent *agent, uint32_t pid, uint64_t low, uint64_t high, char *why, size_t size)
{
	int err = lien_probes_gate_shut(agent->probes, pid, low, high);

	if (err)
		snprintf(why, size, "its gate cannot be shut: %s", strerror(-err));
	return err;
}

/* Of what the plan moves. */
static void range_of(const struct lien_agent *agent, uint32_t pid, uint64_t *low, uint64_t *high)
{
	const struct lien_plan_process *part;
	unsigned i, j;

	*low = UINT64_MAX;
	*high = 0;
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
		lien_probes_ungate(agent->probes, pid);
		return 0;
	}
	range_of(agent, pid, &low, &high);
	return shut_gate(agent, pid, low, high, why, size);
}

/* --- while memory is away --------------------------------------------------------------------- */

struct use {
	uint32_t pid;
	struct lien_probe_held held;
};

static int find_use(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct use *first = context;

	if (!first->pid || held->t < first->held.t)
		*first = (struct use){who->pid, *held};
	return 0;
}

/* What ends communicators must not wait for somebody to ask for it. */
static bool ends(uint32_t call)
{
	return call == LIEN_CALL_NCCL_DESTROY || call == LIEN_CALL_NCCL_ABORT ||
	       call == LIEN_CALL_NCCL_FINALIZE;
}

void lien_gate_tick(struct lien_agent *agent)
{
	struct lien_selection selection = {.pids_count = 1};
	struct use first = {0};
	char error[400] = "";
	bool nothing;
	int err;

	if (agent->transaction || !lien_probes_gates(agent->probes))
		return;
	lien_probes_held(agent->probes, find_use, &first);
	if (!first.pid || lien_now_ns() < agent->t_use)
		return;
	if (agent->on_use == LIEN_ON_USE_FAIL && !ends(first.held.call)) {
		lien_log(4,
			"process %u needs memory that is away, in %s: ended by SIGABRT, as asked",
			first.pid, lien_call_name(first.held.call));
		kill(first.pid, SIGABRT);
		agent->t_use = lien_now_ns() + AGAIN_NS;
		return;
	}
	if (agent->on_use == LIEN_ON_USE_WAIT && !ends(first.held.call)) {
		if (first.held.t != agent->t_told)
			lien_log(5, "process %u waits in %s for a restore", first.pid,
				lien_call_name(first.held.call));
		agent->t_told = first.held.t;
		return;
	}
	lien_log(5, "process %u needs memory that is away, in %s: restoring", first.pid,
		lien_call_name(first.held.call));
	selection.pids = &first.pid;
	err = lien_orders_restore(agent, &selection, 0, RESTORE_MS, &nothing, error, sizeof(error));
	if (err || nothing) {
		lien_log(4, "no restore for process %u: %s", first.pid,
			err ? error : "nothing of it is away");
		agent->t_use = lien_now_ns() + AGAIN_NS;
	}
}

void lien_gate_found(struct lien_agent *agent, struct lien_process *process, bool shut)
{
	struct lien_wire_header open = {
		.length = sizeof(open), .type = LIEN_WIRE_GATE, .arg = LIEN_WIRE_GATE_OPEN};
	struct lien_tracked *tracked = process->agent;
	char why[200];

	if (!lien_probes_can_gate(agent->probes))
		return;
	if (process->held_items) {
		agent->gate_all = true; /* of what, only the one who asked knew */
		if (make(agent, process, why, sizeof(why)) ||
			shut_gate(agent, process->pid, 0, UINT64_MAX, why, sizeof(why)))
			lien_log(4, "process %u: %s", process->pid, why);
		return;
	}
	lien_probes_ungate(agent->probes, process->pid);
	/* An agent before this one has shut it. The answer is of no interest. */
	if (shut)
		lien_link_send(tracked->link, &open, NULL, NULL, 0);
}
