// SPDX-License-Identifier: BSD-2-Clause
/* Processes that ran before they were watched: the communicators that NCCL's RAS names, and which
 * of these are not among the known ones. */
#include <string.h>

#include "agent/views/internal.h"

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

static json_t *known(int32_t value)
{
	return value >= 0 ? json_integer(value) : json_null();
}

static json_t *view_row(const struct lien_ras_row *row)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "group",
		json_sprintf("%016llx", (unsigned long long)row->hash), "hash",
		lien_view_hex(row->hash), "rank", known(row->rank), "nranks", known(row->nranks),
		"device", known(row->device));
}

static json_t *view_unmatched(const struct lien_ras_report *report)
{
	json_t *list = json_array();
	unsigned i;

	for (i = 0; report && i < report->rows; i++)
		if (!report->row[i].address)
			json_array_append_new(list, view_row(&report->row[i]));
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

static json_t *view_process(
	struct lien_process *process, const struct lien_view_ras *ras, uint64_t now_ns)
{
	const struct lien_ras_report *report =
		ras && ras->of ? ras->of(ras->context, process) : NULL;
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

json_t *lien_view_late(struct lien_graph *graph, const struct lien_viewer *viewer,
	const struct lien_view_ras *ras, uint64_t now_ns)
{
	struct lien_process *process;
	json_t *list = json_array();

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (lien_viewer_sees(viewer, process) && lien_comms_may_lack(process))
			json_array_append_new(list, view_process(process, ras, now_ns));
	return list;
}
