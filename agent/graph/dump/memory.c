// SPDX-License-Identifier: BSD-2-Clause
/* Dumps memory with handles as events: exports, imports, mappings and releases. */
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/graph/dump/dump.h"

/* Returns the lowest values, because the order of lists does not last. 0: there is none. */
static struct lien_dump_names names_of(const struct lien_holding *holding)
{
	struct lien_dump_names names = {.holding = holding};
	const struct lien_handle *handle;
	uint64_t *value;

	TAILQ_FOREACH (handle, &holding->handles, of_holding) {
		value = handle->imported ? &names.imported : &names.own;
		if (!*value || handle->value < *value)
			*value = handle->value;
	}
	return names;
}

/* NULL: the holding has no such handle. */
static const struct lien_handle *handle_at(const struct lien_holding *holding, uint64_t value)
{
	struct lien_handle key = {.value = value};

	return holding && value ? SPLAY_FIND(lien_handle_tree, &holding->process->handles, &key)
				: NULL;
}

static unsigned slot_of(const void *of)
{
	return ((uintptr_t)of >> 4) % LIEN_DUMP_REMEMBERED;
}

static uint64_t handle_in(struct lien_dump *dump, const struct lien_holding *holding, bool imported)
{
	struct lien_dump_names *names = &dump->names[slot_of(holding)];

	if (!holding)
		return 0;
	if (names->holding != holding)
		*names = names_of(holding);
	return imported ? names->imported : names->own;
}

static uint64_t handle_value(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_holding *holding, bool imported)
{
	uint64_t value = handle_in(dump, holding, imported);

	return value ? value : LIEN_DUMP_HANDLE | allocation->id;
}

uint64_t lien_dump_handle(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, bool imported)
{
	return handle_value(
		dump, allocation, lien_allocation_holding(allocation, process), imported);
}

/* Returns the flags of the event of the nth reference, counted from 0. Raw references come last. */
static unsigned taken_flags(const struct lien_handle *handle, uint32_t nth)
{
	return handle && handle->raw && nth >= handle->references - handle->raw
		       ? 0
		       : LIEN_EVENT_TRANSLATED;
}

unsigned lien_dump_made_flags(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process)
{
	const struct lien_holding *holding = lien_allocation_holding(allocation, process);

	return taken_flags(handle_at(holding, handle_in(dump, holding, false)), 0);
}

static int emit_mapping(struct lien_dump *dump, const struct lien_mapping *mapping)
{
	const struct lien_access_set *access = lien_mapping_access(mapping);
	const struct lien_holding *holding = mapping->holding;
	struct lien_event event = lien_dump_event(holding->process, LIEN_CALL_CU_MEM_MAP);
	unsigned n = 0;
	int err;

	event.map.va = mapping->va;
	event.map.bytes = mapping->bytes;
	event.map.handle = handle_value(dump, holding->allocation, holding, mapping->imported);
	err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(map));
	if (err || !access || !access->count)
		return err;
	event = lien_dump_event(holding->process, LIEN_CALL_CU_MEM_SET_ACCESS);
	event.access.va = mapping->va;
	event.access.bytes = mapping->bytes;
	while (n < access->count && n < LIEN_ACCESS_MAX) {
		event.access.access[n] = access->access[n];
		n++;
	}
	event.access.count = n;
	return lien_dump_emit(dump, &event,
		offsetof(struct lien_event, access.access) + n * sizeof(struct lien_access));
}

/* Emits an export, or an import by it. */
static int emit_share(
	struct lien_dump *dump, const struct lien_event *of, const struct lien_share *share)
{
	struct lien_event event = *of;

	event.flags |= (share->control ? LIEN_EVENT_CONTROL : 0) |
		       (share->imports ? LIEN_EVENT_IMPORTED : 0);
	event.share.fd = share->fd;
	if (share->number & LIEN_SHARE_BY_KEY) {
		event.share.handle_type = CU_MEM_HANDLE_TYPE_FABRIC;
		memcpy(event.share.key, share->key, LIEN_KEY_BYTES);
	} else {
		event.share.share = share->number;
	}
	return lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(share));
}

