// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/graph/bytes.h"
#include "agent/views/internal.h"

#define EVIDENCE_MAX 8 /* addresses shown per finding, next to their number */

/* The cases of one kind in one process: one finding. */
struct sum {
	uint64_t bytes, count;
	json_t *evidence;
};

static void sum_add(struct sum *sum, uint64_t bytes, json_t *evidence)
{
	if (!sum->evidence)
		sum->evidence = json_array();
	sum->bytes += bytes;
	if (sum->count++ < EVIDENCE_MAX)
		json_array_append_new(sum->evidence, evidence);
	else
		json_decref(evidence);
}

static void sum_at(struct sum *sum, uint64_t bytes, uint64_t address)
{
	sum_add(sum, bytes,
		json_pack("{s:o, s:I}", "address", lien_view_hex(address), "bytes",
			(json_int_t)bytes));
}

/*
 * Adds the finding if there was any case: one sentence on what was found, whose beginning names the
 * process, and one on what can be done. pid 0: it is no process's.
 */
__attribute__((format(printf, 8, 9))) static void add(json_t *list, const char *kind,
	const char *level, uint32_t pid, const char *command, const struct sum *sum,
	const char *remedy, const char *format, ...)
{
	char found[512];
	va_list args;

	if (!sum->count)
		return;
	va_start(args, format);
	vsnprintf(found, sizeof(found), format, args);
	va_end(args);
	lien_view_add(list, "{s:s, s:s, s:I, s:I, s:I, s:o, s:s, s:o}", "kind", kind, "level",
		level, "pid", (json_int_t)pid, "bytes", (json_int_t)sum->bytes, "count",
		(json_int_t)sum->count, "text",
		pid ? json_sprintf("process %u (%s)%s", pid, command, found) : json_string(found),
		"remedy", remedy, "evidence", sum->evidence ? sum->evidence : json_array());
}

static const char *plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

/* Reported once for each process that keeps such memory. */
static void held_for_the_dead(json_t *list, struct lien_process *process)
{
	struct lien_mapping *mapping;
	struct sum sum = {0};

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		const struct lien_allocation *allocation = mapping->holding->allocation;

		if (!allocation->owner && allocation->owner_pid &&
			lien_allocation_on_device(allocation) &&
			mapping == LIST_FIRST(&mapping->holding->mappings))
			sum_at(&sum, allocation->bytes, mapping->va);
	}
	add(list, "held by the dead", "leak", process->pid, process->command, &sum,
		"nothing uses what an exited rank shared: end this process, or have it destroy the "
		"communicator",
		" keeps %s of %" PRIu64 " allocation%s whose owner has exited",
		lien_bytes(sum.bytes).text, sum.count, plural(sum.count));
}

static void imports_unmapped(json_t *list, struct lien_process *process)
{
	struct lien_handle *handle;
	struct sum sum = {0};

	SPLAY_FOREACH (handle, lien_handle_tree, &process->handles)
		if (handle->imported && handle->references && !handle->holding->mapped)
			sum_at(&sum, handle->holding->allocation->bytes, handle->value);
	add(list, "import not mapped", "warning", process->pid, process->command, &sum,
		"cuMemRelease of the imported handle: it keeps the owner's memory alive",
		" has imported %" PRIu64 " allocation%s (%s) that it does not map", sum.count,
		plural(sum.count), lien_bytes(sum.bytes).text);
}

static void registered_but_freed(json_t *list, struct lien_process *process,
	struct lien_registration_tree *registrations, const struct lien_comm *comm)
{
	struct lien_registration *registration;
	struct sum sum = {0};

	if (!lien_process_whole(process))
		return; /* the memory may exist without being known */
	RB_FOREACH (registration, lien_registration_tree, registrations)
		/* Any host buffer may be registered with a card. */
		if ((comm || registration->of_gpu) &&
			!lien_registration_lies(process, registration))
			sum_at(&sum, registration->bytes, registration->va);
	add(list, "registered but freed", "leak", process->pid, process->command, &sum,
		comm ? "ncclCommDeregister (or ncclCommWindowDeregister) before the buffer is freed"
		     : "ibv_dereg_mr before the buffer is freed: the card keeps its pages",
		" has %" PRIu64 " buffer%s registered with %s that %s been freed", sum.count,
		plural(sum.count), comm ? "a communicator" : "a network card",
		sum.count == 1 ? "has" : "have");
}

