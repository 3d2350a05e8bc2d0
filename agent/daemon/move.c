// SPDX-License-Identifier: BSD-2-Clause
/* Offloads and restores that clients ask for, on this node or on several. */
#include "agent/daemon/move.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/core/open_files.h"
#include "agent/daemon/requests.h"
#include "agent/daemon/select.h"
#include "agent/daemon/together.h"
#include "agent/join/join.h"
#include "agent/orders/orders.h"
#include "agent/orders/prepare.h"
#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/gate.h"
#include "agent/server/server.h"
#include "agent/views/views.h"

#define LEASE_MS     10000
#define LEASE_MS_MIN 100
#define LEASE_MS_MAX 600000

/* May `who` steer what `viewer` began? Users may steer their own, and root everything. */
static bool is_of(const struct lien_viewer *viewer, const struct lien_viewer *who)
{
	return !who->one_user || (viewer->one_user && viewer->uid == who->uid);
}

/* --- on several nodes: agent/quiesce/elsewhere.h -----------------------------------------------
 */

/* Begins the node's part, if the request is one of a coordinator. False: after an error reply. */
static bool coordinate_begin(struct lien_client *client, json_t *request, bool restore)
{
	struct lien_agent *agent = client->agent;
	const json_t *coordinate = json_object_get(request, "coordinate");
	const json_t *lease = json_object_get(coordinate, "lease_ms");
	const char *id = json_string_value(json_object_get(coordinate, "id"));
	const json_int_t ms = lease ? json_integer_value(lease) : LEASE_MS;

	if (!coordinate || agent->transaction) /* which is refused later */
		return true;
	if (!lien_nodes_is_id(id))
		return lien_refuse_invalid(
			client, "coordinate.id must be 1 to 64 letters, digits and any of - . _");
	if ((lease && !json_is_integer(lease)) || ms < LEASE_MS_MIN || ms > LEASE_MS_MAX)
		return lien_refuse_invalid(
			client, "coordinate.lease_ms must be between 100 and 600000");
	if (lien_elsewhere_begin(agent, id, restore, ms)) {
		lien_reply_error(client, "out of memory");
		return false;
	}
	return true;
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
		lien_refuse_invalid(client, "others has more than %d groups, pairs and ranks",
			LIEN_NODE_OTHERS_MAX);
	} else if (err == -ENOMEM) {
		lien_reply_error(client, "out of memory");
	} else {
		lien_reply_invalid(client, "others is not what docs/protocol.md says");
	}
	return false;
}

void lien_coordinate_request(struct lien_client *client, json_t *request)
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

/* --- offload and restore ---------------------------------------------------------------------- */

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

bool lien_move_postpone(struct lien_client *client, json_t *request)
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

bool lien_move_wait_for_files(struct lien_client *client, json_t *request)
{
	if (!lien_open_files_ask(client->agent, client->t_asked))
		return false;
	lien_client_postpone(client, request, true);
	return true;
}

/* Cancels the offload that the same user has under way, or that is about to begin. */
void lien_cancel_request(struct lien_client *client, json_t *request)
{
	struct lien_agent *agent = client->agent;
	bool cancelled = lien_server_cancel(client);

	(void)request;
	if (agent->transaction && !agent->transaction_own && !lien_elsewhere_is_committed(agent) &&
		is_of(&agent->transaction_of, &client->viewer))
		cancelled |= lien_transaction_cancel(agent->transaction, -ECANCELED, "cancelled");
	lien_reply_result(client, json_pack("{s:b}", "cancelled", cancelled));
}

static void go_on_attached(struct lien_client *client, json_t *request);

/*
 * What comes before a transaction, in turn: an equal request may have begun it or have had its
 * result; processes may lack only a control library (`attach`); other users' transactions, and for
 * an offload the list of open files, are waited for. Returns false if the client has its answer, or
 * waits: its request is then handled again from the beginning.
 */
static bool may_begin(struct lien_client *client, json_t *request,
	const struct lien_transfer *transfer, bool restore, bool attach)
{
	if (lien_together_join(client, request) ||
		(attach && lien_attach_before(client, transfer->pids,
				   transfer->selection.pids_count, request, go_on_attached)) ||
		lien_move_postpone(client, request) ||
		(!restore && lien_move_wait_for_files(client, request)) ||
		!coordinate_begin(client, request, restore))
		return false;
	client->waiting = true; /* set first: it may end while it is being started */
	lien_together_begin(client, request);
	return true;
}

