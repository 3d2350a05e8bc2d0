// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/requests.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/daemon/daemon.h"
#include "agent/core/node.h"
#include "agent/core/open_files.h"
#include "agent/daemon/move.h"
#include "agent/daemon/select.h"
#include "agent/graph/named.h"
#include "agent/join/join.h"
#include "agent/journal/recording.h"
#include "agent/link/link.h"
#include "agent/orders/orders.h"
#include "agent/processes/sites.h"
#include "agent/quiesce/elsewhere.h"
#include "agent/server/server.h"
#include "agent/views/views.h"
#include "loader/probes/uprobe.h"
#include "loader/probes/make_link.h"

#define AT_ONCE_OF_USER 1 /* answers being made by copies */
#define AT_ONCE_OF_ROOT 8
#define LIMIT_S		120
#define PIECE		(1u << 16)

/* Number of objects from which walking the graph takes some milliseconds. */
#define LARGE 4096

/* --- requests --------------------------------------------------------------------------------- */

static bool traffic_of(
	void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic)
{
	struct lien_agent *agent = context;

	return lien_probes_traffic_of(agent->probes, pid, comm, traffic);
}

/* Starts what the answer needs to know of devices and call sites, which a copy of the agent cannot
 * start. Returns true while that is outstanding. */
static bool look_up(struct lien_agent *agent, json_t *request)
{
	const char *by = json_string_value(json_object_get(request, "by"));
	bool pending = false;

	if (json_is_true(json_object_get(request, "explain")) ||
		json_is_true(json_object_get(request, "fresh")) ||
		!strcmp(json_string_value(json_object_get(request, "op")), "metrics"))
		pending = lien_node_refresh(agent);
	return (by && !strcmp(by, "callsite") && lien_sites_resolve(agent)) || pending;
}

static void request_view(struct lien_client *client, json_t *request)
{
	struct lien_agent *agent = client->agent;
	struct lien_view_source source = {
		.graph = agent->graph,
		.viewer = &client->viewer,
		.node = lien_node_now(agent),
		.pending = look_up(agent, request),
		.traffic = traffic_of,
		.context = agent,
		.now_ns = lien_now_ns(),
	};
	char error[LIEN_KNOWN_SIZE];
	json_int_t pid;
	json_t *answer;

	source.files.known = !lien_open_files_last(agent, &source.files.file, &source.files.count);
	lien_name_client(client, json_object_get(request, "pid"));
	pid = json_integer_value(json_object_get(request, "pid")); /* 0: none */
	lien_attach_expect(agent, &client->viewer, NULL, 0);
	answer = lien_view_dispatch(&source, request, error, sizeof(error));
	if (!answer && error[0])
		lien_reply_failure(client, error,
			(struct lien_blame){
				LIEN_CAUSE_INVALID, pid > 0 && pid <= UINT32_MAX ? pid : 0, 0});
	else
		lien_reply_result(client, answer);
}

static void request_status(struct lien_client *client, json_t *request)
{
	(void)request;
	lien_reply_result(client, lien_agent_status(client->agent, &client->viewer));
}

static void request_comms(struct lien_client *client, json_t *request)
{
	(void)request;
	lien_reply_result(client, lien_agent_comms(client->agent, &client->viewer));
}

static void request_metrics(struct lien_client *client, json_t *request)
{
	const struct lien_agent *agent = client->agent;
	struct lien_viewer viewer = client->viewer;
	json_t *result;

	(void)request;
	if (agent->daemon->has_metrics_user && viewer.uid == agent->daemon->metrics_user)
		viewer.one_user = false;
	result = lien_agent_metrics(client->agent, &viewer);
	if (result && !viewer.one_user)
		lien_reply_send(client, json_pack("{s:b, s:o}", "ok", 1, "result", result));
	else
		lien_reply_result(client, result);
}

/* May `who` steer what `viewer` began? Users may steer their own, and root everything. */
static bool is_of(const struct lien_viewer *viewer, const struct lien_viewer *who)
{
	return !who->one_user || (viewer->one_user && viewer->uid == who->uid);
}

