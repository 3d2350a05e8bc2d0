// SPDX-License-Identifier: BSD-2-Clause
/* The agent's transaction: how the pure state machine reaches the world, and its end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/core/node.h"
#include "agent/core/proc.h"
#include "agent/graph/bytes.h"
#include "agent/orders/orders.h"
#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/gate.h"
#include "agent/quiesce/quiesce.h"
#include "agent/server/server.h"
#include "loader/probes/gate.h"

/* An offload goes on for so long, whoever waits; and for so long after its user's last one gave
 * way.
 */
#define GIVE_WAY_NS  2000000000ull
#define HAS_GIVEN_NS 10000000000ull

struct lien_tracked *lien_orders_tracked(struct lien_agent *agent, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process ? process->agent : NULL;
}

const char *lien_orders_words(enum lien_asker asker)
{
	static const char *const words[] = {
		[LIEN_ASK_NOBODY] = "nothing",
		[LIEN_ASK_HELLO] = "saying what it is",
		[LIEN_ASK_GATE] = "letting its threads go",
		[LIEN_ASK_WALK] = "reading its memory from the driver",
		[LIEN_ASK_PREPARE] = "preparing host memory",
		[LIEN_ASK_END] = "being detached",
		[LIEN_ASK_TRANSACTION] = "an order of a transaction",
	};
	_Static_assert(sizeof(words) / sizeof(words[0]) == LIEN_ASK_COUNT, "each asker has words");

	return words[asker];
}

/* --- operations of a transaction -------------------------------------------------------------- */

static int send_order(void *context, uint32_t pid, const struct lien_wire_header *order,
	const void *body, const int *fds, unsigned fds_count)
{
	struct lien_tracked *tracked = lien_orders_tracked(context, pid);

	if (!tracked || !tracked->link)
		return -ESRCH;
	return lien_link_send(tracked->link, LIEN_ASK_TRANSACTION, order, body, fds, fds_count);
}

/* Returns why the process has not got its order yet; NULL: it has. */
static void silent(void *context, uint32_t pid, char *why, size_t size)
{
	const struct lien_tracked *tracked = lien_orders_tracked(context, pid);
	const char stopped = lien_proc_stopped(pid);

	if (stopped)
		snprintf(why, size, "%s",
			stopped == 'T' ? "it is stopped, and goes on after kill -CONT"
				       : "a debugger has stopped it");
	else if (tracked && lien_orders_waiting(tracked) == LIEN_ASK_TRANSACTION)
		snprintf(why, size, "it was busy all the time with %s",
			lien_orders_words(lien_orders_asked(tracked)));
}

static void cancel(void *context, uint32_t pid)
{
	struct lien_tracked *tracked = lien_orders_tracked(context, pid);

	if (tracked && tracked->link)
		lien_link_cancel(tracked->link, LIEN_ASK_TRANSACTION);
}

static void on_progress(void *context, enum lien_phase phase, unsigned done, unsigned of)
{
	struct lien_agent *agent = context;

	if (!agent->elsewhere) /* its coordinator wants to know how far it may go, and no more */
		lien_server_tell(agent, json_pack("{s:s, s:i, s:i}", "phase",
						lien_phase_name(phase), "done", done, "of", of));
}

/* Memory released on request is not pinned again before the next offload. */
static void note_use(struct lien_tracked *tracked, enum lien_transaction_kind kind)
{
	if (kind == LIEN_TRANSACTION_RESTORE)
		return;
	tracked->arena_released = kind == LIEN_TRANSACTION_RELEASE;
}

static int step_gate(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	static const char *const names[] = {
		[LIEN_GATE_BEGIN] = "begin",
		[LIEN_GATE_MAKE] = "make",
		[LIEN_GATE_LEVEL] = "level",
		[LIEN_GATE_SHUT] = "shut",
		[LIEN_GATE_OPEN] = "open",
		[LIEN_GATE_BACK] = "back",
		[LIEN_GATE_HOLDS] = "holds",
	};

	lien_turn_part(context, "gate", names[step]);
	return lien_gate_step(context, pid, step, why, size);
}

/* An import that no process has any more is gone, not away: as if the program had unmapped it. The
 * program may use the address again. */
static void give_up(void *context, uint32_t pid, uint64_t va)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct lien_mapping *mapping = process ? lien_process_mapping(process, va) : NULL;
	struct lien_event event, entry;

	if (!mapping || !mapping->parked || mapping->va != va)
		return;
	event = lien_agent_event_of(process->pid, process->start, LIEN_CALL_CU_MEM_UNMAP);
	event.size = LIEN_EVENT_SIZE(range);
	event.outer = LIEN_CALL_CU_MEM_UNMAP;
	event.range.va = mapping->va;
	event.range.bytes = mapping->bytes;
	event.flags = LIEN_EVENT_FOUND;
	entry = event;
	entry.flags |= LIEN_EVENT_ENTRY;
	entry.t_return = 0;
	lien_agent_event(agent, &entry);
	lien_agent_event(agent, &event);
}

