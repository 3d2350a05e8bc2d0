// SPDX-License-Identifier: BSD-2-Clause
#include "agent/gate.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/event_check.h"
#include "loader/gate.h"

#define PASSES_MAX 256
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
	int err;

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
	err = lien_probes_gate_shut(agent->probes, pid, low, high);
	if (err)
		snprintf(why, size, "its gate cannot be shut: %s", strerror(-err));
	return err;
}

/* --- who is inside ---------------------------------------------------------------------------- */

/* Where the thread's stack ends while it does not run. False: it runs. */
static bool stack_of(uint32_t pid, uint32_t tid, uint64_t *sp)
{
	char path[64], text[256], *space;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/syscall", pid, tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0) {
		*sp = UINT64_MAX; /* it has ended */
		return true;
	}
	text[n] = '\0';
	/* "NUMBER ARGUMENTS SP PC", "-1 SP PC", or "running" */
	space = strrchr(text, ' ');
	if (!space)
		return false;
	*space = '\0';
	space = strrchr(text, ' ');
	if (!space)
		return false;
	*sp = strtoull(space + 1, NULL, 16);
	return true;
}

struct looking {
	uint32_t pid, tid;
	bool found;
};

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

/* Is it where functions return to whose return is probed? */
static bool is_trampoline(uint32_t pid, uint64_t address)
{
	struct area area = {.address = address};

	lien_maps_read(pid, find_area, &area);
	return area.found;
}

/*
 * A collective that was entered before there was the gate is not seen returning. It has returned if
 * the stack is shorter than it was then, or its return address has been overwritten by another
 * than that of an earlier gate's probe.
 */
static int look_at_thread(void *context, const struct lien_probe_thread *thread)
{
	struct looking *looking = context;
	uint64_t sp, word = 0;
	struct iovec to = {&word, sizeof(word)}, from = {(void *)thread->sp, sizeof(word)};

	if (!thread->inside) {
		if (!thread->sp)
			return 0;
		if (stack_of(looking->pid, thread->tid, &sp) && sp > thread->sp)
			return 0;
		if (process_vm_readv(looking->pid, &to, 1, &from, 1, 0) != sizeof(word) ||
			(word != thread->caller && !is_trampoline(looking->pid, word)))
			return 0;
	}
	looking->tid = thread->tid;
	looking->found = true;
	return 1;
}

/* --- levels ----------------------------------------------------------------------------------- */

struct waiting {
	struct lien_probe_held_key who;
	struct lien_probe_held held;
	bool let_in;
};

struct rest {
	struct lien_agent *agent;
	const uint32_t *pids;
	unsigned count;
	struct waiting *waiting;
	unsigned waiting_count, room;
};

static bool takes_part(const struct rest *rest, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < rest->count; i++)
		if (rest->pids[i] == pid)
			return true;
	return false;
}

