// SPDX-License-Identifier: BSD-2-Clause
/* Offloads and restores that clients ask for, on this node or on several. */
#include "agent/daemon/move.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/open_files.h"
#include "agent/core/proc.h"
#include "agent/daemon/daemon.h"
#include "agent/daemon/requests.h"
#include "agent/daemon/select.h"
#include "agent/join/join.h"
#include "agent/orders/orders.h"
#include "agent/quiesce/elsewhere.h"
#include "agent/quiesce/gate.h"
#include "agent/server/server.h"
#include "agent/views/views.h"

#define LEASE_MS     10000
#define LEASE_MS_MIN 100
#define LEASE_MS_MAX 600000

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
		return lien_reply_invalid(
			client, "coordinate.id must be 1 to 64 letters, digits and any of - . _");
	if ((lease && !json_is_integer(lease)) || ms < LEASE_MS_MIN || ms > LEASE_MS_MAX)
		return lien_reply_invalid(
			client, "coordinate.lease_ms must be between 100 and 600000");
	if (lien_elsewhere_begin(agent, id, restore, ms)) {
		lien_reply_error(client, "out of memory");
		return false;
	}
	return true;
}

/* --- requests that are one transaction -------------------------------------------------------- */

/* When every rank of a job asks for the same offload or restore, the first one begins it and all
 * get its result (docs/protocol.md, `together`). */

#define TOKEN_MAX	256 /* bytes */
#define RESULTS_OF_USER 8
#define RESULTS_MAX	64

/* A process, which is not the next one of that number. */
struct mover {
	uint32_t pid;
	uint64_t start;
};

/* A request, and whose it is. */
struct asked {
	TAILQ_ENTRY(asked) next;
	json_t *request; /* without what may differ between equal ones */
	json_t *token;	 /* a text, or the number of a turn; NULL: none */
	struct lien_viewer viewer;
	uint64_t number; /* of its transaction, or of the one before if there was nothing to do */
	json_t *result;	 /* NULL: under way */
	struct mover *movers;
	unsigned movers_count; /* 0: nothing was moved */
	struct mover asker;    /* set if nothing was moved */
};

struct lien_together {
	uint64_t number; /* offloads and restores that have ended */
	struct asked *current;
	json_t *result;
	TAILQ_HEAD(asked_list, asked) results; /* newest first */
	unsigned count;
};

static struct lien_together *together_of(struct lien_agent *agent)
{
	if (!agent->daemon->together) {
		agent->daemon->together = calloc(1, sizeof(*agent->daemon->together));
		if (agent->daemon->together)
			TAILQ_INIT(&agent->daemon->together->results);
	}
	return agent->daemon->together;
}

static void asked_free(struct asked *asked)
{
	if (!asked)
		return;
	json_decref(asked->request);
	json_decref(asked->token);
	json_decref(asked->result);
	free(asked->movers);
	free(asked);
}

/* NULL: out of memory. */
static struct asked *asked_new(const struct lien_client *client, json_t *request)
{
	static const char *const differ[] = {"together", "wait", "timeout_ms"};
	struct asked *asked = calloc(1, sizeof(*asked));
	json_t *token = json_object_get(request, "together");
	size_t i;

	if (!asked)
		return NULL;
	asked->request = json_copy(request);
	for (i = 0; i < sizeof(differ) / sizeof(differ[0]); i++)
		json_object_del(asked->request, differ[i]);
	asked->token = json_is_string(token) || json_is_integer(token) ? json_incref(token) : NULL;
	asked->viewer = client->viewer;
	return asked;
}

static bool same_user(const struct asked *a, const struct asked *b)
{
	return lien_viewer_same(&a->viewer, &b->viewer);
}

static bool equal(const struct asked *a, const struct asked *b)
{
	return same_user(a, b) && json_equal(a->request, b->request);
}

static bool same_token(const struct asked *a, const struct asked *b)
{
	if (!a->token || !b->token || !json_equal(a->token, b->token))
		return false;
	/* Different requests may be in the same turn. */
	return json_is_integer(a->token) ? equal(a, b)
					 : json_equal(json_object_get(a->request, "op"),
						   json_object_get(b->request, "op"));
}

static void forget(struct lien_together *together, struct asked *asked)
{
	TAILQ_REMOVE(&together->results, asked, next);
	together->count--;
	asked_free(asked);
}

/* The oldest result of a request that moved nothing, or the oldest of all. */
static struct asked *least_needed(struct lien_together *together)
{
	struct asked *other;

