// SPDX-License-Identifier: BSD-2-Clause
#include "agent/views/internal.h"

json_t *lien_view_left(const struct lien_left *left, unsigned count)
{
	json_t *list = json_array();
	unsigned i;

	for (i = 0; i < count; i++)
		json_array_append_new(list,
			json_pack("{s:I, s:s, s:I, s:I, s:o, s:o, s:b}", "pid",
				(json_int_t)left[i].pid, "reason", left[i].reason, "allocations",
				(json_int_t)left[i].allocations, "bytes", (json_int_t)left[i].bytes,
				"address",
				left[i].address ? lien_view_hex(left[i].address) : json_null(),
				"holder",
				left[i].holder ? json_integer(left[i].holder) : json_null(),
				"other_user", left[i].other_user));
	return list;
}

json_t *lien_view_plan(const struct lien_plan *plan)
{
	json_t *list = json_array();
	unsigned i;

	for (i = 0; i < plan->processes_count; i++) {
		const struct lien_plan_process *part = &plan->processes[i];

		json_array_append_new(
			list, json_pack("{s:I, s:i, s:i, s:i, s:I, s:I, s:n, s:{}}", "pid",
				      (json_int_t)part->pid, "allocations", part->allocations,
				      "imports", part->imports, "mappings", part->items_count,
				      "bytes", (json_int_t)part->bytes, "discarded_bytes",
				      (json_int_t)part->discarded, "freed_bytes", "ms"));
	}
	return json_pack("{s:s, s:I, s:I, s:I, s:f, s:o, s:o}", "outcome",
		plan->processes_count ? "dry run" : "nothing to do", "bytes",
		(json_int_t)plan->bytes, "discarded_bytes", (json_int_t)plan->discarded,
		"nameless_bytes", (json_int_t)plan->nameless, "ms", 0.0, "processes", list, "left",
		lien_view_left(plan->left, plan->left_count));
}

json_t *lien_view_result(const struct lien_transaction *transaction, const struct lien_plan *plan)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);
	const enum lien_transaction_kind kind = lien_transaction_kind(transaction);
	const bool is_offload = kind == LIEN_TRANSACTION_OFFLOAD;
	const enum lien_phase *phase;
	json_t *list = json_array();
	unsigned i;

	for (i = 0; i < result->processes_count; i++) {
		const struct lien_transaction_process *process = &result->processes[i];
		json_t *ms = json_object();

		for (phase = lien_transaction_phases(kind); *phase != LIEN_PHASE_COUNT; phase++)
			if (lien_phase_is_timed(*phase))
				json_object_set_new(ms, lien_phase_name(*phase),
					json_real(process->phase_ns[*phase] / 1e6));
		json_array_append_new(
			list, json_pack("{s:I, s:i, s:i, s:i, s:I, s:I, s:I, s:o, s:o}", "pid",
				      (json_int_t)process->pid, "allocations", process->allocations,
				      "imports", process->imports, "mappings", process->mappings,
				      "bytes", (json_int_t)process->bytes, "discarded_bytes",
				      (json_int_t)process->discarded, "verified_bytes",
				      (json_int_t)process->verified, "freed_bytes",
				      is_offload ? json_integer(process->freed_bytes) : json_null(),
				      "ms", ms));
	}
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "outcome",
		result->processes_count ? "done" : "nothing to do", "bytes",
		(json_int_t)result->bytes, "discarded_bytes", (json_int_t)result->discarded,
		"nameless_bytes", (json_int_t)(plan ? plan->nameless : 0), "verified_bytes",
		(json_int_t)result->verified, "ms", result->ns / 1e6, "processes", list, "left",
		lien_view_left(plan ? plan->left : NULL, plan ? plan->left_count : 0));
}