/* Emits exports under the numbers that later imports will have; untracked exports have none. */
int lien_dump_exports(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner)
{
	const struct lien_share *share;
	struct lien_event event;
	unsigned told = 0;
	int err = 0;

	event = lien_dump_event(owner, LIEN_CALL_CU_MEM_EXPORT);
	event.share.handle = lien_dump_handle(dump, allocation, owner, false);
	event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event.share.fd = -1;
	LIST_FOREACH (share, &allocation->shares, of_allocation) {
		told += !share->control;
		if (!err)
			err = emit_share(dump, &event, share);
	}
	for (; told < allocation->exports && !err; told++)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(share));
	return err;
}

static const struct lien_share *best_share(const struct lien_allocation *allocation)
{
	const struct lien_share *share, *best = NULL;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (!best || (share->imports && !best->imports) ||
			(!share->imports == !best->imports && share->number < best->number))
			best = share;
	return best;
}

const struct lien_share *lien_dump_share(
	struct lien_dump *dump, const struct lien_allocation *allocation)
{
	struct lien_dump_share *known = &dump->shares[slot_of(allocation)];

	if (known->allocation != allocation)
		*known = (struct lien_dump_share){allocation, best_share(allocation)};
	return known->share;
}

static int emit_adopted(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle, uint32_t references)
{
	struct lien_event event = lien_dump_event(process, LIEN_EVENT_ADOPT);

	event.adopt.handle = handle;
	event.adopt.references = references;
	event.adopt.round = allocation->round;
	event.adopt.open = allocation->open;
	event.adopt.part = allocation->part;
	return lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(adopt));
}

int lien_dump_adopted(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle)
{
	return allocation->adopted ? emit_adopted(dump, allocation, process, handle, 1) : 0;
}

int lien_dump_import(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle)
{
	struct lien_event event = lien_dump_event(process, LIEN_CALL_CU_MEM_IMPORT);
	const struct lien_share *share = lien_dump_share(dump, allocation);
	int err;

	event.flags =
		taken_flags(handle_at(lien_allocation_holding(allocation, process), handle), 0);
	event.share.handle = handle;
	event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event.share.fd = -1;
	if (share)
		return emit_share(dump, &event, share);
	/* The export was not seen: the import is all that is known of the memory. */
	err = lien_dump_asked(dump, &event, allocation, process);
	if (!err)
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(share));
	return err ? err : lien_dump_adopted(dump, allocation, process, handle);
}

/* Emits a process's imports: one per handle, and one for memory that is mapped and has no handle
 * any more. */
static int emit_imports(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process, const struct lien_holding *holding)
{
	const struct lien_handle *handle;
	bool any = process == allocation->owner;
	int err = 0;

	if (holding)
		TAILQ_FOREACH (handle, &holding->handles, of_holding)
			if (handle->imported && !err) {
				err = lien_dump_import(dump, allocation, process, handle->value);
				any = true;
			}
	if (!any && !err)
		err = lien_dump_import(
			dump, allocation, process, LIEN_DUMP_HANDLE | allocation->id);
	return err;
}

static const struct lien_mapping *lowest(const struct lien_holding *holding)
{
	const struct lien_mapping *mapping, *best = NULL;

	LIST_FOREACH (mapping, &holding->mappings, of_holding)
		if (!best || mapping->va < best->va)
			best = mapping;
	return best;
}

const struct lien_mapping *lien_dump_mapping(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding, *best = NULL;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->mapped && (!best || holding->process->pid < best->process->pid))
			best = holding;
	return best ? lowest(best) : NULL;
}

/* Emits the references after the first, which came with the create or import. */
static int emit_retains(
	struct lien_dump *dump, const struct lien_handle *handle, uint32_t told, uint64_t va)
{
	struct lien_event event;
	int err = 0;