/* Cancels the offload that the same user has under way, or that is about to begin. */
static void request_cancel(struct lien_client *client, json_t *request)
{
	struct lien_agent *agent = client->agent;
	bool cancelled = lien_server_cancel(client);

	(void)request;
	if (agent->transaction && !agent->transaction_own && !lien_elsewhere_is_committed(agent) &&
		is_of(&agent->transaction_of, &client->viewer))
		cancelled |= lien_transaction_cancel(agent->transaction, -ECANCELED, "cancelled");
	lien_reply_result(client, json_pack("{s:b}", "cancelled", cancelled));
}

/* Returns false if it is not a number. */
static bool read_number(json_t *request, const char *name, uint64_t *number)
{
	const json_t *value = json_object_get(request, name);

	*number = json_integer_value(value);
	return !value || (json_is_integer(value) && json_integer_value(value) >= 0);
}

/* Returns false after an error reply. */
static bool take_others(struct lien_client *client, const json_t *json)
{
	struct lien_node_others others;
	int err;

	if (!json)
		return true;
	err = lien_node_others_read(&others, json);
	if (!err) {
		lien_elsewhere_compare(client->agent, &others);
		return true;
	}
	lien_node_others_clear(&others);
	if (err == -E2BIG) {
		lien_reply_invalid(client, "others has more than %d groups, pairs and ranks",
			LIEN_NODE_OTHERS_MAX);
	} else if (err == -ENOMEM) {
		lien_reply_error(client, "out of memory");
	} else {
		lien_reply_invalid(client, "others is not what docs/protocol.md says");
	}
	return false;
}

/* A message of a transaction's coordinator to this node's part of it. */
static void request_coordinate(struct lien_client *client, json_t *request)
{
	struct lien_agent *agent = client->agent;
	struct lien_elsewhere *elsewhere = agent->elsewhere;
	const json_t *word = json_object_get(request, "word");
	const char *id = json_string_value(json_object_get(request, "id"));
	enum lien_part_state state;
	struct lien_node_order order = {.word = lien_node_word_of(json_string_value(word))};

	if (!lien_nodes_is_id(id)) {
		lien_reply_invalid(client, "id must be 1 to 64 letters, digits and any of - . _");
		return;
	}
	if ((word && (order.word == LIEN_WORDS || order.word == LIEN_WORD_RESTORE)) ||
		!read_number(request, "round", &order.round) ||
		!read_number(request, "version", &order.version)) {
		lien_reply_invalid(client,
			"word must be wait, go, hold, save, commit or undo; round and version are "
			"numbers");
		return;
	}
	if (!elsewhere || !agent->transaction || strcmp(elsewhere->id, id) != 0 ||
		!is_of(&agent->transaction_of, &client->viewer)) {
		/* It is not under way. */
		state = lien_outcomes_find(
			agent->outcomes, id, client->viewer.one_user, client->viewer.uid);
		lien_reply_result(client,
			json_pack("{s:s?}", "state",
				state == LIEN_PART_STATES ? NULL : lien_part_state_name(state)));
		return;
	}
	if (!take_others(client, json_object_get(request, "others")))
		return;
	if (word) {
		lien_part_hear(&elsewhere->part, &order, lien_now_ns());
		lien_elsewhere_tick(agent);
	}
	lien_reply_result(client, lien_elsewhere_status(&elsewhere->part.status));
}

static void request_arena(struct lien_client *client, json_t *request)
{
	struct lien_transfer *transfer = lien_read_transfer(client, request);
	bool nothing = true, release;
	char error[512];
	int err = 0;

	if (!transfer || !lien_read_flag(client, request, "release", &release) ||
		(release && lien_move_postpone(client, request)))
		return;
	if (release) {
		client->waits = LIEN_WAIT_TRANSACTION;
		err = lien_orders_release(
			client->agent, &transfer->selection, &nothing, error, sizeof(error));
	}
	if (err) {
		lien_move_refuse(client, LIEN_TRANSACTION_RELEASE, error);
	} else if (nothing) {
		client->waits = LIEN_WAIT_NOTHING;
		lien_reply_result(client, lien_agent_arena(client, NULL));
	}
}

/* Answers with an error if the client cannot see one of the processes. */
static bool all_known(struct lien_client *client, const struct lien_transfer *transfer)
{
	struct lien_blame blame;
	char error[LIEN_KNOWN_SIZE];

	if (!lien_plan_check_pids(
		    client->agent->graph, &transfer->selection, &blame, error, sizeof(error)))
		return true;
	lien_reply_failure(client, error, blame);
	return false;
}

