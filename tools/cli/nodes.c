// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/clock.h>

#include "tools/cli/node_slurm.h"
#include "tools/cli/query.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

#define ASK_ON 0 /* the connection for questions */

bool lien_nodes_wanted(const struct lien_nodes_options *options)
{
	return options->nodes.count || options->launch || options->ssh || options->slurm ||
	       options->program || options->state || options->lease_ms;
}

static char *slurm_launch(const char *job)
{
	return lien_format("srun --jobid=%s --overlap --quiet -N1 -n1 -w {node}", job);
}

bool lien_nodes_prepare(const struct lien_usage *usage, const struct lien_nodes_options *options,
	const char *socket, struct lien_nodes *nodes, int *code)
{
	const unsigned ways = !!options->launch + options->ssh + !!options->slurm;
	static char *launch, *names;
	const char *lists[LIEN_NAMES_MAX];
	unsigned i, count = 0;

	*code = LIEN_EXIT_USAGE;
	if (!ways && !options->nodes.count) {
		lien_usage_error(usage, "--%s needs --nodes",
			options->program ? "lien"
			: options->state ? "state"
					 : "lease");
		return false;
	}
	if (ways != 1) {
		lien_usage_error(usage, ways ? "--launch, --ssh and --slurm exclude each other"
					     : "--nodes needs --launch, --ssh or --slurm");
		return false;
	}
	if (!options->nodes.count && !options->slurm) {
		lien_usage_error(usage, "--%s needs --nodes", options->ssh ? "ssh" : "launch");
		return false;
	}
	if (options->slurm && strspn(options->slurm, "0123456789_") != strlen(options->slurm)) {
		lien_usage_error(usage, "--slurm '%s' is not a job's number", options->slurm);
		return false;
	}
	for (i = 0; i < options->nodes.count; i++)
		lists[count++] = options->nodes.name[i];
	if (!count) {
		names = lien_slurm_nodes(usage->command, options->slurm);
		*code = LIEN_EXIT_FAILURE;
		if (!names)
			return false;
		*code = LIEN_EXIT_USAGE;
		lists[count++] = names;
	}
	if (options->slurm)
		launch = slurm_launch(options->slurm);
	nodes->launch = (struct lien_node_launch){.socket = socket,
		.program = options->program ? options->program : "lien",
		.command = options->slurm ? launch
			   : options->ssh ? "ssh -o BatchMode=yes {node}"
					  : options->launch};
	return lien_nodes_read(nodes, usage->command, lists, count);
}

/* --- asking all ------------------------------------------------------------------------------- */

struct asking {
	struct lien_nodes *nodes;
	json_t **answers;
	unsigned answered;
	int lost; /* a node; -1: none */
	const char *why;
};

static void note(struct asking *asking, unsigned node, json_t *answer)
{
	if (asking->answers && !asking->answers[node] && answer) {
		asking->answers[node] = json_incref(answer);
		asking->answered++;
	}
}

static void on_line(void *context, unsigned node, unsigned on, const json_t *line)
{
	if (on == ASK_ON && !json_object_get(line, "progress"))
		note(context, node, (json_t *)line);
}

static void on_answer(void *context, unsigned node, const json_t *answer)
{
	note(context, node, json_object_get(answer, "pids"));
}

static void on_gone(void *context, unsigned node, unsigned on, const char *why)
{
	struct asking *asking = context;

	(void)on;
	if (asking->lost < 0)
		snprintf(asking->nodes->links[node].problem,
			sizeof(asking->nodes->links[node].problem), "%s", why);
	asking->lost = asking->lost < 0 ? (int)node : asking->lost;
}

static void on_lost(void *context, unsigned node)
{
	struct asking *asking = context;

	asking->lost = asking->lost < 0 ? (int)node : asking->lost;
}

static const struct lien_nodes_calls calls = {
	.line = on_line, .answer = on_answer, .gone = on_gone, .lost = on_lost, .wake_fd = -1};

/* Returns false after a message. */
static bool complain_lost(const struct asking *asking, const char *command)
{
	if (asking->lost < 0)
		return true;
	lien_complain(command, "%s: %s", asking->nodes->links[asking->lost].name,
		asking->nodes->links[asking->lost].problem);
	return false;
}

/* Two names of one node would each wait for the other. */
static bool check_identities(struct lien_nodes *nodes, const char *command)
{
	const json_t *a, *b;
	unsigned i, j;

	for (i = 0; i < nodes->count; i++)
		for (j = 0; j < i; j++) {
			a = nodes->links[i].identity;
			b = nodes->links[j].identity;
			if (!*lien_get_text(a, "agent") ||
				strcmp(lien_get_text(a, "agent"), lien_get_text(b, "agent")) != 0 ||
				strcmp(lien_get_text(a, "boot"), lien_get_text(b, "boot")) != 0)
				continue;
			lien_complain(command, "%s and %s are the same node: one agent answers",
				nodes->links[j].name, nodes->links[i].name);
			return false;
		}
	return true;
}