	for (; told < handle->references && !err; told++) {
		event = lien_dump_event(handle->holding->process, LIEN_CALL_CU_MEM_RETAIN);
		event.flags = taken_flags(handle, told);
		event.retain.handle = handle->value;
		event.retain.va = va;
		err = lien_dump_emit(dump, &event, LIEN_EVENT_SIZE(retain));
	}
	return err;
}

/* Emits the references that a process holds. */
static int emit_references(struct lien_dump *dump, const struct lien_holding *holding)
{
	const struct lien_allocation *allocation = holding->allocation;
	const struct lien_mapping *mapping = lowest(holding);
	uint64_t own = handle_in(dump, holding, false);
	const struct lien_handle *handle;
	int err = 0;

	TAILQ_FOREACH (handle, &holding->handles, of_holding) {
		if (err)
			break;
		if (allocation->adopted && handle->references)
			err = emit_adopted(dump, allocation, holding->process, handle->value,
				handle->references);
		else
			err = emit_retains(dump, handle, handle->imported || handle->value == own,
				mapping ? mapping->va : 0);
	}
	return err;
}

int lien_dump_release(struct lien_dump *dump, struct lien_event *event, size_t size)
{
	int err;

	event->flags |= LIEN_EVENT_ENTRY;
	err = lien_dump_emit(dump, event, size);
	event->flags &= ~LIEN_EVENT_ENTRY;
	return err ? err : lien_dump_emit(dump, event, size);
}

int lien_dump_handle_release(
	struct lien_dump *dump, const struct lien_process *process, uint64_t handle, unsigned flags)
{
	struct lien_event event = lien_dump_event(process, LIEN_CALL_CU_MEM_RELEASE);

	event.flags = flags;
	event.release.handle = handle;
	return lien_dump_release(dump, &event, LIEN_EVENT_SIZE(release));
}

static int emit_parked(struct lien_dump *dump, const struct lien_holding *holding, bool *any)
{
	const struct lien_mapping *mapping;
	struct lien_event event;
	int err = 0;

	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		if (!mapping->parked || err)
			continue;
		*any = true;
		event = lien_dump_event(holding->process, LIEN_CALL_CU_MEM_UNMAP);
		event.flags = LIEN_EVENT_CONTROL;
		event.range.va = mapping->va;
		event.range.bytes = mapping->bytes;
		err = lien_dump_release(dump, &event, LIEN_EVENT_SIZE(range));
	}
	return err;
}

int lien_dump_releases(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process, const struct lien_holding *holding)
{
	const struct lien_handle *handle;
	bool any = false, parked = false;
	unsigned flags;
	int err = 0;

	if (holding)
		err = emit_parked(dump, holding, &parked);
	flags = parked ? LIEN_EVENT_CONTROL : 0;
	if (holding)
		TAILQ_FOREACH (handle, &holding->handles, of_holding) {
			any |= handle->imported == (process != allocation->owner);
			if (!handle->references && !err)
				err = lien_dump_handle_release(dump, process, handle->value, flags);
		}
	if (!any && !err)
		err = lien_dump_handle_release(
			dump, process, LIEN_DUMP_HANDLE | allocation->id, flags);
	return err;
}

int lien_dump_holder(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process, const struct lien_holding *holding)
{
	const struct lien_mapping *mapping;
	int err = 0;

	if (process == allocation->owner)
		err = lien_dump_exports(dump, allocation, process);
	if (!err)
		err = emit_imports(dump, allocation, process, holding);
	if (holding)
		LIST_FOREACH (mapping, &holding->mappings, of_holding)
			if (!err)
				err = emit_mapping(dump, mapping);
	return err || !holding ? err : emit_references(dump, holding);
}

int lien_dump_part_of_all(
	struct lien_dump *dump, const struct lien_allocation *allocation, lien_dump_part *part)
{
	struct lien_process *owner = allocation->owner;
	const struct lien_holding *holding;
	int err = 0;

	if (owner)
		err = part(dump, allocation, owner, lien_allocation_holding(allocation, owner));
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->process != owner && !err)
			err = part(dump, allocation, holding->process, holding);
	return err;
}