static int by_range(const void *a, const void *b)
{
	const struct lien_registration *const *x = a, *const *y = b;

	if ((*x)->va != (*y)->va)
		return (*x)->va < (*y)->va ? -1 : 1;
	if ((*x)->bytes != (*y)->bytes)
		return (*x)->bytes < (*y)->bytes ? -1 : 1;
	return (*x)->window - (*y)->window;
}

/* Returns them sorted by range; the caller frees. NULL: there are none, or out of memory. */
static struct lien_registration **sorted_registrations(
	struct lien_registration_tree *registrations, unsigned *count)
{
	struct lien_registration *registration, **sorted;
	unsigned n = 0;

	*count = 0;
	RB_FOREACH (registration, lien_registration_tree, registrations)
		n++;
	sorted = n ? calloc(n, sizeof(*sorted)) : NULL;
	if (!sorted)
		return NULL;
	RB_FOREACH (registration, lien_registration_tree, registrations)
		sorted[(*count)++] = registration;
	qsort(sorted, n, sizeof(*sorted), by_range);
	return sorted;
}

static void registered_again(json_t *list, struct lien_process *process,
	struct lien_registration_tree *registrations, const struct lien_comm *comm)
{
	unsigned count, first, end;
	struct lien_registration **sorted = sorted_registrations(registrations, &count);
	uint64_t most = 0;
	struct sum sum = {0};

	for (first = 0; first < count; first = end) {
		for (end = first + 1; end < count; end++)
			if (by_range(&sorted[first], &sorted[end]))
				break;
		if (end - first < 2)
			continue;
		sum_at(&sum, sorted[first]->bytes, sorted[first]->va);
		if (end - first > most)
			most = end - first;
	}
	free(sorted);
	add(list, "registered again", most > 2 ? "leak" : "warning", process->pid, process->command,
		&sum,
		most > 2 ? "keep the handle of the first registration: it looks as if each use "
			   "registers the buffer and throws the handle away"
			 : "register a buffer once, and deregister it as often as it was "
			   "registered",
		" has registered %" PRIu64 " buffer%s more than once with %s (up to %" PRIu64
		" times)",
		sum.count, plural(sum.count), comm ? "a communicator" : "a network card", most);
}

static void idle(json_t *list, const struct lien_view_source *source, struct lien_process *process,
	struct lien_comm *comm, const struct lien_comm_entries *comms)
{
	const struct lien_comm_entry *held = lien_comm_entry(comms, comm);
	struct lien_probe_traffic traffic = {0};
	uint64_t last = comm->t_init;
	struct sum sum = {0};

	if (!comm->made_by || !source->traffic)
		return;
	if (source->traffic(source->context, process->pid, comm->address, &traffic) &&
		traffic.t_last > last)
		last = traffic.t_last;
	if (source->now_ns < last || source->now_ns - last < source->idle_ns)
		return;
	sum_add(&sum, held->exact + held->inferred,
		json_pack("{s:o, s:o, s:i, s:f}", "address", lien_view_hex(comm->address), "group",
			lien_view_group(comm), "rank", comm->rank, "idle_ms",
			(source->now_ns - last) / 1e6));
	add(list, "idle communicator", sum.bytes && !process->captured ? "warning" : "note",
		process->pid, process->command, &sum,
		"`lien offload` moves its memory to the host until it is needed; "
		"ncclCommDestroy frees it",
		": nothing was asked of its communicator of %d ranks for %.0f minutes%s; it holds "
		"%s",
		comm->nranks, (source->now_ns - last) / 60e9,
		process->captured ? " (but replays of CUDA graphs are not seen)" : "",
		lien_bytes(sum.bytes).text);
}