bool lien_nodes_connect(struct lien_nodes *nodes, const char *command)
{
	struct asking asking = {.nodes = nodes, .lost = -1};
	struct lien_nodes_calls with = calls;
	unsigned i, ready = 0;

	with.context = &asking;
	lien_nodes_start(nodes);
	while (ready < nodes->count && asking.lost < 0) {
		lien_nodes_poll(nodes, 100, &with);
		for (i = ready = 0; i < nodes->count; i++)
			ready += nodes->links[i].hello;
	}
	return complain_lost(&asking, command) && check_identities(nodes, command);
}

static bool wait_all(struct asking *asking, const char *command, int *code)
{
	const uint64_t until = lien_clock_ms() + LIEN_QUERY_MS;
	struct lien_nodes_calls with = calls;
	unsigned i;

	*code = LIEN_EXIT_FAILURE;
	with.context = asking;
	while (asking->answered < asking->nodes->count && asking->lost < 0) {
		lien_nodes_poll(asking->nodes, 100, &with);
		for (i = 0; lien_clock_ms() > until && i < asking->nodes->count; i++)
			if (!asking->answers[i]) {
				lien_complain(command, "%s: the agent gave no answer within %d s",
					asking->nodes->links[i].name, LIEN_QUERY_MS / 1000);
				return false;
			}
	}
	return complain_lost(asking, command);
}

static void free_answers(struct asking *asking)
{
	unsigned i;

	for (i = 0; asking->answers && i < asking->nodes->count; i++)
		json_decref(asking->answers[i]);
	free(asking->answers);
	asking->answers = NULL;
}

json_t *lien_nodes_query(
	struct lien_nodes *nodes, const char *command, const json_t *request, int *code)
{
	json_t *requests = json_array(), *results;
	unsigned i;

	for (i = 0; i < nodes->count; i++)
		json_array_append(requests, (json_t *)request);
	results = lien_nodes_query_each(nodes, command, requests, code);
	json_decref(requests);
	return results;
}

json_t *lien_nodes_query_each(
	struct lien_nodes *nodes, const char *command, const json_t *requests, int *code)
{
	struct asking asking = {.nodes = nodes, .lost = -1};
	json_t *results = json_array(), *answer;
	bool good;
	unsigned i;

	asking.answers = calloc(nodes->count, sizeof(*asking.answers));
	for (i = 0; asking.answers && i < nodes->count; i++)
		if (json_is_null(json_array_get(requests, i)))
			note(&asking, i, json_null());
		else
			lien_nodes_send(nodes, i, ASK_ON, json_array_get(requests, i));
	good = asking.answers && wait_all(&asking, command, code);
	for (i = 0; good && i < nodes->count; i++) {
		answer = asking.answers[i];
		if (json_is_null(answer)) {
			json_array_append(results, answer);
			continue;
		}
		if (lien_get_true(answer, "ok")) {
			json_array_append(results, json_object_get(answer, "result"));
			continue;
		}
		lien_complain(
			command, "%s: %s", nodes->links[i].name, lien_get_text(answer, "error"));
		if (lien_get_true(answer, "invalid"))
			*code = LIEN_EXIT_USAGE;
		good = false;
	}
	free_answers(&asking);
	if (!good) {
		json_decref(results);
		return NULL;
	}
	return results;
}

/* Those of the job that the agent knows. */
static json_t *known(const json_t *pids, const json_t *ps)
{
	const json_t *process, *pid;
	json_t *list = json_array();
	size_t i, j;

	json_array_foreach (json_object_get(ps, "processes"), i, process)
		json_array_foreach (pids, j, pid)
			if (json_equal(pid, json_object_get(process, "pid")))
				json_array_append(list, (json_t *)pid);
	return list;
}

json_t *lien_nodes_slurm(struct lien_nodes *nodes, const char *command, const char *job, int *code)
{
	struct asking asking = {.nodes = nodes, .lost = -1};
	json_t *request = json_pack("{s:s}", "op", "ps"), *lists = json_array(), *ps;
	bool good;
	unsigned i;

	ps = lien_nodes_query(nodes, command, request, code);
	json_decref(request);
	asking.answers = calloc(nodes->count, sizeof(*asking.answers));
	for (i = 0; ps && i < nodes->count; i++)
		lien_nodes_ask(nodes, i, json_pack("{s:s}", "slurm_job", job));
	good = ps && asking.answers && wait_all(&asking, command, code);
	for (i = 0; good && i < nodes->count; i++)
		json_array_append_new(lists, known(asking.answers[i], json_array_get(ps, i)));
	free_answers(&asking);
	json_decref(ps);
	if (!good) {
		json_decref(lists);
		return NULL;
	}
	return lists;
}
