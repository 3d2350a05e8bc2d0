// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/daemon/answers.h"
#include "agent/daemon/coordinate.h"
#include "agent/daemon/loop.h"
#include "agent/daemon/own.h"
#include "agent/graph/named.h"
#include "agent/journal/recording.h"
#include "agent/orders/orders.h"
#include "agent/server/server.h"
#include "agent/join/join.h"
#include "agent/views/dispatch.h"
#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/gate.h"
#include "agent/daemon/requests.h"
#include "agent/core/node.h"
#include "agent/core/open_files.h"
#include "agent/daemon/select.h"
#include "agent/processes/sites.h"
#include "agent/daemon/together.h"
#include "loader/probes/make_link.h"

#define TIMEOUT_MS	10000
#define TIMEOUT_MS_MAX	3600000
#define TIMEOUT_MS_USER 60000
#define PIDS_MAX	4096

#define DISCARD_MAX 1024

/* Number of objects from which walking the graph takes some milliseconds. */
#define LARGE 4096

static bool read_flag(struct lien_client *client, json_t *request, const char *name, bool *value)
{
	json_t *flag = json_object_get(request, name);
	char error[64];

	*value = json_is_true(flag);
	if (!flag || json_is_boolean(flag))
		return true;
	snprintf(error, sizeof(error), "%s must be true or false", name);
	lien_reply_invalid(client, error);
	return false;
}

static bool traffic_of(
	void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic)
{
	struct lien_agent *agent = context;

	return lien_probes_traffic_of(agent->probes, pid, comm, traffic);
}

static struct lien_view_files open_files(void *context)
{
	struct lien_view_files files = {0};

	files.known = !lien_open_files_last(context, &files.file, &files.count);
	return files;
}

static json_t *view_comms(void *context, const struct lien_viewer *viewer)
{
	return lien_agent_comms(context, viewer);
}

static bool refresh(void *context, bool devices, bool callsites)
{
	bool pending = devices && lien_node_refresh(context);

	return (callsites && lien_sites_resolve(context)) || pending;
}

/* 0 is the client's own process: it need not know the agent's number for that. */
static void name_client(const struct lien_client *client, json_t *pid)
{
	if (json_is_integer(pid) && !json_integer_value(pid))
		json_integer_set(pid, client->viewer.pid);
}

/* 0: none. */
static uint32_t named_pid(json_t *request)
{
	json_int_t pid = json_integer_value(json_object_get(request, "pid"));

	return pid > 0 && pid <= UINT32_MAX ? pid : 0;
}

static void request_view(struct lien_client *client, json_t *request)
{
	struct lien_agent *agent = client->agent;
	const struct lien_view_source source = {
		.graph = agent->graph,
		.viewer = &client->viewer,
		.node = lien_node_now(agent),
		.files = open_files,
		.traffic = traffic_of,
		.comms = view_comms,
		.refresh = refresh,
		.context = agent,
		.now_ns = lien_now_ns(),
	};
	char error[LIEN_KNOWN_SIZE];
	json_t *answer;

	name_client(client, json_object_get(request, "pid"));
	lien_attach_expect(agent, &client->viewer, NULL, 0);
	answer = lien_view_dispatch(&source, request, error, sizeof(error));

	if (!answer && error[0])
		lien_reply_failure(client, error,
			(struct lien_blame){LIEN_CAUSE_INVALID, named_pid(request), 0});
	else
		lien_reply_result(client, answer);
}

static void request_status(struct lien_client *client, json_t *request)
{
	(void)request;
	lien_reply_result(client, lien_agent_status(client->agent, &client->viewer));
}

static void request_metrics(struct lien_client *client, json_t *request)
{
	const struct lien_agent *agent = client->agent;
	struct lien_viewer viewer = client->viewer;
	json_t *result;

	(void)request;
	if (agent->has_metrics_user && viewer.uid == agent->metrics_user)
		viewer.one_user = false;
	result = lien_agent_metrics(client->agent, &viewer);
	if (result && !viewer.one_user)
		lien_reply_send(client, json_pack("{s:b, s:o}", "ok", 1, "result", result));
	else
		lien_reply_result(client, result);
}

struct transfer {
	struct lien_selection selection;
	struct lien_selected selected;
	struct lien_discard discard[DISCARD_MAX];
	uint32_t pids[PIDS_MAX];
	unsigned timeout_ms;
	int dry_run;
};

