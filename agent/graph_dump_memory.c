// SPDX-License-Identifier: BSD-2-Clause
/* Memory with handles told as events: who exported, imported and mapped it, and has let go of it.
 */
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/graph_dump.h"

static const struct lien_handle *handle_in(
	const struct lien_allocation *allocation, const struct lien_process *process, bool imported)
{
	const struct lien_handle *handle, *best = NULL;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process && handle->imported == imported &&
			(!best || handle->value < best->value))
			best = handle;
	return best;
}

static const struct lien_handle *handle_of(const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t value)
{
	const struct lien_handle *handle;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process && handle->value == value)
			break;
	return handle;
}

uint64_t lien_dump_handle(
	const struct lien_allocation *allocation, const struct lien_process *process, bool imported)
{
	const struct lien_handle *handle = handle_in(allocation, process, imported);

	return handle ? handle->value : LIEN_DUMP_HANDLE | allocation->id;
}

/* Flags of the event of the nth reference, from 0. Raw references come last. */
static unsigned taken_flags(const struct lien_handle *handle, uint32_t nth)
{
	return handle && handle->raw && nth >= handle->references - handle->raw
		       ? 0
		       : LIEN_EVENT_TRANSLATED;
}

unsigned lien_dump_made_flags(
	const struct lien_allocation *allocation, const struct lien_process *process)
{
	return taken_flags(handle_in(allocation, process, false), 0);
}

static int tell_mapping(struct lien_dump *dump, const struct lien_mapping *mapping)
{
	struct lien_event event = lien_dump_event(mapping->process, LIEN_CALL_CU_MEM_MAP);
	unsigned n = 0;
	int err;

	event.map.va = mapping->va;
	event.map.bytes = mapping->bytes;
	event.map.offset = mapping->offset;
	event.map.handle =
		lien_dump_handle(mapping->allocation, mapping->process, mapping->imported);
	err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(map));
	if (err || !mapping->access || !mapping->access->count)
		return err;
	event = lien_dump_event(mapping->process, LIEN_CALL_CU_MEM_SET_ACCESS);
	event.access.va = mapping->va;
	event.access.bytes = mapping->bytes;
	while (n < mapping->access->count && n < LIEN_ACCESS_MAX) {
		event.access.access[n] = mapping->access->access[n];
		n++;
	}
	event.access.count = n;
	return lien_dump_tell(dump, &event,
		offsetof(struct lien_event, access.access) + n * sizeof(struct lien_access));
}

/* Its export, or an import by it. */
static int tell_share(
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
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(share));
}

/* Under the numbers that imports to come will have; exports that cannot be followed have none. */
int lien_dump_exports(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner)
{
	const struct lien_share *share;
	struct lien_event event;
	unsigned told = 0;
	int err = 0;

	event = lien_dump_event(owner, LIEN_CALL_CU_MEM_EXPORT);
	event.share.handle = lien_dump_handle(allocation, owner, false);
	event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event.share.fd = -1;
	LIST_FOREACH (share, &allocation->shares, of_allocation) {
		told += !share->control;
		if (!err)
			err = tell_share(dump, &event, share);
	}
	for (; told < allocation->exports && !err; told++)
		err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(share));
	return err;
}

const struct lien_share *lien_dump_share(const struct lien_allocation *allocation)
{
	const struct lien_share *share, *best = NULL;

	LIST_FOREACH (share, &allocation->shares, of_allocation)
		if (!best || (share->imports && !best->imports) ||
			(!share->imports == !best->imports && share->number < best->number))
			best = share;
	return best;
}

static int tell_adopted(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle, uint32_t references)
{
	struct lien_event event = lien_dump_event(process, LIEN_EVENT_ADOPT);

	event.adopt.handle = handle;
	event.adopt.references = references;
	event.adopt.round = allocation->round;
	event.adopt.open = allocation->open;
	event.adopt.part = allocation->part;
	return lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(adopt));
}

int lien_dump_adopted(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle)
{
	return allocation->adopted ? tell_adopted(dump, allocation, process, handle, 1) : 0;
}

int lien_dump_import(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle)
{
	struct lien_event event = lien_dump_event(process, LIEN_CALL_CU_MEM_IMPORT);
	const struct lien_share *share = lien_dump_share(allocation);
	int err;

	event.flags = taken_flags(handle_of(allocation, process, handle), 0);
	event.share.handle = handle;
	event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event.share.fd = -1;
	if (share)
		return tell_share(dump, &event, share);
	/* Then it is all that is known of the memory. */
	err = lien_dump_asked(dump, &event, allocation, process);
	if (!err)
		err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(share));
	return err ? err : lien_dump_adopted(dump, allocation, process, handle);
}

/* The imports of a process: one for each handle, and one for what is mapped and has none any more.
 */
