// SPDX-License-Identifier: BSD-2-Clause
/* Decides which memory can be moved, and which processes take orders. */
#include <errno.h>
#include <stdlib.h>

#include <lien/cuda_abi.h>
#include "agent/graph/array.h"
#include "agent/plan/plan_internal.h"

static bool has_own_context(const struct lien_process *process)
{
	struct lien_context *context;

	RB_FOREACH (context, lien_context_tree, (struct lien_context_tree *)&process->contexts)
		if (!context->primary)
			return true;
	return false;
}

static const char *not_followed(const struct lien_process *process)
{
	if (process->incomplete & LIEN_INCOMPLETE_REWRITTEN)
		return "the process has rewritten functions of CUDA or NCCL in its memory, so that "
		       "its calls are not seen: start it without memory hooks "
		       "(UCX_MEM_CUDA_HOOK_MODE=none for UCX) or profilers";
	if (process->incomplete & LIEN_INCOMPLETE_UNPROBED)
		return "the process has a copy of CUDA or NCCL that is not probed: `lien status` "
		       "says why";
	if (process->incomplete & LIEN_INCOMPLETE_LATE)
		return "the process may have used CUDA before it was watched: `lien attach` reads "
		       "what it has";
	if (process->incomplete & LIEN_INCOMPLETE_LOST)
		return "events of the process were lost";
	if (process->incomplete & LIEN_INCOMPLETE_SHARE &&
		!(process->incomplete & LIEN_INCOMPLETE_ADOPTED))
		return "the process imported memory whose export was not seen";
	if (process->incomplete & LIEN_INCOMPLETE_CARDS)
		return "the process may have registered memory with a network card before that was "
		       "watched";
	if (process->incomplete & LIEN_INCOMPLETE_HELD)
		return "the process has bound memory to a logical endpoint, opened GPUDirect "
		       "Storage, or called a function of CUDA, NCCL or RDMA that this lien does "
		       "not know: that may keep the old memory";
	if (process->incomplete & (LIEN_INCOMPLETE_ODD | LIEN_INCOMPLETE_ARGS))
		return "the process did something lien could not follow";
	if (has_own_context(process))
		return "the process has a CUDA context besides the primary one (cuCtxCreate), for "
		       "whose work lien does not wait";
	return NULL;
}

const char *lien_plan_unreachable(const struct lien_process *process)
{
	const char *reason = not_followed(process);

	return reason ? reason : lien_process_takes_no_orders(process);
}

const char *lien_plan_unreachable_then(const struct lien_process *process)
{
	return process->joins ? not_followed(process) : lien_plan_unreachable(process);
}

/* Returns true if a device has all of this access; 0: any entry. */
static bool device_has(const struct lien_mapping *mapping, unsigned flags)
{
	const struct lien_access_set *set = lien_mapping_access(mapping);
	unsigned i;

	for (i = 0; set && i < set->count; i++)
		if (set->access[i].location_type == CU_MEM_LOCATION_TYPE_DEVICE &&
			(set->access[i].flags & flags) == flags)
			return true;
	return false;
}

