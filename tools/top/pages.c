// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>

#include "tools/top/page.h"

#define ROOMY 10 /* from this height on, the totals leave room for processes */

static void add_agent(struct lien_page *page, const struct lien_top *top)
{
	uint64_t seconds = lien_get_real(top->status, "uptime_ms") / 1000;

	lien_page_say(page, LIEN_MARK_TITLE,
		"lien top: agent pid %" PRIu64 ", up %" PRIu64 ":%02" PRIu64 ":%02" PRIu64,
		lien_get_number(top->status, "pid"), seconds / 3600, seconds / 60 % 60,
		seconds % 60);
}

static void add_totals(struct lien_page *page, const struct lien_top *top)
{
	uint64_t bytes = 0, nccl = 0, offloaded = 0, in = 0, out = 0;
	const struct lien_top_process *process;
	char *line;

	for (process = top->processes; process < top->processes + top->count; process++) {
		bytes += process->bytes;
		nccl += process->nccl;
		offloaded += lien_get_number(process->entry, "offloaded_bytes");
		in += process->imports;
		out += process->exports;
	}
	line = lien_format("%u %s: %s on the GPUs", top->count,
		top->count == 1 ? "process" : "processes", lien_size(bytes).text);
	line = lien_append(line, ", ", "nccl %s", lien_size(nccl).text);
	line = lien_append(line, ", ", "other %s", lien_size(bytes > nccl ? bytes - nccl : 0).text);
	if (offloaded)
		line = lien_append(line, "; ", "offloaded %s", lien_size(offloaded).text);
	lien_page_add(page, LIEN_MARK_NONE, line);
	lien_page_say(page, LIEN_MARK_NONE,
		"liens: %" PRIu64 " in (imports), %" PRIu64 " out (exported allocations)", in, out);
}

static void add_events(struct lien_page *page, const struct lien_top *top)
{
	uint64_t lost = lien_get_number(top->status, "events_lost");
	size_t incomplete = json_array_size(json_object_get(top->status, "incomplete"));
	char *line = lien_format("events: %" PRIu64, lien_get_number(top->status, "events"));

	if (top->event_rate >= 0)
		line = lien_append(line, ", ", "%.0f/s", top->event_rate);
	line = lien_append(line, ", ", "%" PRIu64 " lost", lost);
	if (incomplete)
		line = lien_append(line, "; ", "%zu %s (*)", incomplete,
			incomplete == 1 ? "process is incomplete" : "processes are incomplete");
	lien_page_add(page, lost || incomplete ? LIEN_MARK_WARNING : LIEN_MARK_NONE, line);
}

static void make_list(struct lien_page *page, struct lien_top *top,
	const struct lien_top_view *view, unsigned width, unsigned height)
{
	unsigned i;

	if (height >= ROOMY) {
		add_agent(page, top);
		add_totals(page, top);
		add_events(page, top);
		lien_page_say(page, LIEN_MARK_NONE, "%s", "");
	}
	lien_page_add(page, LIEN_MARK_HEADING, lien_top_heading(view, width));
	page->head = page->count;
	lien_top_sort(top, view);
	for (i = 0; i < top->count; i++) {
		bool chosen = top->processes[i].pid == view->selected;

		if (chosen)
			page->chosen = page->count;
		lien_page_add(page, chosen ? LIEN_MARK_SELECTED : LIEN_MARK_NONE,
			lien_top_row(&top->processes[i], width));
	}
	if (!top->count)
		lien_page_say(page, LIEN_MARK_NONE, "no process uses CUDA on this node");
}

static void make_help(struct lien_page *page)
{
	static const char *const lines[] = {
		"up, down, PgUp, PgDn, Home, End   move",
		"Enter    open the process: its memory, communicators, largest allocations",
		"s, >     sort by the next column, < by the one before",
		"r        the other way round",
		"q, Esc   back, and out",
		"?        this page",
		"",
		"GPU      its own memory on the GPUs: made by NCCL, or by OTHER libraries",
		"IN       allocations of other processes that it imports",
		"OUT      its own allocations that it has exported",
		"COLL/S   collectives per second, of all its communicators; - where not counted",
		"RANK     in its first communicator; + it has more",
		"STATE    * is incomplete: not all that it did was seen",
	};
	size_t i;

	lien_page_say(page, LIEN_MARK_TITLE, "lien top: keys and columns");
	lien_page_say(page, LIEN_MARK_NONE, "%s", "");
	page->head = page->count;
	for (i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		lien_page_say(page, LIEN_MARK_NONE, "%s", lines[i]);
}

bool lien_page_make(struct lien_page *page, struct lien_top *top, const struct lien_top_view *view,
	unsigned width, unsigned height)
{
	*page = (struct lien_page){};
	if (view->help)
		make_help(page);
	else if (view->opened)
		return lien_page_make_process(page, top, view->opened);
	else
		make_list(page, top, view, width, height);
	return true;
}