static int tell_imports(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process)
{
	const struct lien_handle *handle;
	bool any = process == allocation->owner;
	int err = 0;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process && handle->imported && !err) {
			err = lien_dump_import(dump, allocation, process, handle->value);
			any = true;
		}
	if (!any && !err)
		err = lien_dump_import(
			dump, allocation, process, LIEN_DUMP_HANDLE | allocation->id);
	return err;
}

const struct lien_mapping *lien_dump_mapping(
	const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_mapping *mapping, *best = NULL;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if ((!process || mapping->process == process) &&
			(!best || mapping->process->pid < best->process->pid ||
				(mapping->process == best->process && mapping->va < best->va)))
			best = mapping;
	return best;
}

/* The references that a process holds, after the one that its create or import brought. */
static int tell_references(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process)
{
	const struct lien_handle *handle, *own = handle_in(allocation, process, false);
	const struct lien_mapping *mapping = lien_dump_mapping(allocation, process);
	struct lien_event event;
	uint32_t told;
	int err = 0;

	LIST_FOREACH (handle, &allocation->handles, of_allocation) {
		if (handle->process != process)
			continue;
		if (allocation->adopted && handle->references && !err) {
			err = tell_adopted(
				dump, allocation, process, handle->value, handle->references);
			continue;
		}
		for (told = handle == own || handle->imported; told < handle->references && !err;
			told++) {
			event = lien_dump_event(process, LIEN_CALL_CU_MEM_RETAIN);
			event.flags = taken_flags(handle, told);
			event.retain.handle = handle->value;
			event.retain.va = mapping ? mapping->va : 0;
			err = lien_dump_tell(dump, &event, LIEN_EVENT_SIZE(retain));
		}
	}
	return err;
}

int lien_dump_release(struct lien_dump *dump, struct lien_event *event, size_t size)
{
	int err;

	event->flags |= LIEN_EVENT_ENTRY;
	err = lien_dump_tell(dump, event, size);
	event->flags &= ~LIEN_EVENT_ENTRY;
	return err ? err : lien_dump_tell(dump, event, size);
}

int lien_dump_handle_release(
	struct lien_dump *dump, const struct lien_process *process, uint64_t handle, unsigned flags)
{
	struct lien_event event = lien_dump_event(process, LIEN_CALL_CU_MEM_RELEASE);

	event.flags = flags;
	event.release.handle = handle;
	return lien_dump_release(dump, &event, LIEN_EVENT_SIZE(release));
}

int lien_dump_releases(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process)
{
	const struct lien_handle *handle;
	const struct lien_mapping *mapping;
	struct lien_event event;
	unsigned flags = 0;
	bool any = false;
	int err = 0;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process && mapping->parked && !err) {
			flags = LIEN_EVENT_CONTROL;
			event = lien_dump_event(process, LIEN_CALL_CU_MEM_UNMAP);
			event.flags = LIEN_EVENT_CONTROL;
			event.range.va = mapping->va;
			event.range.bytes = mapping->bytes;
			err = lien_dump_release(dump, &event, LIEN_EVENT_SIZE(range));
		}
	LIST_FOREACH (handle, &allocation->handles, of_allocation) {
		if (handle->process != process)
			continue;
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
	struct lien_process *process)
{
	const struct lien_mapping *mapping;
	int err = 0;

	if (process == allocation->owner)
		err = lien_dump_exports(dump, allocation, process);
	if (!err)
		err = tell_imports(dump, allocation, process);
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process && !err)
			err = tell_mapping(dump, mapping);
	return err ? err : tell_references(dump, allocation, process);
}

static bool has_handle(const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_handle *handle;

	LIST_FOREACH (handle, &allocation->handles, of_allocation)
		if (handle->process == process)
			break;
	return handle;
}

bool lien_dump_holds(const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_mapping *mapping;

	LIST_FOREACH (mapping, &allocation->mappings, of_allocation)
		if (mapping->process == process)
			break;
	return mapping || has_handle(allocation, process);
}

int lien_dump_part_of_all(
	struct lien_dump *dump, const struct lien_allocation *allocation, lien_dump_part *part)
{
	struct lien_process *owner = allocation->owner;
	const struct lien_mapping *mapping, *first;
	const struct lien_handle *handle, *earlier;
	int err = owner ? part(dump, allocation, owner) : 0;

	LIST_FOREACH (handle, &allocation->handles, of_allocation) {
		LIST_FOREACH (earlier, &allocation->handles, of_allocation)
			if (earlier->process == handle->process)
				break;
		if (earlier == handle && handle->process != owner && !err)
			err = part(dump, allocation, handle->process);
	}
	LIST_FOREACH (mapping, &allocation->mappings, of_allocation) {
		LIST_FOREACH (first, &allocation->mappings, of_allocation)
			if (first->process == mapping->process)
				break;
		if (first == mapping && mapping->process != owner &&
			!has_handle(allocation, mapping->process) && !err)
			err = part(dump, allocation, mapping->process);
	}
	return err;
}