/* Logs who changes processes; transactions are logged when they end. */
static void log_request(const struct lien_client *client, const char *what, unsigned processes)
{
	char which[64] = "all processes";

	if (processes)
		snprintf(which, sizeof(which), "%u %s", processes,
			processes == 1 ? "process" : "processes");
	lien_log(6, "%s of %s, asked for by uid %u, pid %u", what, which, client->viewer.uid,
		client->viewer.pid);
}

static void request_attach(struct lien_client *client, json_t *request)
{
	const struct lien_transfer *transfer = lien_read_transfer(client, request);

	if (!transfer || !all_known(client, transfer))
		return;
	log_request(client, "attach", transfer->selection.pids_count);
	lien_attach_start(client, transfer->pids, transfer->selection.pids_count);
}

static void request_detach(struct lien_client *client, json_t *request)
{
	const struct lien_transfer *transfer = lien_read_transfer(client, request);

	if (!transfer || !all_known(client, transfer) || lien_move_postpone(client, request))
		return;
	log_request(client, "detach", transfer->selection.pids_count);
	lien_detach_start(client, transfer->pids, transfer->selection.pids_count);
}

static void request_compare(struct lien_client *client, json_t *request)
{
	const struct lien_transfer *transfer = lien_read_transfer(client, request);
	bool repair;

	if (!transfer || !lien_read_flag(client, request, "repair", &repair) ||
		!all_known(client, transfer))
		return;
	if (repair)
		log_request(client, "check --repair", transfer->selection.pids_count);
	lien_compare_start(client, transfer->pids, transfer->selection.pids_count, repair,
		transfer->how.timeout_ms);
}

static int write_event(void *client, const struct lien_event *event)
{
	lien_reply_write(client, event, event->size);
	return 0;
}

static void request_record(struct lien_client *client, json_t *request)
{
	bool marked = json_object_get(request, "follow"), follow;
	struct lien_event end;

	if (!lien_read_flag(client, request, "follow", &follow))
		return;
	lien_reply_result(client, json_pack("{s:i}", "format", LIEN_RECORDING_VERSION));
	lien_graph_dump_seen(client->agent->graph, &client->viewer, write_event, client);
	if (marked) {
		end = lien_agent_event_of(0, 0, LIEN_EVENT_END);
		write_event(client, &end);
	}
	if (follow || !marked)
		lien_client_record(client);
}

/* --- answers by copies: in the copy ----------------------------------------------------------- */

struct lien_answer {
	struct lien_client_job waited_for;
	LIST_ENTRY(lien_answer) next;
	struct lien_source pipe; /* .fd -1: the answer is complete, the copy has yet to be reaped */
	struct lien_client *client;
	pid_t copy;
	bool any, whole; /* received something; ended with a newline */
};

/*
 * Closes descriptors that others watch for EOF, or that carry the lock on a process: they would
 * otherwise wait for the copy.
 */
static void close_inherited(struct lien_client *client)
{
	struct lien_agent *agent = client->agent;
	struct lien_process *process;
	struct lien_tracked *tracked;

	close(agent->epoll);
	agent->epoll = -1; /* both share it; the copy must not change it */
	lien_server_close_inherited(agent);
	LIEN_FOREACH_PROCESS (process, agent->graph) {
		tracked = process->agent;
		if (tracked && tracked->link) {
			lien_link_close(tracked->link);
			tracked->link = NULL;
		}
	}
}

static void write_all(int fd, const char *data, size_t size)
{
	ssize_t n;

	for (; size; data += n, size -= n) {
		n = write(fd, data, size);
		if (n < 0 && errno != EINTR)
			return;
		n = n < 0 ? 0 : n;
	}
}

static void __attribute__((noreturn)) make(struct lien_client *client, json_t *request,
	void (*handle)(struct lien_client *client, json_t *request), int to, pid_t agent)
{
	sigset_t end;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != agent)
		_exit(1);
	alarm(LIMIT_S);
	client->agent->is_copy = true;
	close_inherited(client);
	lien_uprobe_close_inherited();
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigprocmask(SIG_UNBLOCK, &end, NULL);
	setpriority(PRIO_PROCESS, 0, 0);
	client->out_length = client->out_sent = 0;
	handle(client, request);
	if (!client->broken)
		write_all(to, client->out, client->out_length);
	_exit(0);
}