const struct lien_mapping *lien_plan_whole(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = lien_allocation_holding(allocation, allocation->owner);
	const struct lien_mapping *mapping;

	if (holding)
		LIST_FOREACH (mapping, &holding->mappings, of_holding)
			if (mapping->bytes == allocation->bytes &&
				device_has(mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
				return mapping;
	return NULL;
}

/* Returns NULL, or what there is too much of for LIEN_WIRE_STAGE. */
static const char *too_many_handles(const struct lien_holding *holding)
{
	const struct lien_handle *handle;
	uint64_t references = 0;
	unsigned count = 0;

	TAILQ_FOREACH (handle, &holding->handles, of_holding) {
		references += handle->references;
		count++;
		if (count > LIEN_WIRE_HANDLES)
			return "imported more often by one process than can be restored";
		/* The driver does not tell of handles by which nothing is mapped. */
		if (count > 1 && holding->allocation->found)
			return "imported by a process that had it already, before that was "
			       "watched: it may have more handles than are known";
	}
	return references > LIEN_WIRE_REFERENCES_MAX
		       ? "more references are held to it than can be restored"
		       : NULL;
}

/* Returns NULL, or why unknown processes may have imported it. */
static const char *exports_unknown(const struct lien_allocation *allocation)
{
	const struct lien_share *share;
	unsigned followed = 0;

	LIST_FOREACH (share, &allocation->shares, of_allocation) {
		if (share->control)
			continue;
		if (!share->imports && !share->closed)
			return "exported, and not imported by anybody yet";
		followed++;
	}
	if (followed == allocation->exports)
		return NULL;
	return "exported in a way that is not followed: a fabric handle, or too many open exports "
	       "of its user";
}

static bool partly_away(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->live != holding->mapped)
			return !lien_allocation_offloaded(allocation);
	return false;
}

/* Also for a process that `lien run` started and that lost the variable. */
#define START_IT                                                                                   \
	"start the job with `lien run`, without --plain, and keep the LD_PRELOAD that it sets"

/* The driver chooses the address of these kinds. */
static const char *unmovable_origin(const struct lien_allocation *allocation)
{
	const struct lien_share *share = LIST_FIRST(&allocation->shares);

	if (allocation->origin == LIEN_ORIGIN_MANAGED)
		return "managed memory: the driver itself moves it, and cannot put it back at the "
		       "same address";
	if (allocation->origin == LIEN_ORIGIN_POOL)
		return "memory of a stream-ordered pool cannot be put back at the same address";
	if (share && share->call == LIEN_CALL_CU_IPC_GET)
		return "cudaMalloc memory shared by legacy IPC cannot be put back at the same "
		       "address: " START_IT;
	return "cudaMalloc memory cannot be put back at the same address: " START_IT;
}

#define OPEN                                                                                       \
	"a descriptor that exports it was open when it was adopted, and would keep the old "       \
	"memory: once it is closed, `lien attach` looks again"

/* Nobody owns it. Of imports only re-reading tells properties: it may not be one. */
static const char *unmovable_owner(const struct lien_allocation *allocation)
{
	if (allocation->owner_pid)
		return "its owner has exited";
	if (allocation->open)
		return OPEN;
	if (allocation->prop.type == CU_MEM_ALLOCATION_TYPE_PINNED)
		return "its owner is not known, and others may have it: `lien attach --all` looks "
		       "again, once every process that uses CUDA can be attached and no "
		       "descriptor is on its way to one; where fabric handles can be used, it "
		       "stays";
	return "its owner is not known";
}

static bool by_fabric(const struct lien_allocation *allocation)
{
	const struct lien_share *share;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (share->number & LIEN_SHARE_BY_KEY && !share->control)
			return true;
	return false;
}

/* NCCL keeps the handle of a window, by a pointer to the driver's function that may not have been
 * found. Of windows from before the agent started it is not known that they are. */
static bool may_be_window(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	if (!allocation->found || !(allocation->owner->incomplete & LIEN_INCOMPLETE_NCCL))
		return false;
	holding = lien_allocation_holding(allocation, allocation->owner);
	return holding && holding->mapped > 1;
}

/*
 * Of memory from before its owner was watched nobody knows whether it is bound to a multicast
 * object. The sizes of objects say nothing: memory may be bound in part, with other memory, and to
 * an object that was made larger for the sake of alignment. But cuda.h says that "externally
 * shareable as well as imported multicast objects can be bound only to externally shareable
 * memory".
 */
static bool may_be_bound(const struct lien_allocation *allocation)
{
	const uint32_t doubts = allocation->owner->incomplete;

	if (!allocation->found)
		return false;
	return doubts & LIEN_INCOMPLETE_MULTICAST_OWN ||
	       (doubts & LIEN_INCOMPLETE_MULTICAST && allocation->prop.handle_types);
}

static bool reached(const struct lien_holding *holding)
{
	const struct lien_mapping *mapping;

	LIST_FOREACH (mapping, &holding->mappings, of_holding)
		if (device_has(mapping, 0))
			return true;
	return false;
}

/* An owner copies, and the control library asks the driver about mappings that a device reaches. */
static bool lacks_context(const struct lien_holding *holding)
{
	return holding->process->no_context &&
	       (holding->process == holding->allocation->owner || reached(holding));
}

/* Checks the handles and mappings in one process. */
static const char *unmovable_there(const struct lien_holding *holding)
{
	const char *reason = too_many_handles(holding);
	const struct lien_access_set *set;
	const struct lien_mapping *mapping;

	if (reason)
		return reason;
	if (lacks_context(holding))
		return "the process has no primary context, in which lien copies and asks the "
		       "driver: it has made none, or has released it";
	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		set = lien_mapping_access(mapping);
		reason = lien_mapping_card_keeps(mapping);
		if (reason)
			return reason;
		if (set && set->count > LIEN_WIRE_PLACES)
			return "access for more places than can be restored";
	}
	return NULL;
}

