// SPDX-License-Identifier: BSD-2-Clause
/* Carries out transactions over the links to the control libraries. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "agent/quiesce/gate.h"
#include "agent/quiesce/quiesce.h"
#include "agent/core/node.h"
#include "agent/core/proc.h"
#include "agent/link/link.h"
#include "agent/orders/orders.h"
#include "agent/orders/prepare.h"
#include "agent/graph/pids.h"
#include "agent/server/server.h"
#include "loader/probes/files.h"
#include "loader/probes/gate.h"

/* At the agent's end, for all processes together: pinning one chunk takes that long on a machine
 * that first has to make the memory as it is touched. */
#define FINISH_NS 3000000000ull

static struct lien_tracked *tracked_of(struct lien_agent *agent, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process ? process->agent : NULL;
}

static int send_order(void *context, uint32_t pid, const struct lien_wire_header *order,
	const void *body, const int *fds, unsigned fds_count)
{
	struct lien_tracked *tracked = tracked_of(context, pid);

	if (!tracked || !tracked->link)
		return -ESRCH;
	return lien_link_send(tracked->link, LIEN_ASK_TRANSACTION, order, body, fds, fds_count);
}

enum lien_asker lien_orders_asked(const struct lien_tracked *tracked)
{
	return tracked->link ? lien_link_asked(tracked->link) : LIEN_ASK_NOBODY;
}

enum lien_asker lien_orders_waiting(const struct lien_tracked *tracked)
{
	return tracked->link ? lien_link_waiting(tracked->link) : LIEN_ASK_NOBODY;
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

	return words[asker];
}

/* Returns why the process has not got its order yet; NULL: it has. */
static const char *busy_with(void *context, uint32_t pid)
{
	const struct lien_tracked *tracked = tracked_of(context, pid);

	return tracked && lien_orders_waiting(tracked) == LIEN_ASK_TRANSACTION
		       ? lien_orders_words(lien_orders_asked(tracked))
		       : NULL;
}

static void cancel(void *context, uint32_t pid)
{
	struct lien_tracked *tracked = tracked_of(context, pid);

	if (tracked && tracked->link)
		lien_link_cancel(tracked->link, LIEN_ASK_TRANSACTION);
}

static void on_progress(void *context, enum lien_phase phase, unsigned done, unsigned of)
{
	lien_server_progress(context, phase, done, of);
}

