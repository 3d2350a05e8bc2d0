// SPDX-License-Identifier: BSD-2-Clause
/* Communicators: what each holds, what it was used for, which rank is behind; and those that NCCL's
 * RAS names, which are not among the known ones. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "agent/graph/event_check.h"
#include "agent/ras/ras.h"
#include "agent/views/internal.h"

static const char *call_name(unsigned call)
{
	const char *name = lien_call_name(call);

	return name ? name : "unknown";
}

/* --- gathering -------------------------------------------------------------------------------- */

static int entry_by_comm(const void *a, const void *b)
{
	const struct lien_comm_entry *x = a, *y = b;

	return (x->comm > y->comm) - (x->comm < y->comm);
}

static int entry_by_group(const void *a, const void *b)
{
	const struct lien_comm_entry *x = a, *y = b;
	int order = memcmp(x->comm->id, y->comm->id, sizeof(x->comm->id));

	if (order)
		return order;
	if (x->comm->rank != y->comm->rank)
		return x->comm->rank < y->comm->rank ? -1 : 1;
	if (x->process->pid != y->process->pid)
		return x->process->pid < y->process->pid ? -1 : 1;
	return (x->comm->address > y->comm->address) - (x->comm->address < y->comm->address);
}

static size_t comms_of(struct lien_graph *graph)
{
	struct lien_process *process;
	struct lien_comm *comm;
	size_t count = 0;

	LIEN_FOREACH_PROCESS (process, graph)
		RB_FOREACH (comm, lien_comm_tree, &process->comms)
			count++;
	return count;
}

static void add_seen(struct lien_comm_entries *entries, struct lien_graph *graph,
	const struct lien_counted *counted, size_t count)
{
	const struct lien_counted *found;
	struct lien_process *process;
	struct lien_comm *comm;

	LIEN_FOREACH_PROCESS (process, graph) {
		if (!lien_viewer_sees(entries->viewer, process))
			continue;
		RB_FOREACH (comm, lien_comm_tree, &process->comms) {
			struct lien_counted key = {
				.comm = {.pid = process->pid, .comm = comm->address}};

			found = count ? bsearch(&key, counted, count, sizeof(key), lien_counted_cmp)
				      : NULL;
			entries->entry[entries->count++] =
				(struct lien_comm_entry){.process = process,
					.comm = comm,
					.traffic = found ? &found->traffic : NULL};
		}
	}
}

static void add_unseen(struct lien_comm_entries *entries, struct lien_graph *graph,
	const struct lien_counted *counted, size_t count)
{
	struct lien_process *process;
	struct lien_comm *comm;
	size_t i;

	for (i = 0; i < count; i++) {
		struct lien_comm key = {.address = counted[i].comm.comm};

		process = lien_graph_process(graph, counted[i].comm.pid);
		if (!process || !lien_viewer_sees(entries->viewer, process) ||
			RB_FIND(lien_comm_tree, &process->comms, &key))
			continue;
		comm = &entries->unseen[entries->unseen_count++];
		comm->address = counted[i].comm.comm;
		comm->rank = comm->nranks = comm->device = -1;
		entries->entry[entries->count++] = (struct lien_comm_entry){
			.process = process, .comm = comm, .traffic = &counted[i].traffic};
	}
}

static void sum_allocation(struct lien_comm_entry *entry, const struct lien_allocation *allocation)
{
	bool inferred = allocation->comm_inferred;

	if (lien_allocation_offloaded(allocation))
		entry->offloaded += allocation->bytes;
	else if (lien_allocation_on_device(allocation))
		*(inferred ? &entry->inferred : &entry->exact) += allocation->bytes;
	else
		*(inferred ? &entry->host_inferred : &entry->host) += allocation->bytes;
}

struct lien_comm_entry *lien_comm_entry(
	const struct lien_comm_entries *entries, const struct lien_comm *comm)
{
	const struct lien_comm_entry key = {.comm = comm};

	return bsearch(&key, entries->entry, entries->count, sizeof(key), entry_by_comm);
}

static void sum_memory(struct lien_comm_entries *entries, struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	struct lien_comm_entry *entry;
	const struct lien_comm *comm;

	qsort(entries->entry, entries->count, sizeof(*entry), entry_by_comm);
	LIEN_FOREACH_ALLOCATION (allocation, graph) {
		comm = lien_allocation_comm(allocation);
		entry = comm && lien_allocation_held(allocation) ? lien_comm_entry(entries, comm)
								 : NULL;
		if (entry)
			sum_allocation(entry, allocation);
	}
}

