// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lien/clock.h>

#include "tools/text/output.h"
#include "tools/text/process_text.h"
#include "tools/top/top.h"

#define GRAPH_SHARE 10 /* the graph may take a tenth of the time */

static double now(void)
{
	return lien_clock_ns() / 1e9;
}

json_t *lien_top_ask(struct lien_top *top, json_t *request)
{
	json_t *result = NULL;

	if (request && lien_client_call(top->client, request, &result))
		result = NULL;
	json_decref(request);
	return result;
}

static int keep(struct lien_top *top, json_t *request, json_t **result)
{
	json_t *answer = lien_top_ask(top, request);

	if (!answer)
		return -EIO;
	json_decref(*result);
	*result = answer;
	return 0;
}

static int ask(struct lien_top *top, const char *op, json_t **result)
{
	return keep(top, json_pack("{s:s}", "op", op), result);
}

/* An older agent without this operation has no counters; that is no failure. */
static int ask_comms(struct lien_top *top)
{
	if (top->no_comms || !ask(top, "comms", &top->comms))
		return 0;
	top->no_comms = strstr(lien_client_error(top->client), "no such operation");
	return top->no_comms ? 0 : -EIO;
}

static int ask_graph(struct lien_top *top)
{
	double began = now();
	int err;

	if (top->graph && began < top->graph_due)
		return 0;
	err = ask(top, "graph", &top->graph);
	if (!err)
		lien_drop_arena(top->graph);
	top->graph_due = now() + (GRAPH_SHARE - 1) * (now() - began);
	return err;
}

const struct lien_top_process *lien_top_find(const struct lien_top *top, uint64_t pid)
{
	unsigned i;

	for (i = 0; i < top->count; i++)
		if (top->processes[i].pid == pid)
			return &top->processes[i];
	return NULL;
}

static void count_liens(struct lien_top_process *process, const json_t *mem)
{
	const json_t *row;
	const char *kind;
	size_t i;

	json_array_foreach (json_object_get(mem, "rows"), i, row) {
		if (lien_get_number(row, "pid") != process->pid)
			continue;
		kind = lien_get_text(row, "kind");
		if (!strcmp(kind, "imported"))
			process->imports += lien_get_number(row, "allocations");
		else if (!strcmp(kind, "exported"))
			process->exports += lien_get_number(row, "allocations");
	}
}

static void count_collectives(struct lien_top_process *process, const json_t *comms,
	const struct lien_top_process *before, double elapsed)
{
	const json_t *comm;
	bool any = false;
	size_t i;

	json_array_foreach (json_object_get(comms, "communicators"), i, comm) {
		if (lien_get_number(comm, "pid") != process->pid ||
			!json_is_integer(json_object_get(comm, "calls_total")))
			continue;
		process->collectives += lien_get_number(comm, "calls_total");
		any = true;
	}
	/* A communicator that was destroyed takes its count with it. */
	if (any && before && elapsed > 0 && process->collectives >= before->collectives)
		process->rate = (process->collectives - before->collectives) / elapsed;
}

static int make_processes(struct lien_top *top, double elapsed)
{
	const json_t *list = json_object_get(top->ps, "processes"), *entry;
	struct lien_top_process *processes, *process;
	unsigned count = 0, left_out = 0;
	size_t i;

	processes = calloc(json_array_size(list) + 1, sizeof(*processes));
	if (!processes)
		return -ENOMEM;
	json_array_foreach (list, i, entry) {
		if (!top->all && !lien_uses_memory(entry)) {
			left_out++;
			continue;
		}
		process = &processes[count++];
		process->entry = entry;
		process->pid = lien_get_number(entry, "pid");
		process->bytes = lien_get_number(entry, "bytes");
		process->nccl = lien_get_number(entry, "nccl_bytes");
		process->other =
			process->bytes > process->nccl ? process->bytes - process->nccl : 0;
		process->rate = -1;
		count_liens(process, top->mem);
		count_collectives(process, top->comms, lien_top_find(top, process->pid), elapsed);
	}
	free(top->processes);
	top->processes = processes;
	top->count = count;
	top->left_out = left_out;
	return 0;
}

int lien_top_refresh(struct lien_top *top, bool with_graph)
{
	uint64_t events = lien_get_number(top->status, "events");
	bool first = !top->status;
	double elapsed;
	int err;

	err = ask(top, "status", &top->status);
	if (!err)
		err = ask(top, "mem", &top->mem);
	if (!err)
		err = ask_comms(top);
	if (!err)
		err = keep(top, json_pack("{s:s, s:b}", "op", "ps", "fresh", 1), &top->ps);
	if (!err && with_graph)
		err = ask_graph(top);
	if (err)
		return err;
	elapsed = first ? 0 : now() - top->seconds;
	top->seconds = now();
	top->event_rate = -1;
	if (elapsed > 0 && lien_get_number(top->status, "events") >= events)
		top->event_rate = (lien_get_number(top->status, "events") - events) / elapsed;
	return make_processes(top, elapsed);
}

void lien_top_clear(struct lien_top *top)
{
	json_decref(top->status);
	json_decref(top->ps);
	json_decref(top->mem);
	json_decref(top->comms);
	json_decref(top->graph);
	free(top->processes);
	lien_client_free(top->client);
}