/* Reads the options that offload and restore share. */
static bool read_transfer(struct lien_client *client, json_t *request, struct transfer *transfer)
{
	json_t *timeout = json_object_get(request, "timeout_ms"), *pid;
	json_t *pids = json_object_get(request, "pids");
	json_int_t ms = timeout ? json_integer_value(timeout) : TIMEOUT_MS;
	size_t i;

	if ((timeout && !json_is_integer(timeout)) || ms < 1 || ms > TIMEOUT_MS_MAX) {
		lien_reply_invalid(client, "timeout_ms must be between 1 and 3600000");
		return false;
	}
	if (client->viewer.one_user && ms > TIMEOUT_MS_USER) {
		lien_reply_invalid(
			client, "timeout_ms must be between 1 and 60000, except for root");
		return false;
	}
	transfer->timeout_ms = ms;
	if (pids && (!json_array_size(pids) || json_array_size(pids) > PIDS_MAX)) {
		lien_reply_invalid(client, "pids must be a list of 1 to 4096 process ids; without "
					   "pids, all processes are meant");
		return false;
	}
	json_array_foreach (pids, i, pid) {
		if (!json_is_integer(pid) || json_integer_value(pid) < 0 ||
			json_integer_value(pid) > UINT32_MAX) {
			lien_reply_invalid(client, "pids must be a list of process ids");
			return false;
		}
		/* Two clients that each name themselves do not ask for the same. */
		name_client(client, pid);
		transfer->pids[i] = json_integer_value(pid);
	}
	transfer->selection.viewer = client->viewer;
	transfer->selection.pids = transfer->pids;
	transfer->selection.pids_count = json_array_size(pids);
	return true;
}

#define DISCARD_TAG "tag:"

/* Parses "nccl" or "tag:kv_cache". The strings remain the request's. */
static bool read_discards(struct lien_client *client, json_t *request, struct transfer *transfer)
{
	json_t *list = json_object_get(request, "discard"), *entry;
	const char *text;
	char error[256];
	size_t i;

	if (list && (!json_is_array(list) || json_array_size(list) > DISCARD_MAX)) {
		lien_reply_invalid(client, "discard must be a list of at most 1024 selectors");
		return false;
	}
	json_array_foreach (list, i, entry) {
		struct lien_discard *discard = &transfer->discard[i];

		text = json_string_value(entry);
		if (text && !strncmp(text, DISCARD_TAG, strlen(DISCARD_TAG))) {
			discard->tag = text + strlen(DISCARD_TAG);
			if (!lien_select_tag(client, discard->tag))
				return false;
		} else if (text && text[0] && !strchr(text, ':')) {
			discard->owner = text;
		} else {
			snprintf(error, sizeof(error),
				"discard: '%.64s' is neither an owner, such as nccl, nor a "
				"tag, such as tag:kv_cache",
				text ? text : "");
			lien_reply_invalid(client, error);
			return false;
		}
	}
	transfer->selection.discard = transfer->discard;
	transfer->selection.discard_count = json_array_size(list);
	return true;
}

static bool read_limit(struct lien_client *client, json_t *request, uint64_t *limit)
{
	json_t *bytes = json_object_get(request, "host_limit_bytes");

	*limit = json_integer_value(bytes);
	if (!bytes || (json_is_integer(bytes) && json_integer_value(bytes) > 0))
		return true;
	lien_reply_invalid(client, "host_limit_bytes must be a positive number");
	return false;
}

static bool read_free(struct lien_client *client, json_t *request, struct transfer *transfer)
{
	json_t *bytes = json_object_get(request, "free_bytes");

	transfer->selection.free = json_integer_value(bytes);
	if (bytes && (!json_is_integer(bytes) || json_integer_value(bytes) <= 0)) {
		lien_reply_invalid(client, "free_bytes must be a positive number");
		return false;
	}
	if (bytes && transfer->selection.strict) {
		lien_reply_invalid(client,
			"free_bytes and strict exclude each other: what is not needed is left");
		return false;
	}
	return true;
}

/* -ESRCH: something that the request names does not exist. */
static void reply_failed(struct lien_client *client, int err, const char *error)
{
	struct lien_blame blame = client->agent->blame;

	if (err == -ESRCH)
		blame.cause = LIEN_CAUSE_INVALID;
	lien_reply_failure(client, error, blame);
}

static void refuse(
	struct lien_client *client, enum lien_transaction_kind kind, int err, const char *error)
{
	struct lien_agent *agent = client->agent;