/* NULL if it has ended or become another program, which the transaction has not touched. */
static struct lien_process *participant(
	struct lien_agent *agent, const struct lien_transaction_process *process)
{
	return lien_graph_living(agent->graph, process->pid, process->start);
}

static void log_result(struct lien_agent *agent, const char *name, bool adoption,
	const struct lien_transaction_result *result)
{
	const struct lien_viewer *asker = &agent->transaction_of;
	char who[64] = "the agent itself";

	if (asker->pid)
		snprintf(who, sizeof(who), "uid %u, pid %u", asker->uid, asker->pid);
	if (result->error)
		lien_log(4, "%s failed: %s%s; asked for by %s", name, result->text,
			result->rolled_back ? "; everything was put back" : "", who);
	else if (result->processes_count)
		lien_log(6, "%s: %s%s%u %s in %.1f ms, asked for by %s", name,
			adoption ? "" : lien_log_size(result->bytes + result->discarded).text,
			adoption ? "" : " of ", result->processes_count,
			result->processes_count == 1 ? "process" : "processes", result->ns / 1e6,
			who);
}

/* A process has back what was chosen. What an earlier agent moved is known only if the graph knows
 * all that the process has. */
static void note_chosen(
	struct lien_process *process, const struct lien_transaction_process *restored)
{
	const uint64_t bytes = process->held_bytes;

	if (lien_process_whole(process) && !process->parked)
		process->held_bytes = process->held_items = 0;
	else
		process->held_bytes -= bytes < restored->bytes ? bytes : restored->bytes;
}

/* They may hold what no event reports: bytes that were not copied back, exports that others lack.
 * The next restore asks them. `all`: also those that do not lend memory to others. */
static void note_unfinished(
	struct lien_agent *agent, const struct lien_transaction_result *result, bool all)
{
	struct lien_process *process;
	unsigned i;

	for (i = 0; i < result->processes_count; i++) {
		process = participant(agent, &result->processes[i]);
		if (process && (result->processes[i].lends || (all && !process->held_items)))
			process->held_items = 1;
	}
}

static void on_part(void *context, const struct lien_transaction *transaction)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);
	struct lien_agent *agent = context;
	unsigned i;

	lien_turn_part(agent, "transaction", "part");
	lien_transaction_lost(transaction, give_up, agent);
	if (result->error)
		lien_log(4, "restore: a part of it failed: %s; the rest follows at once",
			result->text);
	note_unfinished(agent, result, result->error);
	for (i = 0; i < result->processes_count; i++)
		lien_by_comm_set(agent, result->processes[i].pid);
}

static void note_shortfalls(struct lien_agent *agent, const struct lien_transaction_result *result)
{
	struct lien_shortfalls found;
	unsigned i;

	lien_shortfalls_find(&found, agent->graph, &agent->plan, result);
	agent->fell_short = found.count;
	if (!found.count)
		return;
	found.t_ns = lien_now_ns();
	agent->shortfalls = found;
	for (i = 0; i < found.count; i++)
		lien_log(4,
			"offload: %s of %s that were dropped on the GPU of process %u did not come "
			"free",
			lien_bytes(found.row[i].missing).text,
			lien_bytes(found.row[i].dropped).text, found.row[i].pid);
}

