// SPDX-License-Identifier: BSD-2-Clause
/* The kinds of transactions and their phases; transactions are made and freed, and what they add up
 * to. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/transaction/transaction_internal.h"

#define LIEN_PHASE_ROW(NAME, name) extern const struct phase lien_phase_##name;
LIEN_PHASES(LIEN_PHASE_ROW)
#undef LIEN_PHASE_ROW

static const struct phase *const phases[LIEN_PHASE_COUNT] = {
#define ROW(NAME, name) [LIEN_PHASE_##NAME] = &lien_phase_##name,
	LIEN_PHASES(ROW)
#undef ROW
};

#define PHASES(...) ((const enum lien_phase[]){__VA_ARGS__, LIEN_PHASE_COUNT})

static const struct kind kinds[] = {
	[LIEN_TRANSACTION_OFFLOAD] = {.name = "offload",
		.phases = PHASES(LIEN_PHASE_STAGE, LIEN_PHASE_GATE, LIEN_PHASE_DRAIN,
			LIEN_PHASE_CHECK, LIEN_PHASE_SAVE, LIEN_PHASE_AGREE, LIEN_PHASE_UNMAP,
			LIEN_PHASE_DROP, LIEN_PHASE_OPEN),
		.abandon = LIEN_PHASE_DISCARD},
	/* From CREATE to FINISH each process goes at its own pace. */
	[LIEN_TRANSACTION_RESTORE] = {.name = "restore",
		.phases = PHASES(LIEN_PHASE_LIST, LIEN_PHASE_CREATE, LIEN_PHASE_EXPORT,
			LIEN_PHASE_IMPORT, LIEN_PHASE_FINISH, LIEN_PHASE_AGREE, LIEN_PHASE_OPEN)},
	[LIEN_TRANSACTION_RELEASE] = {.name = "release", .phases = PHASES(LIEN_PHASE_RELEASE)},
	[LIEN_TRANSACTION_ADOPTION] = {.name = "adoption",
		.phases = PHASES(LIEN_PHASE_GATE, LIEN_PHASE_DRAIN, LIEN_PHASE_ADOPT_COUNT,
			LIEN_PHASE_MARKS, LIEN_PHASE_MARK, LIEN_PHASE_MARK_UNKNOWN, LIEN_PHASE_LOOK,
			LIEN_PHASE_UNMARK, LIEN_PHASE_OPEN),
		.abandon = LIEN_PHASE_OPEN},
};

const char *lien_phase_name(enum lien_phase phase)
{
	return phases[phase]->name;
}

const char *lien_transaction_kind_name(enum lien_transaction_kind kind)
{
	return kinds[kind].name;
}

bool lien_phase_is_timed(enum lien_transaction_kind kind, enum lien_phase phase)
{
	const enum lien_phase *one = kinds[kind].phases;

	while (*one != phase && *one != LIEN_PHASE_COUNT)
		one++;
	return *one == phase && phases[phase]->timed;
}

/* --- made and freed --------------------------------------------------------------------------- */

int lien_transaction_new(struct lien_transaction **out, enum lien_transaction_kind kind,
	const uint32_t *pids, unsigned count, unsigned timeout_ms,
	const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = calloc(1, sizeof(*t));
	unsigned i;

	if (!t)
		return -ENOMEM;
	t->ops = *ops;
	t->kind = kind;
	t->rules = &kinds[kind];
	t->phases = phases;
	t->restoring = kind == LIEN_TRANSACTION_RESTORE || kind == LIEN_TRANSACTION_RELEASE;
	t->timeout_ms = timeout_ms;
	t->next_seq = 1;
	t->entering = LIEN_PHASE_COUNT;
	t->processes = calloc(count + 1, sizeof(*t->processes));
	t->participants = calloc(count + 1, sizeof(*t->participants));
	if (!t->processes || !t->participants) {
		lien_transaction_free(t);
		return -ENOMEM;
	}
	t->count = count;
	for (i = 0; i < count; i++) {
		lien_transaction_name(t, i, pids[i]);
		t->participants[i].member = true;
	}
	*out = t;
	return 0;
}

int lien_transaction_offload(struct lien_transaction **out, const struct lien_plan *plan,
	uint64_t token_base, uint32_t flags, unsigned timeout_ms,
	const struct lien_transaction_ops *ops)
{
	uint32_t *pids = calloc(plan->processes_count + 1, sizeof(*pids));
	unsigned i;
	int err;

	if (!pids)
		return -ENOMEM;
	for (i = 0; i < plan->processes_count; i++)
		pids[i] = plan->processes[i].pid;
	err = lien_transaction_new(out, LIEN_TRANSACTION_OFFLOAD, pids, i, timeout_ms, ops);
	free(pids);
	if (err)
		return err;
	(*out)->token_base = token_base;
	(*out)->flags = flags;
	for (i = 0; !err && i < plan->processes_count; i++)
		err = lien_participant_take(*out, i, &plan->processes[i]);
	if (err) {
		lien_transaction_free(*out);
		*out = NULL;
	}
	return err ? -ENOMEM : 0;
}

int lien_transaction_choose(struct lien_transaction *t, const uint32_t *pids, unsigned pids_count,
	const uint64_t *groups, unsigned groups_count, const uint64_t *tags, unsigned tags_count)
{
	t->pids = calloc(pids_count + 1, sizeof(*t->pids));
	t->chosen = calloc(groups_count + tags_count + 1, sizeof(*t->chosen));
	if (!t->pids || !t->chosen)
		return -ENOMEM;
	if (pids_count)
		memcpy(t->pids, pids, pids_count * sizeof(*pids));
	if (groups_count)
		memcpy(t->chosen, groups, groups_count * sizeof(*groups));
	if (tags_count)
		memcpy(t->chosen + groups_count, tags, tags_count * sizeof(*tags));
	t->pids_count = pids_count;
	t->result.groups = t->chosen;
	t->result.groups_count = groups_count;
	t->tags_count = tags_count;
	return 0;
}