	TAILQ_FOREACH_REVERSE (other, &together->results, asked_list, next)
		if (!other->movers_count)
			return other;
	return TAILQ_LAST(&together->results, asked_list);
}

/*
 * Takes over both. A user's own old results go first. Anybody may find nothing to do, under any
 * number of uids: such a result pushes out no other user's that moved something.
 */
static void remember(struct lien_together *together, struct asked *asked, json_t *result)
{
	struct asked *other, *oldest = NULL;
	unsigned of_user = 0;

	asked->result = result;
	TAILQ_FOREACH (other, &together->results, next)
		if (same_user(other, asked)) {
			oldest = other;
			of_user++;
		}
	if (of_user < RESULTS_OF_USER)
		oldest = together->count == RESULTS_MAX ? least_needed(together) : NULL;
	if (oldest && of_user < RESULTS_OF_USER && oldest->movers_count && !asked->movers_count) {
		asked_free(asked);
		return;
	}
	if (oldest)
		forget(together, oldest);
	TAILQ_INSERT_HEAD(&together->results, asked, next);
	together->count++;
}

/* Checks the members `together` and `wait`. Returns false after an error reply. */
static bool together_read(struct lien_client *client, json_t *request)
{
	const json_t *together = json_object_get(request, "together");
	const json_t *wait = json_object_get(request, "wait");
	const size_t length = json_string_length(together);

	if (together && !json_is_boolean(together) && !json_is_integer(together) &&
		(!length || length > TOKEN_MAX)) {
		return lien_reply_invalid(client,
			"together must be true, false, a number, or a text of 1 to 256 bytes");
	}
	if (wait && !json_is_boolean(wait)) {
		return lien_reply_invalid(client, "wait must be true or false");
	}
	return true;
}

static bool wants(json_t *request)
{
	const json_t *together = json_object_get(request, "together");

	return json_is_true(together) || json_is_string(together) || json_is_integer(together);
}

/* Does any of those that it moved memory of still live; or, if it moved none, whoever asked? */
static bool is_of_the_living(const struct lien_agent *agent, const struct asked *asked)
{
	unsigned i;

	for (i = 0; i < asked->movers_count; i++)
		if (lien_graph_living(agent->graph, asked->movers[i].pid, asked->movers[i].start))
			return true;
	return !asked->movers_count && !lien_proc_has_ended(asked->asker.pid, asked->asker.start);
}

/* The next job may use the tokens of one that has ended. */
static const struct asked *of_token(const struct lien_agent *agent, const struct asked *asked)
{
	const struct asked *other;

	TAILQ_FOREACH (other, &agent->daemon->together->results, next)
		if (same_user(other, asked) && same_token(other, asked) &&
			is_of_the_living(agent, other))
			return other;
	return NULL;
}

/* NULL, or an equal request that is the reason why there is nothing to do: nothing has been moved
 * after it. One with a token would have found the result of that. */
static const struct asked *last_equal(const struct lien_agent *agent, const struct asked *asked)
{
	const struct lien_together *together = agent->daemon->together;
	const struct asked *other;

	TAILQ_FOREACH (other, &together->results, next)
		if (!asked->token && other->movers_count && other->number == together->number &&
			equal(other, asked) && is_of_the_living(agent, other))
			return other;
	return NULL;
}

/*
 * Returns true if an equal request has begun the transaction under way, and the client now waits
 * for its end; or if the request has been answered with the result that its token has.
 */
static bool together_join(struct lien_client *client, json_t *request)
{
	struct lien_together *together = together_of(client->agent);
	struct asked *asked = together && wants(request) ? asked_new(client, request) : NULL;
	const struct asked *done;
	bool joined = true;

	if (!asked)
		return false;
	done = of_token(client->agent, asked);
	/* Each would find something to move. */
	if (!done && json_object_get(asked->request, "free_bytes"))
		done = last_equal(client->agent, asked);
	if (done && equal(done, asked))
		lien_reply_result(client, json_copy(done->result));
	else if (done)
		lien_reply_invalid(client,
			"together: an earlier request with this token was another one: each "
			"offload, and each restore, needs its own");
	/* Without a token any equal one is what is under way; tokens must agree. */
	else if (client->agent->transaction && together->current &&
		 equal(together->current, asked) &&
		 (!asked->token || same_token(together->current, asked)))
		client->waits = LIEN_WAIT_TRANSACTION;
	else
		joined = false;
	asked_free(asked);
	return joined;
}

/* Notes that this request begins a transaction, unless one is under way. together_none(): it did
 * not begin after all. */
