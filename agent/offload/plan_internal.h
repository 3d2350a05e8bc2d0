/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the plan's own files. Nobody else includes this. */
#ifndef LIEN_PLAN_INTERNAL_H
#define LIEN_PLAN_INTERNAL_H

#include "agent/offload/places.h"
#include "agent/offload/plan.h"

/* lien_plan_unmovable(); *holder is the process because of which, 0: the owner. */
const char *lien_plan_reason(const struct lien_allocation *allocation, uint32_t *holder);
/* The owner's mapping through which all bytes can be copied. */
const struct lien_mapping *lien_plan_whole(const struct lien_allocation *allocation);

struct lien_chosen_open {
	const struct lien_allocation *allocation;
	uint32_t pid;
};

/* A selection, prepared for being looked up once for each allocation. */
struct lien_choice {
	const struct lien_selection *selection;
	uint32_t *pids; /* sorted, as all of these */
	const char **discarded_owners;
	const struct lien_allocation **discarded; /* those named by an address */
	struct lien_chosen_open *open;		  /* of which an export is open somewhere */
	unsigned owners_count, discarded_count, open_count;
};

/* 0, which lien_choice_clear() ends, or -ENOMEM. */
int lien_choice_make(struct lien_choice *choice, struct lien_graph *graph,
	const struct lien_selection *selection);
void lien_choice_clear(struct lien_choice *choice);

/* A process that is selected by its pid; all are when no pids are given. */
bool lien_choice_has_pid(const struct lien_choice *choice, uint32_t pid);
/* What it holds need not be saved. */
bool lien_choice_discards(
	const struct lien_choice *choice, const struct lien_allocation *allocation);
/* Is to be moved, if that is possible. `any_owner`: whoever asked for it. */
bool lien_choice_has(
	const struct lien_choice *choice, const struct lien_allocation *allocation, bool any_owner);
/* NULL, or that an export of it is open; in which process. */
const char *lien_choice_open(const struct lien_choice *choice,
	const struct lien_allocation *allocation, uint32_t *holder);
/* What an address of a discard names; NULL: nothing that its process owns. */
const struct lien_allocation *lien_choice_named(
	struct lien_graph *graph, const struct lien_discard *discard);

#endif
