// SPDX-License-Identifier: BSD-2-Clause
/* Decides which memory can be moved, and which processes take orders. */
#include <lien/cuda_abi.h>
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

static bool copyable(const struct lien_mapping *mapping)
{
	return device_has(mapping, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

const struct lien_mapping *lien_plan_whole(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = lien_allocation_holding(allocation, allocation->owner);
	const struct lien_mapping *mapping;

	if (holding)
		LIST_FOREACH (mapping, &holding->mappings, of_holding)
			if (mapping->bytes == allocation->bytes && copyable(mapping))
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

const char *lien_plan_exports_unknown(const struct lien_allocation *allocation)
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

const char *lien_plan_reason(
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
	reason = lien_plan_exports_unknown(allocation);
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

	return lien_plan_reason(allocation, false, &holder);
}

uint64_t lien_plan_address(const struct lien_allocation *allocation)
{
	uint64_t own = UINT64_MAX, any = UINT64_MAX;
	const struct lien_holding *holding;
	const struct lien_mapping *mapping;

	/* The lowest pid: the order of lists does not last. */
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		LIST_FOREACH (mapping, &holding->mappings, of_holding) {
			if (holding->process == allocation->owner && mapping->va < own)
				own = mapping->va;
			if (mapping->va < any)
				any = mapping->va;
		}
	if (own != UINT64_MAX)
		return own;
	return any != UINT64_MAX ? any : 0;
}
