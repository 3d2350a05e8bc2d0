// SPDX-License-Identifier: BSD-2-Clause
/*
 * What many mappings of one allocation in one process cost: applied, asked about, taken away.
 * `aliases [N]` does it with N and with 2N of them, and prints one JSON object: the milliseconds
 * for 2N, and by how much they are more than for N.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/graph/graph.h"
#include "agent/plan/plan.h"
#include "agent/views/views.h"
#include <lien/cuda_abi.h>

#define PID    1000
#define HANDLE 0x550000000000ull
#define PIECE  (2ull << 20)
#define VA     0x100000000000ull
#define TRIES  3

enum step { APPLY, PLAN, HOLDERS, MEM, CHECK, UNMAP, EXIT, STEPS };

static const char *const names[STEPS] = {
	"apply", "plan", "holders", "mem", "check", "unmap", "exit"};

static struct lien_graph *graph;
static uint64_t now;

static double clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static struct lien_event event_of(unsigned type, size_t size)
{
	struct lien_event event;

	memset(&event, 0, size);
	event.size = size;
	event.type = type;
	event.pid = event.tid = PID;
	event.start = 5;
	event.t_entry = ++now;
	event.t_return = ++now;
	event.outer = type < LIEN_CALL_CU_INIT ? 0 : type;
	return event;
}

#define EVENT(type, body) event_of(type, LIEN_EVENT_SIZE(body))

static void apply(const struct lien_event *event)
{
	if (!lien_graph_apply(graph, event))
		return;
	fprintf(stderr, "aliases: the graph refused an event of type %u\n", event->type);
	exit(1);
}

static void begin(void)
{
	struct lien_event event = EVENT(LIEN_EVENT_PROCESS, process);

	event.process.complete = 1;
	apply(&event);
	event = EVENT(LIEN_CALL_CU_MEM_CREATE, create);
	event.create.handle = HANDLE;
	event.create.bytes = PIECE;
	event.create.prop = (struct lien_prop){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE};
	apply(&event);
	lien_graph_process(graph, PID)->presence = LIEN_CONTROL_READY;
}

static void map_all(unsigned n)
{
	struct lien_event event;
	unsigned i;

	for (i = 0; i < n; i++) {
		event = EVENT(LIEN_CALL_CU_MEM_MAP, map);
		event.map.va = VA + i * PIECE;
		event.map.bytes = PIECE;
		event.map.handle = HANDLE;
		apply(&event);
		event = EVENT(LIEN_CALL_CU_MEM_SET_ACCESS, access);
		event.access.va = VA + i * PIECE;
		event.access.bytes = PIECE;
		event.access.count = 1;
		event.access.access[0] = (struct lien_access){CU_MEM_LOCATION_TYPE_DEVICE, 0, 3};
		apply(&event);
	}
}

static void unmap_all(unsigned n)
{
	struct lien_event event, entry;
	unsigned i;

	for (i = 0; i < n; i++) {
		event = EVENT(LIEN_CALL_CU_MEM_UNMAP, range);
		event.range.va = VA + i * PIECE;
		event.range.bytes = PIECE;
		entry = event;
		entry.flags = LIEN_EVENT_ENTRY;
		entry.t_return = 0;
		apply(&entry);
		apply(&event);
	}
}

static void plan(void)
{
	const struct lien_selection all = {.owner = NULL};
	struct lien_plan made;
	char error[400] = "";

	if (!lien_plan_offload(graph, &all, &made, error, sizeof(error)))
		lien_plan_clear(&made);
	else if (!strstr(error, "mappings to move")) {
		fprintf(stderr, "aliases: %s\n", error);
		exit(1);
	}
}

static void do_step(enum step step, unsigned n)
{
	static const struct lien_view_files files;
	const struct lien_view_source input = {.graph = graph, .files = files, .now_ns = now};
	struct lien_event event;
	char error[200];

	switch (step) {
	case APPLY:
		map_all(n);
		break;
	case PLAN:
		plan();
		break;
	case HOLDERS:
		json_decref(lien_view_holders(graph, NULL, PID, VA, &files, error, sizeof(error)));
		break;
	case MEM:
		json_decref(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
		break;
	case CHECK:
		json_decref(lien_findings(&input));
		break;
	case UNMAP:
		unmap_all(n / 2);
		break;
	default:
		event = event_of(LIEN_EVENT_EXIT, LIEN_EVENT_HEADER);
		apply(&event);
	}
}

/* The best of some tries, for each step. */
static void measure(unsigned n, double *ms)
{
	unsigned try, step;
	double took;

	for (try = 0; try < TRIES; try++) {
		if (lien_graph_new(&graph))
			exit(1);
		begin();
		for (step = 0; step < STEPS; step++) {
			took = clock_ms();
			do_step(step, n);
			took = clock_ms() - took;
			if (!try || took < ms[step])
				ms[step] = took;
		}
		lien_graph_free(graph);
	}
}

int main(int argc, char **argv)
{
	unsigned n = argc > 1 ? strtoul(argv[1], NULL, 0) : 150000, step;
	double once[STEPS], twice[STEPS];

	if (!n)
		return 1;
	measure(n, once);
	measure(2 * n, twice);
	printf("{\"mappings\": %u", 2 * n);
	for (step = 0; step < STEPS; step++)
		printf(", \"%s\": {\"ms\": %.2f, \"ratio\": %.2f}", names[step], twice[step],
			twice[step] / once[step]);
	printf("}\n");
	return 0;
}
