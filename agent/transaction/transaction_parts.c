// SPDX-License-Identifier: BSD-2-Clause
/*
 * Restores in parts. Each part goes through all phases of a restore, the opening of the gates
 * included, as a restore for chosen groups does; the last one brings back everything that is left,
 * whatever it belongs to, as an ordinary restore does. So a part leaves no state between processes
 * that another restore could not continue.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/transaction/transaction_internal.h"

/* Each brings back something: a wrong answer of ops->next_part ends here. */
#define PARTS_MAX 4096

void lien_transaction_divide(struct lien_transaction *t)
{
	t->divided = t->ops.gate && t->ops.next_part && t->ops.part_back && !t->tags_count;
}

const uint64_t *lien_transaction_groups(const struct lien_transaction *t, unsigned *count)
{
	*count = t->groups_count;
	return t->chosen;
}

const struct lien_transaction_process *lien_transaction_processes(
	const struct lien_transaction *t, unsigned *count)
{
	*count = t->count;
	return t->processes;
}

const uint64_t *lien_part_chosen(
	const struct lien_transaction *t, unsigned *groups, unsigned *count)
{
	*groups = t->part_count ? t->part_count : t->groups_count;
	*count = t->part_count ? t->part_count : lien_transaction_chosen(t);
	return t->part_count ? t->part : t->chosen;
}

static bool was_parted(const struct lien_transaction *t, uint64_t group)
{
	unsigned i;

	for (i = 0; i < t->parted_count; i++)
		if (t->parted[i] == group)
			return true;
	return false;
}

/* Returns false if memory is short, or some of them were to come back before. */
static bool add_parted(struct lien_transaction *t)
{
	uint64_t *grown;
	unsigned i;

	for (i = 0; i < t->part_count; i++)
		if (was_parted(t, t->part[i]))
			return false;
	grown = realloc(t->parted, (t->parted_count + t->part_count) * sizeof(*grown));
	if (!grown)
		return false;
	t->parted = grown;
	memcpy(grown + t->parted_count, t->part, t->part_count * sizeof(*grown));
	t->parted_count += t->part_count;
	return true;
}

/* Chooses the groups that this part brings back; none: it is the last part, and brings back all. */
static void choose_part(struct lien_transaction *t)
{
	t->part_count = 0;
	if (!t->part)
		t->part = calloc(LIEN_WIRE_CHOSEN_MAX, sizeof(*t->part));
	if (t->part && !t->together && t->result.parts < PARTS_MAX)
		t->part_count = t->ops.next_part(t->ops.context, t, t->result.parts, t->part,
			LIEN_WIRE_CHOSEN_MAX, t->result.undivided, sizeof(t->result.undivided));
	if (t->part_count && !add_parted(t))
		t->part_count = 0;
}

/* Clears what the previous part noted of a process. A process that is gone stays gone. */
static void forget_part(struct participant *participant)
{
	participant->member = true;
	participant->count = participant->named = participant->rooms_count = 0;
	participant->withheld = participant->created = participant->exported = false;
	participant->uncreated = participant->filled = participant->unfilled = false;
	participant->lost_owner = 0;
	participant->owner_lives = false;
}

void lien_restore_part_begin(struct lien_transaction *t)
{
	unsigned i;

	if (!t->divided)
		return;
	for (i = 0; i < t->count; i++) {
		t->participants[i].before = t->processes[i];
		if (t->result.parts)
			forget_part(&t->participants[i]);
	}
	choose_part(t);
	t->result.parts++;
}

/* Has anything happened that the last part cannot mend? Then the error stays; the last part still
 * brings back what needs neither a lost owner nor a silent process. */
static bool is_final(const struct lien_transaction *t)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (t->participants[i].gone)
			return true;
	return t->result.lost;
}

/* The next part is the last one, and brings back what this one has not. The error is dropped: what
 * counts is whether that part succeeds. */
static void try_again(struct lien_transaction *t)
{
	struct lien_transaction_process *process;
	unsigned i;

	t->together = true;
	if (is_final(t))
		return;
	t->failing = false;
	t->result.error = 0;
	t->result.text[0] = t->result.undo_text[0] = 0;
	t->result.blame = (struct lien_blame){0};
	for (i = 0; i < t->count; i++) {
		const struct lien_transaction_process *before = &t->participants[i].before;

		process = &t->processes[i];
		if (!process->failed)
			continue;
		process->failed = false;
		process->allocations = before->allocations;
		process->imports = before->imports;
		process->mappings = before->mappings;
		process->bytes = before->bytes;
		process->discarded = before->discarded;
		process->verified = before->verified;
	}
}

bool lien_restore_part_over(struct lien_transaction *t)
{
	unsigned i;

	if (!t->divided)
		return false;
	for (i = 0; i < t->count; i++)
		t->participants[i].involved |= t->participants[i].member;
	if (!t->part_count)
		return false;
	t->result.processes = t->processes;
	t->result.processes_count = t->count;
	t->ops.part_back(t->ops.context, t);
	if (t->result.parts == 1 && !t->result.error)
		t->result.first_ns = t->ops.now_ns(t->ops.context) - t->t_start;
	if (t->result.error)
		try_again(t);
	lien_phase_begin(t, LIEN_PHASE_LIST);
	return true;
}