/* multicast: as lien_selection.multicast. *holder is the process that is the reason; 0: the owner.
 */
static const char *unmovable(
	const struct lien_allocation *allocation, bool multicast, uint32_t *holder)
{
	const struct lien_holding *holding;
	const char *reason;

	*holder = 0;
	if (!lien_allocation_on_device(allocation))
		return allocation->origin == LIEN_ORIGIN_MULTICAST ? "a multicast object"
								   : "host memory";
	if (lien_allocation_by_address(allocation))
		return unmovable_origin(allocation);
	if (allocation->prop.usage & CU_MEM_CREATE_USAGE_TILE_POOL)
		return "made for sparse arrays, which keep the old memory";
	if (!allocation->owner)
		return unmovable_owner(allocation);
	if (!lien_allocation_holding(allocation, allocation->owner))
		return "its owner has let go of it, and only others hold it";
	if (allocation->found && !allocation->adopted)
		return "found by re-reading: how many references are held to it is not known "
		       "(`lien attach` counts them)";
	if (may_be_bound(allocation))
		return "made before it was watched, and may be bound to a multicast object "
		       "(NVLS), which would keep the old memory: start the job after the agent, "
		       "or with NCCL_NVLS_ENABLE=0";
	if (allocation->part)
		return "only a part of it was mapped when it was adopted";
	if (allocation->open)
		return OPEN;
	if (may_be_window(allocation))
		return "mapped twice before it was watched, as NCCL maps windows, of which it "
		       "keeps "
		       "the handle";
	if (allocation->found && allocation->prop.handle_types & CU_MEM_HANDLE_TYPE_FABRIC)
		return "may have been exported by a fabric handle before it was watched";
	if (!multicast && !LIST_EMPTY(&allocation->bindings))
		return "bound to a multicast object, which keeps the old memory: see --multicast";
	if (allocation->dmabufs)
		return "handed out as a dma-buf, which keeps the old memory";
	if (!multicast && by_fabric(allocation))
		return "exported by a fabric handle, which cannot be made again: see --multicast";
	reason = exports_unknown(allocation);
	if (reason)
		return reason;
	if (partly_away(allocation))
		return "an earlier offload of it was not put back whole: `lien restore` first";
	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		*holder = holding->process->pid;
		reason = unmovable_there(holding);
		if (reason)
			return reason;
	}
	*holder = 0;
	return NULL;
}

const char *lien_plan_unmovable(const struct lien_allocation *allocation)
{
	uint32_t holder;

	return unmovable(allocation, false, &holder);
}

const char *lien_movable_unreachable(
	const struct planner *planner, const struct lien_process *process)
{
	return planner->selection->ahead ? lien_plan_unreachable_then(process)
					 : lien_plan_unreachable(process);
}

/* --- who may have memory unseen --------------------------------------------------------------- */

/* A process that imported memory of an owner that is not known; one of each user. */
struct stranger {
	const struct lien_process *process;
	uint32_t round; /* the last one in which that memory was compared */
};

/* A process may have imported memory in calls that were not seen; */
#define UNSEEN (LIEN_INCOMPLETE_LOST | LIEN_INCOMPLETE_UNPROBED | LIEN_INCOMPLETE_REWRITTEN)
/* one that has only this, before the agent was there. */
#define UNREAD LIEN_INCOMPLETE_LATE

static int look_for_unseen(struct planner *planner)
{
	uint64_t room = lien_graph_stats(planner->graph)->processes + 1;
	struct lien_process *process;

	planner->unseen = calloc(room, sizeof(*planner->unseen));
	if (!planner->unseen)
		return -ENOMEM;
	LIEN_FOREACH_PROCESS (process, planner->graph) {
		process->mark = 0;
		if (process->cuda && process->incomplete & (UNSEEN | UNREAD))
			planner->unseen[planner->unseen_count++] = process;
	}
	return 0;
}

