/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the plan's own files. No other file includes this. */
#ifndef LIEN_PLAN_INTERNAL_H
#define LIEN_PLAN_INTERNAL_H

#include "agent/plan/places.h"
#include "agent/plan/plan.h"

/* Like lien_plan_unmovable(); *holder is the process that is the reason, 0: the owner. multicast:
 * as lien_selection.multicast. For bound memory lien_plan_bound() has a say as well. */
const char *lien_plan_reason(
	const struct lien_allocation *allocation, bool multicast, uint32_t *holder);
/* Returns the handle by which a process names a multicast object; 0: it has none. */
uint64_t lien_plan_object(const struct lien_allocation *object, const struct lien_process *process);
/* Returns NULL, or why unknown processes may have imported it. */
const char *lien_plan_exports_unknown(const struct lien_allocation *allocation);

/* What lien_plan_bound() asks. */
struct lien_bound {
	/* Returns true if other memory stays where it is. */
	bool (*stays)(void *context, const struct lien_allocation *other);
	/* Returns NULL, or why unknown processes may hold an object. */
	const char *(*unsure)(
		void *context, const struct lien_allocation *object, uint32_t *holder);
	void *context;
	unsigned *steps; /* that are left for all allocations of the plan */
};

/*
 * Every process that holds a multicast object uses the memory that is bound to it. So the memory of
 * an object moves as a whole or not at all, and only if each of these processes has some of it:
 * others would not be held. Returns NULL, or why it stays. *team: the lowest number among the
 * allocations that move together; 0: it is not bound.
 */
const char *lien_plan_bound(const struct lien_allocation *allocation,
	const struct lien_bound *bound, uint64_t *team, uint32_t *holder);
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
	struct lien_uuid *gpus;
	uint64_t *groups;
	const char **tags;
	const char **discarded_owners, **discarded_tags;
	/* allocations with an export that is open somewhere */
	struct lien_chosen_open *open;
	unsigned owners_count, discarded_tags_count, open_count;
};

/* Returns 0 or -ENOMEM; free it with lien_choice_clear(). */
int lien_choice_make(struct lien_choice *choice, struct lien_graph *graph,
	const struct lien_selection *selection);
void lien_choice_clear(struct lien_choice *choice);

/* Is the pid selected? Without pids every process is. */
bool lien_choice_has_pid(const struct lien_choice *choice, uint32_t pid);
/* Is it for a selected group, and does it have a selected tag? Without groups, or tags, any is. */
bool lien_choice_narrows_to(
	const struct lien_choice *choice, const struct lien_allocation *allocation);
/* May the allocation be dropped without saving it? */
bool lien_choice_discards(
	const struct lien_choice *choice, const struct lien_allocation *allocation);
/*
 * Is the allocation to be moved, if possible? With `any_owner` it does not matter who asked for it.
 */
bool lien_choice_has(
	const struct lien_choice *choice, const struct lien_allocation *allocation, bool any_owner);
/* Is it not known who asked for it, not even probably? */
bool lien_choice_unknown(
	const struct lien_choice *choice, const struct lien_allocation *allocation);
/* Is its owner inferred, and is it selected for that? */
bool lien_choice_infers(const struct lien_choice *choice, const struct lien_allocation *allocation);
/* Returns NULL, or that an export of it is open; and in which process. */
const char *lien_choice_open(const struct lien_choice *choice,
	const struct lien_allocation *allocation, uint32_t *holder);

/* Fills lien_plan.idle. The plan's processes, if it has any, are sorted.
 * `stays`: would the allocation stay where it is if it were selected? -ENOMEM. */
int lien_idle_add(struct lien_plan *plan, struct lien_graph *graph,
	const struct lien_choice *choice,
	bool (*stays)(void *context, const struct lien_allocation *allocation), void *context);
int lien_idle_add_rest(struct lien_plan *plan, struct lien_graph *graph,
	const struct lien_choice *choice,
	bool (*stays)(void *context, const struct lien_allocation *allocation), void *context);

/* Finds the rows of lien_plan.unknown while the plan is made. */
struct lien_unknown_rows {
	struct lien_places places;
	unsigned room;
};

/* Counts an allocation that is not selected. -ENOMEM. */
int lien_unknown_add(struct lien_plan *plan, struct lien_unknown_rows *rows,
	const struct lien_allocation *allocation, bool movable);
/* Adds the selected processes whose memory has not been read from the driver yet. -ENOMEM. */
int lien_unknown_add_unread(struct lien_plan *plan, struct lien_unknown_rows *rows,
	struct lien_graph *graph, const struct lien_choice *choice);
void lien_unknown_end(struct lien_plan *plan, struct lien_unknown_rows *rows);

struct lien_freeable {
	const struct lien_allocation *allocation;
	uint64_t team;
	unsigned gpu;
	bool held; /* cannot be moved, and so neither can its team */
	bool chosen;
};

/* What lien_selection.free chooses from, while the plan is made. */
struct lien_freeing {
	struct lien_places places; /* of lien_plan.freed */
	unsigned freed_room;
	struct lien_freeable *list;
	unsigned count, room;
	uint64_t held_bytes; /* of what could be moved if its holders took part; */
	char held[300];	     /* why that is not so, for the first of it */
};

/* Returns the row of the GPU that it could be moved from; -ENOMEM. */
int lien_freeing_gpu(struct lien_freeing *freeing, struct lien_plan *plan,
	const struct lien_selection *selection, const struct lien_allocation *allocation);
/* Adds what could be moved. `held`: a holder keeps it. -ENOMEM. */
int lien_freeing_add(struct lien_freeing *freeing, unsigned gpu,
	const struct lien_allocation *allocation, uint64_t team, bool held);
/* Sets .chosen of the list, and fills lien_plan.freed. Returns 0; -EBUSY with the reason in
 * `error`: a GPU has too little; -ENOMEM. */
int lien_freeing_choose(struct lien_freeing *freeing, struct lien_plan *plan,
	const struct lien_choice *choice, char *error, size_t error_size);
void lien_freeing_end(struct lien_freeing *freeing);

#endif
