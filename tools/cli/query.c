// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/query.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>

#include "tools/cli/nodes_view.h"
#include "tools/cli/offline.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"

static json_t *query_file(const struct lien_query *query, json_t *request)
{
	json_t *result = NULL;

	if (!request)
		lien_complain(query->command, "out of memory");
	else
		result = lien_offline_query(query->command, &query->from, request, query->code);
	json_decref(request);
	return result;
}

#define RETRY_MS   50
#define PENDING_MS 20

/* The job continues between two attempts. */
static int call(const struct lien_query *query, struct lien_client *client, json_t *request,
	json_t **result)
{
	uint64_t end = lien_clock_ms() + query->retry_ms;
	int err;

	while ((err = lien_client_call(client, request, result)) == -EBUSY && lien_clock_ms() < end)
		usleep(RETRY_MS * 1000);
	return err;
}

static json_t *query_agent(const struct lien_query *query, json_t *request)
{
	struct lien_client *client = lien_client_new(query->socket);
	json_t *result = NULL;
	int err;

	if (!client || !request) {
		lien_complain(query->command, "out of memory");
		goto out;
	}
	lien_client_timeout(client, query->timeout_ms);
	lien_client_on_progress(client, query->progress, query->progress_arg);
	if (query->wake)
		lien_client_on_wake(client, query->wake_fd, query->wake, query->wake_arg);
	err = call(query, client, request, &result);
	if (query->progress)
		query->progress(NULL, query->progress_arg);
	if (err) {
		if (err != -EINTR)
			lien_complain(query->command, "%s", lien_client_error(client));
		if (err == -EINVAL && query->code)
			*query->code = LIEN_EXIT_USAGE;
	} else if (!json_is_object(result)) {
		lien_complain(query->command,
			"what answers on %s is not an agent of this version: the result is "
			"not an object",
			lien_client_path(client));
		json_decref(result);
		result = NULL;
	}
out:
	json_decref(request);
	lien_client_free(client);
	return result;
}

static json_t *query_nodes(const struct lien_query *query, json_t *request)
{
	int code = LIEN_EXIT_FAILURE;
	json_t *result =
		lien_nodes_view_query(query->nodes, query->usage, query->socket, request, &code);

	if (!result && query->code)
		*query->code = code;
	json_decref(request);
	return result;
}

static json_t *query_once(const struct lien_query *query, json_t *request)
{
	if (query->code)
		*query->code = LIEN_EXIT_FAILURE;
	if (query->nodes && lien_nodes_wanted(&query->nodes->options))
		return query_nodes(query, request);
	return query->from.path ? query_file(query, request) : query_agent(query, request);
}

json_t *lien_query(const struct lien_query *query, json_t *request)
{
	json_t *result;

	for (unsigned waited_ms = 0;; waited_ms += PENDING_MS) {
		result = query_once(query, json_incref(request));
		if (waited_ms >= query->pending_ms || !lien_get_true(result, "pending"))
			break;
		json_decref(result);
		usleep(PENDING_MS * 1000);
	}
	json_decref(request);
	return result;
}

bool lien_query_process(const struct lien_query *query, pid_t pid)
{
	json_t *result = lien_query(query, json_pack("{s:s, s:i}", "op", "mem", "pid", (int)pid));

	json_decref(result);
	return result;
}

void lien_query_add_pids(json_t *request, const struct lien_pids *pids)
{
	json_t *list;

	if (!pids->count)
		return;
	list = json_array();
	for (unsigned i = 0; i < pids->count; i++)
		json_array_append_new(list, json_integer(pids->pid[i]));
	json_object_set_new(request, "pids", list);
}