/* Other users' processes could keep everybody's memory where it is, by changing their own code or
 * by making more calls than are followed; but not by being older than the agent. */
static bool may_get(const struct lien_process *process, const struct lien_process *owner)
{
	return !process->uid || process->uid == owner->uid ||
	       (process->incomplete & (UNSEEN | UNREAD)) == UNREAD;
}

/* May it have been exported before the agent was there? */
static bool is_older(const struct lien_allocation *allocation)
{
	return allocation->found && allocation->prop.handle_types;
}

/* Returns a process that may have imported it in a call that was not seen; NULL: there is none. */
static const struct lien_process *may_import(
	struct planner *planner, const struct lien_allocation *allocation)
{
	const uint32_t reasons = is_older(allocation) ? UNSEEN | UNREAD : UNSEEN;
	const struct lien_holding *holding;
	unsigned i;

	if (!allocation->exports && !is_older(allocation))
		return NULL;
	allocation->owner->mark = ++planner->mark; /* of who has it */
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->mapped)
			holding->process->mark = planner->mark;
	for (i = 0; i < planner->unseen_count; i++)
		if (planner->unseen[i]->mark != planner->mark &&
			planner->unseen[i]->incomplete & reasons &&
			may_get(planner->unseen[i], allocation->owner))
			return planner->unseen[i];
	return NULL;
}

/* Returns the process that imported this allocation of unknown owner. NULL: there is none, or it
 * has no handles (legacy IPC, pools). A handle without a mapping counts as well: it will be mapped.
 */
static const struct lien_process *importer_of(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = LIST_FIRST(&allocation->holdings);
	const struct lien_mapping *mapping = holding ? LIST_FIRST(&holding->mappings) : NULL;

	if (allocation->origin != LIEN_ORIGIN_IMPORT || !holding)
		return NULL;
	return mapping && mapping->opened ? NULL : holding->process;
}

static struct stranger *stranger_of(struct planner *planner, uint32_t uid)
{
	unsigned i;

	for (i = 0; i < planner->strangers_count; i++)
		if (planner->strangers[i].process->uid == uid)
			return &planner->strangers[i];
	return NULL;
}

/* Finds out who imported memory of owners that are not known. */
static int look_for_strangers(struct planner *planner)
{
	struct lien_allocation *allocation;
	const struct lien_process *importer;
	struct stranger *stranger;
	unsigned room = 0;
	int err;

	LIEN_FOREACH_ALLOCATION (allocation, planner->graph) {
		importer = importer_of(allocation);
		stranger = importer ? stranger_of(planner, importer->uid) : NULL;
		if (!importer || (stranger && stranger->round <= allocation->round))
			continue;
		if (!stranger) {
			err = lien_array_grow(&planner->strangers, planner->strangers_count, &room,
				sizeof(*stranger));
			if (err)
				return err;
			stranger = &planner->strangers[planner->strangers_count++];
		}
		*stranger = (struct stranger){importer, allocation->round};
	}
	return 0;
}

/* One that may have imported this before the agent was there; NULL: there is none. */
static const struct lien_process *may_have(
	struct planner *planner, const struct lien_allocation *allocation)
{
	const struct stranger *stranger;
	unsigned i;

	for (i = 0; is_older(allocation) && i < planner->strangers_count; i++) {
		stranger = &planner->strangers[i];
		if (may_get(stranger->process, allocation->owner) &&
			(!allocation->round || stranger->round < allocation->round))
			return stranger->process;
	}
	return NULL;
}

int lien_movable_begin(struct planner *planner)
{
	int err = look_for_unseen(planner);

	return err ? err : look_for_strangers(planner);
}

void lien_movable_end(struct planner *planner)
{
	free(planner->strangers);
	free(planner->unseen);
}

static const char *not_alone(
	struct planner *planner, const struct lien_allocation *allocation, uint32_t *holder)
{
	const char *reason = unmovable(allocation, planner->selection->multicast, holder);
	const struct lien_process *process;

