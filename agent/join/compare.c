// SPDX-License-Identifier: BSD-2-Clause
/* `compare`: the graph against the driver, for a client. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/proc.h"
#include "agent/server/client.h"
#include "agent/join/walks.h"
#include "agent/graph/pids.h"

struct part {
	uint32_t pid;
	uint64_t start;
	enum { PART_WAITS, PART_RUNS, PART_DONE } state;
};

struct lien_compare {
	struct lien_client_job waited_for;
	LIST_ENTRY(lien_compare) next;
	struct lien_agent *agent;
	struct lien_client *client; /* NULL: gone */
	bool repair;
	uint64_t deadline;
	unsigned timeout_ms, count, differences, compared;
	json_t *processes;
	struct part part[];
};

static const char *const kinds[] = {
	[LIEN_DIFFERENCE_MISSING] = "missing",
	[LIEN_DIFFERENCE_GONE] = "gone",
	[LIEN_DIFFERENCE_SIZE] = "size",
	[LIEN_DIFFERENCE_HANDLE] = "allocation",
	[LIEN_DIFFERENCE_PROPERTIES] = "properties",
	[LIEN_DIFFERENCE_ACCESS] = "access",
};

/* The client is gone. */
static void drop(struct lien_client_job *job)
{
	struct lien_compare *compare = (struct lien_compare *)job;

	compare->client = NULL;
	compare->deadline = 0;
}

/* What the driver says of the address. */
static json_t *found_json(const struct lien_wire_found *found)
{
	json_t *access = json_array();
	char handle[24];
	unsigned i;

	if (!found->bytes) {
		json_decref(access);
		return json_null();
	}
	snprintf(handle, sizeof(handle), "%#llx", (unsigned long long)found->handle);
	for (i = 0; i < found->places; i++)
		json_array_append_new(access,
			json_pack("{s:i, s:s}", "device", found->place[i].location_id, "access",
				found->place[i].flags == 3 ? "read-write" : "read"));
	return json_pack("{s:I, s:s, s:o, s:o}", "bytes", (json_int_t)found->bytes, "handle",
		handle, "device",
		found->location_type == 1 ? json_integer(found->location_id) : json_null(),
		"access", access);
}

static json_t *differences_json(const struct lien_reread *reread)
{
	const struct lien_difference *difference;
	json_t *list = json_array();
	char address[24];
	unsigned count, i;

	difference = lien_reread_differences(reread, &count);
	for (i = 0; i < count; i++) {
		snprintf(address, sizeof(address), "%#llx", (unsigned long long)difference[i].va);
		json_array_append_new(
			list, json_pack("{s:s, s:s, s:I, s:o}", "kind", kinds[difference[i].kind],
				      "address", address, "bytes", (json_int_t)difference[i].bytes,
				      "driver", found_json(&difference[i].found)));
	}
	return list;
}

static void add_result(struct lien_compare *compare, const struct part *part, const char *command,
	bool complete, const struct lien_walked *walked)
{
	const struct lien_reread *reread = walked->reread;
	unsigned differences = 0;

	if (reread) {
		lien_reread_differences(reread, &differences);
		compare->compared++;
	}
	compare->differences += differences;
	json_array_append_new(compare->processes,
		json_pack("{s:i, s:s, s:o, s:o, s:i, s:i, s:b, s:b, s:i, s:f, s:f}", "pid",
			part->pid, "command", command, "error",
			walked->error ? json_string(walked->error) : json_null(), "differences",
			reread ? differences_json(reread) : json_array(), "mappings",
			reread ? lien_reread_mappings(reread) : 0, "unsettled",
			reread ? lien_reread_unsettled(reread) : 0, "repaired", walked->repaired,
			"complete", complete, "orders", walked->orders, "ms", walked->ns / 1e6,
			"walk_ms", walked->walk_ns / 1e6));
}

static void compare_free(struct lien_compare *compare)
{
	LIST_REMOVE(compare, next);
	json_decref(compare->processes);
	free(compare);
}

static void answer_if_done(struct lien_compare *compare)
{
	struct lien_client *client = compare->client;
	unsigned i;

	for (i = 0; i < compare->count; i++)
		if (compare->part[i].state != PART_DONE)
			return;
	if (client) {
		client->job = NULL;
		lien_reply_result(client,
			json_pack("{s:O, s:i, s:i, s:i}", "processes", compare->processes,
				"differences", compare->differences, "compared", compare->compared,
				"not_compared", compare->count - compare->compared));
		lien_client_go_on(client);
	}
	compare_free(compare);
}

