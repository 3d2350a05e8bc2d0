// SPDX-License-Identifier: BSD-2-Clause
/* Makes and frees transactions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/transaction/transaction_internal.h"

static int item_cmp(const void *a, const void *b)
{
	const struct lien_wire_item *x = a, *y = b;

	if (x->token != y->token)
		return x->token < y->token ? -1 : 1;
	return (x->index > y->index) - (x->index < y->index);
}

/* --- tokens and teams ------------------------------------------------------------------------- */

static int number_cmp(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static uint64_t token_of(const struct lien_wire_item *item)
{
	return item->token;
}

static uint64_t team_of(const struct lien_wire_item *item)
{
	return item->team;
}

/* Lists the number of each allocation that has one. A process may list any number of them. */
static int list_numbers(struct numbers *numbers, const struct participant *participant,
	uint64_t (*of)(const struct lien_wire_item *item))
{
	const struct lien_wire_item *item = participant->items;
	unsigned i, all = 0, n = 0;
	uint64_t *number;

	for (i = 0; i < participant->count; i++)
		all += of(&item[i]) && !item[i].index;
	free(numbers->number);
	*numbers = (struct numbers){.number = calloc(all + 1, sizeof(*number))};
	number = numbers->number;
	if (!number)
		return -ENOMEM;
	for (i = all = 0; i < participant->count; i++)
		if (of(&item[i]) && !item[i].index)
			number[all++] = of(&item[i]);
	qsort(number, all, sizeof(*number), number_cmp);
	for (i = 0; i < all; i++)
		if (!n || number[n - 1] != number[i])
			number[n++] = number[i];
	numbers->count = n;
	return 0;
}

bool lien_numbers_meet(const struct numbers *a, const struct numbers *b)
{
	unsigned i = 0, j = 0;

	while (i < a->count && j < b->count) {
		if (a->number[i] == b->number[j])
			return true;
		if (a->number[i] < b->number[j])
			i++;
		else
			j++;
	}
	return false;
}

/* --- participants ----------------------------------------------------------------------------- */

int lien_participant_sort(struct participant *participant)
{
	int err;

	if (participant->count)
		qsort(participant->items, participant->count, sizeof(participant->items[0]),
			item_cmp);
	free(participant->imports);
	participant->imports = calloc(participant->count + 1, sizeof(*participant->imports));
	err = participant->imports ? 0 : -ENOMEM;
	if (!err)
		err = list_numbers(&participant->tokens, participant, token_of);
	return err ? err : list_numbers(&participant->teams, participant, team_of);
}

struct lien_wire_item *lien_participant_find(const struct participant *participant, uint64_t token)
{
	struct lien_wire_item key = {.token = token};

	return participant->count ? bsearch(&key, participant->items, participant->count,
					    sizeof(key), item_cmp)
				  : NULL;
}

int lien_participant_add(
	struct participant *participant, const struct lien_wire_item *items, unsigned count)
{
	unsigned room = participant->room ? participant->room : 64;
	struct lien_wire_item *grown;

	if (count > LIEN_WIRE_ITEMS_MAX - participant->count)
		return -E2BIG;
	while (room < participant->count + count)
		room *= 2;
	if (room != participant->room) {
		grown = realloc(participant->items, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		participant->items = grown;
		participant->room = room;
	}
	if (count)
		memcpy(participant->items + participant->count, items, count * sizeof(*items));
	participant->count += count;
	return 0;
}

static struct lien_transaction *transaction_new(
	unsigned count, unsigned timeout_ms, const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->ops = *ops;
	t->timeout_ms = timeout_ms;
	t->count = count;
	t->next_seq = 1;
	t->entering = LIEN_PHASE_COUNT;
	t->processes = calloc(count + 1, sizeof(*t->processes));
	t->participants = calloc(count + 1, sizeof(*t->participants));
	if (!t->processes || !t->participants) {
		lien_transaction_free(t);
		return NULL;
	}
	return t;
}

int lien_participant_take(
	struct lien_transaction *t, unsigned index, const struct lien_plan_process *part)
{
	struct lien_transaction_process *process = &t->processes[index];
	struct participant *participant = &t->participants[index];
	unsigned i;

	process->allocations = part->allocations;
	process->imports = part->imports;
	process->mappings = part->items_count;
	process->bytes = part->bytes;
	process->discarded = part->discarded;
	participant->count = participant->staged = 0;
	if (lien_participant_add(participant, part->items, part->items_count))
		return -ENOMEM;
	for (i = 0; i < participant->count; i++) {
		participant->items[i].token += t->token_base;
		if (participant->items[i].team)
			participant->items[i].team += t->token_base;
	}
	return lien_participant_sort(participant);
}

void lien_transaction_name(struct lien_transaction *t, unsigned index, uint32_t pid)
{
	t->processes[index].pid = pid;
	t->processes[index].start = t->ops.began ? t->ops.began(t->ops.context, pid) : 0;
}

bool lien_transaction_alive(const struct lien_transaction *t, unsigned index)
{
	const struct lien_transaction_process *process = &t->processes[index];

	return t->ops.alive(t->ops.context, process->pid, process->start);
}

int lien_transaction_offload(struct lien_transaction **out, const struct lien_plan *plan,
	uint64_t token_base, unsigned timeout_ms, const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = transaction_new(plan->processes_count, timeout_ms, ops);
	unsigned i;

	if (!t)
		return -ENOMEM;
	t->kind = LIEN_TRANSACTION_OFFLOAD;
	t->token_base = token_base;
	for (i = 0; i < t->count; i++) {
		t->participants[i].member = true;
		lien_transaction_name(t, i, plan->processes[i].pid);
		if (lien_participant_take(t, i, &plan->processes[i])) {
			lien_transaction_free(t);
			return -ENOMEM;
		}
	}
	*out = t;
	return 0;
}

int lien_transaction_restore(struct lien_transaction **out, const uint32_t *all, unsigned all_count,
	const uint32_t *pids, unsigned pids_count, unsigned timeout_ms,
	const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = transaction_new(all_count, timeout_ms, ops);
	unsigned i;

	if (!t)
		return -ENOMEM;
	t->kind = LIEN_TRANSACTION_RESTORE;
	t->restoring = true;
	for (i = 0; i < all_count; i++) {
		lien_transaction_name(t, i, all[i]);
		t->participants[i].member = true;
	}
	t->pids = calloc(pids_count + 1, sizeof(*t->pids));
	if (!t->pids) {
		lien_transaction_free(t);
		return -ENOMEM;
	}
	if (pids_count)
		memcpy(t->pids, pids, pids_count * sizeof(*pids));
	t->pids_count = pids_count;
	*out = t;
	return 0;
}

int lien_transaction_choose(struct lien_transaction *t, const uint64_t *groups,
	unsigned groups_count, const uint64_t *tags, unsigned tags_count)
{
	t->chosen = calloc(groups_count + tags_count + 1, sizeof(*t->chosen));
	if (!t->chosen)
		return -ENOMEM;
	if (groups_count)
		memcpy(t->chosen, groups, groups_count * sizeof(*groups));
	if (tags_count)
		memcpy(t->chosen + groups_count, tags, tags_count * sizeof(*tags));
	t->groups_count = groups_count;
	t->tags_count = tags_count;
	return 0;
}

int lien_transaction_release(struct lien_transaction **out, const uint32_t *pids,
	unsigned pids_count, const struct lien_transaction_ops *ops)
{
	int err = lien_transaction_restore(out, pids, pids_count, pids, pids_count, 0, ops);

	if (!err)
		(*out)->kind = LIEN_TRANSACTION_RELEASE;
	return err;
}

int lien_transaction_adopt(struct lien_transaction **out, const uint32_t *pids, unsigned pids_count,
	unsigned timeout_ms, const struct lien_transaction_ops *ops)
{
	struct lien_transaction *t = transaction_new(pids_count, timeout_ms, ops);
	unsigned i;

	if (!t)
		return -ENOMEM;
	t->kind = LIEN_TRANSACTION_ADOPTION;
	for (i = 0; i < pids_count; i++) {
		lien_transaction_name(t, i, pids[i]);
		t->participants[i].member = true;
	}
	*out = t;
	return 0;
}

void lien_transaction_set_flags(struct lien_transaction *t, uint32_t flags)
{
	t->flags = flags;
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

int lien_transaction_index(const struct lien_transaction *t, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (t->processes[i].pid == pid)
			return i;
	return -1;
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