int lien_comms_gather(struct lien_comm_entries *entries, struct lien_graph *graph,
	struct lien_counted *counted, size_t count)
{
	size_t room = comms_of(graph) + count;

	if (count)
		qsort(counted, count, sizeof(*counted), lien_counted_cmp);
	entries->entry = calloc(room + 1, sizeof(*entries->entry));
	entries->unseen = calloc(count + 1, sizeof(*entries->unseen));
	if (!entries->entry || !entries->unseen)
		return -1;
	add_seen(entries, graph, counted, count);
	add_unseen(entries, graph, counted, count);
	sum_memory(entries, graph);
	return 0;
}

/* --- one communicator ------------------------------------------------------------------------- */

static json_t *known(int32_t value)
{
	return value >= 0 ? json_integer(value) : json_null();
}

static json_t *view_registered(const struct lien_comm *comm)
{
	struct lien_registration_tree *list = (struct lien_registration_tree *)&comm->registrations;
	struct lien_registration *registration;
	uint64_t bytes = 0;
	int count = 0, windows = 0;

	RB_FOREACH (registration, lien_registration_tree, list) {
		count++;
		windows += registration->window;
		bytes += registration->bytes;
	}
	return json_pack(
		"{s:i, s:i, s:I}", "count", count, "windows", windows, "bytes", (json_int_t)bytes);
}

static void add_traffic(
	json_t *to, const struct lien_comm_entries *entries, const struct lien_comm_entry *entry)
{
	static const struct lien_probe_traffic none;
	const struct lien_probe_traffic *traffic = entry->traffic ? entry->traffic : &none;
	json_t *calls = json_object();
	uint64_t total = 0;
	unsigned i;

	for (i = 0; i < LIEN_TRAFFIC_KINDS; i++) {
		total += traffic->calls[i];
		if (traffic->calls[i])
			json_object_set_new(calls, call_name(LIEN_TRAFFIC_FIRST + i),
				json_integer(traffic->calls[i]));
	}
	json_object_set_new(to, "calls", calls);
	json_object_set_new(to, "calls_total", json_integer(total));
	json_object_set_new(to, "moved_bytes", json_integer(traffic->bytes));
	json_object_set_new(to, "last_ms",
		traffic->t_last ? json_real(entries->now_ns > traffic->t_last
						    ? (entries->now_ns - traffic->t_last) / 1e6
						    : 0)
				: json_null());
}

static json_t *view_comm(
	const struct lien_comm_entries *entries, const struct lien_comm_entry *entry)
{
	static const char *const counts[] = {"calls", "calls_total", "moved_bytes", "last_ms"};
	const struct lien_comm *comm = entry->comm;
	json_t *view;
	unsigned i;

	view = json_pack("{s:o, s:o, s:s?, s:I, s:s, s:o, s:o, s:o, s:o, s:s, s:b, s:I, s:I, s:I, "
			 "s:I, s:I, s:o}",
		"group", lien_view_group(comm), "hash",
		comm->hash ? lien_view_hex(comm->hash) : json_null(), "by",
		lien_comm_is_found(comm) ? "NCCL RAS" : NULL, "pid",
		(json_int_t)entry->process->pid, "command", entry->process->command, "address",
		lien_view_hex(comm->address), "rank", known(comm->rank), "nranks",
		known(comm->nranks), "device", known(comm->device), "state",
		comm->finalized ? "finalized" : "active", "complete", comm->made_by != 0, "bytes",
		(json_int_t)entry->exact, "inferred_bytes", (json_int_t)entry->inferred,
		"host_bytes", (json_int_t)entry->host, "inferred_host_bytes",
		(json_int_t)entry->host_inferred, "offloaded_bytes", (json_int_t)entry->offloaded,
		"registrations", view_registered(comm));
	if (entries->counted)
		add_traffic(view, entries, entry);
	else
		for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
			json_object_set_new(view, counts[i], json_null());
	return view;
}

/* --- one group: the entries from first to end ------------------------------------------------- */

/*
 * ncclUniqueId: NCCL's magic, then the address at which the first rank listens during the group's
 * setup.
 */
