// SPDX-License-Identifier: BSD-2-Clause
/* Transactions, carried out over the links to the control libraries. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "agent/agent.h"

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
	return lien_link_send(tracked->link, order, body, fds, fds_count);
}

static void on_progress(void *context, enum lien_phase phase, unsigned done, unsigned of)
{
	lien_server_progress(context, phase, done, of);
}

static void on_done(void *context, struct lien_transaction *transaction)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);
	const char *kind = lien_transaction_is_offload(transaction) ? "offload" : "restore";
	struct lien_agent *agent = context;

	if (result->error)
		lien_log(4, "%s failed: %s%s", kind, result->text,
			result->rolled_back ? "; everything was put back" : "");
	else if (result->processes_count)
		lien_log(6, "%s: %llu bytes of %u processes in %llu ms", kind,
			(unsigned long long)result->bytes, result->processes_count,
			(unsigned long long)(result->ns / 1000000));
	lien_agent_consume(
		agent); /* what the control libraries did is in the graph when we answer */
	lien_server_transaction_done(agent);
	agent->transaction_ended = true;
}

static uint64_t now_ns(void *context)
{
	(void)context;
	return lien_now_ns();
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

static struct lien_transaction_ops ops_of(struct lien_agent *agent)
{
	return (struct lien_transaction_ops){
		.send = send_order,
		.progress = on_progress,
		.done = on_done,
		.now_ns = now_ns,
		.fd_dup = fd_dup,
		.fd_close = fd_close,
		.context = agent,
	};
}

static int busy(struct lien_agent *agent, char *error, size_t size)
{
	if (!agent->transaction)
		return 0;
	snprintf(error, size, "another transaction is under way: see `lien status`");
	return -EBUSY;
}

int lien_orders_offload(struct lien_agent *agent, const struct lien_selection *selection,
	unsigned timeout_ms, bool *nothing, char *error, size_t error_size)
{
	struct lien_transaction_ops ops = ops_of(agent);
	int err = busy(agent, error, error_size);

	if (err)
		return err;
	lien_agent_consume(agent);
	err = lien_plan_offload(agent->graph, selection, &agent->plan, error, error_size);
	if (err)
		return err;
	*nothing = !agent->plan.processes_count;
	if (*nothing)
		return 0;
	err = lien_transaction_offload(
		&agent->transaction, &agent->plan, agent->token_base, timeout_ms, &ops);
	if (err) {
		snprintf(error, error_size, "%s", strerror(-err));
		lien_plan_clear(&agent->plan);
		return err;
	}
	agent->t_transaction = lien_now_ns();
	lien_transaction_start(agent->transaction);
	return 0;
}

int lien_orders_restore(struct lien_agent *agent, const uint32_t *pids, unsigned pids_count,
	unsigned timeout_ms, bool *nothing, char *error, size_t error_size)
{
	struct lien_transaction_ops ops = ops_of(agent);
	struct lien_process *process;
	unsigned count = 0, i;
	uint32_t *all;
	int err = busy(agent, error, error_size);

	if (err)
		return err;
	lien_agent_consume(agent);
	for (i = 0; i < pids_count; i++)
		if (!lien_graph_process(agent->graph, pids[i])) {
			snprintf(error, error_size,
				"process %u is not known to the agent: it does not run or has not "
				"used CUDA (see `lien ps`)",
				pids[i]);
			return -ESRCH;
		}
	all = calloc(lien_graph_stats(agent->graph)->processes + 1, sizeof(*all));
	if (!all)
		return -ENOMEM;
	for (process = lien_graph_first(agent->graph); process; process = lien_graph_next(process))
		if (process->presence == LIEN_CONTROL_READY)
			all[count++] = process->pid;
	*nothing = !count;
	err = !count ? 0
		     : lien_transaction_restore(
			       &agent->transaction, all, count, pids, pids_count, timeout_ms, &ops);
	free(all);
	if (err)
		snprintf(error, error_size, "%s", strerror(-err));
	if (err || *nothing)
		return err;
	agent->t_transaction = lien_now_ns();
	lien_transaction_start(agent->transaction);
	return 0;
}

static void unlink_process(struct lien_tracked *tracked)
{
	struct lien_process *process = lien_graph_process(tracked->agent->graph, tracked->pid);

	lien_link_close(tracked->link);
	tracked->link = NULL;
	if (process)
		process->presence = LIEN_CONTROL_LOADED;
	if (tracked->agent->transaction)
		lien_transaction_gone(tracked->agent->transaction, tracked->pid);
}

static void hello_reply(struct lien_tracked *tracked, const struct lien_reply *reply)
{
	struct lien_process *process = lien_graph_process(tracked->agent->graph, tracked->pid);
	const struct lien_wire_hello *hello = reply->body;

	if (reply->header.length < sizeof(reply->header) + sizeof(*hello) || !process)
		return;
	tracked->hello = false;
	process->presence = LIEN_CONTROL_READY;
	tracked->held_bytes = hello->bytes;
	if (hello->items)
		lien_log(5,
			"process %u holds %llu bytes offloaded by an earlier agent: `lien restore` "
			"puts them back",
			tracked->pid, (unsigned long long)hello->bytes);
}

static void orders_ready(struct lien_source *source, uint32_t events)
{
	struct lien_tracked *tracked =
		(void *)((char *)source - __builtin_offsetof(struct lien_tracked, orders));
	struct lien_agent *agent = tracked->agent;
	uint32_t pid = tracked->pid;
	struct lien_reply reply;
	int n = 0;

	(void)events;
	/* A reply can end the transaction, and with it this process's part in it. */
	while ((tracked = tracked_of(agent, pid)) && tracked->link &&
		(n = lien_link_receive(tracked->link, &reply)) > 0) {
		if (tracked->hello)
			hello_reply(tracked, &reply);
		else if (agent->transaction)
			lien_transaction_reply(agent->transaction, pid, &reply.header, reply.body,
				reply.fds, reply.fds_count);
		else
			while (reply.fds_count)
				close(reply.fds[--reply.fds_count]);
	}
	if (n < 0 && tracked)
		unlink_process(tracked);
}

static void life_ready(struct lien_source *source, uint32_t events)
{
	struct lien_tracked *tracked =
		(void *)((char *)source - __builtin_offsetof(struct lien_tracked, life));
	struct lien_agent *agent = tracked->agent;

	(void)events;
	epoll_ctl(agent->epoll, EPOLL_CTL_DEL, source->fd, NULL);
	if (agent->transaction)
		lien_transaction_gone(agent->transaction, tracked->pid);
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
	tracked->orders = (struct lien_source){lien_link_fd(tracked->link), orders_ready};
	tracked->life = (struct lien_source){lien_link_pidfd(tracked->link), life_ready};
	err = lien_agent_watch(agent, &tracked->orders, EPOLLIN);
	if (!err)
		err = lien_agent_watch(agent, &tracked->life, EPOLLIN);
	if (!err)
		err = lien_link_send(tracked->link, &hello, NULL, NULL, 0);
	tracked->hello = !err;
	if (err) {
		lien_link_close(tracked->link);
		tracked->link = NULL;
	}
	return err;
}

void lien_orders_tick(struct lien_agent *agent)
{
	if (agent->transaction && !agent->transaction_ended)
		lien_transaction_tick(agent->transaction);
}
