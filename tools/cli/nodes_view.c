// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_view.h"

#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

/* --- putting together ------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
	const size_t length = strlen(text), of_end = strlen(end);

	return length >= of_end && !strcmp(text + length - of_end, end);
}

static bool is_sum(const char *key)
{
	return ends_with(key, "bytes") || ends_with(key, "frees");
}

/* Appends copies of the entries; objects say of which node they are. */
static void add_entries(json_t *all, const json_t *entries, const char *node)
{
	json_t *entry, *copy;
	size_t i;

	json_array_foreach (entries, i, entry) {
		copy = json_copy(entry);
		if (json_is_object(copy))
			json_object_set_new(copy, "node", json_string(node));
		json_array_append_new(all, copy);
	}
}

static void add_member(json_t *all, const char *key, json_t *value, const char *node)
{
	json_t *before = json_object_get(all, key);

	if (json_is_array(value)) {
		if (!json_is_array(before)) {
			before = json_array();
			json_object_set_new(all, key, before);
		}
		add_entries(before, value, node);
	} else if (json_is_boolean(value)) {
		json_object_set_new(
			all, key, json_boolean(json_is_true(value) || json_is_true(before)));
	} else if (is_sum(key) && json_is_integer(value)) {
		json_object_set_new(all, key,
			json_integer(json_integer_value(before) + json_integer_value(value)));
	} else if (!before) {
		json_object_set(all, key, value);
	}
}

/* --- communicators ---------------------------------------------------------------------------- */

static bool same_group(const json_t *a, const json_t *b)
{
	return !strcmp(lien_get_text(a, "group"), lien_get_text(b, "group"));
}

static bool is_transfer(const char *call)
{
	return !strcmp(call, "ncclSend") || !strcmp(call, "ncclRecv");
}

/* The ranks of a group that have made fewer of these calls than another one, on whatever node. */
static void add_behind(json_t *behind, const json_t *comms, const json_t *group, const char *call)
{
	uint64_t most = 0, calls;
	const json_t *comm;
	size_t i;

	json_array_foreach (comms, i, comm)
		if (same_group(comm, group)) {
			calls = lien_get_number(json_object_get(comm, "calls"), call);
			most = calls > most ? calls : most;
		}
	json_array_foreach (comms, i, comm) {
		calls = lien_get_number(json_object_get(comm, "calls"), call);
		if (same_group(comm, group) && calls < most)
			json_array_append_new(
				behind, json_pack("{s:O, s:O, s:O, s:O, s:s, s:I}", "node",
						json_object_get(comm, "node"), "pid",
						json_object_get(comm, "pid"), "address",
						json_object_get(comm, "address"), "rank",
						json_object_get(comm, "rank"), "call", call,
						"calls", (json_int_t)(most - calls)));
	}
}

/* Each agent knows who is behind on its own node. */
static void find_behind(json_t *group, const json_t *comms)
{
	json_t *behind = json_array(), *done = json_object(), *calls, *value;
	const json_t *comm;
	bool comparable = strcmp(lien_get_text(group, "group"), "0000000000000000") != 0;
	const char *call;
	size_t i;

	json_array_foreach (comms, i, comm)
		comparable &= !same_group(comm, group) || lien_get_true(comm, "complete");
	json_array_foreach (comms, i, comm) {
		calls = json_object_get(comm, "calls");
		if (!comparable || !same_group(comm, group))
			continue;
		json_object_foreach (calls, call, value) {
			if (is_transfer(call) || json_object_get(done, call))
				continue;
			json_object_set(done, call, value);
			add_behind(behind, comms, group, call);
		}
	}
	if (!json_is_null(json_object_get(group, "behind")))
		json_object_set(group, "behind", behind);
	json_decref(behind);
	json_decref(done);
}

static void add_numbers(json_t *to, const json_t *from, const char *key)
{
	const json_t *a = json_object_get(to, key), *b = json_object_get(from, key);

	if (json_is_integer(a) && json_is_integer(b))
		json_object_set_new(
			to, key, json_integer(json_integer_value(a) + json_integer_value(b)));
}

/* NULL: it is the first one of its group. */
static json_t *joined_with(const json_t *groups, const json_t *group)
{
	json_t *joined;
	size_t i;

	json_array_foreach (groups, i, joined)
		if (same_group(group, joined))
			return joined;
	return NULL;
}

/* One entry for each group, whose ranks are on several nodes. */
static void join_groups(json_t *all)
{
	json_t *groups = json_array(), *group, *joined;
	size_t i;

	json_array_foreach (json_object_get(all, "groups"), i, group) {
		joined = joined_with(groups, group);
		if (joined) {
			add_numbers(joined, group, "here");
			add_numbers(joined, group, "sends");
			add_numbers(joined, group, "receives");
		} else {
			joined = group;
			json_object_set_new(group, "nodes", json_array());
			json_array_append(groups, group);
		}
		json_array_append(json_object_get(joined, "nodes"), json_object_get(group, "node"));
	}
	json_array_foreach (groups, i, group) {
		json_object_del(group, "node");
		find_behind(group, json_object_get(all, "communicators"));
	}
	json_object_set_new(all, "groups", groups);
}

static json_t *merge(const struct lien_nodes *nodes, const json_t *results)
{
	json_t *all = json_object(), *names = json_array(), *result, *value;
	const char *key;
	unsigned i;

	for (i = 0; i < nodes->count; i++) {
		result = json_array_get(results, i);
		json_array_append_new(names, json_string(nodes->links[i].name));
		json_object_foreach (result, key, value)
			add_member(all, key, value, nodes->links[i].name);
	}
	if (json_object_get(all, "communicators") && json_object_get(all, "groups"))
		join_groups(all);
	json_object_set_new(all, "nodes", names);
	return all;
}

/* --- asking ----------------------------------------------------------------------------------- */

json_t *lien_nodes_view_query(struct lien_nodes_view *view, const struct lien_usage *usage,
	const char *socket, const json_t *request, int *code)
{
	json_t *results;

	if (!view->connected) {
		if (!lien_nodes_prepare(usage, &view->options, socket, &view->nodes, code))
			return NULL;
		*code = LIEN_EXIT_FAILURE;
		if (!lien_nodes_connect(&view->nodes, usage->command))
			return NULL;
		view->connected = true;
	}
	results = lien_nodes_query(&view->nodes, usage->command, request, code);
	if (!results)
		return NULL;
	json_decref(view->results);
	view->results = results;
	return merge(&view->nodes, results);
}

void lien_nodes_view_each(const struct lien_nodes_view *view,
	void (*each)(void *context, const char *node, const json_t *result), void *context)
{
	unsigned i;

	for (i = 0; i < view->nodes.count; i++)
		each(context, view->nodes.links[i].name, json_array_get(view->results, i));
}

void lien_nodes_view_free(struct lien_nodes_view *view)
{
	json_decref(view->results);
	view->results = NULL;
	lien_nodes_free(&view->nodes);
	view->connected = false;
}