/* Memory released on request is not pinned again before the next offload. */
static void note_use(struct lien_tracked *tracked, enum lien_transaction_kind kind)
{
	if (kind == LIEN_TRANSACTION_RESTORE)
		return;
	tracked->arena_released = kind == LIEN_TRANSACTION_RELEASE;
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

static void on_done(void *context, struct lien_transaction *transaction)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);
	enum lien_transaction_kind kind = lien_transaction_kind(transaction);
	const char *name = lien_transaction_kind_name(kind);
	bool unfinished =
		result->error && (result->undo_failed || kind == LIEN_TRANSACTION_RESTORE);
	struct lien_agent *agent = context;
	struct lien_process *process;
	unsigned i;

	if (result->error)
		lien_log(4, "%s failed: %s%s", name, result->text,
			result->rolled_back ? "; everything was put back" : "");
	else if (result->processes_count)
		lien_log(6, "%s: %llu bytes of %u processes in %llu ms", name,
			(unsigned long long)result->bytes, result->processes_count,
			(unsigned long long)(result->ns / 1000000));
	if (kind == LIEN_TRANSACTION_ADOPTION) {
		agent->above->adopt_done(agent, result);
		agent->transaction_ended = true;
		return;
	}
	if (!result->error && kind == LIEN_TRANSACTION_OFFLOAD)
		lien_gate_set_on_use(agent, agent->request.how.on_use);
	for (i = 0; i < result->processes_count; i++) {
		process = participant(agent, &result->processes[i]);
		if (process && process->agent)
			note_use(process->agent, kind);
		if (process && kind == LIEN_TRANSACTION_RESTORE && !result->processes[i].failed)
			process->held_bytes = process->held_items = 0;
	}
	lien_transaction_lost(transaction, give_up, agent);
	/* They may hold what no event reports: bytes that were not copied back, exports that others
	 * lack. The next restore asks them. */
	for (i = 0; unfinished && i < result->processes_count; i++) {
		process = participant(agent, &result->processes[i]);
		if (process && !process->held_items)
			process->held_items = 1;
	}
	for (process = lien_graph_first(agent->graph); result->all_back && process;
		process = lien_graph_next(process))
		if (lien_proc_owned(process, &agent->transaction_of))
			process->held_bytes = process->held_items = 0;
	for (i = 0; i < result->processes_count; i++) {
		process = participant(agent, &result->processes[i]);
		if (process && result->processes[i].lends)
			process->held_items = 1;
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
static bool may_share(void *context, uint32_t pid, uint32_t other)
{
	struct lien_agent *agent = context;
	struct lien_process *a = lien_graph_process(agent->graph, pid);
	struct lien_process *b = lien_graph_process(agent->graph, other);

	return a && b && (a->uid == b->uid || share_memory(a, b));
}

/* A process may hold imports that are away without this agent knowing: it has stopped, or has
 * closed its sockets, since the previous agent ran. */
static bool unheard(void *context, uint32_t pid)
{
	struct lien_agent *agent = context;
	const struct lien_tracked *tracked;
	struct lien_process *process;

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		tracked = process->agent;
		if (tracked && tracked->started && process->presence == LIEN_CONTROL_LOADED &&
			alive(agent, process->pid, process->start) &&
			may_share(agent, pid, process->pid))
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

static int replan(void *context, const struct lien_plan **out, char *why, size_t size);

struct lien_transaction_ops lien_orders_ops(struct lien_agent *agent)
{
	bool gate = lien_probes_can_gate(agent->probes);

	return (struct lien_transaction_ops){
		.gate = gate ? lien_gate_step : NULL,
		.at_rest = gate ? lien_quiesce_reached : NULL,
		.background = lien_quiesce_background,
		.raw = raw,
		.raw_to = raw_to,
		.replan = replan,
		.adopt = agent->above->adopt_plan,
		.adopted = agent->above->adopt_answered,
		.send = send_order,
		.busy_with = busy_with,
		.cancel = cancel,
		.progress = on_progress,
		.done = on_done,
		.not_now = lien_quiesce_not_now,
		.began = began,
		.alive = alive,
		.may_share = may_share,
		.unheard = unheard,
		.allowed = allowed,
		.now_ns = now_ns,
		.gpu = gpu,
		.fd_dup = fd_dup,
		.fd_close = fd_close,
		.context = agent,
	};
}

static void orders_ready(struct lien_source *source, uint32_t events);

/* Is a short order under way? The next agent would take its calls for the application's. */
static bool is_short(const struct lien_tracked *tracked)
{
	enum lien_asker asked = tracked ? lien_orders_asked(tracked) : LIEN_ASK_NOBODY;

	return asked == LIEN_ASK_WALK || asked == LIEN_ASK_PREPARE;
}

/* Returns how many there are, and lists as many as there is room for. */
static unsigned short_orders(
	struct lien_agent *agent, struct pollfd *fds, uint32_t *pids, unsigned room)
{
	struct lien_process *process;
	unsigned count = 0;

	for (process = lien_graph_first(agent->graph); process && count < room;
		process = lien_graph_next(process)) {
		if (!is_short(process->agent))
			continue;
		fds[count].fd = lien_link_fd(((struct lien_tracked *)process->agent)->link);
		fds[count].events = POLLIN;
		pids[count++] = process->pid;
	}
	return count;
}

void lien_orders_finish(struct lien_agent *agent)
{
	uint64_t room = lien_graph_stats(agent->graph)->processes, end, now;
	struct pollfd *fds = calloc(room + 1, sizeof(*fds));
	uint32_t *pids = calloc(room + 1, sizeof(*pids));
	struct lien_tracked *tracked;
	unsigned count, i;

	end = lien_now_ns() + FINISH_NS;
	agent->finishing = true; /* give no more of them */
	while (fds && pids && (count = short_orders(agent, fds, pids, room)) &&
		(now = lien_now_ns()) < end) {
		if (poll(fds, count, (end - now) / 1000000 + 1) <= 0)
			continue;
		for (i = 0; i < count; i++) {
			tracked = fds[i].revents ? tracked_of(agent, pids[i]) : NULL;
			if (tracked && tracked->link) /* any may have ended meanwhile */
				orders_ready(&tracked->orders, EPOLLIN);
		}
	}
	free(fds);
	free(pids);
}

int lien_orders_ready(struct lien_agent *agent, char *error, size_t size)
{
	if (!agent->transaction)
		return 0;
	snprintf(error, size, "another transaction is under way: see `lien status`");
	return -EBUSY;
}

/* Returns the bytes being added to the participants' arenas: they are part of what these need. */
static uint64_t being_prepared(struct lien_agent *agent)
{
	const struct lien_tracked *tracked;
	uint64_t bytes = 0;
	unsigned i;

	for (i = 0; i < agent->plan.processes_count; i++) {
		tracked = tracked_of(agent, agent->plan.processes[i].pid);
		if (tracked && lien_orders_asked(tracked) == LIEN_ASK_PREPARE)
			bytes += tracked->preparing_bytes;
	}
	return bytes;
}

static int check_limit(struct lien_agent *agent, uint64_t limit, uint64_t need, uint64_t all,
	char *error, size_t size)
{
	uint64_t held = lien_prepare_held(agent) - being_prepared(agent);

	if (agent->host_limit && (!limit || limit > agent->host_limit))
		limit = agent->host_limit;
	if (!limit || !need || held + need <= limit)
		return 0;
	snprintf(error, size,
		"host memory: %llu MiB are to be moved, which needs %llu MiB more than the %llu "
		"MiB held now, and %llu MiB are allowed (--host-limit): see `lien arena`",
		(unsigned long long)(all >> 20), (unsigned long long)(need >> 20),
		(unsigned long long)(held >> 20), (unsigned long long)(limit >> 20));
	return -ENOMEM;
}

/* Checked before anything is touched: the arena grows in the middle of the offload. */
static int check_host(
	struct lien_agent *agent, uint32_t flags, uint64_t limit, char *error, size_t size)
{
	uint64_t bounce = flags & LIEN_WIRE_VERIFY ? LIEN_WIRE_ARENA_BOUNCE : 0, need = 0;
	const struct lien_plan *plan = &agent->plan;
	struct lien_host_need *needs = calloc(plan->processes_count + 1, sizeof(*needs));
	struct lien_process *process;
	unsigned i;
	int err;

	if (!needs) {
		snprintf(error, size, "out of memory");
		return -ENOMEM;
	}
	for (i = 0; i < plan->processes_count; i++) {
		process = lien_graph_process(agent->graph, plan->processes[i].pid);
		needs[i].pid = plan->processes[i].pid;
		if (process && plan->processes[i].bytes)
			needs[i].bytes =
				lien_host_missing(process, plan->processes[i].bytes + bounce);
		need += needs[i].bytes;
	}
	err = check_limit(agent, limit, need, plan->bytes, error, size);
	if (!err)
		err = lien_host_check(&agent->host, needs, plan->processes_count, error, size);
	free(needs);
	return err;
}

static bool any_exports(const struct lien_agent *agent)
{
	struct lien_allocation *allocation;

	for (allocation = lien_graph_first_allocation(agent->graph); allocation;
		allocation = lien_graph_next_allocation(allocation))
		if (!LIST_EMPTY(&allocation->shares))
			return true;
	return false;
}

int lien_orders_plan(struct lien_agent *agent, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size)
{
	struct lien_selection with_files = *selection;
	struct lien_probe_open_file *files = NULL;
	struct lien_process *process;
	unsigned i;
	int err;

	err = any_exports(agent) ? lien_files_read(agent->probes, &files, &with_files.open_count)
				 : 0;
	if (err) {
		snprintf(error, error_size,
			"cannot find out which exported memory is still open somewhere: %s",
			strerror(-err));
		return err;
	}
	with_files.open = files;
	err = lien_plan_offload(agent->graph, &with_files, plan, error, error_size);
	free(files);
	for (i = 0; !err && i < plan->processes_count; i++) {
		process = lien_graph_process(agent->graph, plan->processes[i].pid);
		if (lien_proc_owned(process, &selection->viewer))
			continue;
		snprintf(error, error_size,
			"process %u does not run as you alone (set-user-id?): only root can move "
			"its memory",
			plan->processes[i].pid);
		lien_plan_clear(plan);
		err = -EPERM;
	}
	return err;
}

/* The job is at rest: is the plan still the same? */
static int replan(void *context, const struct lien_plan **out, char *why, size_t size)
{
	struct lien_agent *agent = context;
	const struct lien_offload_request *request = &agent->request;
	struct lien_plan plan;
	int err;

	if (lien_graph_stats(agent->graph)->events == request->events)
		return 0;
	err = lien_orders_plan(agent, &request->selection, &plan, why, size);
	if (err)
		return err;
	lien_plan_clear(&agent->plan);
	agent->plan = plan;
	*out = &agent->plan;
	if (!plan.processes_count) {
		snprintf(why, size, "nothing is left that could be moved");
		return -EAGAIN;
	}
	err = check_host(agent, request->how.flags, request->how.host_limit, why, size);
	return err ? err : 1;
}

void lien_orders_end(struct lien_agent *agent)
{
	lien_adoption_clear(&agent->adoption);
	free(agent->at_rest);
	free(agent->adopted);
	agent->at_rest = agent->adopted = NULL;
	agent->at_rest_count = agent->adopted_count = 0;
	agent->adopting = false;
	lien_transaction_free(agent->transaction);
	lien_plan_clear(&agent->plan);
	lien_offload_request_clear(&agent->request);
	agent->transaction = NULL;
	agent->transaction_ended = agent->transaction_own = false;
	lien_server_resume(agent);
}

int lien_orders_offload(struct lien_agent *agent, const struct lien_selection *selection,
	const struct lien_offload_how *how, bool *nothing, char *error, size_t error_size)
{
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	int err = lien_orders_ready(agent, error, error_size);
	uint64_t events;
	bool all;

	if (err)
		return err;
	events = lien_graph_stats(agent->graph)->events;
	err = lien_orders_plan(agent, selection, &agent->plan, error, error_size);
	if (err)
		return err;
	*nothing = !agent->plan.processes_count;
	if (*nothing)
		return 0;
	err = check_host(agent, how->flags, how->host_limit, error, error_size);
	if (err) {
		lien_plan_clear(&agent->plan);
		return err;
	}
	err = lien_offload_request_copy(&agent->request, selection, how);
	if (!err)
		err = lien_transaction_offload(&agent->transaction, &agent->plan, agent->token_base,
			how->timeout_ms, &ops);
	if (err) {
		snprintf(error, error_size, "%s", strerror(-err));
		lien_orders_end(agent);
		return err;
	}
	agent->request.events = events;
	all = !selection->owner || strcmp(selection->owner, "nccl") || selection->discard_count;
	lien_gate_set(agent, all);
	lien_transaction_set_flags(agent->transaction, how->flags | (all ? LIEN_WIRE_ALL : 0));
	agent->t_transaction = lien_now_ns();
	agent->transaction_of = selection->viewer;
	lien_transaction_start(agent->transaction);
	return 0;
}

static bool wanted(const struct lien_selection *selection, const struct lien_process *process)
{
	return selection->pids_count
		       ? lien_pids_have(selection->pids, selection->pids_count, process->pid)
		       : lien_viewer_sees(&selection->viewer, process);
}

/*
 * Keeps those of `all` that are wanted or may share with a wanted one, so that no others can delay
 * them.
 */
static unsigned narrow(struct lien_agent *agent, const struct lien_selection *selection,
	uint32_t *all, unsigned count)
{
	unsigned kept = 0, i, j;
	uint32_t pid;

	for (i = 0; i < count; i++)
		if (wanted(selection, lien_graph_process(agent->graph, all[i]))) {
			pid = all[kept];
			all[kept++] = all[i];
			all[i] = pid;
		}
	for (i = 0; i < kept; i++)
		for (j = kept; j < count; j++)
			if (may_share(agent, all[i], all[j])) {
				pid = all[kept];
				all[kept++] = all[j];
				all[j] = pid;
			}
	return kept;
}

static int check_pids(struct lien_agent *agent, const struct lien_selection *selection, char *error,
	size_t error_size)
{
	const struct lien_process *process;
	unsigned i;

	for (i = 0; i < selection->pids_count; i++) {
		process = lien_graph_process(agent->graph, selection->pids[i]);
		if (!process || !lien_viewer_sees(&selection->viewer, process)) {
			snprintf(error, error_size, LIEN_UNKNOWN_PROCESS, selection->pids[i]);
			return -ESRCH;
		}
	}
	return 0;
}

int lien_orders_restore(struct lien_agent *agent, const struct lien_selection *selection,
	uint32_t flags, unsigned timeout_ms, bool *nothing, char *error, size_t error_size)
{
	const unsigned pids_count = selection->pids_count;
	const uint32_t *pids = selection->pids;
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	uint32_t *all;
	int count;
	int err = lien_orders_ready(agent, error, error_size);

	if (err)
		return err;
	err = check_pids(agent, selection, error, error_size);
	if (err)
		return err;
	all = calloc(lien_graph_stats(agent->graph)->processes + 1, sizeof(*all));
	if (!all)
		return -ENOMEM;
	count = lien_plan_restore(agent->graph, pids, pids_count, all);
	if (count > 0)
		count = narrow(agent, selection, all, count);
	*nothing = !count;
	err = count <= 0 ? count
			 : lien_transaction_restore(&agent->transaction, all, count, pids,
				   pids_count, timeout_ms, &ops);
	free(all);
	if (err)
		snprintf(error, error_size, "%s", strerror(-err));
	if (err || *nothing)
		return err;
	if (!lien_node_now(agent) || !lien_node_now(agent)->count)
		lien_node_refresh(agent); /* an error may have to name a GPU */
	lien_transaction_set_flags(agent->transaction, flags);
	agent->t_transaction = lien_now_ns();
	agent->transaction_of = selection->viewer;
	lien_transaction_start(agent->transaction);
	return 0;
}

int lien_orders_release(struct lien_agent *agent, const struct lien_selection *selection,
	bool *nothing, char *error, size_t error_size)
{
	struct lien_transaction_ops ops = lien_orders_ops(agent);
	struct lien_process *process;
	uint64_t held = 0, used = 0;
	unsigned count = 0;
	uint32_t *chosen;
	int err = lien_orders_ready(agent, error, error_size);

	if (!err)
		err = check_pids(agent, selection, error, error_size);
	if (err)
		return err;
	chosen = calloc(lien_graph_stats(agent->graph)->processes + 1, sizeof(*chosen));
	if (!chosen)
		return -ENOMEM;
	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		if (!process->arena_bytes || !wanted(selection, process) ||
			!lien_proc_owned(process, &selection->viewer))
			continue;
		held += process->arena_bytes;
		used += process->arena_used;
		if (process->arena_used < process->arena_bytes)
			chosen[count++] = process->pid;
	}
	*nothing = !held;
	if (held && !count) {
		snprintf(error, error_size,
			"all host memory that is held, %llu MiB, is in use: `lien restore` first",
			(unsigned long long)(used >> 20));
		err = -EBUSY;
	} else if (count) {
		err = lien_transaction_release(&agent->transaction, chosen, count, &ops);
		if (err)
			snprintf(error, error_size, "%s", strerror(-err));
	}
	free(chosen);
	if (err || *nothing)
		return err;
	agent->t_transaction = lien_now_ns();
	agent->transaction_of = selection->viewer;
	lien_transaction_start(agent->transaction);
	return 0;
}

void lien_orders_unlink(struct lien_tracked *tracked)
{
	if (!tracked->link)
		return;
	/* The job shares the socket: closing ours does not remove it from the epoll set. */
	epoll_ctl(tracked->agent->epoll, EPOLL_CTL_DEL, tracked->orders.fd, NULL);
	epoll_ctl(tracked->agent->epoll, EPOLL_CTL_DEL, tracked->life.fd, NULL);
	lien_link_close(tracked->link);
	tracked->link = NULL;
}

static void unlink_process(struct lien_tracked *tracked)
{
	struct lien_process *process = lien_graph_process(tracked->agent->graph, tracked->pid);

	lien_orders_unlink(tracked);
	tracked->t_woken = 0; /* its thread may have to be started again */
	if (process)
		process->presence = LIEN_CONTROL_LOADED;
	if (tracked->agent->transaction)
		lien_transaction_gone(tracked->agent->transaction, tracked->pid);
}

static void hello_devices(
	struct lien_agent *agent, struct lien_process *process, const struct lien_wire_hello *hello)
{
	struct lien_ordinals ordinals = {.by_driver = true, .count = hello->devices};
	unsigned i;

	if (!hello->devices || hello->devices > LIEN_ORDINALS_MAX)
		return;
	for (i = 0; i < hello->devices; i++)
		memcpy(ordinals.uuid[i].bytes, hello->uuids[i], sizeof(hello->uuids[i]));
	lien_node_ordinals(agent, process, &ordinals);
}

static void hello_reply(struct lien_tracked *tracked, const struct lien_reply *reply)
{
	struct lien_process *process = lien_graph_process(tracked->agent->graph, tracked->pid);
	const struct lien_wire_hello *hello = reply->body;

	if (reply->header.length < sizeof(reply->header) + sizeof(*hello) || !process)
		return;
	process->held_bytes = hello->bytes;
	process->held_items = hello->items;
	tracked->multicast = hello->multicast;
	hello_devices(tracked->agent, process, hello);
	if (!lien_gate_found(tracked->agent, process, hello->items > hello->here, hello->shut))
		process->presence = LIEN_CONTROL_READY;
	if (hello->items > hello->here)
		lien_log(5,
			"process %u holds %llu bytes offloaded by an earlier agent: `lien restore` "
			"puts them back",
			tracked->pid, (unsigned long long)hello->bytes);
	else if (hello->items)
		lien_log(5,
			"process %u keeps memory that others may lack, for an offload or a restore "
			"was cut short: `lien restore`",
			tracked->pid);
}

/* Every last reply carries it. */
static void note_arena(struct lien_agent *agent, uint32_t pid, const struct lien_wire_header *reply)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	if (!process || !(reply->flags & LIEN_WIRE_LAST))
		return;
	/* The process speaks only for itself; the limit keeps sums from overflowing. */
	process->arena_bytes = reply->arena_bytes < LIEN_WIRE_BYTES_MAX ? reply->arena_bytes : 0;
	process->arena_used =
		reply->arena_used < process->arena_bytes ? reply->arena_used : process->arena_bytes;
}

