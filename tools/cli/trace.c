// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/trace.h"

#include <inttypes.h>
#include <stdlib.h>

struct item {
	uint64_t t, dur_ns;
	size_t number; /* in the order in which they were added */
	char *text;    /* without its opening brace */
};

struct lien_trace {
	struct item *items;
	size_t count, room;
};

void lien_trace_no_memory(void)
{
	fputs("lien timeline: out of memory\n", stderr);
	exit(EXIT_FAILURE);
}

void *lien_trace_alloc(size_t size)
{
	void *memory = calloc(1, size);

	if (!memory)
		lien_trace_no_memory();
	return memory;
}

struct lien_trace *lien_trace_new(void)
{
	return lien_trace_alloc(sizeof(struct lien_trace));
}

void lien_trace_free(struct lien_trace *trace)
{
	size_t i;

	for (i = 0; i < trace->count; i++)
		free(trace->items[i].text);
	free(trace->items);
	free(trace);
}

void lien_trace_add(struct lien_trace *trace, uint64_t t, uint64_t dur_ns, json_t *event)
{
	char *text = event ? json_dumps(event, JSON_COMPACT) : NULL;

	json_decref(event);
	if (trace->count == trace->room) {
		trace->room = trace->room ? 2 * trace->room : 1024;
		trace->items = reallocarray(trace->items, trace->room, sizeof(*trace->items));
	}
	if (!text || !trace->items)
		lien_trace_no_memory();
	trace->items[trace->count] = (struct item){t, dur_ns, trace->count, text};
	trace->count++;
}

static uint64_t first_time(const struct lien_trace *trace)
{
	uint64_t first = 0;
	size_t i;

	for (i = 0; i < trace->count; i++)
		if (trace->items[i].t && (!first || trace->items[i].t < first))
			first = trace->items[i].t;
	return first;
}

uint64_t lien_trace_length(const struct lien_trace *trace)
{
	uint64_t last = 0;
	size_t i;

	for (i = 0; i < trace->count; i++)
		if (trace->items[i].t > last)
			last = trace->items[i].t;
	return last - first_time(trace);
}

static int by_time(const void *a, const void *b)
{
	const struct item *x = a, *y = b;

	if (x->t != y->t)
		return x->t < y->t ? -1 : 1;
	return x->number < y->number ? -1 : 1;
}

/* Microseconds with a fraction: exact, other than a double. */
static void print_time(FILE *out, const char *name, uint64_t ns)
{
	fprintf(out, "\"%s\":%" PRIu64 ".%03u,", name, ns / 1000, (unsigned)(ns % 1000));
}

void lien_trace_write(struct lien_trace *trace, FILE *out)
{
	const uint64_t first = first_time(trace);
	const struct item *item;
	size_t i;

	if (trace->count)
		qsort(trace->items, trace->count, sizeof(*trace->items), by_time);
	fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
	for (i = 0; i < trace->count; i++) {
		item = &trace->items[i];
		fprintf(out, "%s\n{", i ? "," : "");
		print_time(out, "ts", item->t ? item->t - first : 0);
		if (item->dur_ns != LIEN_TRACE_NO_DURATION)
			print_time(out, "dur", item->dur_ns);
		fputs(item->text + 1, out);
	}
	fprintf(out, "\n]}\n");
}