static int gather(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct rest *rest = context;
	struct waiting *grown;

	if (!takes_part(rest, who->pid))
		return 0;
	if (rest->waiting_count == rest->room) {
		rest->room = rest->room ? 2 * rest->room : 64;
		grown = realloc(rest->waiting, rest->room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		rest->waiting = grown;
	}
	rest->waiting[rest->waiting_count++] = (struct waiting){*who, *held, false};
	return 0;
}

static unsigned held_in(const struct rest *rest, uint32_t pid)
{
	unsigned i, n = 0;

	for (i = 0; i < rest->waiting_count; i++)
		n += rest->waiting[i].who.pid == pid;
	return n;
}

static bool is_transfer(uint32_t call)
{
	return call == LIEN_CALL_NCCL_SEND || call == LIEN_CALL_NCCL_RECV;
}

static bool is_collective(uint32_t call)
{
	return call >= LIEN_TRAFFIC_FIRST && call < LIEN_TRAFFIC_FIRST + LIEN_TRAFFIC_KINDS &&
	       !is_transfer(call);
}

/* Collectives that a rank has begun: those counted, without those that are held. */
static uint64_t collectives(const struct rest *rest, uint32_t pid, uint64_t comm)
{
	struct lien_probe_traffic traffic;
	uint64_t sum = 0;
	unsigned i;

	if (!lien_probes_traffic_of(rest->agent->probes, pid, comm, &traffic))
		return 0;
	for (i = 0; i < LIEN_TRAFFIC_KINDS; i++)
		if (is_collective(LIEN_TRAFFIC_FIRST + i))
			sum += traffic.calls[i];
	for (i = 0; i < rest->waiting_count; i++)
		if (rest->waiting[i].who.pid == pid && rest->waiting[i].held.comm == comm &&
			is_collective(rest->waiting[i].held.call))
			sum--;
	return sum;
}

static uint64_t transfers(
	const struct rest *rest, uint32_t pid, uint64_t comm, uint32_t call, uint32_t peer)
{
	uint64_t sum =
		lien_probes_pair(rest->agent->probes, pid, comm, peer, call == LIEN_CALL_NCCL_RECV);
	unsigned i;

	for (i = 0; i < rest->waiting_count; i++)
		if (rest->waiting[i].who.pid == pid && rest->waiting[i].held.comm == comm &&
			rest->waiting[i].held.call == call && rest->waiting[i].held.peer == peer)
			sum--;
	return sum;
}

static struct lien_comm *comm_of(struct lien_process *process, uint64_t address)
{
	struct lien_comm key = {.address = address};

	return RB_FIND(lien_comm_tree, &process->comms, &key);
}

static bool has_lag(const struct rest *rest, const struct lien_process *process,
	const struct lien_comm *comm, const struct lien_process *peer,
	const struct lien_comm *other)
{
	uint64_t ours = collectives(rest, process->pid, comm->address);

	if (collectives(rest, peer->pid, other->address) > ours)
		return true;
	return transfers(rest, peer->pid, other->address, LIEN_CALL_NCCL_SEND, comm->rank) >
		       transfers(rest, process->pid, comm->address, LIEN_CALL_NCCL_RECV,
			       other->rank) ||
	       transfers(rest, peer->pid, other->address, LIEN_CALL_NCCL_RECV, comm->rank) >
		       transfers(
			       rest, process->pid, comm->address, LIEN_CALL_NCCL_SEND, other->rank);
}

/* Is there a rank of that group, here, that has gone further? */
static bool lags_on(
	const struct rest *rest, const struct lien_process *process, const struct lien_comm *comm)
{
	struct lien_process *peer;
	struct lien_comm *other;
	unsigned i;

	for (i = 0; i < rest->count; i++) {
		peer = lien_graph_process(rest->agent->graph, rest->pids[i]);
		if (!peer)
			continue;
		RB_FOREACH (other, lien_comm_tree, &peer->comms)
			if (other != comm && !memcmp(other->id, comm->id, sizeof(comm->id)) &&
				has_lag(rest, process, comm, peer, other))
				return true;
	}
	return false;
}

/*
 * Others may wait for this call, or for one that the thread makes after it: a process that lags
 * behind on the communicator of a call that is held is let in there; one that lags only on others
 * is let in everywhere, until it gets there. Whoever shares these communicators is behind then, and
 * is let in, too. No rank gets further than the first one was, but for these.
 */
static bool is_behind(const struct rest *rest, const struct waiting *waiting)
{
	struct lien_process *process = lien_graph_process(rest->agent->graph, waiting->who.pid);
	struct lien_comm *comm;
	unsigned i;

	if (!process)
		return false;
	comm = comm_of(process, waiting->held.comm);
	if (comm && lags_on(rest, process, comm))
		return true;
	for (i = 0; i < rest->waiting_count; i++) {
		if (rest->waiting[i].who.pid != process->pid)
			continue;
		comm = comm_of(process, rest->waiting[i].held.comm);
		if (comm && lags_on(rest, process, comm))
			return false; /* that one first */
	}
	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (lags_on(rest, process, comm))
			return true;
	return false;
}

#define PATIENCE_NS 20000000ull

/* No count is kept of graphs, which may have collectives in them. */
static bool is_graph(uint32_t call)
{
	return call == LIEN_CALL_CU_GRAPH_LAUNCH || call == LIEN_CALL_CU_GRAPH_LAUNCH_PTSZ;
}

static const char *call_name(uint32_t call)
{
	switch (call) {
#define GATE_NAME(name, number, library, symbol, flags)                                            \
	case number:                                                                               \
		return symbol;
		LIEN_GATE_CALLS(GATE_NAME)
#undef GATE_NAME
	}
	return lien_call_name(call) ? lien_call_name(call) : "a call";
}

/* In these all ranks meet without a count of ours: one is inside as long as others are not. */
static bool is_meeting(uint32_t call)
{
	switch (call) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
	case LIEN_CALL_NCCL_INIT_ALL:
	case LIEN_CALL_NCCL_SPLIT:
	case LIEN_CALL_NCCL_SHRINK:
	case LIEN_CALL_NCCL_FINALIZE:
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
		return true;
	}
	return false;
}

/* Nobody is known to be behind, and yet a device stays busy, or a thread in a call: so somebody is,
 * of whom it cannot be known, and one call of each is let in. */
static bool may_be_behind(const struct rest *rest, const struct waiting *waiting)
{
	(void)rest;
	return (waiting->held.unsure || is_graph(waiting->held.call) ||
		       is_meeting(waiting->held.call)) &&
	       lien_now_ns() - waiting->held.t > PATIENCE_NS;
}