/* --- the same, in the agent ------------------------------------------------------------------- */

/* No more data will come. */
static void close_pipe(struct lien_answer *answer)
{
	struct lien_client *client = answer->client;

	if (answer->pipe.fd < 0)
		return;
	/* A copy may share the open file, so closing ours does not remove it from the epoll set. */
	epoll_ctl(client->agent->epoll, EPOLL_CTL_DEL, answer->pipe.fd, NULL);
	close(answer->pipe.fd);
	answer->pipe.fd = -1;
	answer->client = NULL;
	client->job = NULL;
	lien_client_answers(client, -1);
}

/* The client is gone. */
static void drop(struct lien_client_job *job)
{
	struct lien_answer *answer = (struct lien_answer *)job;

	kill(answer->copy, SIGTERM); /* it first closes what it inherited */
	close_pipe(answer);
}

static void reap(struct lien_answer *answer, int how)
{
	if (waitpid(answer->copy, NULL, how) == 0)
		return;
	LIST_REMOVE(answer, next);
	free(answer);
}

static void finish(struct lien_answer *answer)
{
	struct lien_client *client = answer->client;

	close_pipe(answer);
	if (!answer->any)
		lien_reply_error(client, "the answer is too long, or takes too long");
	else if (!answer->whole)
		client->broken = true;
	lien_client_go_on(client);
	reap(answer, WNOHANG);
}

static void pipe_ready(struct lien_source *source, uint32_t events)
{
	struct lien_answer *answer =
		(void *)((char *)source - __builtin_offsetof(struct lien_answer, pipe));
	static char piece[PIECE];
	ssize_t n = read(source->fd, piece, sizeof(piece));

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		finish(answer);
		return;
	}
	answer->any = true;
	answer->whole = piece[n - 1] == '\n';
	lien_reply_write(answer->client, piece, n);
}

/* handle() answers the request at once, and changes nothing but its client. Returns false if no
 * copy can be made now: the caller then calls handle() itself. */
static bool answer_start(struct lien_client *client, json_t *request,
	void (*handle)(struct lien_client *client, json_t *request))
{
	struct lien_agent *agent = client->agent;
	struct lien_answer *answer;
	pid_t self = getpid();
	int ends[2];

	if (lien_client_answers(client, 0) >=
			(client->viewer.one_user ? AT_ONCE_OF_USER : AT_ONCE_OF_ROOT) ||
		pipe2(ends, O_CLOEXEC))
		return false;
	answer = calloc(1, sizeof(*answer));
	if (answer)
		answer->copy = fork();
	if (answer && !answer->copy)
		make(client, request, handle, ends[1], self);
	close(ends[1]);
	if (!answer || answer->copy < 0) {
		close(ends[0]);
		free(answer);
		return false;
	}
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	answer->pipe = (struct lien_source){.fd = ends[0], .ready = pipe_ready, .name = "answer"};
	answer->client = client;
	LIST_INSERT_HEAD(&agent->daemon->answers, answer, next);
	answer->waited_for.drop = drop;
	client->job = &answer->waited_for;
	client->waits = LIEN_WAIT_JOB;
	lien_client_answers(client, 1);
	if (lien_agent_watch(agent, &answer->pipe, EPOLLIN))
		finish(answer);
	return true;
}

void lien_answers_tick(struct lien_agent *agent)
{
	struct lien_answer *answer, *next;

	LIST_FOREACH_SAFE (answer, &agent->daemon->answers, next, next)
		if (answer->pipe.fd < 0)
			reap(answer, WNOHANG);
}

void lien_answers_stop(struct lien_agent *agent)
{
	struct lien_answer *answer;

	while ((answer = LIST_FIRST(&agent->daemon->answers))) {
		kill(answer->copy, SIGKILL);
		LIST_REMOVE(answer, next);
		waitpid(answer->copy, NULL, 0);
		free(answer);
	}
}

/* --- the table -------------------------------------------------------------------------------- */

#define MEMBERS_MAX 20

/* Cost of an answer: little; a walk over the whole graph; that, with the list of open files. */
enum cost { LITTLE, GRAPH, FILES };

