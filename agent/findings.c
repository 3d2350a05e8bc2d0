// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <string.h>

#include "agent/findings.h"
#include "agent/views_internal.h"

#define EVIDENCE_MAX 8 /* addresses told of each finding; it says how many there are */

/* One sentence with what was found, and one with what can be done. Steals `evidence`. */
static json_t *finding(const char *kind, const char *level, uint32_t pid, uint64_t bytes,
	uint64_t count, json_t *text, const char *remedy, json_t *evidence)
{
	return json_pack("{s:s, s:s, s:I, s:I, s:I, s:o, s:s, s:o}", "kind", kind, "level", level,
		"pid", (json_int_t)pid, "bytes", (json_int_t)bytes, "count", (json_int_t)count,
		"text", text, "remedy", remedy, "evidence", evidence);
}

/* Something of a process that is looked for one by one and told in one finding. */
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

/* Tells of it, if there was anything. */
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

static double mib(uint64_t bytes)
{
	return bytes / 1048576.0;
}

/* The one mapping that stands for an allocation in a process. */
static bool first_in_process(const struct lien_mapping *mapping)
{
	const struct lien_mapping *other;

	LIST_FOREACH (other, &mapping->allocation->mappings, of_allocation)
		if (other->process == mapping->process)
			break;
	return other == mapping;
}

/* Told of each process that keeps it. */
static void held_for_the_dead(json_t *list, struct lien_process *process)
{
	struct lien_mapping *mapping;
	struct sum sum;

	sum_begin(&sum);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		const struct lien_allocation *allocation = mapping->allocation;

		if (!allocation->owner && allocation->owner_pid &&
			lien_allocation_on_device(allocation) && first_in_process(mapping))
			sum_add(&sum, allocation->bytes, mapping->va);
	}
	sum_end(&sum, list, "held by the dead", "leak", process,
		json_sprintf("process %u (%s) keeps %.1f MiB of %" PRIu64
			     " allocation%s whose owner has exited",
			process->pid, process->command, mib(sum.bytes), sum.count,
			plural(sum.count)),
		"nothing uses what an exited rank shared: end this process, or have it destroy the "
		"communicator");
}

static void imports_unmapped(json_t *list, struct lien_process *process)
{
	const struct lien_mapping *mapping;
	struct lien_handle *handle;
	struct sum sum;

	sum_begin(&sum);
	SPLAY_FOREACH (handle, lien_handle_tree, &process->handles) {
		if (!handle->imported || !handle->references)
			continue;
		LIST_FOREACH (mapping, &handle->allocation->mappings, of_allocation)
			if (mapping->process == process)
				break;
		if (!mapping)
			sum_add(&sum, handle->allocation->bytes, handle->value);
	}
	sum_end(&sum, list, "import not mapped", "warning", process,
		json_sprintf("process %u (%s) has imported %" PRIu64
			     " allocation%s (%.1f MiB) that it does not map",
			process->pid, process->command, sum.count, plural(sum.count),
			mib(sum.bytes)),
		"cuMemRelease of the imported handle: it keeps the owner's memory alive");
}