/* The transaction has begun, or could not (err), or has nothing to do; takes over `plan`. */
static void has_begun(struct lien_client *client, json_t *request, bool restore, int err,
	const char *error, bool nothing, struct lien_plan *plan)
{
	struct lien_agent *agent = client->agent;

	if ((err || nothing) && !agent->transaction)
		lien_elsewhere_end(agent);
	if (err) {
		lien_together_none(agent);
		refuse(client, restore ? LIEN_TRANSACTION_RESTORE : LIEN_TRANSACTION_OFFLOAD, err,
			error);
	} else if (nothing) {
		client->waiting = false;
		lien_together_nothing(client, request, lien_view_plan(plan));
		lien_plan_clear(plan);
	}
}

static void offload(struct lien_client *client, json_t *request, bool attach)
{
	struct lien_transfer *transfer = lien_read_offload(client, request);
	bool nothing = false;
	char error[512];
	int err;

	if (!transfer || !lien_together_read(client, request))
		return;
	if (transfer->dry_run) {
		dry_run(client, &transfer->selection, &transfer->how);
		return;
	}
	if (client->cancelled) {
		lien_reply_failure(client, "cancelled; nothing was moved, the job runs on",
			(struct lien_blame){LIEN_CAUSE_CANCELLED, 0, 0});
		return;
	}
	if (transfer->none) {
		reply_nothing(client);
		return;
	}
	client->may_cancel = true;
	if (!may_begin(client, request, transfer, false, attach))
		return;
	err = lien_orders_offload(client->agent, &transfer->selection, &transfer->how, &nothing,
		error, sizeof(error));
	has_begun(client, request, false, err, error, nothing, &client->agent->plan);
}

/* The request's processes have control libraries by now, or cannot have one. */
static void go_on_attached(struct lien_client *client, json_t *request)
{
	client->waiting = false;
	offload(client, request, false);
	if (!client->waiting)
		lien_client_go_on(client);
}

void lien_offload_request(struct lien_client *client, json_t *request)
{
	offload(client, request, client->agent->control >= 0 && !client->agent->no_attach);
}

void lien_restore_request(struct lien_client *client, json_t *request)
{
	struct lien_transfer *transfer = lien_read_restore(client, request);
	struct lien_restore_how how = {0};
	struct lien_plan none = {0};
	bool nothing = false;
	char error[512];
	int err;

	if (!transfer)
		return;
	if (transfer->none) {
		reply_nothing(client);
		return;
	}
	if (!lien_together_read(client, request) ||
		!may_begin(client, request, transfer, true, false))
		return;
	how.timeout_ms = transfer->timeout_ms;
	how.lazy = transfer->lazy;
	err = lien_orders_restore(
		client->agent, &transfer->selection, &how, &nothing, error, sizeof(error));
	has_begun(client, request, true, err, error, nothing, &none);
}

/* --- host arenas ------------------------------------------------------------------------------ */

/* result: of a release; NULL: none. */
static json_t *view_arena(
	const struct lien_client *client, const struct lien_transaction_result *result)
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
		wanted = process->presence == LIEN_CONTROL_READY ? lien_prepare_wanted(process) : 0;
		if (!process->arena_bytes && !wanted && !released)
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

void lien_arena_request(struct lien_client *client, json_t *request)
{
	struct lien_transfer *transfer = lien_read_transfer(client, request);
	bool nothing = true, release;
	char error[512];
	int err = 0;

	if (!transfer || !lien_read_flag(client, request, "release", &release) ||
		(release && lien_move_postpone(client, request)))
		return;
	if (release) {
		client->waiting = true;
		err = lien_orders_release(
			client->agent, &transfer->selection, &nothing, error, sizeof(error));
	}
	if (err) {
		refuse(client, LIEN_TRANSACTION_RELEASE, err, error);
	} else if (nothing) {
		client->waiting = false;
		lien_reply_result(client, view_arena(client, NULL));
	}
}

/* --- the end of a transaction ----------------------------------------------------------------- */

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
			lien_reply_result(client, view_arena(client, result));
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