static const struct request {
	const char *op;
	void (*handle)(struct lien_client *client, json_t *request);
	enum cost cost;
	const char *members[MEMBERS_MAX];
} requests[] = {
	{"ps", request_view, GRAPH, {"fresh"}},
	{"mem", request_view, GRAPH, {"by", "pid", "explain"}},
	{"comms", request_comms, LITTLE, {NULL}},
	{"graph", request_view, GRAPH, {NULL}},
	{"holders", request_view, FILES, {"pid", "address"}},
	{"check", request_view, FILES, {"idle_minutes"}},
	{"offload", lien_offload_request, LITTLE,
		{"owner", "pids", "timeout_ms", "dry_run", "strict", "with_closure", "multicast",
			"verify", "discard", "host_limit_bytes", "on_use", "gpus", "comms",
			"comms_made", "free_bytes", "tags", "together", "wait", "coordinate"}},
	{"cancel", request_cancel, LITTLE, {NULL}},
	{"restore", lien_restore_request, LITTLE,
		{"pids", "timeout_ms", "lazy", "comms", "comms_made", "tags", "together", "wait",
			"coordinate"}},
	{"coordinate", request_coordinate, LITTLE, {"id", "word", "round", "version", "others"}},
	{"comm", lien_own_request, GRAPH, {"address"}},
	{"arena", request_arena, LITTLE, {"release", "pids"}},
	{"attach", request_attach, LITTLE, {"pids"}},
	{"detach", request_detach, LITTLE, {"pids"}},
	{"compare", request_compare, LITTLE, {"pids", "repair", "timeout_ms"}},
	{"ipc_connect", lien_ipc_connect_request, LITTLE, {"socket", "network"}},
	{"status", request_status, LITTLE, {NULL}},
	{"metrics", request_metrics, GRAPH, {NULL}},
	{"record", request_record, LITTLE, {"follow"}},
};

/* Returns the first member that the operation does not know. */
static const char *unknown_member(const struct request *known, json_t *request)
{
	const char *name;
	unsigned i;
	json_t *value;

	json_object_foreach (request, name, value) {
		if (!strcmp(name, "op"))
			continue;
		for (i = 0; i < MEMBERS_MAX && known->members[i]; i++)
			if (!strcmp(name, known->members[i]))
				break;
		if (i == MEMBERS_MAX || !known->members[i])
			return name;
	}
	return NULL;
}

#define QUIET_NS 1000000000ull

static void handle(struct lien_client *client, const struct request *known, json_t *request)
{
	const struct lien_graph_stats *stats = lien_graph_stats(client->agent->graph);
	const bool dry = known->handle == lien_offload_request &&
			 json_is_true(json_object_get(request, "dry_run"));
	const enum cost cost = dry ? FILES : known->cost;

	if (cost == FILES && lien_move_wait_for_files(client, request))
		return;
	/* A copy of the agent costs a fork(), and every fork() of the machine waits while anybody
	 * attaches or removes probes, for half a second at times. */
	if (cost != LITTLE && stats->allocations + stats->mappings + stats->processes > LARGE) {
		/* So the loop would wait; a process can keep probes from being made indefinitely.
		 */
		if (lien_making_busy() && lien_now_ns() - client->t_asked <= QUIET_NS) {
			lien_client_postpone(client, request, LIEN_WAIT_QUIET);
			return;
		}
		lien_turn_part(client->agent, "copy for", known->op);
		look_up(client->agent, request);
		if (!lien_making_busy() && answer_start(client, request, known->handle))
			return;
	}
	lien_turn_part(client->agent, "request", known->op);
	known->handle(client, request);
}

void lien_request(struct lien_client *client, json_t *request)
{
	const struct request *known = NULL;
	const char *op, *unknown;
	unsigned i;

	op = json_string_value(json_object_get(request, "op"));
	for (i = 0; op && i < sizeof(requests) / sizeof(requests[0]); i++)
		if (!strcmp(op, requests[i].op))
			known = &requests[i];
	unknown = known ? unknown_member(known, request) : NULL;
	if (!op) {
		lien_reply_invalid(
			client, "a request is a JSON object on one line with a member op");
	} else if (!known) {
		lien_reply_invalid(client, "no such operation: %.100s", op);
	} else if (unknown) {
		lien_reply_invalid(client, "`%s` has no member %.100s", op, unknown);
	} else {
		handle(client, known, request);
	}
}