static void registered_but_freed(json_t *list, struct lien_process *process,
	const struct lien_registration_list *registrations, const struct lien_comm *comm)
{
	const struct lien_registration *registration;
	struct sum sum;

	if (!lien_process_whole(process))
		return; /* the memory may be there and not be known */
	sum_begin(&sum);
	LIST_FOREACH (registration, registrations, next)
		/* Any buffer of the host may be registered with a card. */
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

/* The first of those with the same range. */
static bool first_of_range(const struct lien_registration_list *registrations,
	const struct lien_registration *registration, uint64_t *times)
{
	const struct lien_registration *other, *first = NULL;

	*times = 0;
	LIST_FOREACH (other, registrations, next)
		if (other->va == registration->va && other->bytes == registration->bytes &&
			other->window == registration->window) {
			if (!first)
				first = other;
			++*times;
		}
	return first == registration;
}

static void registered_again(json_t *list, struct lien_process *process,
	const struct lien_registration_list *registrations, const struct lien_comm *comm)
{
	const struct lien_registration *registration;
	uint64_t times, most = 0;
	struct sum sum;

	sum_begin(&sum);
	LIST_FOREACH (registration, registrations, next) {
		if (!first_of_range(registrations, registration, &times) || times < 2)
			continue;
		sum_add(&sum, registration->bytes, registration->va);
		if (times > most)
			most = times;
	}
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

static uint64_t comm_bytes(const struct lien_process *process, const struct lien_comm *comm)
{
	const struct lien_allocation *allocation;
	uint64_t bytes = 0;

	LIST_FOREACH (allocation, &process->owned, of_owner)
		if (allocation->comm == comm->number && lien_allocation_on_device(allocation) &&
			!lien_allocation_offloaded(allocation))
			bytes += allocation->bytes;
	return bytes;
}

static void idle(json_t *list, const struct lien_findings_input *input,
	struct lien_process *process, struct lien_comm *comm)
{
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
	bytes = comm_bytes(process, comm);
	evidence = json_pack("[{s:o, s:o, s:i, s:f}]", "address", lien_view_hex(comm->address),
		"group", lien_view_group(comm), "rank", comm->rank, "idle_ms",
		(input->now_ns - last) / 1e6);
	json_array_append_new(list,
		finding("idle communicator", bytes && !process->captured ? "warning" : "note",
			process->pid, bytes, 1,
			json_sprintf("process %u (%s): nothing was asked of its communicator of %d "
				     "ranks for %.0f minutes%s; it holds %.1f MiB",
				process->pid, process->command, comm->nranks,
				(input->now_ns - last) / 60e9,
				process->captured ? " (but replays of CUDA graphs are not seen)"
						  : "",
				mib(bytes)),
			"`lien offload` moves its memory to the host until it is needed; "
			"ncclCommDestroy frees it",
			evidence));
}

/* What NCCL makes by address, it makes with cudaMalloc. */
static void without_vmm(json_t *list, struct lien_process *process)
{
	struct lien_mapping *mapping;
	struct sum sum;

	sum_begin(&sum);
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		const struct lien_allocation *allocation = mapping->allocation;

		if (!mapping->imported && allocation->origin == LIEN_ORIGIN_ALLOC &&
			!strcmp(lien_allocation_library(allocation), "nccl"))
			sum_add(&sum, allocation->bytes, mapping->va);
	}
	sum_end(&sum, list, "NCCL without cuMem", "note", process,
		json_sprintf("process %u (%s): NCCL made %" PRIu64
			     " buffer%s (%.1f MiB) with cudaMalloc, which cannot be offloaded",
			process->pid, process->command, sum.count, plural(sum.count),
			mib(sum.bytes)),
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
		if (!mapping->imported && by_ipc(mapping->allocation))
			sum_add(&sum, mapping->bytes, mapping->va);
	sum_end(&sum, list, "legacy IPC", "note", process,
		json_sprintf("process %u (%s) shares %" PRIu64
			     " allocation%s (%.1f MiB) by legacy IPC, which cannot be offloaded",
			process->pid, process->command, sum.count, plural(sum.count),
			mib(sum.bytes)),
		"share memory of cuMemCreate by file descriptor instead (PyTorch: "
		"expandable_segments:True; NCCL: NCCL_CUMEM_ENABLE=1)");
}

static bool share_known(struct lien_graph *graph, uint64_t number)
{
	struct lien_process *process;
	const struct lien_share *share = lien_share_find(graph, number);
	const struct lien_pool *pool;

	if (share)
		return lien_allocation_held(share->allocation);
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		LIST_FOREACH (pool, &process->pools, next)
			if (pool->share == number)
				return true;
	return false;
}

/* A descriptor holds memory like a handle; NCCL closes its own once they are handed over. */
static void open_exports(
	json_t *list, struct lien_graph *graph, const struct lien_view_files *files, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(graph, pid);
	uint64_t open = 0, alone = 0;
	json_t *evidence = json_array();
	unsigned i;

	for (i = 0; i < files->count; i++) {
		if (files->file[i].pid != pid)
			continue;
		if (open++ < EVIDENCE_MAX)
			json_array_append_new(
				evidence, json_pack("{s:i}", "fd", (int)files->file[i].fd));
		alone += !share_known(graph, files->file[i].share);
	}
	json_array_append_new(
		list, finding("export not closed", alone ? "leak" : "warning", pid, 0, open,
			      json_sprintf("process %u (%s) has %" PRIu64
					   " exported descriptor%s open; the memory of %" PRIu64
					   " of them is held by nothing else",
				      pid, process ? process->command : "not a user of CUDA", open,
				      plural(open), alone),
			      "close() a shareable handle's descriptor once it has been sent or "
			      "imported: "
			      "it keeps the memory alive",
			      evidence));
}

static void all_open_exports(
	json_t *list, struct lien_graph *graph, const struct lien_findings_input *input)
{
	const struct lien_view_files *files = &input->files;
	unsigned i, j;

	for (i = 0; i < files->count; i++) {
		for (j = 0; j < i; j++)
			if (files->file[j].pid == files->file[i].pid)
				break;
		if (i == j &&
			lien_sees(input->viewer, lien_graph_process(graph, files->file[i].pid)))
			open_exports(list, graph, files, files->file[i].pid);
	}
}

static void not_known_whole(json_t *list, const struct lien_process *process)
{
	const char *reason =
		process->incomplete & ~(LIEN_INCOMPLETE_NCCL | LIEN_INCOMPLETE_ADOPTED |
					      LIEN_INCOMPLETE_MULTICAST)
			? lien_plan_unreachable(process)
			: NULL;

	if (lien_process_whole(process))
		return;
	json_array_append_new(list,
		finding("incomplete", "note", process->pid, 0, 1,
			json_sprintf("process %u (%s) is not known whole: %s", process->pid,
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
	struct lien_comm *comm;

	not_known_whole(list, process);
	held_for_the_dead(list, process);
	imports_unmapped(list, process);
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		registered_but_freed(list, process, &comm->registrations, comm);
		registered_again(list, process, &comm->registrations, comm);
		idle(list, input, process, comm);
	}
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
		if (process->cuda && lien_sees(input->viewer, process))
			check_process(list, input, process);
	all_open_exports(list, graph, input);
	return json_pack("{s:o, s:b}", "findings", list, "open_files_known", input->files.known);
}
