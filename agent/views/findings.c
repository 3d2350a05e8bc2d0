// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/bytes.h"
#include "agent/views/internal.h"

#define EVIDENCE_MAX 8 /* addresses shown per finding, next to their number */

/*
 * Makes a finding: one sentence on what was found, and one on what can be done. Steals `evidence`.
 */
static json_t *finding(const char *kind, const char *level, uint32_t pid, uint64_t bytes,
	uint64_t count, json_t *text, const char *remedy, json_t *evidence)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:s, s:o}", "kind", kind, "level", level,
		"pid", (json_int_t)pid, "bytes", (json_int_t)bytes, "count", (json_int_t)count,
		"text", text, "remedy", remedy, "evidence", evidence);
}

/* Sums up the cases of one process into one finding. */
struct sum {
	uint64_t bytes, count;
	json_t *evidence;
};

static void sum_begin(struct sum *sum)
{
	*sum = (struct sum){.evidence = json_array()};
}

static void sum_add(struct sum *sum, uint64_t bytes, uint64_t address)
{
	sum->bytes += bytes;
	if (sum->count++ < EVIDENCE_MAX)
		json_array_append_new(
			sum->evidence, json_pack("{s:o, s:I}", "address", lien_view_hex(address),
					       "bytes", (json_int_t)bytes));
}

/* Adds the finding if there was any case. */
static void sum_end(struct sum *sum, json_t *list, const char *kind, const char *level,
	const struct lien_process *process, json_t *text, const char *remedy)
{
	if (sum->count)
		json_array_append_new(list, finding(kind, level, process->pid, sum->bytes,
						    sum->count, text, remedy, sum->evidence));
	else {
		json_decref(sum->evidence);
		json_decref(text);
	}
}

static const char *plural(uint64_t count)
{
	return count == 1 ? "" : "s";
}

/* Is this the mapping that stands for an allocation in a process? */
static bool first_in_process(const struct lien_mapping *mapping)
{
	return mapping == LIST_FIRST(&mapping->holding->mappings);
}

/* Reported once for each process that keeps such memory. */
static void held_for_the_dead(json_t *list, struct lien_process *process)
{
	struct lien_mapping *mapping;
	struct sum sum;

	sum_begin(&sum);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		const struct lien_allocation *allocation = mapping->holding->allocation;

		if (!allocation->owner && allocation->owner_pid &&
			lien_allocation_on_device(allocation) && first_in_process(mapping))
			sum_add(&sum, allocation->bytes, mapping->va);
	}
	sum_end(&sum, list, "held by the dead", "leak", process,
		json_sprintf("process %u (%s) keeps %s of %" PRIu64
			     " allocation%s whose owner has exited",
			process->pid, process->command, lien_bytes(sum.bytes).text, sum.count,
			plural(sum.count)),
		"nothing uses what an exited rank shared: end this process, or have it destroy the "
		"communicator");
}

static void imports_unmapped(json_t *list, struct lien_process *process)
{
	struct lien_handle *handle;
	struct sum sum;

	sum_begin(&sum);
	SPLAY_FOREACH (handle, lien_handle_tree, &process->handles)
		if (handle->imported && handle->references && !handle->holding->mapped)
			sum_add(&sum, handle->holding->allocation->bytes, handle->value);
	sum_end(&sum, list, "import not mapped", "warning", process,
		json_sprintf("process %u (%s) has imported %" PRIu64
			     " allocation%s (%s) that it does not map",
			process->pid, process->command, sum.count, plural(sum.count),
			lien_bytes(sum.bytes).text),
		"cuMemRelease of the imported handle: it keeps the owner's memory alive");
}

static void registered_but_freed(json_t *list, struct lien_process *process,
	struct lien_registration_tree *registrations, const struct lien_comm *comm)
{
	struct lien_registration *registration;
	struct sum sum;

