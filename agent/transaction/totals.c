// SPDX-License-Identifier: BSD-2-Clause
#include "agent/transaction/totals.h"

const double lien_bucket_bounds[LIEN_BUCKETS] = {
	0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60};

const char *lien_outcome_name(enum lien_outcome outcome)
{
	static const char *const names[] = {
#define ROW(NAME, name) [LIEN_OUTCOME_##NAME] = #name,
		LIEN_OUTCOMES(ROW)
#undef ROW
	};

	return names[outcome];
}

static void observe(struct lien_histogram *histogram, uint64_t ns)
{
	unsigned i = 0;

	while (i < LIEN_BUCKETS && ns / 1e9 > lien_bucket_bounds[i])
		i++;
	histogram->buckets[i]++;
	histogram->count++;
	histogram->ns += ns;
}

static enum lien_outcome outcome_of(
	enum lien_transaction_kind kind, const struct lien_transaction_result *result)
{
	if (!result->error)
		return LIEN_OUTCOME_DONE;
	if (result->rolled_back)
		return LIEN_OUTCOME_ROLLED_BACK;
	if (result->undo_failed || kind == LIEN_TRANSACTION_RESTORE)
		return LIEN_OUTCOME_FAILED;
	return LIEN_OUTCOME_REFUSED;
}

static uint64_t longest(const struct lien_transaction_result *result, enum lien_phase phase)
{
	uint64_t ns = 0;
	unsigned i;

	for (i = 0; i < result->processes_count; i++)
		if (result->processes[i].phase_ns[phase] > ns)
			ns = result->processes[i].phase_ns[phase];
	return ns;
}

void lien_totals_ended(struct lien_totals *totals, const struct lien_transaction *transaction)
{
	const struct lien_transaction_result *result = lien_transaction_result(transaction);
	const enum lien_transaction_kind kind = lien_transaction_kind(transaction);
	const enum lien_outcome outcome = outcome_of(kind, result);
	const enum lien_phase *phase;

	totals->ended[kind][outcome]++;
	if (outcome == LIEN_OUTCOME_REFUSED)
		totals->refused[kind][result->blame.cause]++;
	if (outcome != LIEN_OUTCOME_DONE)
		return;
	totals->bytes[kind] += result->bytes;
	observe(&totals->duration[kind], result->ns);
	if (kind == LIEN_TRANSACTION_OFFLOAD)
		observe(&totals->rest, result->rest_ns);
	for (phase = lien_transaction_phases(kind); *phase != LIEN_PHASE_COUNT; phase++)
		if (lien_phase_is_timed(*phase))
			observe(&totals->phase[kind][*phase], longest(result, *phase));
}

void lien_totals_refused(
	struct lien_totals *totals, enum lien_transaction_kind kind, enum lien_cause cause)
{
	totals->ended[kind][LIEN_OUTCOME_REFUSED]++;
	totals->refused[kind][cause]++;
}