static void on_done(void *context, struct lien_transaction *transaction)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);
	enum lien_transaction_kind kind = lien_transaction_kind(transaction);
	const char *name = lien_transaction_kind_name(kind);
	bool unfinished = result->error && !result->only_aside &&
			  (result->undo_failed || kind == LIEN_TRANSACTION_RESTORE);
	struct lien_agent *agent = context;
	struct lien_process *process;
	unsigned i;

	lien_turn_part(agent, "transaction", "done");
	log_result(agent, name, kind == LIEN_TRANSACTION_ADOPTION, result);
	lien_totals_ended(&agent->totals, transaction);
	if (agent->elsewhere)
		lien_elsewhere_ended(agent, result);
	if (kind == LIEN_TRANSACTION_ADOPTION) {
		agent->transaction_ended = true;
		return;
	}
	if (!result->error && kind == LIEN_TRANSACTION_OFFLOAD) {
		note_shortfalls(agent, result);
		lien_gate_set_on_use(agent, agent->transfer->how.on_use);
		lien_by_comm_moved(agent);
	}
	for (i = 0; i < result->processes_count; i++) {
		process = participant(agent, &result->processes[i]);
		if (process && process->agent)
			note_use(process->agent, kind);
		if (!process || kind != LIEN_TRANSACTION_RESTORE || result->processes[i].failed)
			continue;
		if (result->chosen)
			note_chosen(process, &result->processes[i]);
		else
			process->held_bytes = process->held_items = 0;
	}
	lien_transaction_lost(transaction, give_up, agent);
	for (process = lien_graph_first(agent->graph); result->all_back && process;
		process = lien_graph_next(process))
		if (lien_proc_owned(process, &agent->transaction_of))
			process->held_bytes = process->held_items = 0;
	note_unfinished(agent, result, unfinished);
	for (i = 0; lien_probes_can_gate(agent->probes) && i < result->processes_count; i++) {
		lien_gate_stays(agent, result->processes[i].pid);
		lien_by_comm_set(agent, result->processes[i].pid);
	}
	lien_server_transaction_done(agent);
	agent->transaction_ended = true;
}

static uint64_t began(void *context, uint32_t pid)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process ? process->start : 0;
}

/* A process whose socket has just closed may be about to end, which is reported later. */
static bool alive(void *context, uint32_t pid, uint64_t start)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);
	const struct lien_tracked *tracked;

	if (!process || process->ended || (start && process->start != start))
		return false;
	tracked = process->agent;
	return (tracked && tracked->link) || !lien_proc_is_ending(pid, process->start);
}

_Static_assert(LIEN_REMEDY == LIEN_REMEDY_SIZE, "two names of one number");

static bool stopped(void *context, uint32_t pid, char remedy[static LIEN_REMEDY])
{
	(void)context;
	return lien_proc_halted(pid, remedy);
}

/* Has this graph seen both map the same memory? */
static bool share_memory(const struct lien_process *a, const struct lien_process *b)
{
	const struct lien_holding *other;
	struct lien_mapping *mapping;

	RB_FOREACH (mapping, lien_mapping_tree, (struct lien_mapping_tree *)&a->mappings) {
		other = lien_allocation_holding(mapping->holding->allocation, b);
		if (other && other->mapped)
			return true;
	}
	return false;
}

/* A control library's word is only its process's word. It counts for processes of the
 * same user, who may do anything to each other; for others the graph decides. */
bool lien_orders_may_share(void *context, uint32_t pid, uint32_t other)
{
	struct lien_agent *agent = context;
	struct lien_process *a = lien_graph_process(agent->graph, pid);
	struct lien_process *b = lien_graph_process(agent->graph, other);

	return a && b && (a->uid == b->uid || share_memory(a, b));
}

/*
 * A process may hold imports that are away without this agent knowing: it has stopped, or has
 * closed its sockets, since the previous agent ran. What this agent moved itself, only those hold
 * that took its orders.
 */
static bool unheard(void *context, uint32_t pid, uint64_t token)
{
	struct lien_agent *agent = context;
	const bool own = lien_agent_moved(agent, token);
	const struct lien_tracked *tracked;
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		tracked = process->agent;
		if (tracked && tracked->started && (tracked->heard || !own) &&
			process->presence == LIEN_CONTROL_LOADED &&
			alive(agent, process->pid, process->start) &&
			lien_orders_may_share(agent, pid, process->pid))
			return true;
	}
	return false;
}

/* May the transaction's user give this process orders? */
static bool allowed(void *context, uint32_t pid)
{
	struct lien_agent *agent = context;

	return lien_proc_owned(lien_graph_process(agent->graph, pid), &agent->transaction_of);
}

static uint64_t now_ns(void *context)
{
	(void)context;
	return lien_now_ns();
}

static int gpu(void *context, const uint8_t uuid[16])
{
	const struct lien_node_device *device;
	struct lien_uuid wanted = {.mig = false};

	memcpy(wanted.bytes, uuid, sizeof(wanted.bytes));
	device = lien_node_find(lien_node_now(context), &wanted);
	return device ? (int)device->index : -1;
}

static int fd_dup(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	return copy < 0 ? -errno : copy;
}

static void fd_close(int fd)
{
	close(fd);
}

static int raw(void *context, uint32_t pid, struct lien_wire_raw **list, unsigned *count)
{
	struct lien_agent *agent = context;
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	*list = NULL;
	*count = 0;
	return process ? lien_plan_raw(process, list, count) : 0;
}