static void together_begin(struct lien_client *client, json_t *request)
{
	struct lien_together *together = together_of(client->agent);

	if (together && !client->agent->transaction) {
		asked_free(together->current);
		together->current = asked_new(client, request);
	}
}

static void together_none(struct lien_agent *agent)
{
	if (agent->daemon->together && !agent->transaction) {
		asked_free(agent->daemon->together->current);
		agent->daemon->together->current = NULL;
	}
}

static void note_movers(const struct lien_agent *agent, struct asked *asked)
{
	const struct lien_transaction_result *result = lien_transaction_result(agent->transaction);
	const struct lien_process *process;
	unsigned i;

	asked->movers = calloc(result->processes_count + 1, sizeof(*asked->movers));
	for (i = 0; asked->movers && i < result->processes_count; i++) {
		process = lien_graph_process(agent->graph, result->processes[i].pid);
		asked->movers[asked->movers_count++] =
			(struct mover){result->processes[i].pid, process ? process->start : 0};
	}
}

/* There is nothing to move. Answers with the result of the last transaction if that is the reason,
 * or else with `result`, which it takes over. */
static void together_nothing(struct lien_client *client, json_t *request, json_t *result)
{
	struct lien_together *together = client->agent->daemon->together;
	struct asked *asked = together ? together->current : NULL;
	const struct asked *last;

	if (together)
		together->current = NULL;
	if (result && together)
		json_object_set_new(result, "transaction", json_null());
	last = asked && wants(request) ? last_equal(client->agent, asked) : NULL;
	if (last) {
		json_decref(result);
		result = json_copy(last->result);
	}
	if (asked && asked->token && result) {
		asked->number = together->number;
		asked->asker.pid = client->viewer.pid;
		asked->asker.start = lien_proc_start(asked->asker.pid);
		remember(together, asked, json_copy(result));
	} else {
		asked_free(asked);
	}
	lien_reply_result(client, result);
}

/* NULL: it has failed. */
static json_t *view_end(const struct lien_agent *agent, uint64_t number)
{
	const bool offload = lien_transaction_kind(agent->transaction) == LIEN_TRANSACTION_OFFLOAD;
	json_t *result = NULL, *transaction = NULL;

	if (lien_transaction_result(agent->transaction)->error) {
		/* At rest it turned out that nothing can be moved, for lack of a context to copy
		 * in. Nothing but the application changes that, so the answer is the one that the
		 * next request would get. */
		if (offload && agent->transfer->no_context && !agent->plan.processes_count &&
			agent->plan.left_count && !agent->elsewhere)
			result = lien_view_plan(&agent->plan);
		transaction = json_null();
	} else {
		result = offload ? lien_view_result(agent->transaction, &agent->plan,
					   agent->fell_short ? &agent->shortfalls : NULL)
				 : lien_view_result(agent->transaction, NULL, NULL);
		transaction = json_integer(number);
	}
	if (result)
		json_object_set(result, "transaction", transaction);
	json_decref(transaction);
	return result;
}

void lien_together_ended(struct lien_agent *agent)
{
	const enum lien_transaction_kind kind = lien_transaction_kind(agent->transaction);
	struct lien_together *together = together_of(agent);
	struct asked *asked;

	if (!together || (kind != LIEN_TRANSACTION_OFFLOAD && kind != LIEN_TRANSACTION_RESTORE))
		return;
	asked = together->current;
	together->current = NULL;
	together->number++;
	json_decref(together->result);
	together->result = view_end(agent, together->number);
	if (asked && together->result) {
		asked->number = together->number;
		if (!lien_transaction_result(agent->transaction)->error)
			note_movers(agent, asked);
		remember(together, asked, json_copy(together->result));
	} else {
		asked_free(asked);
	}
}

void lien_together_free(struct lien_agent *agent)
{
	struct lien_together *together = agent->daemon->together;

	if (!together)
		return;
	while (!TAILQ_EMPTY(&together->results))
		forget(together, TAILQ_FIRST(&together->results));
	asked_free(together->current);
	json_decref(together->result);
	free(together);
	agent->daemon->together = NULL;
}

/* --- offload and restore ---------------------------------------------------------------------- */

void lien_move_refuse(
	struct lien_client *client, enum lien_transaction_kind kind, const char *error)
{
	struct lien_agent *agent = client->agent;

	client->waits = LIEN_WAIT_NOTHING;
	lien_totals_refused(&agent->totals, kind, agent->blame.cause);
	lien_reply_failure(client, error, agent->blame);
}

static void dry_run(
	struct lien_client *client, struct lien_selection *selection, const struct lien_how *how)
{
	struct lien_plan plan;
	char error[512];