static bool let_in(struct rest *rest, lien_pass_fn *pass, void *to,
	bool (*who)(const struct rest *, const struct waiting *))
{
	uint32_t tids[PASSES_MAX];
	const struct waiting *waiting;
	unsigned i, j, n;
	bool any = false;

	/* All are judged by the same counts. */
	for (j = 0; j < rest->waiting_count; j++)
		rest->waiting[j].let_in = who(rest, &rest->waiting[j]);
	for (i = 0; i < rest->count; i++) {
		n = 0;
		for (j = 0; j < rest->waiting_count && n < PASSES_MAX; j++) {
			waiting = &rest->waiting[j];
			if (waiting->who.pid != rest->pids[i] || !waiting->let_in)
				continue;
			tids[n++] = waiting->held.tid;
			/* It counts as inside from now on, until it returns. */
			lien_probes_let_in(rest->agent->probes, waiting->who.pid, waiting->who.tid);
		}
		if (n)
			pass(to, rest->pids[i], tids, n);
		any |= n;
	}
	return any;
}

static void say_who(const struct rest *rest, char *why, size_t size)
{
	const struct waiting *first = rest->waiting;
	struct lien_process *process;
	struct lien_comm *comm;

	if (!rest->waiting_count)
		return;
	process = lien_graph_process(rest->agent->graph, first->who.pid);
	comm = process ? comm_of(process, first->held.comm) : NULL;
	if (comm && comm->rank >= 0)
		snprintf(why, size,
			"rank %d (process %u) waits before %s, which others may wait for",
			comm->rank, first->who.pid, call_name(first->held.call));
	else
		snprintf(why, size, "process %u waits before %s, which others may wait for",
			first->who.pid, call_name(first->held.call));
}

bool lien_gate_at_rest(void *context, const uint32_t *pids, unsigned count, bool busy,
	lien_pass_fn *pass, void *to, char *why, size_t size)
{
	struct lien_agent *agent = context;
	struct rest rest = {.agent = agent, .pids = pids, .count = count};
	struct looking looking = {0};
	struct lien_probe_gate gate;
	bool quiet = true;
	unsigned i;

	lien_agent_consume(agent);
	lien_probes_held(agent->probes, gather, &rest);
	say_who(&rest, why, size);
	for (i = 0; i < count; i++) {
		if (!lien_probes_gate_get(agent->probes, pids[i], &gate))
			continue;
		if (gate.unheld) {
			snprintf(why, size,
				"thread %u of process %u blocks the signal that would hold it "
				"back, "
				"and has entered %s",
				gate.unheld_tid, pids[i], call_name(gate.unheld_call));
			quiet = false;
		}
		if (gate.inside > held_in(&rest, pids[i])) {
			busy = true;
			snprintf(why, size,
				"a thread of process %u is in a call of NCCL or the driver",
				pids[i]);
			quiet = false;
		}
		looking = (struct looking){.pid = pids[i]};
		lien_probes_unseen(agent->probes, pids[i], look_at_thread, &looking);
		if (looking.found) {
			snprintf(why, size, "thread %u of process %u may be in a call of NCCL",
				looking.tid, pids[i]);
			quiet = false;
		}
	}
	if (let_in(&rest, pass, to, is_behind) || (busy && let_in(&rest, pass, to, may_be_behind)))
		quiet = false;
	free(rest.waiting);
	return quiet;
}

/* --- while memory is away --------------------------------------------------------------------- */

static int find_use(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct waiting *first = context;

	if (first->who.pid && first->held.t <= held->t)
		return 0;
	*first = (struct waiting){*who, *held, false};
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
	struct waiting first = {0};
	char error[400] = "";
	bool nothing;
	int err;

	if (agent->transaction || !lien_probes_can_gate(agent->probes))
		return;
	lien_probes_held(agent->probes, find_use, &first);
	if (!first.who.pid || lien_now_ns() < agent->t_use)
		return;
	if (agent->on_use == LIEN_ON_USE_FAIL && !ends(first.held.call)) {
		lien_log(4,
			"process %u needs memory that is away, in %s: ended by SIGABRT, as asked",
			first.who.pid, call_name(first.held.call));
		kill(first.who.pid, SIGABRT);
		agent->t_use = lien_now_ns() + AGAIN_NS;
		return;
	}
	if (agent->on_use == LIEN_ON_USE_WAIT && !ends(first.held.call)) {
		if (first.held.t != agent->t_told)
			lien_log(5, "process %u waits in %s for a restore", first.who.pid,
				call_name(first.held.call));
		agent->t_told = first.held.t;
		return;
	}
	lien_log(5, "process %u needs memory that is away, in %s: restoring", first.who.pid,
		call_name(first.held.call));
	selection.pids = &first.who.pid;
	err = lien_orders_restore(agent, &selection, 0, RESTORE_MS, &nothing, error, sizeof(error));
	if (err || nothing) {
		lien_log(4, "no restore for process %u: %s", first.who.pid,
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
			lien_probes_gate_shut(agent->probes, process->pid, 0, UINT64_MAX))
			lien_log(4, "process %u: %s", process->pid, why);
		return;
	}
	lien_probes_ungate(agent->probes, process->pid);
	/* An agent before this one has shut it. The answer is of no interest. */
	if (shut)
		lien_link_send(tracked->link, &open, NULL, NULL, 0);
}