static const char *raw_to(void *context, uint32_t pid, uint64_t handle)
{
	struct lien_agent *agent = context;

	return lien_plan_raw_to(lien_graph_process(agent->graph, pid), handle);
}

/* Half of the descriptors that the agent may have, and no more than the kernel side keeps of one
 * user: what it does not know nobody could import. */
static unsigned exports_max(const struct lien_agent *agent)
{
	unsigned known = lien_probes_facts(agent->probes)->exports_max;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur / 2 > known)
		return known;
	return limit.rlim_cur / 2;
}

struct lien_transaction_ops lien_orders_ops(struct lien_agent *agent)
{
	bool can_gate = lien_probes_can_gate(agent->probes);

	return (struct lien_transaction_ops){
		.fds_max = exports_max(agent),
		.gate = can_gate ? step_gate : NULL,
		.at_rest = can_gate ? lien_quiesce_look : NULL,
		.rested = can_gate ? lien_quiesce_rested : NULL,
		.background = lien_quiesce_background,
		.raw = raw,
		.raw_to = raw_to,
		.next_part = lien_parts_next,
		.part_back = on_part,
		.send = send_order,
		.silent = silent,
		.cancel = cancel,
		.progress = on_progress,
		.done = on_done,
		.not_now = lien_quiesce_not_now,
		.began = began,
		.alive = alive,
		.stopped = stopped,
		.may_share = lien_orders_may_share,
		.unheard = unheard,
		.may_go_on = agent->elsewhere ? lien_elsewhere_may_go_on : NULL,
		.allowed = allowed,
		.now_ns = now_ns,
		.gpu = gpu,
		.fd_dup = fd_dup,
		.fd_close = fd_close,
		.context = agent,
	};
}

/* --- the transaction that is under way -------------------------------------------------------- */

int lien_orders_ready(struct lien_agent *agent, char *error, size_t size)
{
	agent->blame = (struct lien_blame){0};
	if (!agent->transaction && !agent->t_finish)
		return 0;
	agent->blame.cause = LIEN_CAUSE_BUSY;
	snprintf(error, size, "%s",
		agent->transaction ? "another transaction is under way: see `lien status`"
				   : "the agent is about to stop");
	return -EBUSY;
}

void lien_orders_end(struct lien_agent *agent)
{
	lien_turn_part(agent, "transaction", "end");
	lien_adoption_clear(&agent->adoption);
	lien_transaction_free(agent->transaction);
	lien_plan_clear(&agent->plan);
	if (agent->transfer) {
		free((void *)agent->transfer->selection.within);
		json_decref(agent->transfer->request);
	}
	free(agent->transfer);
	agent->transfer = NULL;
	lien_elsewhere_end(agent);
	agent->transaction = NULL;
	agent->transaction_ended = agent->transaction_own = false;
	if (!agent->stopping)
		lien_gate_tick(agent); /* a job stands still for it */
	lien_server_resume(agent);
}

bool lien_orders_must_react(const struct lien_agent *agent)
{
	return agent->transaction && !agent->transaction_ended &&
	       lien_transaction_must_react(agent->transaction);
}

static bool gave_way(const struct lien_agent *agent, const struct lien_viewer *who)
{
	const uint64_t now = lien_now_ns();
	unsigned i;

	for (i = 0; i < LIEN_GAVE_WAY; i++)
		if (agent->gave_way[i].t && now - agent->gave_way[i].t < HAS_GIVEN_NS &&
			lien_viewer_same(&agent->gave_way[i].who, who))
			return true;
	return false;
}

/* Otherwise a user whose job never comes to rest could keep everybody else's memory away; and one
 * who always asks for something, or whose own offloads always give way, could keep another's job
 * from coming to rest. root gives way to nobody. */
static void give_way(struct lien_agent *agent)
{
	if (!lien_transaction_hesitates(agent->transaction, GIVE_WAY_NS) ||
		!agent->transaction_of.one_user || gave_way(agent, &agent->transaction_of) ||
		!(lien_server_others_wait(agent, gave_way) || lien_gate_others_wait(agent)) ||
		lien_elsewhere_is_committed(agent) ||
		!lien_transaction_cancel(agent->transaction, -EBUSY,
			"the job did not come to rest within 2 s, and another user waits"))
		return;
	agent->gave_way[agent->next_gave_way++ % LIEN_GAVE_WAY] =
		(struct lien_gave_way){agent->transaction_of, lien_now_ns()};
}

void lien_orders_tick(struct lien_agent *agent)
{
	if (!agent->transaction || agent->transaction_ended)
		return;
	give_way(agent);
	if (agent->elsewhere)
		lien_elsewhere_tick(agent);
	lien_transaction_tick(agent->transaction);
}