static json_t *view_address(const struct lien_comm *comm)
{
	char text[INET6_ADDRSTRLEN];
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} address;

	memcpy(&address, comm->id + sizeof(uint64_t), sizeof(address));
	switch (address.any.sa_family) {
	case AF_INET:
		inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof(text));
		return json_sprintf("%s:%u", text, ntohs(address.v4.sin_port));
	case AF_INET6:
		inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof(text));
		return json_sprintf("[%s]:%u", text, ntohs(address.v6.sin6_port));
	}
	return json_null();
}

static json_t *view_id(const struct lien_comm *comm)
{
	uint64_t magic;

	switch (comm->made_by) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
		memcpy(&magic, comm->id, sizeof(magic));
		return json_pack(
			"{s:o, s:o}", "magic", lien_view_hex(magic), "address", view_address(comm));
	}
	return json_null(); /* made up: NCCL shows none for these */
}

static json_t *view_parent(const struct lien_comm_entry *entry)
{
	struct lien_comm key = {.number = entry->comm->parent};
	const struct lien_comm *comm = NULL;

	if (key.number)
		comm = RB_FIND(lien_comm_number_tree, &entry->process->comm_numbers, &key);
	return comm ? lien_view_group(comm) : json_null();
}

static uint64_t calls_of(const struct lien_comm_entry *entry, unsigned kind)
{
	return entry->traffic ? entry->traffic->calls[kind] : 0;
}

static void add_behind(json_t *list, const struct lien_comm_entry *first,
	const struct lien_comm_entry *end, unsigned kind)
{
	const struct lien_comm_entry *entry;
	uint64_t furthest = 0;

	for (entry = first; entry < end; entry++)
		if (calls_of(entry, kind) > furthest)
			furthest = calls_of(entry, kind);
	for (entry = first; entry < end; entry++)
		if (calls_of(entry, kind) < furthest)
			lien_view_add(list, "{s:I, s:o, s:o, s:s, s:I}", "pid",
				(json_int_t)entry->process->pid, "address",
				lien_view_hex(entry->comm->address), "rank",
				known(entry->comm->rank), "call",
				call_name(LIEN_TRAFFIC_FIRST + kind), "calls",
				(json_int_t)(furthest - calls_of(entry, kind)));
}

static json_t *view_group(const struct lien_comm_entries *entries,
	const struct lien_comm_entry *first, const struct lien_comm_entry *end)
{
	uint64_t sends = 0, receives = 0;
	const struct lien_comm_entry *entry;
	json_t *behind = json_array();
	bool comparable = !lien_comm_unnamed(first->comm);
	int32_t nranks = -1;
	unsigned kind;

	/*
	 * The counts of a communicator that was in use before it was watched begin at a later call.
	 */
	for (entry = first; entry < end; entry++)
		comparable &= entry->comm->made_by != 0;
	for (kind = 0; kind < LIEN_TRAFFIC_KINDS; kind++)
		if (!LIEN_CALL_IS_TRANSFER(LIEN_TRAFFIC_FIRST + kind) && comparable)
			add_behind(behind, first, end, kind);
	for (entry = first; entry < end; entry++) {
		if (entry->comm->nranks > nranks)
			nranks = entry->comm->nranks;
		sends += calls_of(entry, LIEN_CALL_NCCL_SEND - LIEN_TRAFFIC_FIRST);
		receives += calls_of(entry, LIEN_CALL_NCCL_RECV - LIEN_TRAFFIC_FIRST);
	}
	return json_pack("{s:o, s:s?, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "group",
		lien_view_group(first->comm), "by",
		lien_comm_is_found(first->comm) ? "NCCL RAS" : NULL, "nranks", known(nranks),
		"here", (json_int_t)(end - first), "made_by",
		first->comm->made_by ? json_string(call_name(first->comm->made_by)) : json_null(),
		"id", view_id(first->comm), "parent", view_parent(first), "behind",
		entries->counted ? behind : (json_decref(behind), json_null()), "sends",
		entries->counted ? json_integer(sends) : json_null(), "receives",
		entries->counted ? json_integer(receives) : json_null());
}

/* --- processes that ran before they were watched -----------------------------------------------
 */

