/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the plan's own files. No other file includes this but a test. */
#ifndef LIEN_PLAN_INTERNAL_H
#define LIEN_PLAN_INTERNAL_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/plan/plan.h"

/* --- what is selected (plan_choice.c) --------------------------------------------------------- */

/* A selection, prepared for one lookup per allocation. */
struct lien_choice {
	const struct lien_selection *selection;
	uint32_t *pids; /* sorted, like the other lists here */
	struct lien_uuid *gpus;
	uint64_t *groups;
	const char **tags;
	const char **discarded_owners, **discarded_tags;
	unsigned owners_count, discarded_tags_count;
};

/* Returns 0 or -ENOMEM; free it with lien_choice_clear(). */
int lien_choice_make(struct lien_choice *choice, const struct lien_selection *selection);
void lien_choice_clear(struct lien_choice *choice);
/* Does everything exist that the selection names? Nothing is ignored silently. 0; -ESRCH with the
 * reason in `error` and *blame; -ENOMEM. */
int lien_choice_check(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_blame *blame, char *error, size_t size);

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
/* Returns the library whose memory it is, as far as the selection cares. */
const char *lien_choice_library(
	const struct lien_choice *choice, const struct lien_allocation *allocation);

/* --- a plan while it is made ------------------------------------------------------------------ */

/* Memory that can be moved to free some. */
struct lien_free_item {
	const struct lien_allocation *of;
	uint64_t whole; /* all items of this number move together, or none */
	unsigned gpu;	/* index */
	uint64_t bytes;
	uint64_t cost; /* ns */
	uint32_t pid;  /* of the owner: of equal items those of one process come first */
	bool held;     /* cannot be moved, and so neither can its whole */
	bool chosen;
};

struct planner {
	struct lien_graph *graph;
	const struct lien_selection *selection;
	struct lien_choice choice;
	struct lien_plan *plan;
	struct lien_rows processes, left, freed; /* of the plan's arrays */
	char *error;
	size_t error_size;
	/* Processes that imported memory of owners that are not known; one of each user. */
	struct stranger *strangers;
	unsigned strangers_count;
	/* Processes that may have imported in a call that was not seen. */
	const struct lien_process **unseen;
	unsigned unseen_count;
	uint64_t mark;	      /* lien_process.mark of those that the last question was about */
	unsigned bound_steps; /* that are left for bindings to multicast objects */
	/* What lien_selection.free chooses from. */
	struct lien_free_item *items;
	unsigned items_count, items_room;
	uint64_t held_bytes; /* of what could be moved if its holders took part; */
	char held[300];	     /* why that is not so, for the first of it */
};

/* --- what stays (plan_movable.c) -------------------------------------------------------------- */

/* Finds out what processes may have without anybody's knowledge. -ENOMEM. */
int lien_movable_begin(struct planner *planner);
void lien_movable_end(struct planner *planner);
/*
 * Returns NULL, or why the allocation stays where it is; *holder is the process that is the reason,
 * 0: the owner. *team: the lowest number among the allocations that move together because
 * multicast objects join them; 0: it is not bound.
 */
const char *lien_movable_not(struct planner *planner, const struct lien_allocation *allocation,
	uint64_t *team, uint32_t *holder);
/* Would it stay where it is if it were selected? `alone`: without what objects join, for looking
 * for that has a limit, which is for what is selected. */
bool lien_movable_stays(
	struct planner *planner, const struct lien_allocation *allocation, bool alone);
/* Returns NULL if the process takes orders; else why not. */
const char *lien_movable_unreachable(
	const struct planner *planner, const struct lien_process *process);
/* Returns the handle by which a process names a multicast object; 0: it has none. */
uint64_t lien_plan_object(const struct lien_allocation *object, const struct lien_process *process);
/* Returns the owner's mapping that covers all bytes, for copying. */
const struct lien_mapping *lien_plan_whole(const struct lien_allocation *allocation);

/* --- so many bytes of a GPU (plan_free.c) ----------------------------------------------------- */

/* Adds what could be moved. `held`: a holder keeps it. -ENOMEM. */
int lien_freeing_add(struct planner *planner, const struct lien_allocation *allocation,
	uint64_t team, bool held);
/* Sets .chosen of the items, and fills lien_plan.freed. Returns 0; -EBUSY with the reason in the
 * planner's error: a GPU has too little; -ENOMEM. */
int lien_freeing_choose(struct planner *planner);

/*
 * Sets .chosen of the items, which it sorts, and .movable, .bytes and .allocations of the GPUs, to
 * free `wanted` bytes of each. Returns 0; -ENOSPC: a GPU has less that is movable than wanted, and
 * nothing is chosen; -ENOMEM.
 *
 * It takes what costs least per byte first, and ends with what makes up the rest at the least cost:
 * at most twice the least cost there is for each GPU.
 */
int lien_free_choose(struct lien_free_item *items, unsigned count, uint64_t wanted,
	struct lien_freed *gpus, unsigned gpus_count);

#endif