	if (!lien_process_whole(process))
		return; /* the memory may exist without being known */
	sum_begin(&sum);
	RB_FOREACH (registration, lien_registration_tree, registrations)
		/* Any host buffer may be registered with a card. */
		if ((comm || registration->of_gpu) &&
			!lien_registration_lies(process, registration))
			sum_add(&sum, registration->bytes, registration->va);
	sum_end(&sum, list, "registered but freed", "leak", process,
		json_sprintf("process %u (%s) has %" PRIu64
			     " buffer%s registered with %s that %s been freed",
			process->pid, process->command, sum.count, plural(sum.count),
			comm ? "a communicator" : "a network card",
			sum.count == 1 ? "has" : "have"),
		comm ? "ncclCommDeregister (or ncclCommWindowDeregister) before the buffer is freed"
		     : "ibv_dereg_mr before the buffer is freed: the card keeps its pages");
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
	struct sum sum;

	sum_begin(&sum);
	for (first = 0; first < count; first = end) {
		for (end = first + 1; end < count; end++)
			if (by_range(&sorted[first], &sorted[end]))
				break;
		if (end - first < 2)
			continue;
		sum_add(&sum, sorted[first]->bytes, sorted[first]->va);
		if (end - first > most)
			most = end - first;
	}
	free(sorted);
	sum_end(&sum, list, "registered again", most > 2 ? "leak" : "warning", process,
		json_sprintf("process %u (%s) has registered %" PRIu64
			     " buffer%s more than once with %s (up to %" PRIu64 " times)",
			process->pid, process->command, sum.count, plural(sum.count),
			comm ? "a communicator" : "a network card", most),
		most > 2 ? "keep the handle of the first registration: it looks as if each use "
			   "registers the buffer and throws the handle away"
			 : "register a buffer once, and deregister it as often as it was "
			   "registered");
}

/* The memory of a process's communicators on its devices. */
struct comm_bytes {
	uint32_t number;
	uint64_t bytes;
};

struct comms_bytes {
	struct comm_bytes *comm; /* sorted by number */
	unsigned count;
};

static int by_number(const void *a, const void *b)
{
	const struct comm_bytes *x = a, *y = b;

	return (x->number > y->number) - (x->number < y->number);
}

static struct comm_bytes *bytes_of(const struct comms_bytes *comms, uint32_t number)
{
	const struct comm_bytes key = {.number = number};

	return comms->count ? bsearch(&key, comms->comm, comms->count, sizeof(key), by_number)
			    : NULL;
}

static struct comms_bytes sum_comms(struct lien_process *process)
{
	const struct lien_allocation *allocation;
	struct comms_bytes comms = {NULL, 0};
	struct comm_bytes *found;
	struct lien_comm *comm;
	unsigned n = 0;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		n++;
	comms.comm = n ? calloc(n, sizeof(*comms.comm)) : NULL;
	if (!comms.comm)
		return comms;
	RB_FOREACH (comm, lien_comm_number_tree, &process->comm_numbers)
		comms.comm[comms.count++].number = comm->number;
	LIST_FOREACH (allocation, &process->owned, of_owner) {
		found = allocation->comm ? bytes_of(&comms, allocation->comm) : NULL;
		if (found && lien_allocation_on_device(allocation) &&
			!lien_allocation_offloaded(allocation))
			found->bytes += allocation->bytes;
	}
	return comms;
}

static void idle(json_t *list, const struct lien_findings_input *input,
	struct lien_process *process, struct lien_comm *comm, const struct comms_bytes *comms)
{
	const struct comm_bytes *held = bytes_of(comms, comm->number);
	struct lien_probe_traffic traffic = {0};
	uint64_t last = comm->t_init, bytes;
	json_t *evidence;

