// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/graph/event_check.h"
#include "tools/replay/worker.h"

#define CALL(w, op, name, ...) LIEN_REPLAY_CALL(w, (op)->flags, name, __VA_ARGS__)

static int judge(struct lien_replay_worker *w, const struct lien_replay_op *op, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return 0;
	return lien_replay_wrong(w, "%s (record %u): %s", lien_call_name(op->event.type),
		op->record, lien_replay_error_name(result));
}

/* Cannot happen with a consistent script. */
static int lost_track(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	return lien_replay_wrong(w, "%s (record %u): the script names what is not there",
		lien_call_name(op->event.type), op->record);
}

static struct lien_replay_name *handle_name(struct lien_replay_worker *w, uint64_t recorded)
{
	return lien_replay_names_find(&w->names, LIEN_REPLAY_NAME_HANDLE, recorded);
}

static int hold(struct lien_replay_worker *w, const struct lien_replay_op *op,
	enum lien_replay_name_kind kind, uint64_t recorded, uint64_t actual, uint64_t tag)
{
	return lien_replay_names_push(&w->names, kind, recorded, actual, tag, op->flags) ? 0
											 : -ENOMEM;
}

static int create(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	const struct lien_prop *recorded = &op->event.create.prop;
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop = {
		.type = recorded->type,
		.requestedHandleTypes = recorded->handle_types,
		.location = {.type = recorded->location_type, .id = recorded->location_id},
		.allocFlags = {.compressionType = recorded->compression,
			.gpuDirectRDMACapable = recorded->rdma,
			.usage = recorded->usage},
	};
	int err;

	if (prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		prop.location.id = lien_replay_device(w, prop.location.id);
	err = judge(w, op,
		CALL(w, op, cuMemCreate, (long)&handle, (long)op->event.create.bytes, (long)&prop));
	if (err)
		return err;
	return hold(
		w, op, LIEN_REPLAY_NAME_HANDLE, op->event.create.handle, handle, op->allocation);
}

static int release(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	struct lien_replay_name *name = handle_name(w, op->event.release.handle);

	if (!name)
		return lost_track(w, op);
	return judge(
		w, op, CALL(w, op, cuMemRelease, (long)lien_replay_names_pop(&w->names, name)));
}

static int retain(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	uint64_t va = lien_replay_space_actual(&w->space, op->event.retain.va);
	CUmemGenericAllocationHandle handle = 0;
	int err;

	if (!va)
		return lost_track(w, op);
	err = judge(w, op, CALL(w, op, cuMemRetainAllocationHandle, (long)&handle, (long)va));
	if (err)
		return err;
	return hold(
		w, op, LIEN_REPLAY_NAME_HANDLE, op->event.retain.handle, handle, op->allocation);
}

static int reserve(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	const struct lien_event *ev = &op->event;
	CUdeviceptr va = 0;
	CUresult result;
	int err;

	result = CALL(w, op, cuMemAddressReserve, (long)&va, (long)ev->reserve.bytes,
		(long)ev->reserve.align, (long)ev->reserve.va);
	/* The address is a hint; if a driver refuses it, any other will do. */
	if (result != CUDA_SUCCESS)
		result = CALL(w, op, cuMemAddressReserve, (long)&va, (long)ev->reserve.bytes,
			(long)ev->reserve.align);
	err = judge(w, op, result);
	if (err)
		return err;
	return lien_replay_space_reserve(
		       &w->space, ev->reserve.va, ev->reserve.bytes, va, op->flags)
		       ? 0
		       : -ENOMEM;
}

static int address_free(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	struct lien_replay_range *range = lien_replay_space_range(&w->space, op->event.range.va, 1);
	uint64_t va, bytes;

	if (!range)
		return lost_track(w, op);
	va = range->actual;
	bytes = range->bytes;
	lien_replay_space_unreserve(&w->space, range);
	return judge(w, op, CALL(w, op, cuMemAddressFree, (long)va, (long)bytes));
}

static int map(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	const struct lien_event *ev = &op->event;
	struct lien_replay_name *name = handle_name(w, ev->map.handle);
	uint64_t va = lien_replay_space_actual(&w->space, ev->map.va);
	struct lien_replay_mapping *mapping;
	int err;

	if (!name || !va)
		return lost_track(w, op);
	err = judge(w, op,
		CALL(w, op, cuMemMap, (long)va, (long)ev->map.bytes, (long)ev->map.offset,
			(long)lien_replay_name_actual(name)));
	if (err)
		return err;
	mapping = lien_replay_space_map(
		&w->space, ev->map.va, ev->map.bytes, op->allocation, op->flags);
	if (!mapping)
		return -ENOMEM;
	mapping->offset = ev->map.offset;
	return 0;
}

static int unmap(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	uint64_t at = op->event.range.va, bytes = op->event.range.bytes;
	uint64_t va = lien_replay_space_actual(&w->space, at);
	struct lien_replay_mapping *mapping;

	if (!va)
		return lost_track(w, op);
	while ((mapping = lien_replay_space_mapping(&w->space, at, bytes)))
		lien_replay_space_unmap(&w->space, mapping);
	return judge(w, op, CALL(w, op, cuMemUnmap, (long)va, (long)bytes));
}

/* Translates the recorded access descriptors to this machine's devices; if two devices become one,
 * the stronger access wins. */
static size_t translate_access(
	struct lien_replay_worker *w, const struct lien_event *ev, CUmemAccessDesc *desc)
{
	const struct lien_access *access;
	CUmemLocation location;
	size_t count = 0, k;
	uint32_t i;

	for (i = 0; i < ev->access.count; i++) {
		access = &ev->access.access[i];
		location.type = access->location_type;
		location.id = access->location_id;
		if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
			location.id = lien_replay_device(w, location.id);
		for (k = 0; k < count; k++) {
			if (desc[k].location.type == location.type &&
				desc[k].location.id == location.id)
				break;
		}
		if (k == count)
			desc[count++] = (CUmemAccessDesc){.location = location};
		if (access->flags > desc[k].flags)
			desc[k].flags = access->flags;
	}
	return count;
}

static int set_access(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	const struct lien_event *ev = &op->event;
	uint64_t va = lien_replay_space_actual(&w->space, ev->access.va);
	CUmemAccessDesc desc[LIEN_ACCESS_MAX] = {};
	struct lien_replay_mapping *mapping;
	size_t count;
	int err;

	if (!va)
		return lost_track(w, op);
	count = translate_access(w, ev, desc);
	err = judge(w, op,
		CALL(w, op, cuMemSetAccess, (long)va, (long)ev->access.bytes, (long)desc,
			(long)count));
	for (mapping = lien_replay_space_mapping(&w->space, ev->access.va, ev->access.bytes);
		!err && mapping && mapping->va - ev->access.va < ev->access.bytes;
		mapping = lien_replay_space_above(mapping)) {
		lien_replay_mapping_access(mapping, ev);
		err = lien_replay_fill(w, mapping);
	}
	return err;
}

static int export_handle(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	const struct lien_event *ev = &op->event;
	struct lien_replay_name *name = handle_name(w, ev->share.handle);
	bool fabric = ev->share.handle_type == CU_MEM_HANDLE_TYPE_FABRIC;
	struct lien_replay_message message = {.say = LIEN_SAY_EXPORT};
	int fd = -1, err;

	if (!name)
		return lost_track(w, op);
	message.share.number = ev->share.share;
	err = judge(w, op,
		CALL(w, op, cuMemExportToShareableHandle,
			fabric ? (long)message.share.fabric : (long)&fd,
			(long)lien_replay_name_actual(name), (long)ev->share.handle_type));
	if (err)
		return err;
	if (op->flags & LIEN_OP_SHARED)
		err = lien_replay_send(w->sock, &message, fd, w->image->timeout_ms);
	if (fd >= 0)
		close(fd);
	return err;
}

static int import_handle(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	const struct lien_event *ev = &op->event;
	struct lien_replay_message message = {.say = LIEN_SAY_IMPORT};
	CUmemGenericAllocationHandle handle = 0;
	int fd, err;

	message.share.number = ev->share.share;
	err = lien_replay_send(w->sock, &message, -1, w->image->timeout_ms);
	if (err)
		return err;
	/* The parent watches this wait and knows the reason, so it times out first. */
	err = lien_replay_receive(w->sock, &message, &fd, w->image->timeout_ms + 10000);
	if (err)
		return err;
	if (message.say != LIEN_SAY_SHARE)
		return lost_track(w, op);
	err = judge(w, op,
		CALL(w, op, cuMemImportFromShareableHandle, (long)&handle,
			fd >= 0 ? (long)fd : (long)message.share.fabric,
			(long)ev->share.handle_type));
	if (fd >= 0)
		close(fd);
	if (err)
		return err;
	return hold(w, op, LIEN_REPLAY_NAME_HANDLE, ev->share.handle, handle, op->allocation);
}

static int mem_alloc(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	const struct lien_event *ev = &op->event;
	struct lien_replay_mapping *mapping;
	struct lien_replay_range *range;
	CUdeviceptr va = 0;
	int err;

	err = lien_replay_context(w, lien_replay_device(w, w->image->home));
	if (!err)
		err = judge(w, op, CALL(w, op, cuMemAlloc_v2, (long)&va, (long)ev->alloc.bytes));
	if (err)
		return err;
	range = lien_replay_space_reserve(&w->space, ev->alloc.va, ev->alloc.bytes, va, op->flags);
	mapping = lien_replay_space_map(
		&w->space, ev->alloc.va, ev->alloc.bytes, op->allocation, op->flags);
	if (!range || !mapping)
		return -ENOMEM;
	range->linear = true;
	mapping->linear = true;
	return lien_replay_fill(w, mapping);
}

static int mem_free(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	struct lien_replay_mapping *mapping =
		lien_replay_space_mapping(&w->space, op->event.range.va, 1);
	struct lien_replay_range *range = lien_replay_space_range(&w->space, op->event.range.va, 1);
	uint64_t va;

	if (!mapping || !range)
		return lost_track(w, op);
	va = range->actual;
	lien_replay_space_unmap(&w->space, mapping);
	lien_replay_space_unreserve(&w->space, range);
	return judge(w, op, CALL(w, op, cuMemFree_v2, (long)va));
}

int lien_replay_issue(struct lien_replay_worker *w, const struct lien_replay_op *op)
{
	static int (*const calls[LIEN_CALL_MAX])(
		struct lien_replay_worker *, const struct lien_replay_op *) = {
		[LIEN_CALL_CU_MEM_CREATE] = create,
		[LIEN_CALL_CU_MEM_RELEASE] = release,
		[LIEN_CALL_CU_MEM_RETAIN] = retain,
		[LIEN_CALL_CU_MEM_RESERVE] = reserve,
		[LIEN_CALL_CU_MEM_ADDRESS_FREE] = address_free,
		[LIEN_CALL_CU_MEM_MAP] = map,
		[LIEN_CALL_CU_MEM_UNMAP] = unmap,
		[LIEN_CALL_CU_MEM_SET_ACCESS] = set_access,
		[LIEN_CALL_CU_MEM_EXPORT] = export_handle,
		[LIEN_CALL_CU_MEM_IMPORT] = import_handle,
		[LIEN_CALL_CU_MEM_ALLOC] = mem_alloc,
		[LIEN_CALL_CU_MEM_FREE] = mem_free,
		[LIEN_CALL_NCCL_INIT_RANK] = lien_replay_issue_comm,
		[LIEN_CALL_NCCL_INIT_RANK_CONFIG] = lien_replay_issue_comm,
		[LIEN_CALL_NCCL_INIT_RANK_SCALABLE] = lien_replay_issue_comm,
		[LIEN_CALL_NCCL_DESTROY] = lien_replay_issue_comm,
		[LIEN_CALL_NCCL_ABORT] = lien_replay_issue_comm,
		[LIEN_CALL_NCCL_REGISTER] = lien_replay_issue_comm,
		[LIEN_CALL_NCCL_DEREGISTER] = lien_replay_issue_comm,
		[LIEN_CALL_NCCL_WINDOW_REGISTER] = lien_replay_issue_comm,
		[LIEN_CALL_NCCL_WINDOW_DEREGISTER] = lien_replay_issue_comm,
	};

	return calls[op->event.type](w, op);
}