	if (!reason)
		reason = lien_plan_open(allocation, planner->selection->open,
			planner->selection->open_count, holder);
	if (reason)
		return reason;
	process = may_have(planner, allocation);
	if (process) {
		*holder = process->pid;
		return "it can be exported, and a process has imported memory of an owner that is "
		       "not known: `lien attach` finds out";
	}
	process = may_import(planner, allocation);
	if (!process)
		return NULL;
	*holder = process->pid;
	if (!(process->incomplete & UNSEEN))
		return "it can be exported, and a process may have imported it before that was "
		       "watched: `lien attach` reads what that one has";
	return process->incomplete & LIEN_INCOMPLETE_LOST
		       ? "exported, and a process of which events were lost may have imported it: "
			 "`lien check --deep --repair` reads that one again"
		       : "exported, and a process whose calls are not seen may have imported it: "
			 "`lien doctor` says why";
}

/* --- memory bound to multicast objects -------------------------------------------------------- */

#define TOGETHER_MAX 256 /* allocations that objects join; NCCL has one for each GPU */

static const char too_many[] = "bound to multicast objects with too much other memory";

struct list {
	const struct lien_allocation *one[TOGETHER_MAX];
	unsigned count;
};

/* Objects join an allocation with other memory. This lists both. */
struct together {
	struct planner *planner;
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
	return all->planner->bound_steps && --all->planner->bound_steps;
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

/* An object is exported and imported like memory. Returns NULL, or why unknown processes may hold
 * it.
 */
static const char *object_unsure(
	struct planner *planner, const struct lien_allocation *object, uint32_t *holder)
{
	const struct lien_process *process;

	if (exports_unknown(object) || lien_plan_open(object, planner->selection->open,
					       planner->selection->open_count, holder))
		return "bound to a multicast object that is exported, and may be imported yet";
	process = object->owner ? may_import(planner, object) : NULL;
	if (!process && object->owner)
		return NULL;
	*holder = process ? process->pid : 0;
	return "bound to a multicast object that unknown processes may hold";
}

static const char *check_object(
	struct together *all, const struct lien_allocation *object, uint32_t *holder)
{
	const char *reason = object_unsure(all->planner, object, holder);
	const uint64_t mark = ++all->planner->mark; /* of owners of its memory */
	const struct lien_holding *holding;
	struct lien_binding *binding;

	if (reason)
		return reason;
	RB_FOREACH (binding, lien_binding_tree, (struct lien_binding_tree *)&object->bound) {
		if (!step(all) || add(&all->memory, binding->memory) < 0)
			return too_many;
		if (binding->memory->owner)
			binding->memory->owner->mark = mark;
	}
	/* Each process that holds the object must be held while its memory is away. */
	LIST_FOREACH (holding, &object->holdings, of_allocation)
		if (holding->process->mark != mark) {
			*holder = holding->process->pid;
			return "bound to a multicast object that a process holds which has no "
			       "memory in it";
		}
	return NULL;
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

/*
 * Every process that holds a multicast object uses the memory that is bound to it. So the memory of
 * an object moves as a whole or not at all, and only if each of these processes has some of it:
 * others would not be held.
 */
const char *lien_movable_not(struct planner *planner, const struct lien_allocation *allocation,
	uint64_t *team, uint32_t *holder)
{
	struct together all = {.planner = planner, .memory = {{allocation}, 1}};
	const char *reason = not_alone(planner, allocation, holder);
	unsigned i;

	*team = 0;
	if (reason || LIST_EMPTY(&allocation->bindings))
		return reason;
	for (i = 0; i < all.memory.count; i++) {
		reason = check_memory(&all, all.memory.one[i], holder);
		if (reason)
			return reason;
	}
	for (i = 0; i < all.memory.count; i++) {
		if (!*team || all.memory.one[i]->id < *team)
			*team = all.memory.one[i]->id;
		if (i && (!lien_choice_has(&planner->choice, all.memory.one[i], false) ||
				 lien_movable_stays(planner, all.memory.one[i], true)))
			return "bound to a multicast object together with memory that stays";
	}
	return NULL;
}

bool lien_movable_stays(
	struct planner *planner, const struct lien_allocation *allocation, bool alone)
{
	uint64_t team;
	uint32_t holder;

	return (alone ? not_alone(planner, allocation, &holder)
		      : lien_movable_not(planner, allocation, &team, &holder)) ||
	       lien_movable_unreachable(planner, allocation->owner);
}