static struct lien_process *process_of(struct lien_compare *compare, const struct part *part)
{
	return lien_graph_living(compare->agent->graph, part->pid, part->start);
}

static void fail(struct lien_compare *compare, struct part *part, const char *error)
{
	struct lien_process *process = process_of(compare, part);
	struct lien_walked walked = {.error = error};

	part->state = PART_DONE;
	add_result(compare, part, process ? process->command : "",
		process && lien_process_whole(process), &walked);
}

static void on_walked(void *to, struct lien_process *process, const struct lien_walked *walked)
{
	struct lien_compare *compare = to;
	unsigned i;

	for (i = 0; i < compare->count; i++)
		if (compare->part[i].pid == process->pid && compare->part[i].state == PART_RUNS)
			break;
	if (i == compare->count)
		return;
	compare->part[i].state = PART_DONE;
	add_result(
		compare, &compare->part[i], process->command, lien_process_whole(process), walked);
}

static void start_part(struct lien_compare *compare, struct part *part)
{
	struct lien_process *process = process_of(compare, part);
	const char *error = process ? lien_process_takes_no_orders(process) : "it has ended";
	int err = 0;

	if (!error)
		err = lien_walk_start(compare->agent, process, compare->repair, on_walked, compare);
	if (err && err != -EBUSY)
		error = err == -ESRCH ? "it has ended" : strerror(-err);
	if (error)
		fail(compare, part, error);
	else if (!err)
		part->state = PART_RUNS;
}

/* Those that have not come to an end in time. */
static void give_up(struct lien_compare *compare)
{
	struct lien_process *process;
	char error[80];
	unsigned i;

	snprintf(error, sizeof(error), "it was not read within %u ms", compare->timeout_ms);
	for (i = 0; i < compare->count; i++) {
		process = process_of(compare, &compare->part[i]);
		if (compare->part[i].state == PART_RUNS && process)
			lien_walk_end(compare->agent, process, error);
		if (compare->part[i].state != PART_DONE)
			fail(compare, &compare->part[i], error);
	}
}

static void go_on(struct lien_compare *compare, uint64_t now)
{
	unsigned i;

	if (now >= compare->deadline)
		give_up(compare);
	for (i = 0; i < compare->count; i++)
		if (compare->part[i].state == PART_WAITS)
			start_part(compare, &compare->part[i]);
	answer_if_done(compare);
}

void lien_compare_stop(struct lien_agent *agent)
{
	while (!LIST_EMPTY(&agent->compares))
		compare_free(LIST_FIRST(&agent->compares));
}

void lien_compare_tick(struct lien_agent *agent)
{
	struct lien_compare *compare, *next;
	uint64_t now = lien_now_ns();

	LIST_FOREACH_SAFE (compare, &agent->compares, next, next)
		go_on(compare, now);
}

void lien_compare_start(struct lien_client *client, const uint32_t *pids, unsigned pids_count,
	bool repair, unsigned timeout_ms)
{
	struct lien_agent *agent = client->agent;
	unsigned room = lien_graph_stats(agent->graph)->processes;
	struct lien_compare *compare;
	struct lien_process *process;

	compare = calloc(1, sizeof(*compare) + (room + 1) * sizeof(compare->part[0]));
	if (!compare || !(compare->processes = json_array())) {
		free(compare);
		lien_reply_error(client, "out of memory");
		return;
	}
	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		if (process->cuda &&
			(!pids_count || lien_pids_have(pids, pids_count, process->pid)) &&
			lien_proc_owned(process, &client->viewer))
			compare->part[compare->count++] =
				(struct part){.pid = process->pid, .start = process->start};
	}
	compare->agent = agent;
	compare->client = client;
	compare->repair = repair;
	compare->timeout_ms = timeout_ms;
	compare->deadline = lien_now_ns() + timeout_ms * 1000000ull;
	LIST_INSERT_HEAD(&agent->compares, compare, next);
	compare->waited_for.drop = drop;
	client->job = &compare->waited_for;
	client->waiting = true;
}
