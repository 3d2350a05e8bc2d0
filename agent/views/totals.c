// SPDX-License-Identifier: BSD-2-Clause
#include "agent/views/views.h"

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