void lien_transaction_divide(struct lien_transaction *t)
{
	t->divided = t->ops.gate && t->ops.next_part && t->ops.part_back && !t->tags_count;
}

void lien_transaction_set_aside(
	struct lien_transaction *t, uint32_t pid, unsigned others, const char *remedy)
{
	snprintf(t->aside_remedy, sizeof(t->aside_remedy), "%s", remedy);
	t->aside = pid;
	t->aside_others = others;
}

void lien_transaction_free(struct lien_transaction *t)
{
	unsigned i, j;

	if (!t)
		return;
	for (i = 0; t->participants && i < t->count; i++) {
		for (j = 0; j < t->participants[i].shares_count; j++)
			if (t->participants[i].shares[j].fd >= 0)
				t->ops.fd_close(t->participants[i].shares[j].fd);
		free(t->participants[i].shares);
		free(t->participants[i].raw);
		free(t->participants[i].items);
		free(t->participants[i].imports);
		free(t->participants[i].tokens.number);
		free(t->participants[i].teams.number);
	}
	free(t->participants);
	free(t->processes);
	free(t->pids);
	free(t->chosen);
	free(t->part);
	free(t->parted);
	free(t);
}

const struct lien_transaction_result *lien_transaction_result(const struct lien_transaction *t)
{
	return &t->result;
}

enum lien_transaction_kind lien_transaction_kind(const struct lien_transaction *t)
{
	return t->kind;
}

enum lien_phase lien_transaction_phase(const struct lien_transaction *t)
{
	return t->phase;
}

/* --- memory that did not come free ------------------------------------------------------------ */

/* The driver takes up to so much for itself meanwhile, in each process (seen, 580.159). */
#define OWN_BYTES (2ull << 20)

struct group {
	const struct lien_uuid *gpu; /* NULL: of one process */
	struct lien_shortfall sum;
	int64_t freed; /* what the last one to drop its memory found free, and was not before */
};

static const struct lien_uuid *gpu_of(
	struct lien_graph *graph, const struct lien_plan_process *part)
{
	const struct lien_process *process = lien_graph_process(graph, part->pid);
	int64_t ordinal = -1;
	unsigned i;

	for (i = 0; i < part->items_count; i++) {
		if (!(part->items[i].flags & LIEN_WIRE_OWNED))
			continue;
		if (ordinal >= 0 && ordinal != part->items[i].location_id)
			return NULL;
		ordinal = part->items[i].location_id;
	}
	return process ? lien_ordinals_uuid(process->ordinals, ordinal) : NULL;
}

static struct group *group_of(struct group *groups, unsigned *count, const struct lien_uuid *gpu)
{
	unsigned i;

	for (i = 0; gpu && i < *count; i++)
		if (groups[i].gpu && lien_uuid_equal(groups[i].gpu, gpu))
			return &groups[i];
	if (*count == LIEN_SHORTFALLS)
		return NULL;
	groups[*count] = (struct group){.gpu = gpu};
	return &groups[(*count)++];
}

/* All memory is saved before any is dropped: each process found the same free before. */
void lien_shortfalls_find(struct lien_shortfalls *found, struct lien_graph *graph,
	const struct lien_plan *plan, const struct lien_transaction_result *result)
{
	const struct lien_transaction_process *process;
	struct group groups[LIEN_SHORTFALLS], *group;
	const struct lien_plan_process *part;
	unsigned i, count = 0;

	for (i = 0; i < result->processes_count; i++) {
		process = &result->processes[i];
		part = lien_plan_part(plan, process->pid);
		if (!part || !(process->bytes + process->discarded))
			continue;
		group = group_of(groups, &count, gpu_of(graph, part));
		if (!group)
			break;
		if (!group->sum.processes++)
			group->sum.pid = process->pid;
		group->sum.dropped += process->bytes + process->discarded;
		if (process->freed_bytes > group->freed)
			group->freed = process->freed_bytes;
	}
	found->count = 0;
	for (i = 0; i < count; i++) {
		if (groups[i].freed + OWN_BYTES * groups[i].sum.processes >= groups[i].sum.dropped)
			continue;
		found->row[found->count] = groups[i].sum;
		found->row[found->count++].missing = groups[i].sum.dropped - groups[i].freed;
	}
}

/* --- totals ----------------------------------------------------------------------------------- */

const double lien_bucket_bounds[LIEN_BUCKETS] = {
	0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60};

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
	enum lien_phase phase;

	totals->ended[kind][outcome]++;
	if (outcome == LIEN_OUTCOME_REFUSED)
		totals->refused[kind][result->blame.cause]++;
	if (outcome != LIEN_OUTCOME_DONE)
		return;
	totals->bytes[kind] += result->bytes;
	observe(&totals->duration[kind], result->ns);
	if (kind == LIEN_TRANSACTION_OFFLOAD)
		observe(&totals->rest, result->rest_ns);
	for (phase = 0; phase < LIEN_PHASE_COUNT; phase++)
		if (lien_phase_is_timed(kind, phase))
			observe(&totals->phase[kind][phase], longest(result, phase));
}

void lien_totals_refused(
	struct lien_totals *totals, enum lien_transaction_kind kind, enum lien_cause cause)
{
	totals->ended[kind][LIEN_OUTCOME_REFUSED]++;
	totals->refused[kind][cause]++;
}