	client->waiting = false;
	lien_totals_refused(
		&agent->totals, kind, err == -ESRCH ? LIEN_CAUSE_INVALID : agent->blame.cause);
	reply_failed(client, err, error);
}

/* The client's process has none of what it asks for. */
static void reply_nothing(struct lien_client *client)
{
	struct lien_plan plan = {0};

	lien_reply_result(client, lien_view_plan(&plan));
}

static void dry_run(struct lien_client *client, struct lien_selection *selection,
	const struct lien_offload_how *how)
{
	struct lien_plan plan;
	char error[512];
	int err;

	selection->ahead = true;
	lien_attach_expect(client->agent, &client->viewer, selection->pids, selection->pids_count);
	err = lien_orders_plan(client->agent, selection, &plan, error, sizeof(error));
	if (err) {
		reply_failed(client, err, error);
		return;
	}
	if (lien_orders_check_host(client->agent, &plan, how, error, sizeof(error)))
		lien_reply_failure(
			client, error, (struct lien_blame){LIEN_CAUSE_HOST_MEMORY, 0, 0});
	else
		lien_reply_result(client, lien_view_plan(&plan));
	lien_plan_clear(&plan);
}

static bool read_on_use(struct lien_client *client, json_t *request, enum lien_on_use *on_use)
{
	const json_t *value = json_object_get(request, "on_use");
	unsigned i;

	*on_use = LIEN_ON_USE_WAIT;
	for (i = 0; value && i <= LIEN_ON_USE_IGNORE; i++)
		if (json_is_string(value) &&
			!strcmp(json_string_value(value), lien_on_use_names[i])) {
			*on_use = i;
			return true;
		}
	if (value)
		lien_reply_invalid(client, "on_use must be \"wait\", \"restore\" or \"ignore\"");
	return !value;
}

/* A user cannot know of a transaction that the agent or another user has started, so the request is
 * handled after it; so is one that asks for that. Returns true if the request was postponed. */
static bool postpone(struct lien_client *client, json_t *request)
{
	const struct lien_agent *agent = client->agent;

	if (!agent->transaction ||
		!(agent->transaction_own ||
			!lien_viewer_same(&client->viewer, &agent->transaction_of) ||
			json_is_true(json_object_get(request, "wait"))))
		return false;
	lien_client_postpone(client, request, false);
	return true;
}

static void go_on_attached(struct lien_client *client, json_t *request);

/* Returns true if the request was postponed until the list of open files is as new as it. */
static bool wait_for_files(struct lien_client *client, json_t *request)
{
	if (!client->t_files)
		client->t_files = lien_now_ns();
	if (lien_open_files_ask(client->agent, client->t_files)) {
		lien_client_postpone(client, request, true);
		return true;
	}
	client->t_files = 0;
	return false;
}

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

/* `attach`: first attaches to processes that lack only a control library. */
static void offload(struct lien_client *client, json_t *request, bool attach)
{
	struct lien_offload_how how = {0};
	json_t *owner = json_object_get(request, "owner");
	static struct transfer transfer;
	bool nothing = false, none, dry, verify;
	char error[512];
	int err;

	memset(&transfer, 0, sizeof(transfer));
	if (owner && !json_is_string(owner)) {
		lien_reply_invalid(client, "owner must be the name of a library, or \"all\"");
		return;
	}
	/* Tagged memory is mostly the program's own, so tags alone do not mean NCCL's. */
	transfer.selection.owner = owner			      ? json_string_value(owner)
				   : json_object_get(request, "tags") ? "all"
								      : "nccl";
	if (!strcmp(transfer.selection.owner, "all"))
		transfer.selection.owner = NULL;
	if (!read_transfer(client, request, &transfer) ||
		!read_flag(client, request, "strict", &transfer.selection.strict) ||
		!read_flag(client, request, "with_closure", &transfer.selection.with_closure) ||
		!read_flag(client, request, "multicast", &transfer.selection.multicast) ||
		!read_free(client, request, &transfer) ||
		!read_flag(client, request, "verify", &verify) ||
		!read_discards(client, request, &transfer) ||
		!read_limit(client, request, &how.host_limit) ||
		!read_on_use(client, request, &how.on_use) ||
		!read_flag(client, request, "dry_run", &dry) ||
		!lien_own_made(client, request, &none) ||
		!lien_select_read(client, request, &transfer.selection, &transfer.selected) ||
		!lien_together_read(client, request))
		return;
	how.flags = verify ? LIEN_WIRE_VERIFY : 0;
	how.timeout_ms = transfer.timeout_ms;
	if (dry) {
		dry_run(client, &transfer.selection, &how);
		return;
	}
	if (client->cancelled) {
		lien_reply_failure(client, "cancelled; nothing was moved, the job runs on",
			(struct lien_blame){LIEN_CAUSE_CANCELLED, 0, 0});
		return;
	}
	if (none) {
		reply_nothing(client);
		return;
	}
	client->may_cancel = true;
	if (lien_together_join(client, request))
		return;
	if (attach && lien_attach_before(client, transfer.pids, transfer.selection.pids_count,
			      request, go_on_attached))
		return;
	if (postpone(client, request) || wait_for_files(client, request) ||
		!lien_coordinate_begin(client, request, false))
		return;
	client->waiting = true; /* set first: it may end while it is being started */
	lien_together_begin(client, request);
	err = lien_orders_offload(
		client->agent, &transfer.selection, &how, &nothing, error, sizeof(error));
	lien_coordinate_begun(client->agent, err || nothing);
	if (err) {
		lien_together_none(client->agent);
		refuse(client, LIEN_TRANSACTION_OFFLOAD, err, error);
	} else if (nothing) {
		client->waiting = false;
		lien_together_nothing(client, request, lien_view_plan(&client->agent->plan));
		lien_plan_clear(&client->agent->plan);
	}
}

