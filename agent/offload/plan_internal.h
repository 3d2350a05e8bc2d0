/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the plan's own files. No other file includes this. */
#ifndef LIEN_PLAN_INTERNAL_H
#define LIEN_PLAN_INTERNAL_H

#include "agent/offload/places.h"
#include "agent/offload/plan.h"

/* Like lien_plan_unmovable(); *holder is the process that is the reason, 0: the owner. */
const char *lien_plan_reason(const struct lien_allocation *allocation, uint32_t *holder);
/* Returns the owner's mapping that covers all bytes, for copying. */
const struct lien_mapping *lien_plan_whole(const struct lien_allocation *allocation);

struct lien_chosen_open {
	const struct lien_allocation *allocation;
	uint32_t pid;
};

/* A selection, prepared for one lookup per allocation. */
struct lien_choice {
	const struct lien_selection *selection;
	uint32_t *pids; /* sorted, like the other lists here */
	const char **discarded_owners;
	const struct lien_allocation **discarded; /* named by address */
	/* allocations with an export that is open somewhere */
	struct lien_chosen_open *open;
	unsigned owners_count, discarded_count, open_count;
};

/* Returns 0 or -ENOMEM; free it with lien_choice_clear(). */
int lien_choice_make(struct lien_choice *choice, struct lien_graph *graph,
	const struct lien_selection *selection);
void lien_choice_clear(struct lien_choice *choice);

/* Is the pid selected? Without pids every process is. */
bool lien_choice_has_pid(const struct lien_choice *choice, uint32_t pid);
/* May the allocation be dropped without saving it? */
bool lien_choice_discards(
	const struct lien_choice *choice, const struct lien_allocation *allocation);
/*
 * Is the allocation to be moved, if possible? With `any_owner` it does not matter who asked for it.
 */
bool lien_choice_has(
	const struct lien_choice *choice, const struct lien_allocation *allocation, bool any_owner);
/* Returns NULL, or that an export of it is open; and in which process. */
const char *lien_choice_open(const struct lien_choice *choice,
	const struct lien_allocation *allocation, uint32_t *holder);
/* Returns the allocation at a discard's address; NULL: its process owns nothing there. */
const struct lien_allocation *lien_choice_named(
	struct lien_graph *graph, const struct lien_discard *discard);

#endif