/* NCCL uses cudaMalloc for what it allocates by address. */
static void without_vmm(json_t *list, struct lien_process *process)
{
	struct lien_mapping *mapping;
	struct sum sum = {0};

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		const struct lien_allocation *allocation = mapping->holding->allocation;

		if (!mapping->imported && allocation->origin == LIEN_ORIGIN_ALLOC &&
			!strcmp(lien_allocation_library(allocation), "nccl"))
			sum_at(&sum, allocation->bytes, mapping->va);
	}
	add(list, "NCCL without cuMem", "note", process->pid, process->command, &sum,
		"run the job with NCCL_CUMEM_ENABLE=1 (the default from NCCL 2.19 on, where the "
		"driver can): memory of the driver's VMM calls can be put back at its address",
		": NCCL made %" PRIu64 " buffer%s (%s) with cudaMalloc, which cannot be offloaded",
		sum.count, plural(sum.count), lien_bytes(sum.bytes).text);
}

static bool by_ipc(const struct lien_allocation *allocation)
{
	const struct lien_share *share;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->call == LIEN_CALL_CU_IPC_GET && share->imports)
			return true;
	return false;
}

static void legacy_ipc(json_t *list, struct lien_process *process)
{
	struct lien_mapping *mapping;
	struct sum sum = {0};

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (!mapping->imported &&
			lien_allocation_by_address(mapping->holding->allocation) &&
			by_ipc(mapping->holding->allocation))
			sum_at(&sum, mapping->bytes, mapping->va);
	add(list, "legacy IPC", "note", process->pid, process->command, &sum,
		"share memory of cuMemCreate by file descriptor instead (PyTorch: "
		"expandable_segments:True; NCCL: NCCL_CUMEM_ENABLE=1)",
		" shares %" PRIu64 " allocation%s (%s) by legacy IPC, which cannot be offloaded",
		sum.count, plural(sum.count), lien_bytes(sum.bytes).text);
}

/* Open exports, by process; and those of pools, which have no allocation, by number. */
struct open_exports {
	const struct lien_probe_open_file **file;
	unsigned count;
	uint64_t *pools;
	unsigned pools_count;
};

static int by_process(const void *a, const void *b)
{
	const struct lien_probe_open_file *const *x = a, *const *y = b;

	if ((*x)->pid != (*y)->pid)
		return (*x)->pid < (*y)->pid ? -1 : 1;
	return (*x > *y) - (*x < *y);
}

static unsigned list_pools(struct lien_graph *graph, uint64_t *shares)
{
	struct lien_process *process;
	struct lien_pool *pool;
	unsigned n = 0;

	LIEN_FOREACH_PROCESS (process, graph)
		RB_FOREACH (pool, lien_pool_tree, &process->pools) {
			if (shares)
				shares[n] = pool->share;
			n++;
		}
	return n;
}

static bool sees_open(const struct lien_viewer *viewer, struct lien_graph *graph,
	const struct lien_probe_open_file *file)
{
	const struct lien_share *share;

	if (file->pid)
		return lien_viewer_sees(viewer, lien_graph_process(graph, file->pid));
	share = lien_share_find(graph, file->share);
	return share && lien_viewer_sees_owner(viewer, share->allocation);
}

static bool open_exports_list(struct open_exports *open, const struct lien_view_source *source)
{
	struct lien_graph *graph = source->graph;
	const struct lien_view_files *files = &source->files;
	unsigned i;

	*open = (struct open_exports){.file = calloc(files->count + 1, sizeof(*open->file)),
		.pools = calloc(list_pools(graph, NULL) + 1, sizeof(*open->pools))};
	if (!open->file || !open->pools)
		return false;
	for (i = 0; i < files->count; i++)
		if (sees_open(source->viewer, graph, &files->file[i]))
			open->file[open->count++] = &files->file[i];
	qsort(open->file, open->count, sizeof(*open->file), by_process);
	open->pools_count = list_pools(graph, open->pools);
	qsort(open->pools, open->pools_count, sizeof(*open->pools), lien_u64_cmp);
	return true;
}