/* The request's processes have control libraries by now, or cannot have one. */
static void go_on_attached(struct lien_client *client, json_t *request)
{
	client->waiting = false;
	offload(client, request, false);
	if (!client->waiting)
		lien_client_go_on(client);
}

static void request_offload(struct lien_client *client, json_t *request)
{
	offload(client, request, client->agent->control >= 0 && !client->agent->no_attach);
}

static bool check_lazy(struct lien_client *client, json_t *request, bool lazy,
	const struct lien_selection *selection)
{
	if (lazy && selection->tags_count)
		lien_reply_invalid(client, "lazy goes by communicator: it excludes tags");
	else if (lazy && json_object_get(request, "coordinate"))
		lien_reply_invalid(client, "on several nodes everything comes back together: it "
					   "excludes lazy");
	else
		return true;
	return false;
}

static void request_restore(struct lien_client *client, json_t *request)
{
	static struct transfer transfer;
	struct lien_restore_how how = {0};
	bool nothing = false, none;
	char error[512];
	int err;

	memset(&transfer, 0, sizeof(transfer));
	if (!read_transfer(client, request, &transfer) ||
		!read_flag(client, request, "lazy", &how.lazy) ||
		!lien_own_made(client, request, &none))
		return;
	if (none) {
		reply_nothing(client);
		return;
	}
	if (!lien_select_comms(client, request, &transfer.selection, &transfer.selected) ||
		!lien_select_tags(client, request, &transfer.selection, &transfer.selected) ||
		!check_lazy(client, request, how.lazy, &transfer.selection) ||
		!lien_together_read(client, request) || lien_together_join(client, request) ||
		postpone(client, request) || !lien_coordinate_begin(client, request, true))
		return;
	how.timeout_ms = transfer.timeout_ms;
	client->waiting = true;
	lien_together_begin(client, request);
	err = lien_orders_restore(
		client->agent, &transfer.selection, &how, &nothing, error, sizeof(error));
	lien_coordinate_begun(client->agent, err || nothing);
	if (err) {
		lien_together_none(client->agent);
		refuse(client, LIEN_TRANSACTION_RESTORE, err, error);
	} else if (nothing) {
		struct lien_plan none = {0};

		client->waiting = false;
		lien_together_nothing(client, request, lien_view_plan(&none));
	}
}

/* All processes that hold host memory, or those of a release (NULL: none). */
static json_t *view_arena(
	const struct lien_client *client, const struct lien_transaction_result *result, bool all)
{
	struct lien_agent *agent = client->agent;
	json_t *list = json_array(), *row;
	struct lien_process *process;
	uint64_t released, wanted;
	unsigned i;

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		for (i = 0, released = 0; result && i < result->processes_count; i++)
			if (result->processes[i].pid == process->pid)
				released = result->processes[i].bytes;
		if (!lien_viewer_sees(&client->viewer, process))
			continue;
		wanted = all && process->presence == LIEN_CONTROL_READY
				 ? lien_prepare_wanted(process)
				 : 0;
		if (!(all && (process->arena_bytes || wanted)) && !released)
			continue;
		row = json_pack("{s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:b}", "pid",
			(json_int_t)process->pid, "command", process->command, "held_bytes",
			(json_int_t)process->arena_bytes, "used_bytes",
			(json_int_t)process->arena_used, "released_bytes", (json_int_t)released,
			"offload_bytes", (json_int_t)wanted, "missing_bytes",
			(json_int_t)(wanted ? lien_host_missing(process, wanted) : 0),
			"cgroup_limited", lien_prepare_excluded(agent, process));
		json_array_append_new(list, row);
	}
	return json_pack("{s:o, s:o, s:I}", "host", lien_agent_host(agent), "processes", list,
		"released_bytes", (json_int_t)(result ? result->bytes : 0));
}

