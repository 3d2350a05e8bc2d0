// SPDX-License-Identifier: BSD-2-Clause
/* What offloads and restores would do, did, and have done so far. */
#include "agent/views/internal.h"

json_t *lien_view_left(const struct lien_left *left, unsigned count)
{
	json_t *list = json_array();
	unsigned i;

	for (i = 0; i < count; i++)
		lien_view_add(list, "{s:I, s:s, s:I, s:I, s:o, s:o, s:b}", "pid",
			(json_int_t)left[i].pid, "reason", left[i].reason, "allocations",
			(json_int_t)left[i].allocations, "bytes", (json_int_t)left[i].bytes,
			"address", left[i].address ? lien_view_hex(left[i].address) : json_null(),
			"holder", left[i].holder ? json_integer(left[i].holder) : json_null(),
			"other_user", left[i].other_user);
	return list;
}

static json_t *view_unknown(const struct lien_plan *plan)
{
	json_t *list = json_array();
	unsigned i;

	for (i = 0; plan && i < plan->unknown_count; i++) {
		const struct lien_unknown *unknown = &plan->unknown[i];

		lien_view_add(list, "{s:I, s:b, s:I, s:I, s:I}", "pid", (json_int_t)unknown->pid,
			"read", unknown->read, "allocations", (json_int_t)unknown->allocations,
			"bytes", (json_int_t)unknown->bytes, "movable_bytes",
			(json_int_t)unknown->movable);
	}
	return list;
}

static json_t *view_idle(const struct lien_plan *plan)
{
	json_t *list = json_array(), *owners;
	unsigned i, j;

	for (i = 0; plan && i < plan->idle_count; i++) {
		const struct lien_idle *idle = &plan->idle[i];

		owners = json_array();
		for (j = 0; j < idle->owners_count; j++)
			json_array_append_new(owners, json_string(idle->owners[j]));
		if (idle->more_owners)
			json_array_append_new(owners, json_string("others"));
		lien_view_add(list, "{s:I, s:s, s:s?, s:I, s:I, s:I, s:I, s:o}", "pid",
			(json_int_t)idle->pid, "command", idle->command, "reason", idle->reason,
			"offloaded_bytes", (json_int_t)idle->offloaded, "bytes",
			(json_int_t)idle->bytes, "not_selected_bytes", (json_int_t)idle->others,
			"movable_bytes", (json_int_t)idle->movable, "owners", owners);
	}
	return list;
}

/* What was asked to become free, and what became so; null: that was not asked. */
static json_t *view_free(const struct lien_plan *plan)
{
	char uuid[LIEN_UUID_TEXT];
	json_t *list;
	unsigned i;

	if (!plan || !plan->free)
		return json_null();
	list = json_array();
	for (i = 0; i < plan->freed_count; i++) {
		const struct lien_freed *freed = &plan->freed[i];

		lien_uuid_print(&freed->uuid, uuid);
		lien_view_add(list, "{s:o, s:s?, s:I, s:i, s:I, s:I, s:I, s:I}", "gpu",
			freed->index < 0 ? json_null() : json_integer(freed->index), "uuid",
			freed->has_uuid ? uuid : NULL, "pid", (json_int_t)freed->pid, "device",
			(int)freed->ordinal, "asked_bytes", (json_int_t)plan->free, "bytes",
			(json_int_t)freed->bytes, "movable_bytes", (json_int_t)freed->movable,
			"allocations", (json_int_t)freed->allocations);
	}
	return list;
}

json_t *lien_view_plan(const struct lien_plan *plan)
{
	const char *none = plan->unknown_count ? "unknown" : "nothing to do";
	json_t *list = json_array();
	unsigned i;

	for (i = 0; i < plan->processes_count; i++) {
		const struct lien_plan_process *part = &plan->processes[i];

		lien_view_add(list, "{s:I, s:i, s:i, s:i, s:I, s:I, s:n, s:{}}", "pid",
			(json_int_t)part->pid, "allocations", part->allocations, "imports",
			part->imports, "mappings", part->items_count, "bytes",
			(json_int_t)part->bytes, "discarded_bytes", (json_int_t)part->discarded,
			"freed_bytes", "ms");
	}
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:o, s:o}", "outcome",
		plan->processes_count ? "dry run" : none, "bytes", (json_int_t)plan->bytes,
		"discarded_bytes", (json_int_t)plan->discarded, "inferred_bytes",
		(json_int_t)plan->inferred, "nameless_bytes", (json_int_t)plan->nameless, "ms", 0.0,
		"processes", list, "left", lien_view_left(plan->left, plan->left_count), "unknown",
		view_unknown(plan), "idle", view_idle(plan), "free", view_free(plan));
}

/* What a restore in parts (`lazy`) did; null: it was not asked for. */
static json_t *view_lazy(const struct lien_transaction_result *result)
{
	if (!result->parts)
		return json_null();
	return json_pack("{s:i, s:o, s:s?}", "parts", result->parts, "first_ms",
		result->first_ns ? json_real(result->first_ns / 1e6) : json_null(), "undivided",
		result->undivided[0] ? result->undivided : NULL);
}

json_t *lien_view_shortfalls(struct lien_graph *graph, const struct lien_viewer *viewer,
	const struct lien_shortfalls *shortfalls)
{
	json_t *list = json_array();
	unsigned i;

	for (i = 0; shortfalls && i < shortfalls->count; i++) {
		const struct lien_shortfall *row = &shortfalls->row[i];

		if (lien_viewer_sees(viewer, graph ? lien_graph_process(graph, row->pid) : NULL))
			lien_view_add(list, "{s:I, s:i, s:I, s:I}", "pid", (json_int_t)row->pid,
				"processes", row->processes, "dropped_bytes",
				(json_int_t)row->dropped, "missing_bytes",
				(json_int_t)row->missing);
	}
	return list;
}

