// SPDX-License-Identifier: BSD-2-Clause
/* Memory that is bound to multicast objects. */
#include "agent/plan/plan_internal.h"

#define TOGETHER_MAX 256 /* allocations that objects join; NCCL has one for each GPU */

static const char too_many[] = "bound to multicast objects with too much other memory";

struct list {
	const struct lien_allocation *one[TOGETHER_MAX];
	unsigned count;
};

/* Objects join an allocation with other memory. This lists both. */
struct together {
	const struct lien_bound *bound;
	struct list memory, objects;
};

/* Returns 1 if it is new, 0 if not, -1 if there is no room. */
static int add(struct list *list, const struct lien_allocation *one)
{
	unsigned i;

	for (i = 0; i < list->count; i++)
		if (list->one[i] == one)
			return 0;
	if (list->count == TOGETHER_MAX)
		return -1;
	list->one[list->count++] = one;
	return 1;
}

/* Returns false if enough has been done. */
static bool step(const struct together *all)
{
	return *all->bound->steps && --*all->bound->steps;
}

uint64_t lien_plan_object(const struct lien_allocation *object, const struct lien_process *process)
{
	const struct lien_holding *holding = lien_allocation_holding(object, process);
	const struct lien_handle *handle;

	if (holding)
		TAILQ_FOREACH (handle, &holding->handles, of_holding)
			if (handle->references)
				return handle->value;
	return 0;
}

/* Each process that holds the object must be held while its memory is away. */
static const char *check_holders(
	struct together *all, const struct lien_allocation *object, uint32_t *holder)
{
	const struct lien_holding *holding;
	struct lien_binding *binding;
	bool found;

	LIST_FOREACH (holding, &object->holdings, of_allocation) {
		found = false;
		RB_FOREACH (
			binding, lien_binding_tree, (struct lien_binding_tree *)&object->bound) {
			if (!step(all))
				return too_many;
			if (binding->memory->owner == holding->process) {
				found = true;
				break;
			}
		}
		if (!found) {
			*holder = holding->process->pid;
			return "bound to a multicast object that a process holds which has no "
			       "memory in it";
		}
	}
	return NULL;
}

static const char *check_object(
	struct together *all, const struct lien_allocation *object, uint32_t *holder)
{
	const char *reason = all->bound->unsure(all->bound->context, object, holder);
	struct lien_binding *binding;

	if (reason)
		return reason;
	RB_FOREACH (binding, lien_binding_tree, (struct lien_binding_tree *)&object->bound)
		if (!step(all) || add(&all->memory, binding->memory) < 0)
			return too_many;
	return check_holders(all, object, holder);
}

static const char *check_memory(
	struct together *all, const struct lien_allocation *memory, uint32_t *holder)
{
	const struct lien_binding *binding;
	const char *reason = NULL;
	int added;

	LIST_FOREACH (binding, &memory->bindings, of_memory) {
		added = step(all) ? add(&all->objects, binding->object) : -1;
		if (added < 0)
			return too_many;
		if (!lien_plan_object(binding->object, memory->owner))
			return "bound to a multicast object to which its process has no handle "
			       "any more";
		if (added)
			reason = check_object(all, binding->object, holder);
		if (reason)
			return reason;
	}
	return NULL;
}

const char *lien_plan_bound(const struct lien_allocation *allocation,
	const struct lien_bound *bound, uint64_t *team, uint32_t *holder)
{
	struct together all = {.bound = bound, .memory = {{allocation}, 1}};
	const char *reason;
	unsigned i;

	*team = 0;
	if (LIST_EMPTY(&allocation->bindings))
		return NULL;
	for (i = 0; i < all.memory.count; i++) {
		reason = check_memory(&all, all.memory.one[i], holder);
		if (reason)
			return reason;
	}
	for (i = 0; i < all.memory.count; i++) {
		if (!*team || all.memory.one[i]->id < *team)
			*team = all.memory.one[i]->id;
		if (i && bound->stays(bound->context, all.memory.one[i]))
			return "bound to a multicast object together with memory that stays";
	}
	return NULL;
}