static void request_arena(struct lien_client *client, json_t *request)
{
	static struct transfer transfer;
	bool nothing = false, release;
	char error[512];
	int err;

	memset(&transfer, 0, sizeof(transfer));
	if (!read_transfer(client, request, &transfer) ||
		!read_flag(client, request, "release", &release))
		return;
	if (!release) {
		lien_reply_result(client, view_arena(client, NULL, true));
		return;
	}
	if (postpone(client, request))
		return;
	client->waiting = true;
	err = lien_orders_release(
		client->agent, &transfer.selection, &nothing, error, sizeof(error));
	if (err) {
		refuse(client, LIEN_TRANSACTION_RELEASE, err, error);
	} else if (nothing) {
		client->waiting = false;
		lien_reply_result(client, view_arena(client, NULL, true));
	}
}

/* Answers with an error if the client cannot see one of the processes. */
static bool all_known(struct lien_client *client, const struct transfer *transfer)
{
	struct lien_process *process;
	char error[LIEN_KNOWN_SIZE];
	unsigned i;

	for (i = 0; i < transfer->selection.pids_count; i++) {
		process = lien_graph_process(client->agent->graph, transfer->pids[i]);
		if (process && lien_viewer_sees(&client->viewer, process))
			continue;
		lien_known_processes(client->agent->graph, &client->viewer, NULL, transfer->pids[i],
			error, sizeof(error));
		lien_reply_failure(client, error,
			(struct lien_blame){LIEN_CAUSE_INVALID, transfer->pids[i], 0});
		return false;
	}
	return true;
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
	static struct transfer transfer;

	memset(&transfer, 0, sizeof(transfer));
	if (!read_transfer(client, request, &transfer) || !all_known(client, &transfer))
		return;
	log_request(client, "attach", transfer.selection.pids_count);
	lien_attach_start(client, transfer.pids, transfer.selection.pids_count);
}

static void request_detach(struct lien_client *client, json_t *request)
{
	static struct transfer transfer;

	memset(&transfer, 0, sizeof(transfer));
	if (!read_transfer(client, request, &transfer) || !all_known(client, &transfer) ||
		postpone(client, request))
		return;
	log_request(client, "detach", transfer.selection.pids_count);
	lien_detach_start(client, transfer.pids, transfer.selection.pids_count);
}

static void request_compare(struct lien_client *client, json_t *request)
{
	static struct transfer transfer;
	bool repair;

	memset(&transfer, 0, sizeof(transfer));
	if (!read_transfer(client, request, &transfer) ||
		!read_flag(client, request, "repair", &repair) || !all_known(client, &transfer))
		return;
	if (repair)
		log_request(client, "check --repair", transfer.selection.pids_count);
	lien_compare_start(
		client, transfer.pids, transfer.selection.pids_count, repair, transfer.timeout_ms);
}

static const char *how_it_stands(const struct lien_transaction_result *result, bool offload)
{
	if (result->only_lost)
		return "; all else is back";
	if (result->lost)
		return "; `lien restore` again for the rest, once that is mended";
	if (result->error == -EBADMSG && !offload)
		return "; `lien restore` compares again; if it still differs, end the process";
	if (!offload)
		return "; nothing is lost: `lien restore` again once that is mended";
	if (result->rolled_back)
		return "; everything was put back, the job runs on";
	return result->undo_failed
		       ? "; putting it back failed as well: `lien restore` once that is mended"
		       : "; nothing was moved, the job runs on";
}