	selection->ahead = true;
	lien_attach_expect(client->agent, &client->viewer, selection->pids, selection->pids_count);
	if (lien_orders_plan(client->agent, selection, &plan, error, sizeof(error))) {
		lien_reply_failure(client, error, client->agent->blame);
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
	lien_client_postpone(client, request, LIEN_WAIT_TURN);
	return true;
}

bool lien_move_wait_for_files(struct lien_client *client, json_t *request)
{
	if (!lien_open_files_ask(client->agent, client->t_asked))
		return false;
	lien_client_postpone(client, request, LIEN_WAIT_QUIET);
	return true;
}

/* Returns true if processes of the offload lack only a control library: it waits until each has one
 * or cannot have one. Only once, or a request that waits for open files would never end. */
static bool attaches(struct lien_client *client, const struct lien_transfer *transfer)
{
	const struct lien_agent *agent = client->agent;

	if (agent->control < 0 || agent->no_attach || client->attached ||
		!lien_attach_before(client, transfer->pids, transfer->selection.pids_count))
		return false;
	lien_client_postpone(client, transfer->request, LIEN_WAIT_JOB);
	return true;
}

/*
 * What comes before a transaction, in turn: an equal request may have begun it or have had its
 * result; processes may lack only a control library; other users' transactions, and for
 * an offload the list of open files, are waited for. Returns false if the client has its answer, or
 * waits: its request is then handled again from the beginning.
 */
static bool may_begin(
	struct lien_client *client, const struct lien_transfer *transfer, bool restore)
{
	json_t *request = transfer->request;

	if (together_join(client, request) || (!restore && attaches(client, transfer)) ||
		lien_move_postpone(client, request) ||
		(!restore && lien_move_wait_for_files(client, request)) ||
		!coordinate_begin(client, request, restore))
		return false;
	client->waits = LIEN_WAIT_TRANSACTION; /* set first: it may end while it is being started */
	together_begin(client, request);
	return true;
}

static void begin(struct lien_client *client, const struct lien_transfer *transfer,
	enum lien_transaction_kind kind)
{
	const bool restore = kind == LIEN_TRANSACTION_RESTORE;
	struct lien_agent *agent = client->agent;
	bool nothing = false;
	char error[512];
	int err;

	if (transfer->none) { /* the client's process has none of what it asks for */
		lien_reply_result(client, lien_view_plan(&(struct lien_plan){0}));
		return;
	}
	if (!may_begin(client, transfer, restore))
		return;
	err = restore ? lien_orders_restore(agent, &transfer->selection, &transfer->how, &nothing,
				error, sizeof(error))
		      : lien_orders_offload(agent, transfer, &nothing, error, sizeof(error));
	if ((err || nothing) && !agent->transaction)
		lien_elsewhere_end(agent);
	if (err) {
		together_none(agent);
		lien_move_refuse(client, kind, error);
	} else if (nothing) {
		client->waits = LIEN_WAIT_NOTHING;
		together_nothing(client, transfer->request, lien_view_plan(&agent->plan));
		lien_plan_clear(&agent->plan);
	}
}

void lien_offload_request(struct lien_client *client, json_t *request)
{
	struct lien_transfer *transfer = lien_read_offload(client, request);

	if (!transfer || !together_read(client, request))
		return;
	if (transfer->dry_run) {
		dry_run(client, &transfer->selection, &transfer->how);
	} else if (client->cancelled) {
		lien_reply_failure(client, "cancelled; nothing was moved, the job runs on",
			(struct lien_blame){LIEN_CAUSE_CANCELLED, 0, 0});
	} else {
		client->may_cancel = true;
		begin(client, transfer, LIEN_TRANSACTION_OFFLOAD);
	}
}

void lien_restore_request(struct lien_client *client, json_t *request)
{
	const struct lien_transfer *transfer = lien_read_restore(client, request);

	if (transfer && together_read(client, request))
		begin(client, transfer, LIEN_TRANSACTION_RESTORE);
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
	/* NULL: it has failed, for any reason but that all of the memory stays. */
	json_t *together = agent->daemon->together ? agent->daemon->together->result : NULL;
	bool offload = kind == LIEN_TRANSACTION_OFFLOAD;
	char error[900];

	if (kind == LIEN_TRANSACTION_RELEASE) {
		if (result->error)
			lien_reply_failure(client, result->text, result->blame);
		else
			lien_reply_result(client, lien_agent_arena(client, result));
		return;
	}
	if (!result->error || (offload && together)) {
		lien_reply_result(client, json_copy(together));
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
