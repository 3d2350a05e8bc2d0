// SPDX-License-Identifier: BSD-2-Clause
/*
 * Brings a job to rest: which threads are in a call, how far each rank is, and which held threads
 * must be let in because others wait for them.
 */
#include "agent/quiesce/quiesce.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/quiesce/gate.h"
#include "agent/graph/pids.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"
#include "loader/discover/untrusted.h"

#define PASSES_MAX 256

/* --- threads in a call ------------------------------------------------------------------------ */

/* Reads the stack pointer of a thread that does not run. Returns false if it runs. */
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
static bool may_be_inside(uint32_t pid, const struct lien_probe_thread *thread)
{
	uint64_t sp, word = 0;

	if (thread->inside)
		return true;
	if (!thread->sp || (stack_of(pid, thread->tid, &sp) && sp > thread->sp))
		return false;
	return lien_untrusted_memory(pid, thread->sp, &word, sizeof(word)) == sizeof(word) &&
	       (word == thread->caller || is_trampoline(pid, word));
}

/* --- progress of the ranks -------------------------------------------------------------------- */

struct waiting {
	struct lien_probe_held_key who;
	struct lien_probe_held held;
	bool let_in;
};

/* The progress of a process on one of its communicators. */
struct standing {
	const struct lien_process *process;
	const struct lien_comm *comm;
	uint64_t collectives; /* begun: counted ones, without those that are held */
	bool transfers;	      /* has sent or received */
	bool lags;	      /* another local rank of the group is further */
};

struct rest {
	struct lien_agent *agent;
	const uint32_t *pids;
	bool *busy; /* parallel to pids: a device is busy, or a thread is in a call */
	unsigned count;
	struct waiting *waiting;
	unsigned waiting_count, waiting_room;
	struct standing *standings;
	unsigned standings_count, standings_room;
};

/* Makes room for one more element. */
static bool grow(void **array, unsigned count, unsigned *room, size_t size)
{
	unsigned more = *room ? 2 * *room : 64;
	void *grown;

	if (count < *room)
		return true;
	grown = realloc(*array, more * size);
	if (!grown)
		return false;
	*array = grown;
	*room = more;
	return true;
}