void lien_request_done(struct lien_client *client)
{
	struct lien_agent *agent = client->agent;
	const struct lien_transaction_result *result = lien_transaction_result(agent->transaction);
	enum lien_transaction_kind kind = lien_transaction_kind(agent->transaction);
	bool offload = kind == LIEN_TRANSACTION_OFFLOAD;
	char error[900];

	if (kind == LIEN_TRANSACTION_RELEASE) {
		if (result->error)
			lien_reply_failure(client, result->text, result->blame);
		else
			lien_reply_result(client, view_arena(client, result, true));
		return;
	}
	if (!result->error || (offload && lien_together_result(agent))) {
		lien_reply_result(client, json_copy(lien_together_result(agent)));
		return;
	}
	snprintf(error, sizeof(error), "%s%s%s%s", result->text,
		result->undo_text[0] ? "; then: " : "", result->undo_text,
		how_it_stands(result, offload));
	if (result->error == -EBUSY)
		lien_reply_busy(client, error, result->blame);
	else
		lien_reply_failure(client, error, result->blame);
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

	if (!read_flag(client, request, "follow", &follow))
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
	{"comms", request_view, LITTLE, {NULL}},
	{"graph", request_view, GRAPH, {NULL}},
	{"holders", request_view, FILES, {"pid", "address"}},
	{"check", request_view, FILES, {"idle_minutes"}},
	{"offload", request_offload, LITTLE,
		{"owner", "pids", "timeout_ms", "dry_run", "strict", "with_closure", "multicast",
			"verify", "discard", "host_limit_bytes", "on_use", "gpus", "comms",
			"comms_made", "free_bytes", "tags", "together", "wait", "coordinate"}},
	{"cancel", request_cancel, LITTLE, {NULL}},
	{"restore", request_restore, LITTLE,
		{"pids", "timeout_ms", "lazy", "comms", "comms_made", "tags", "together", "wait",
			"coordinate"}},
	{"coordinate", lien_coordinate_request, LITTLE,
		{"id", "word", "round", "version", "others"}},
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

/* Starts lookups that a copy of the agent cannot start. */
static void before_copy(struct lien_agent *agent, json_t *request)
{
	const char *by = json_string_value(json_object_get(request, "by"));

	if (json_is_true(json_object_get(request, "explain")) ||
		json_is_true(json_object_get(request, "fresh")) ||
		!strcmp(json_string_value(json_object_get(request, "op")), "metrics"))
		lien_node_refresh(agent);
	if (by && !strcmp(by, "callsite"))
		lien_sites_resolve(agent);
}

/*
 * Does the answer take long? A copy of the agent costs a fork(), and every fork() of the machine
 * waits while anybody attaches or removes probes, for half a second at times.
 */
static bool is_costly(const struct lien_agent *agent, const struct request *known, json_t *request)
{
	const struct lien_graph_stats *stats = lien_graph_stats(agent->graph);
	const bool dry = known->handle == request_offload &&
			 json_is_true(json_object_get(request, "dry_run"));

	return (known->cost != LITTLE || dry) &&
	       stats->allocations + stats->mappings + stats->processes > LARGE;
}

#define QUIET_NS 1000000000ull

/* No process can fork() while the kernel makes probes: the loop would wait. */
static bool wait_for_quiet(struct lien_client *client, json_t *request)
{
	const uint64_t now = lien_now_ns();

	if (!client->t_quiet)
		client->t_quiet = now;
	if (!lien_making_busy() || now - client->t_quiet > QUIET_NS) {
		client->t_quiet = 0;
		return false;
	}
	lien_client_postpone(client, request, true);
	return true;
}

static void handle(struct lien_client *client, const struct request *known, json_t *request)
{
	const bool dry = known->handle == request_offload &&
			 json_is_true(json_object_get(request, "dry_run"));

	if ((known->cost == FILES || dry) && wait_for_files(client, request))
		return;
	if (is_costly(client->agent, known, request)) {
		if (wait_for_quiet(client, request))
			return;
		lien_turn_part(client->agent, "copy for", known->op);
		before_copy(client->agent, request);
		/* A process can keep probes from being made indefinitely. */
		if (!lien_making_busy() && lien_answer_start(client, request, known->handle))
			return;
	}
	lien_turn_part(client->agent, "request", known->op);
	known->handle(client, request);
}

void lien_request(struct lien_client *client, json_t *request)
{
	const struct request *known = NULL;
	const char *op, *unknown;
	char error[300];
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
		snprintf(error, sizeof(error), "no such operation: %.100s", op);
		lien_reply_invalid(client, error);
	} else if (unknown) {
		snprintf(error, sizeof(error), "`%s` has no member %.100s", op, unknown);
		lien_reply_invalid(client, error);
	} else {
		handle(client, known, request);
	}
}