/* Passes a reply to whoever gave the order. */
static void route(struct lien_agent *agent, uint32_t pid, struct lien_reply *reply)
{
	struct lien_tracked *tracked = tracked_of(agent, pid);

	if (reply->asker == LIEN_ASK_TRANSACTION && agent->transaction) {
		lien_transaction_reply(agent->transaction, pid, &reply->header, reply->body,
			reply->fds, reply->fds_count);
		return;
	}
	lien_link_discard(reply);
	switch (reply->asker) {
	case LIEN_ASK_HELLO:
		hello_reply(tracked, reply);
		break;
	case LIEN_ASK_GATE:
		lien_graph_process(agent->graph, pid)->presence = LIEN_CONTROL_READY;
		break;
	case LIEN_ASK_PREPARE:
		if (reply->header.flags & LIEN_WIRE_LAST)
			lien_prepare_reply(agent, pid, reply);
		break;
	default:
		if (agent->above->reply[reply->asker])
			agent->above->reply[reply->asker](agent, pid, reply);
		break;
	}
}

static void orders_ready(struct lien_source *source, uint32_t events)
{
	struct lien_tracked *tracked =
		(void *)((char *)source - __builtin_offsetof(struct lien_tracked, orders));
	struct lien_agent *agent = tracked->agent;
	uint32_t pid = tracked->pid;
	struct lien_reply reply;
	int n;

	(void)events;
	if (!tracked->link)
		return;
	/* One per turn: the graph has everything that was done before it. */
	n = lien_link_receive(tracked->link, &reply);
	if (n > 0) {
		note_arena(agent, pid, &reply.header);
		route(agent, pid, &reply); /* may end the link */
	}
	tracked = tracked_of(agent, pid);
	if (n > 0 && tracked && tracked->link)
		n = lien_link_next(tracked->link);
	if (n < 0 && tracked)
		unlink_process(tracked);
}