static bool share_known(const struct open_exports *open, struct lien_graph *graph, uint64_t number)
{
	const struct lien_share *share = lien_share_find(graph, number);

	if (share)
		return lien_allocation_held(share->allocation);
	return bsearch(&number, open->pools, open->pools_count, sizeof(number), lien_u64_cmp);
}

/* A descriptor holds memory like a handle; NCCL closes its own once it has handed them over. */
static void open_in_process(json_t *list, struct lien_graph *graph, const struct open_exports *open,
	unsigned first, unsigned end)
{
	uint32_t pid = open->file[first]->pid;
	struct lien_process *process = lien_graph_process(graph, pid);
	struct sum sum = {0};
	uint64_t alone = 0;
	unsigned i;

	for (i = first; i < end; i++) {
		sum_add(&sum, 0, json_pack("{s:i}", "fd", (int)open->file[i]->fd));
		alone += !share_known(open, graph, open->file[i]->share);
	}
	add(list, "export not closed", alone ? "leak" : "warning", pid,
		process ? process->command : "not a user of CUDA", &sum,
		"close() a shareable handle's descriptor once it has been sent or imported: "
		"it keeps the memory alive",
		" has %u exported descriptor%s open; the memory of %" PRIu64
		" of them is held by nothing else",
		end - first, plural(end - first), alone);
}

static void all_open_exports(json_t *list, const struct lien_view_source *source)
{
	struct open_exports open;
	unsigned first, end;

	if (open_exports_list(&open, source))
		for (first = 0; first < open.count; first = end) {
			for (end = first + 1; end < open.count; end++)
				if (open.file[end]->pid != open.file[first]->pid)
					break;
			if (open.file[first]->pid)
				open_in_process(list, source->graph, &open, first, end);
			else
				add(list, "export on its way", "note", 0, NULL,
					&(struct sum){.count = end - first},
					"memory stays where it is until they are received, "
					"imported and closed",
					"descriptors of %u export%s are on their way from one "
					"process to another, in a socket",
					end - first, plural(end - first));
		}
	free(open.file);
	free(open.pools);
}

static void not_known_whole(json_t *list, const struct lien_process *process)
{
	const struct sum one = {.count = 1};
	const char *reason =
		process->incomplete &
				~(LIEN_INCOMPLETE_NCCL | LIEN_INCOMPLETE_ADOPTED |
					LIEN_INCOMPLETE_MULTICAST | LIEN_INCOMPLETE_MULTICAST_OWN)
			? lien_plan_unreachable(process)
			: NULL;

	if (lien_process_whole(process))
		return;
	add(list, "incomplete", "note", process->pid, process->command, &one,
		"`lien check --deep` compares it with the driver; start the agent before the job",
		" is known only in part: %s",
		reason ? reason : "it may have made communicators before NCCL was watched");
}

static void check_process(json_t *list, const struct lien_view_source *source,
	struct lien_process *process, const struct lien_comm_entries *comms)
{
	struct lien_comm *comm;

	not_known_whole(list, process);
	held_for_the_dead(list, process);
	imports_unmapped(list, process);
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		registered_but_freed(list, process, &comm->registrations, comm);
		registered_again(list, process, &comm->registrations, comm);
		idle(list, source, process, comm, comms);
	}
	registered_but_freed(list, process, &process->cards, NULL);
	registered_again(list, process, &process->cards, NULL);
	without_vmm(list, process);
	legacy_ipc(list, process);
}

json_t *lien_findings(const struct lien_view_source *source)
{
	struct lien_comm_entries comms = {.viewer = source->viewer};
	struct lien_process *process;
	json_t *list = NULL;

	if (!lien_comms_gather(&comms, source->graph, NULL, 0))
		list = json_array();
	for (process = lien_graph_first(source->graph); list && process;
		process = lien_graph_next(process))
		if (process->cuda && lien_viewer_sees(source->viewer, process))
			check_process(list, source, process, &comms);
	lien_comms_free(&comms);
	if (!list)
		return NULL;
	all_open_exports(list, source);
	return json_pack("{s:o, s:b}", "findings", list, "open_files_known", source->files.known);
}