static int gather(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct rest *rest = context;

	if (!lien_pids_have(rest->pids, rest->count, who->pid))
		return 0;
	if (!grow((void **)&rest->waiting, rest->waiting_count, &rest->waiting_room,
		    sizeof(*rest->waiting)))
		return -ENOMEM;
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

static bool is_collective(uint32_t call)
{
	return LIEN_CALL_IS_TRAFFIC(call) && !LIEN_CALL_IS_TRANSFER(call);
}

static bool is_held_on(const struct waiting *waiting, const struct standing *standing)
{
	return waiting->who.pid == standing->process->pid &&
	       waiting->held.comm == standing->comm->address;
}

static void count_standing(const struct rest *rest, struct standing *standing)
{
	struct lien_probe_traffic traffic;
	unsigned i;

	if (!lien_probes_traffic_of(
		    rest->agent->probes, standing->process->pid, standing->comm->address, &traffic))
		return;
	for (i = 0; i < LIEN_TRAFFIC_KINDS; i++)
		if (is_collective(LIEN_TRAFFIC_FIRST + i))
			standing->collectives += traffic.calls[i];
		else
			standing->transfers |= traffic.calls[i] != 0;
	for (i = 0; i < rest->waiting_count; i++)
		if (is_held_on(&rest->waiting[i], standing) &&
			is_collective(rest->waiting[i].held.call))
			standing->collectives--;
}

/* Returns the number of transfers of one kind, to or from one rank. */
static uint64_t transfers(
	const struct rest *rest, const struct standing *standing, uint32_t call, uint32_t peer)
{
	uint64_t sum = lien_probes_pair(rest->agent->probes, standing->process->pid,
		standing->comm->address, peer, call == LIEN_CALL_NCCL_RECV);
	unsigned i;

	for (i = 0; i < rest->waiting_count; i++)
		if (is_held_on(&rest->waiting[i], standing) && rest->waiting[i].held.call == call &&
			rest->waiting[i].held.peer == peer)
			sum--;
	return sum;
}

static bool is_ahead(
	const struct rest *rest, const struct standing *other, const struct standing *standing)
{
	uint32_t own = standing->comm->rank, its = other->comm->rank;

	if (other->collectives > standing->collectives)
		return true;
	return other->transfers &&
	       (transfers(rest, other, LIEN_CALL_NCCL_SEND, own) >
			       transfers(rest, standing, LIEN_CALL_NCCL_RECV, its) ||
		       transfers(rest, other, LIEN_CALL_NCCL_RECV, own) >
			       transfers(rest, standing, LIEN_CALL_NCCL_SEND, its));
}

static void compare_standings(struct rest *rest)
{
	struct standing *standing, *other, *end = rest->standings + rest->standings_count;

	for (standing = rest->standings; standing < end; standing++)
		for (other = rest->standings; other < end && !standing->lags; other++)
			/* For communicators that were in use before they were watched, the counts
			 * began at different calls. */
			standing->lags = other != standing && other->comm->made_by &&
					 standing->comm->made_by &&
					 !memcmp(other->comm->id, standing->comm->id,
						 sizeof(other->comm->id)) &&
					 is_ahead(rest, other, standing);
}

/* Returns false if out of memory. */
static bool take_standings(struct rest *rest)
{
	struct lien_process *process;
	struct lien_comm *comm;
	unsigned i;

	for (i = 0; i < rest->count; i++) {
		process = lien_graph_process(rest->agent->graph, rest->pids[i]);
		if (!process)
			continue;
		RB_FOREACH (comm, lien_comm_tree, &process->comms) {
			if (!grow((void **)&rest->standings, rest->standings_count,
				    &rest->standings_room, sizeof(*rest->standings)))
				return false;
			rest->standings[rest->standings_count] =
				(struct standing){.process = process, .comm = comm};
			count_standing(rest, &rest->standings[rest->standings_count++]);
		}
	}
	compare_standings(rest);
	return true;
}

static const struct standing *standing_of(const struct rest *rest, const struct waiting *waiting)
{
	unsigned i;

	for (i = 0; i < rest->standings_count; i++)
		if (is_held_on(waiting, &rest->standings[i]))
			return &rest->standings[i];
	return NULL;
}

static bool lags_where_held(const struct rest *rest, const struct waiting *waiting)
{
	const struct standing *standing = standing_of(rest, waiting);

	return standing && standing->lags;
}

/*
 * Others may wait for this call, or for a later one of the thread. A process that lags on the
 * communicator of a held call is let in there. One that lags only on other communicators is let in
 * everywhere, until it gets there; processes that share these communicators are then behind, and
 * are let in, too. Apart from these, no rank gets further than the first one was.
 */
static bool is_behind(const struct rest *rest, const struct waiting *waiting)
{
	uint32_t pid = waiting->who.pid;
	unsigned i;

	if (lags_where_held(rest, waiting))
		return true;
	for (i = 0; i < rest->waiting_count; i++)
		if (rest->waiting[i].who.pid == pid && lags_where_held(rest, &rest->waiting[i]))
			return false; /* let that one in first */
	for (i = 0; i < rest->standings_count; i++)
		if (rest->standings[i].process->pid == pid && rest->standings[i].lags)
			return true;
	return false;
}

#define PATIENCE_NS 20000000ull

/* Graphs are not counted, and may contain collectives. */
static bool is_graph(uint32_t call)
{
	return call == LIEN_CALL_CU_GRAPH_LAUNCH || call == LIEN_CALL_CU_GRAPH_LAUNCH_PTSZ;
}

/*
 * All ranks meet in these calls, which are not counted: a call blocks as long as other ranks have
 * not entered.
 */
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

/* Is there no count for the thread's progress? There is none on a communicator that was in use
 * before it was watched, and none before a call outside NCCL in a process that has such a
 * communicator. */
static bool is_uncounted(const struct rest *rest, const struct waiting *waiting)
{
	const struct standing *standing = standing_of(rest, waiting);
	unsigned i;

	if (standing)
		return !standing->comm->made_by;
	for (i = 0; !waiting->held.comm && i < rest->standings_count; i++)
		if (rest->standings[i].process->pid == waiting->who.pid &&
			!rest->standings[i].comm->made_by)
			return true;
	return false;
}

/* A process that waits for others has a busy device. So the ones behind are those with none, or any
 * if that does not tell. */
static bool uncounted_and_idle(const struct rest *rest, const struct waiting *waiting)
{
	bool others_idle = false, own_busy = false;
	unsigned i;

	if (!is_uncounted(rest, waiting))
		return false;
	for (i = 0; i < rest->count; i++)
		if (rest->pids[i] == waiting->who.pid)
			own_busy = rest->busy[i];
		else
			others_idle |= !rest->busy[i] && held_in(rest, rest->pids[i]);
	return !own_busy || !others_idle;
}

/* No thread is known to be behind, and yet a device or a thread in a call stays busy. So some
 * thread is behind, but it is not known which; each candidate is let in for one call. */
static bool may_be_behind(const struct rest *rest, const struct waiting *waiting)
{
	return (waiting->held.unsure || uncounted_and_idle(rest, waiting) ||
		       is_graph(waiting->held.call) || is_meeting(waiting->held.call)) &&
	       lien_now_ns() - waiting->held.t > PATIENCE_NS;
}

static bool let_in(struct rest *rest, lien_pass_fn *pass, void *to,
	bool (*who)(const struct rest *, const struct waiting *))
{
	uint32_t tids[PASSES_MAX];
	const struct waiting *waiting;
	unsigned i, j, n;
	bool any = false;

	/* Judges all by the same counts. */
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

unsigned lien_quiesce_background(void *context, uint32_t pid, uint64_t *comms, unsigned max)
{
	struct lien_agent *agent = context;
	struct lien_probe_process known;
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct lien_comm *comm;
	unsigned n = 0;

	if (!process || !lien_probes_process(agent->probes, pid, &known) || !known.nonblocking)
		return 0;
	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (n < max)
			comms[n++] = comm->address;
	return n;
}

static void say_who(const struct rest *rest, char *why, size_t size)
{
	const struct waiting *first = rest->waiting;
	const struct standing *standing;

	if (!rest->waiting_count)
		return;
	standing = standing_of(rest, first);
	if (standing && standing->comm->rank >= 0)
		snprintf(why, size,
			"rank %d (process %u) waits before %s, which others may wait for",
			standing->comm->rank, first->who.pid, lien_calls_name(first->held.call));
	else
		snprintf(why, size, "process %u waits before %s, which others may wait for",
			first->who.pid, lien_calls_name(first->held.call));
}

struct looking {
	const struct rest *rest;
	uint32_t pid;
	bool all_seen; /* the gate has seen the threads that are inside */
	char *why;     /* buffer for the reason */
	size_t size;
};

static bool is_held(const struct looking *looking, uint32_t tid)
{
	unsigned i;

	for (i = 0; i < looking->rest->waiting_count; i++)
		if (looking->rest->waiting[i].who.pid == looking->pid &&
			looking->rest->waiting[i].who.tid == tid)
			return true;
	return false;
}

static int look_at_thread(void *context, const struct lien_probe_thread *thread)
{
	struct looking *looking = context;

	if (!thread->seen) {
		if (!may_be_inside(looking->pid, thread))
			return 0;
		looking->all_seen = false;
		snprintf(looking->why, looking->size,
			"thread %u of process %u may be in a call of NCCL", thread->tid,
			looking->pid);
		return 1;
	}
	if (thread->inside && !is_held(looking, thread->tid))
		snprintf(looking->why, looking->size, "thread %u of process %u %s %s", thread->tid,
			looking->pid, thread->call ? "is in" : "has opened",
			thread->call ? lien_calls_name(thread->call) : "an NCCL group");
	return 0;
}

/* Is no thread of the process in a call? */
static bool is_quiet(const struct rest *rest, uint32_t pid, bool *busy, char *why, size_t size)
{
	struct looking looking = {rest, pid, true, why, size};
	struct lien_probe_gate gate;
	bool quiet;

	if (!lien_probes_gate_get(rest->agent->probes, pid, &gate))
		return true;
	if (!lien_gate_covers(rest->agent, pid, &gate, why, size))
		return false;
	quiet = gate.inside <= held_in(rest, pid);
	if (!quiet) {
		*busy = true;
		snprintf(why, size, "a thread of process %u is in a call of NCCL or the driver",
			pid);
	}
	lien_probes_threads(rest->agent->probes, pid, look_at_thread, &looking);
	return quiet && looking.all_seen;
}

const char *lien_quiesce_not_now(void *context, uint32_t pid)
{
	struct lien_agent *agent = context;
	struct lien_process *process;

	/* A capture may have begun just before the gate was shut. */
	lien_agent_consume(agent);
	process = lien_graph_process(agent->graph, pid);
	return process && !RB_EMPTY(&process->captures)
		       ? "is capturing a CUDA graph: try again when it is done"
		       : NULL;
}

bool lien_quiesce_reached(void *context, const uint32_t *pids, const bool *busy, unsigned count,
	lien_pass_fn *pass, void *to, char *why, size_t size)
{
	struct lien_agent *agent = context;
	struct rest rest = {.agent = agent,
		.pids = pids,
		.busy = calloc(count + 1, sizeof(bool)),
		.count = count};
	bool quiet = rest.busy != NULL, any_busy = false;
	unsigned i;

	/* The kernel's next answers describe the present, so the graph must, too. */
	lien_agent_consume(agent);
	lien_probes_held(agent->probes, gather, &rest);
	if (!take_standings(&rest))
		quiet = false;
	say_who(&rest, why, size);
	for (i = 0; i < count && rest.busy; i++) {
		rest.busy[i] = busy[i];
		if (!is_quiet(&rest, pids[i], &rest.busy[i], why, size))
			quiet = false;
		any_busy |= rest.busy[i];
	}
	if (let_in(&rest, pass, to, is_behind) ||
		(any_busy && let_in(&rest, pass, to, may_be_behind)))
		quiet = false;
	free(rest.busy);
	free(rest.waiting);
	free(rest.standings);
	return quiet;
}