static bool has_nccl(const struct lien_process *process)
{
	struct lien_process *mutable = (struct lien_process *)process;
	struct lien_library_map *map;

	RB_FOREACH (map, lien_library_tree, &mutable->libraries)
		if (!strncmp(map->file->text, "libnccl", strlen("libnccl")))
			return true;
	return false;
}

bool lien_comms_may_lack(const struct lien_process *process)
{
	struct lien_process *mutable = (struct lien_process *)process;
	struct lien_comm *comm;

	if (!process->cuda)
		return false;
	RB_FOREACH (comm, lien_comm_tree, &mutable->comms)
		if (!comm->made_by)
			return true;
	return process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_NCCL) &&
	       has_nccl(process);
}

static json_t *view_unmatched(const struct lien_ras_report *report)
{
	json_t *list = json_array();
	unsigned i;

	for (i = 0; report && i < report->rows; i++) {
		const struct lien_ras_row *row = &report->row[i];

		if (!row->address)
			lien_view_add(list, "{s:o, s:o, s:o, s:o, s:o}", "group",
				json_sprintf("%016" PRIx64, row->hash), "hash",
				lien_view_hex(row->hash), "rank", known(row->rank), "nranks",
				known(row->nranks), "device", known(row->device));
	}
	return list;
}

/* Has the process used a communicator, since it was watched, that has no known group? */
static bool has_unnamed(struct lien_process *process)
{
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (lien_comm_unnamed(comm))
			return true;
	return false;
}

static json_t *view_late_process(struct lien_process *process, uint64_t now_ns)
{
	const struct lien_ras_report *report = process->ras;
	const char *state = !report ? "not asked" : report->problem[0] ? "silent" : "answered";
	json_t *unmatched = view_unmatched(report);
	size_t lacking = json_array_size(unmatched);
	bool names = report && (report->rows || !report->problem[0]);

	return json_pack("{s:I, s:s, s:s, s:s?, s:s?, s:o, s:o, s:o, s:o, s:o, s:b}", "pid",
		(json_int_t)process->pid, "command", process->command, "ras", state, "problem",
		report && report->problem[0] ? report->problem : NULL, "version",
		report && report->version[0] ? report->version : NULL, "age_ms",
		report ? json_real(now_ns > report->t_asked ? (now_ns - report->t_asked) / 1e6 : 0)
		       : json_null(),
		"job", names ? json_integer(report->job) : json_null(), "named",
		names ? json_integer(report->rows) : json_null(), "matched",
		names ? json_integer(report->rows - lacking) : json_null(), "unmatched", unmatched,
		"others", !report || !report->whole || (has_unnamed(process) && !lacking));
}

static json_t *view_late(
	struct lien_graph *graph, const struct lien_viewer *viewer, uint64_t now_ns)
{
	struct lien_process *process;
	json_t *list = json_array();

	LIEN_FOREACH_PROCESS (process, graph)
		if (lien_viewer_sees(viewer, process) && lien_comms_may_lack(process))
			json_array_append_new(list, view_late_process(process, now_ns));
	return list;
}

json_t *lien_view_comms(struct lien_graph *graph, const struct lien_viewer *viewer,
	struct lien_counted *counted, size_t count, bool pending, uint64_t now_ns)
{
	struct lien_comm_entries entries = {.viewer = viewer, .counted = counted, .now_ns = now_ns};
	const struct lien_comm_entry *entry, *end, *last;
	json_t *groups, *comms, *view = NULL;

	if (lien_comms_gather(&entries, graph, counted, counted ? count : 0))
		goto out;
	qsort(entries.entry, entries.count, sizeof(*entries.entry), entry_by_group);
	groups = json_array();
	comms = json_array();
	last = entries.entry + entries.count;
	for (entry = entries.entry; entry < last; entry = end) {
		for (end = entry + 1; end < last && !memcmp(entry->comm->id, end->comm->id,
							    sizeof(end->comm->id));
			end++)
			;
		json_array_append_new(groups, view_group(&entries, entry, end));
	}
	for (entry = entries.entry; entry < last; entry++)
		json_array_append_new(comms, view_comm(&entries, entry));
	view = json_pack("{s:o, s:o, s:o, s:b}", "groups", groups, "communicators", comms, "late",
		view_late(graph, viewer, now_ns), "pending", pending);
out:
	lien_comms_free(&entries);
	return view;
}