	if (!comm->made_by || !input->traffic)
		return;
	if (input->traffic(input->context, process->pid, comm->address, &traffic) &&
		traffic.t_last > last)
		last = traffic.t_last;
	if (input->now_ns < last || input->now_ns - last < input->idle_ns)
		return;
	bytes = held ? held->bytes : 0;
	evidence = json_pack("[{s:o, s:o, s:i, s:f}]", "address", lien_view_hex(comm->address),
		"group", lien_view_group(comm), "rank", comm->rank, "idle_ms",
		(input->now_ns - last) / 1e6);
	json_array_append_new(list,
		finding("idle communicator", bytes && !process->captured ? "warning" : "note",
			process->pid, bytes, 1,
			json_sprintf("process %u (%s): nothing was asked of its communicator of %d "
				     "ranks for %.0f minutes%s; it holds %s",
				process->pid, process->command, comm->nranks,
				(input->now_ns - last) / 60e9,
				process->captured ? " (but replays of CUDA graphs are not seen)"
						  : "",
				lien_bytes(bytes).text),
			"`lien offload` moves its memory to the host until it is needed; "
			"ncclCommDestroy frees it",
			evidence));
}

/* NCCL uses cudaMalloc for what it allocates by address. */
static void without_vmm(json_t *list, struct lien_process *process)
{
	struct lien_mapping *mapping;
	struct sum sum;

	sum_begin(&sum);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		const struct lien_allocation *allocation = mapping->holding->allocation;

		if (!mapping->imported && allocation->origin == LIEN_ORIGIN_ALLOC &&
			!strcmp(lien_allocation_library(allocation), "nccl"))
			sum_add(&sum, allocation->bytes, mapping->va);
	}
	sum_end(&sum, list, "NCCL without cuMem", "note", process,
		json_sprintf("process %u (%s): NCCL made %" PRIu64
			     " buffer%s (%s) with cudaMalloc, which cannot be offloaded",
			process->pid, process->command, sum.count, plural(sum.count),
			lien_bytes(sum.bytes).text),
		"run the job with NCCL_CUMEM_ENABLE=1 (the default from NCCL 2.19 on, where the "
		"driver can): memory of the driver's VMM calls can be put back at its address");
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
	struct sum sum;

	sum_begin(&sum);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (!mapping->imported &&
			lien_allocation_by_address(mapping->holding->allocation) &&
			by_ipc(mapping->holding->allocation))
			sum_add(&sum, mapping->bytes, mapping->va);
	sum_end(&sum, list, "legacy IPC", "note", process,
		json_sprintf("process %u (%s) shares %" PRIu64
			     " allocation%s (%s) by legacy IPC, which cannot be offloaded",
			process->pid, process->command, sum.count, plural(sum.count),
			lien_bytes(sum.bytes).text),
		"share memory of cuMemCreate by file descriptor instead (PyTorch: "
		"expandable_segments:True; NCCL: NCCL_CUMEM_ENABLE=1)");
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

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static unsigned list_pools(struct lien_graph *graph, uint64_t *shares)
{
	struct lien_process *process;
	struct lien_pool *pool;
	unsigned n = 0;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
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

static bool open_exports_list(struct open_exports *open, struct lien_graph *graph,
	const struct lien_findings_input *input)
{
	const struct lien_view_files *files = &input->files;
	unsigned i;

	*open = (struct open_exports){.file = calloc(files->count + 1, sizeof(*open->file)),
		.pools = calloc(list_pools(graph, NULL) + 1, sizeof(*open->pools))};
	if (!open->file || !open->pools)
		return false;
	for (i = 0; i < files->count; i++)
		if (sees_open(input->viewer, graph, &files->file[i]))
			open->file[open->count++] = &files->file[i];
	qsort(open->file, open->count, sizeof(*open->file), by_process);
	open->pools_count = list_pools(graph, open->pools);
	qsort(open->pools, open->pools_count, sizeof(*open->pools), by_value);
	return true;
}

static bool share_known(const struct open_exports *open, struct lien_graph *graph, uint64_t number)
{
	const struct lien_share *share = lien_share_find(graph, number);

	if (share)
		return lien_allocation_held(share->allocation);
	return bsearch(&number, open->pools, open->pools_count, sizeof(number), by_value);
}

static void on_their_way(json_t *list, unsigned count)
{
	json_array_append_new(list,
		finding("export on its way", "note", 0, 0, count,
			json_sprintf("descriptors of %u export%s are on their way from one process "
				     "to another, in a socket",
				count, plural(count)),
			"memory stays where it is until they are received, imported and closed",
			json_array()));
}

/* A descriptor holds memory like a handle; NCCL closes its own once it has handed them over. */
static void open_in_process(json_t *list, struct lien_graph *graph, const struct open_exports *open,
	unsigned first, unsigned end)
{
	uint32_t pid = open->file[first]->pid;
	struct lien_process *process = lien_graph_process(graph, pid);
	json_t *evidence = json_array();
	uint64_t alone = 0;
	unsigned i;

	for (i = first; i < end; i++) {
		if (i - first < EVIDENCE_MAX)
			json_array_append_new(
				evidence, json_pack("{s:i}", "fd", (int)open->file[i]->fd));
		alone += !share_known(open, graph, open->file[i]->share);
	}
	json_array_append_new(list,
		finding("export not closed", alone ? "leak" : "warning", pid, 0, end - first,
			json_sprintf("process %u (%s) has %u exported descriptor%s open; "
				     "the memory of %" PRIu64 " of them is held by nothing else",
				pid, process ? process->command : "not a user of CUDA", end - first,
				plural(end - first), alone),
			"close() a shareable handle's descriptor once it has been sent or "
			"imported: "
			"it keeps the memory alive",
			evidence));
}

static void all_open_exports(
	json_t *list, struct lien_graph *graph, const struct lien_findings_input *input)
{
	struct open_exports open;
	unsigned first, end;

	if (open_exports_list(&open, graph, input))
		for (first = 0; first < open.count; first = end) {
			for (end = first + 1; end < open.count; end++)
				if (open.file[end]->pid != open.file[first]->pid)
					break;
			if (open.file[first]->pid)
				open_in_process(list, graph, &open, first, end);
			else
				on_their_way(list, end - first);
		}
	free(open.file);
	free(open.pools);
}

static void not_known_whole(json_t *list, const struct lien_process *process)
{
	const char *reason =
		process->incomplete &
				~(LIEN_INCOMPLETE_NCCL | LIEN_INCOMPLETE_ADOPTED |
					LIEN_INCOMPLETE_MULTICAST | LIEN_INCOMPLETE_MULTICAST_OWN)
			? lien_plan_unreachable(process)
			: NULL;

	if (lien_process_whole(process))
		return;
	json_array_append_new(list,
		finding("incomplete", "note", process->pid, 0, 1,
			json_sprintf("process %u (%s) is known only in part: %s", process->pid,
				process->command,
				reason ? reason
				       : "it may have made communicators before NCCL was watched"),
			"`lien check --deep` compares it with the driver; start the agent before "
			"the job",
			json_array()));
}

static void check_process(
	json_t *list, const struct lien_findings_input *input, struct lien_process *process)
{
	struct comms_bytes comms = sum_comms(process);
	struct lien_comm *comm;

	not_known_whole(list, process);
	held_for_the_dead(list, process);
	imports_unmapped(list, process);
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		registered_but_freed(list, process, &comm->registrations, comm);
		registered_again(list, process, &comm->registrations, comm);
		idle(list, input, process, comm, &comms);
	}
	free(comms.comm);
	registered_but_freed(list, process, &process->cards, NULL);
	registered_again(list, process, &process->cards, NULL);
	without_vmm(list, process);
	legacy_ipc(list, process);
}

json_t *lien_findings(struct lien_graph *graph, const struct lien_findings_input *input)
{
	struct lien_process *process;
	json_t *list = json_array();

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (process->cuda && lien_viewer_sees(input->viewer, process))
			check_process(list, input, process);
	all_open_exports(list, graph, input);
	return json_pack("{s:o, s:b}", "findings", list, "open_files_known", input->files.known);
}