static void life_ready(struct lien_source *source, uint32_t events)
{
	struct lien_tracked *tracked =
		(void *)((char *)source - __builtin_offsetof(struct lien_tracked, life));
	struct lien_agent *agent = tracked->agent;
	struct lien_process *process;
	struct lien_event event;

	(void)events;
	epoll_ctl(agent->epoll, EPOLL_CTL_DEL, source->fd, NULL);
	process = lien_graph_process(agent->graph, tracked->pid);
	if (!process || process->agent != tracked)
		return;
	/* The kernel side has reported the end too, unless the ring was full. */
	event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_EXIT);
	lien_agent_event(agent, &event);
}

int lien_orders_link(struct lien_agent *agent, struct lien_process *process,
	const struct lien_control_state *state)
{
	struct lien_wire_header hello = {
		.length = sizeof(hello), .type = LIEN_WIRE_HELLO, .seq = 1};
	struct lien_tracked *tracked = process->agent;
	int err;

	err = lien_link_open(&tracked->link, process->pid, state);
	if (err)
		return err;
	/* Another process may have got the pid since. The link's process is the right one if the
	 * pid has this start and the link's process lives. */
	if (!lien_proc_runs(process->pid, process->start) || !lien_link_alive(tracked->link)) {
		lien_link_close(tracked->link);
		tracked->link = NULL;
		return -ESRCH;
	}
	tracked->orders = (struct lien_source){.fd = lien_link_fd(tracked->link),
		.ready = orders_ready,
		.name = "control library",
		.reacts = true};
	tracked->life = (struct lien_source){.fd = lien_link_pidfd(tracked->link),
		.ready = life_ready,
		.name = "process's end",
		.reacts = true};
	err = lien_agent_watch(agent, &tracked->orders, EPOLLIN);
	if (!err)
		err = lien_agent_watch(agent, &tracked->life, EPOLLIN);
	if (!err)
		err = lien_link_send(tracked->link, LIEN_ASK_HELLO, &hello, NULL, NULL, 0);
	if (err)
		lien_orders_unlink(tracked);
	return err;
}

bool lien_orders_must_react(const struct lien_agent *agent)
{
	return agent->transaction && !agent->transaction_ended &&
	       lien_transaction_must_react(agent->transaction);
}

void lien_orders_react(struct lien_agent *agent)
{
	lien_transaction_react(agent->transaction);
}

void lien_orders_tick(struct lien_agent *agent)
{
	if (agent->transaction && !agent->transaction_ended)
		lien_transaction_tick(agent->transaction);
}