/* The driver knows how much of a device is free, not who has freed it: what exceeds that which the
 * process has dropped is others'. */
static json_int_t freed_by(const struct lien_transaction_process *process)
{
	const json_int_t dropped = process->bytes + process->discarded;

	return process->freed_bytes < dropped ? process->freed_bytes : dropped;
}

json_t *lien_view_result(const struct lien_transaction *transaction, const struct lien_plan *plan,
	const struct lien_shortfalls *shortfalls)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);
	const enum lien_transaction_kind kind = lien_transaction_kind(transaction);
	const bool is_offload = kind == LIEN_TRANSACTION_OFFLOAD;
	enum lien_phase phase;
	json_t *list = json_array();
	unsigned i;

	for (i = 0; i < result->processes_count; i++) {
		const struct lien_transaction_process *process = &result->processes[i];
		json_t *ms = json_object();

		for (phase = 0; phase < LIEN_PHASE_COUNT; phase++)
			if (lien_phase_is_timed(kind, phase))
				json_object_set_new(ms, lien_phase_name(phase),
					json_real(process->phase_ns[phase] / 1e6));
		lien_view_add(list, "{s:I, s:i, s:i, s:i, s:I, s:I, s:I, s:o, s:o}", "pid",
			(json_int_t)process->pid, "allocations", process->allocations, "imports",
			process->imports, "mappings", process->mappings, "bytes",
			(json_int_t)process->bytes, "discarded_bytes",
			(json_int_t)process->discarded, "verified_bytes",
			(json_int_t)process->verified, "freed_bytes",
			is_offload ? json_integer(freed_by(process)) : json_null(), "ms", ms);
	}
	return json_pack(
		"{s:s, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:o, s:o, s:f, s:o, s:o, s:o, s:o, "
		"s:o, s:o, s:o}",
		"outcome", result->processes_count ? "done" : "nothing to do", "bytes",
		(json_int_t)result->bytes, "discarded_bytes", (json_int_t)result->discarded,
		"inferred_bytes", (json_int_t)(plan ? plan->inferred : 0), "nameless_bytes",
		(json_int_t)(plan ? plan->nameless : 0), "verified_bytes",
		(json_int_t)result->verified, "let_in", result->passes, "guesses", result->guesses,
		"gate_ms", is_offload ? json_real(result->gate_ns / 1e6) : json_null(), "rest_ms",
		is_offload ? json_real(result->rest_ns / 1e6) : json_null(), "ms", result->ns / 1e6,
		"processes", list, "left",
		lien_view_left(plan ? plan->left : NULL, plan ? plan->left_count : 0), "unknown",
		view_unknown(plan), "idle", view_idle(plan), "free", view_free(plan), "lazy",
		view_lazy(result), "short", lien_view_shortfalls(NULL, NULL, shortfalls));
}

static json_t *view_histogram(const struct lien_histogram *histogram)
{
	json_t *buckets = json_array();
	unsigned i;

	for (i = 0; i <= LIEN_BUCKETS; i++)
		json_array_append_new(buckets, json_integer(histogram->buckets[i]));
	return json_pack("{s:I, s:f, s:o}", "count", (json_int_t)histogram->count, "seconds",
		histogram->ns / 1e9, "buckets", buckets);
}

static json_t *view_phases(const struct lien_totals *totals, enum lien_transaction_kind kind)
{
	json_t *phases = json_object();
	enum lien_phase phase;

	for (phase = 0; phase < LIEN_PHASE_COUNT; phase++)
		if (lien_phase_is_timed(kind, phase))
			json_object_set_new(phases, lien_phase_name(phase),
				view_histogram(&totals->phase[kind][phase]));
	return phases;
}

static const char *const outcome_names[] = {
#define ROW(NAME, name) [LIEN_OUTCOME_##NAME] = #name,
	LIEN_OUTCOMES(ROW)
#undef ROW
};

static json_t *view_kind(const struct lien_totals *totals, enum lien_transaction_kind kind)
{
	json_t *outcomes = json_object(), *refused = json_object();
	unsigned i;

	for (i = 0; i < LIEN_OUTCOME_COUNT; i++)
		json_object_set_new(
			outcomes, outcome_names[i], json_integer(totals->ended[kind][i]));
	/* several causes may have one code */
	for (i = 0; i < LIEN_CAUSE_COUNT; i++) {
		const json_t *others = json_object_get(refused, lien_causes[i].code);

		json_object_set_new(refused, lien_causes[i].code,
			json_integer(json_integer_value(others) + totals->refused[kind][i]));
	}
	return json_pack("{s:s, s:o, s:o, s:I, s:o, s:o, s:o}", "kind",
		lien_transaction_kind_name(kind), "outcomes", outcomes, "refused", refused, "bytes",
		(json_int_t)totals->bytes[kind], "duration",
		view_histogram(&totals->duration[kind]), "phases", view_phases(totals, kind),
		"rest",
		kind == LIEN_TRANSACTION_OFFLOAD ? view_histogram(&totals->rest) : json_null());
}

json_t *lien_view_totals(const struct lien_totals *totals)
{
	json_t *list = json_array(), *bounds = json_array();
	unsigned i;

	for (i = 0; i < LIEN_BUCKETS; i++)
		json_array_append_new(bounds, json_real(lien_bucket_bounds[i]));
	for (i = 0; i < LIEN_TRANSACTION_KINDS; i++)
		json_array_append_new(list, view_kind(totals, i));
	return json_pack("{s:o, s:o}", "bucket_seconds", bounds, "transactions", list);
}
