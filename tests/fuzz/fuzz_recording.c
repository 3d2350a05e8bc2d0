// SPDX-License-Identifier: BSD-2-Clause
/* What a file may have that is opened as a recording, or as the journal of an earlier agent. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/graph/event_check.h"
#include "agent/journal/journal.h"
#include "agent/journal/recording.h"
#include "agent/views/views.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char journal_path[] = "/tmp/lien-fuzz-journal-XXXXXX";
static int file;
static char path[64];

static void stop(void)
{
	unlink(journal_path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int fd = mkstemp(journal_path);

	(void)argc, (void)argv;
	file = memfd_create("recording", MFD_CLOEXEC);
	if (fd < 0 || file < 0) {
		perror(journal_path);
		exit(1);
	}
	close(fd);
	atexit(stop);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	return 0;
}

static int apply(void *context, const struct lien_event *event)
{
	return lien_graph_apply(context, event) == -ENOMEM ? -ENOMEM : 0;
}

/* What lien tells must be what it takes in. */
static int apply_told(void *context, const struct lien_event *event)
{
	if (!lien_event_valid(event))
		abort();
	return apply(context, event);
}

static void read_recording(struct lien_graph *graph)
{
	struct lien_recording *recording;
	struct lien_event event;

	if (lien_recording_open(path, &recording))
		return;
	while (lien_recording_read(recording, &event) == 1)
		if (apply(graph, &event))
			break;
	(void)!lien_recording_close(recording);
}

static bool traffic(void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic)
{
	(void)context, (void)pid, (void)comm;
	memset(traffic, 0, sizeof(*traffic));
	return true;
}

static void look(json_t *view)
{
	char *text = view ? json_dumps(view, JSON_COMPACT) : NULL;

	if (!text)
		abort(); /* no memory, or text that is no UTF-8 */
	free(text);
	json_decref(view);
}

static void look_at_process(struct lien_graph *graph, struct lien_process *process)
{
	const struct lien_view_files files = {NULL, 0, false};
	struct lien_mapping *mapping = RB_MIN(lien_mapping_tree, &process->mappings);
	char error[256] = "";
	json_t *view;

	if (!mapping)
		return;
	view = lien_view_holders(
		graph, NULL, process->pid, mapping->va, &files, error, sizeof(error));
	if (!view && !error[0])
		abort();
	json_decref(view);
}

static void look_at_all(struct lien_graph *graph)
{
	const struct lien_view_source input = {.graph = graph, .now_ns = 1, .traffic = traffic};
	const struct lien_node node = {0};
	struct lien_process *process;
	unsigned by;

	look(lien_view_ps(graph, NULL));
	look(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	look(lien_view_dead(graph, NULL));
	look(lien_view_graph(graph, NULL));
	look(lien_view_comms(graph, NULL, NULL, 0, false, 1));
	look(lien_view_gpus(graph, NULL, &node, true));
	look(lien_findings(&input));
	for (by = LIEN_MEM_BY_OWNER; by <= LIEN_MEM_BY_CALLSITE; by++)
		look(lien_view_mem(graph, NULL, by, 0, &node));
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		look_at_process(graph, process);
}

static void plan(struct lien_graph *graph, bool with_closure)
{
	const struct lien_selection selection = {.with_closure = with_closure};
	char error[512] = "";
	struct lien_plan plan;

	if (lien_plan_offload(graph, &selection, &plan, error, sizeof(error))) {
		if (!error[0])
			abort();
		return;
	}
	look(lien_view_plan(&plan));
	lien_plan_clear(&plan);
}

/* As the agent does: what is whole is taken in, and the journal goes on behind it. */
static void read_journal(const uint8_t *data, size_t size)
{
	struct lien_event event = {.size = LIEN_EVENT_HEADER, .type = LIEN_EVENT_EXIT, .pid = 1};
	struct lien_journal *journal;
	struct lien_graph *graph;
	FILE *out = fopen(journal_path, "we");

	if (!out || lien_graph_new(&graph))
		return;
	fwrite(data, size, 1, out);
	fclose(out);
	if (!lien_journal_open(&journal, journal_path, apply, graph)) {
		if (!lien_journal_append(journal, &event) && !lien_journal_has(journal, &event))
			abort();
		lien_journal_close(journal);
	}
	lien_graph_free(graph);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct lien_graph *graph, *again;

	if (ftruncate(file, 0) || pwrite(file, data, size, 0) != (ssize_t)size ||
		lien_graph_new(&graph) || lien_graph_new(&again))
		return 0;
	read_recording(graph);
	look_at_all(graph);
	plan(graph, false);
	plan(graph, true);
	(void)!lien_graph_dump(graph, apply_told, again);
	look_at_all(again);
	lien_graph_free(again);
	lien_graph_free(graph);
	read_journal(data, size);
	return 0;
}
