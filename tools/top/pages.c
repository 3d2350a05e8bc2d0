// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>

#include "tools/text/process_text.h"
#include "tools/top/page.h"

#define ROOMY	  10 /* from this height on, the totals leave room for processes */
#define GPU_WIDTH 40
#define GPU_SHARE 5 /* GPUs take this part of the screen at most */

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
		top->count == 1 ? "process" : "processes", lien_bytes(bytes).text);
	line = lien_append(line, ", ", "nccl %s", lien_bytes(nccl).text);
	line = lien_append(
		line, ", ", "other %s", lien_bytes(bytes > nccl ? bytes - nccl : 0).text);
	if (offloaded)
		line = lien_append(line, "; ", "offloaded %s", lien_bytes(offloaded).text);
	lien_page_wrap(page, LIEN_MARK_NONE, line);
	lien_page_say(page, LIEN_MARK_NONE,
		"liens: %" PRIu64 " in (imports), %" PRIu64 " out (exported allocations)", in, out);
}

/* "GPU 0: 24G used, 126G free of 150G"; index NULL: the sum of `count` GPUs. */
static char *gpu_text(const json_t *index, unsigned count, const uint64_t *bytes)
{
	char *used = lien_top_size(bytes[0]), *free_now = lien_top_size(bytes[1]);
	char *total = lien_top_size(bytes[2]), *name, *text;

	if (index)
		name = lien_format("GPU %" JSON_INTEGER_FORMAT, json_integer_value(index));
	else
		name = lien_format("%u GPUs", count);
	text = lien_format("%s: %s used, %s free of %s", name, used, free_now, total);
	free(used);
	free(free_now);
	free(total);
	free(name);
	return text;
}

static bool has_figures(const json_t *gpu)
{
	return json_is_integer(json_object_get(gpu, "index")) &&
	       json_is_integer(json_object_get(gpu, "total_bytes"));
}

/* As nvidia-smi and nvtop have it, as many beside each other as there is room for; where there are
 * too many for the screen, their sum. Nothing without NVML. */
static void add_gpus(
	struct lien_page *page, const struct lien_top *top, unsigned width, unsigned height)
{
	const json_t *gpus = json_object_get(top->ps, "gpus"), *gpu;
	unsigned count = 0, in_line = width / GPU_WIDTH ? width / GPU_WIDTH : 1, at = 0;
	uint64_t sum[3] = {0};
	char *line = NULL, *text;
	bool each;
	size_t i;

	json_array_foreach (gpus, i, gpu)
		count += has_figures(gpu);
	each = count <= 1 || (count + in_line - 1) / in_line <= height / GPU_SHARE;
	json_array_foreach (gpus, i, gpu) {
		const uint64_t bytes[] = {lien_get_number(gpu, "used_bytes"),
			lien_get_number(gpu, "free_bytes"), lien_get_number(gpu, "total_bytes")};

		if (!has_figures(gpu))
			continue;
		for (unsigned j = 0; j < 3; j++)
			sum[j] += bytes[j];
		if (!each)
			continue;
		text = gpu_text(json_object_get(gpu, "index"), 0, bytes);
		line = lien_append(line, "", "%-*s", ++at < in_line ? GPU_WIDTH : 0, text);
		free(text);
		if (at < in_line)
			continue;
		lien_page_add(page, LIEN_MARK_NONE, line);
		line = NULL;
		at = 0;
	}
	if (line)
		lien_page_add(page, LIEN_MARK_NONE, line);
	if (count && !each)
		lien_page_add(page, LIEN_MARK_NONE, gpu_text(NULL, count, sum));
}

/* Memory that importers keep although its owner has exited. */
static void add_dead(struct lien_page *page, const struct lien_top *top, bool each)
{
	const json_t *dead = json_object_get(top->ps, "dead"), *row;
	uint64_t bytes = 0;
	size_t i;

	json_array_foreach (dead, i, row) {
		bytes += lien_get_number(row, "bytes");
		if (each)
			lien_page_say(page, LIEN_MARK_WARNING,
				"held by the dead: %s of process %" PRIu64
				" (%s): see `lien check`",
				lien_bytes(lien_get_number(row, "bytes")).text,
				lien_get_number(row, "pid"), lien_get_text(row, "owner"));
	}
	if (bytes && !each)
		lien_page_say(page, LIEN_MARK_WARNING,
			"held by the dead, and not counted above: %s", lien_bytes(bytes).text);
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
	lien_page_wrap(page, lost || incomplete ? LIEN_MARK_WARNING : LIEN_MARK_NONE, line);
}

static void make_list(struct lien_page *page, struct lien_top *top,
	const struct lien_top_view *view, unsigned width, unsigned height)
{
	unsigned i;

	if (height >= ROOMY) {
		add_agent(page, top);
		add_totals(page, top);
		add_gpus(page, top, width, height);
		add_dead(page, top, false);
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
	if (top->left_out)
		lien_page_add(page, LIEN_MARK_NONE, lien_left_out_text(top->left_out));
	else if (!top->count)
		lien_page_say(page, LIEN_MARK_NONE, "no process%s uses CUDA on this node",
			json_object_get(top->ps, "only_user") ? " of yours" : "");
	add_dead(page, top, true);
	if (json_object_get(top->ps, "only_user"))
		lien_page_say(page, LIEN_MARK_NONE,
			"processes of other users are hidden: only root sees them");
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
	*page = (struct lien_page){.width = width};
	if (view->help)
		make_help(page);
	else if (view->opened)
		return lien_page_make_process(page, top, view->opened);
	else
		make_list(page, top, view, width, height);
	return true;
}
