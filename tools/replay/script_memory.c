// SPDX-License-Identifier: BSD-2-Clause
/* Applies the driver's memory calls, as far as a replay needs their effects. */
#include <errno.h>
#include <stdlib.h>

#include <lien/cuda_abi.h>
#include "tools/replay/build.h"

static bool is_range(uint64_t va, uint64_t bytes)
{
	return va && bytes && va + bytes > va;
}

static int new_allocation(struct lien_replay_build *b, uint64_t bytes, uint64_t *number)
{
	struct lien_script *script = b->script;
	struct lien_replay_allocation *allocation;
	size_t room;
	void *more;

	if (script->allocation_count == script->allocation_room) {
		room = script->allocation_room ? script->allocation_room * 2 : 64;
		more = reallocarray(script->allocations, room, sizeof(*script->allocations));
		if (!more)
			return -ENOMEM;
		script->allocations = more;
		script->allocation_room = room;
	}
	*number = script->allocation_count++;
	allocation = &script->allocations[*number];
	*allocation = (struct lien_replay_allocation){.bytes = bytes, .owner = b->index};
	return 0;
}

static void see_device(struct lien_replay_build *b, int device, bool own)
{
	struct lien_replay_process *process = b->process;

	if (device < 0 || device >= 64)
		return;
	if (device > b->script->last_device)
		b->script->last_device = device;
	if (own)
		process->devices |= 1ull << device;
	/* Owned memory is better evidence of a process's device than access. */
	if (!process->has_home || (own && process->devices == 1ull << device))
		process->home = device;
	process->has_home = true;
}

static int hold(struct lien_replay_build *b, const struct lien_event *ev, uint64_t handle,
	uint64_t allocation)
{
	return lien_replay_names_push(&b->names, LIEN_REPLAY_NAME_HANDLE, handle, 0, allocation,
		       lien_replay_op_flags(b, ev))
		       ? 0
		       : -ENOMEM;
}

/* --- calls that release
 * --------------------------------------------------------------------------- */

static int release(struct lien_replay_build *b, const struct lien_event *ev)
{
	struct lien_replay_name *name;
	uint64_t number;

	name = lien_replay_names_find(&b->names, LIEN_REPLAY_NAME_HANDLE, ev->release.handle);
	if (!name)
		return lien_replay_skip(b, LIEN_SKIP_UNKNOWN);
	number = name->tag;
	lien_replay_names_pop(&b->names, name);
	if (number == LIEN_NO_ALLOCATION)
		return lien_replay_skip(b, LIEN_SKIP_DEPENDENT);
	return lien_replay_emit(b, ev, number);
}

/* Returns the first mapping from m upwards that is entirely inside [va, va + bytes): a call never
 * takes part of one, nor memory from cuMemAlloc. NULL: no more. */
static struct lien_replay_mapping *inside(
	struct lien_replay_mapping *m, uint64_t va, uint64_t bytes)
{
	for (; m && (m->va < va || m->va - va < bytes); m = lien_replay_space_above(m)) {
		if (m->va >= va && m->bytes <= bytes - (m->va - va) && !m->linear)
			return m;
	}
	return NULL;
}

#define FOREACH_INSIDE(b, m, at, bytes)                                                            \
	for (m = inside(lien_replay_space_mapping(&(b)->space, at, bytes), at, bytes); m;          \
		m = inside(lien_replay_space_above(m), at, bytes))

/* Emits one call over [va, va + bytes) for the mappings inside, or one for each mapping that exists
 * here if some do not. */
static int emit_over(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t va = ev->range.va, bytes = ev->range.bytes, number = LIEN_NO_ALLOCATION;
	struct lien_replay_mapping *m;
	struct lien_event one = *ev;
	bool missing = false;
	int err = 0;

	FOREACH_INSIDE(b, m, va, bytes)
	{
		if (m->allocation == LIEN_NO_ALLOCATION)
			missing = true;
		else if (number == LIEN_NO_ALLOCATION)
			number = m->allocation;
	}
	if (number == LIEN_NO_ALLOCATION)
		return lien_replay_skip(b, missing ? LIEN_SKIP_DEPENDENT : LIEN_SKIP_UNKNOWN);
	if (!missing)
		return lien_replay_emit(b, ev, number);
	FOREACH_INSIDE(b, m, va, bytes)
	{
		one.range.va = m->va;
		one.range.bytes = m->bytes;
		if (m->allocation != LIEN_NO_ALLOCATION && !err)
			err = lien_replay_emit(b, &one, m->allocation);
	}
	return err;
}

_Static_assert(offsetof(struct lien_event, access.va) == offsetof(struct lien_event, range.va) &&
		       offsetof(struct lien_event, access.bytes) ==
			       offsetof(struct lien_event, range.bytes),
	"emit_over() takes both");

static int unmap(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t va = ev->range.va, bytes = ev->range.bytes;
	struct lien_replay_mapping *m;
	int err;

	if (!is_range(va, bytes))
		return lien_replay_skip(b, LIEN_SKIP_PARTIAL);
	err = emit_over(b, ev);
	while ((m = inside(lien_replay_space_mapping(&b->space, va, bytes), va, bytes)))
		lien_replay_space_unmap(&b->space, m);
	return err;
}

static int give_up_mappings(struct lien_replay_build *b, uint64_t va, uint64_t bytes)
{
	struct lien_replay_mapping *m;
	int err;

	while ((m = lien_replay_space_mapping(&b->space, va, bytes))) {
		err = lien_replay_give_up(b, LIEN_CALL_CU_MEM_UNMAP, m->va, unmap);
		if (err)
			return err;
	}
	return 0;
}

static int address_free(struct lien_replay_build *b, const struct lien_event *ev)
{
	struct lien_replay_range *range = lien_replay_space_range(&b->space, ev->range.va, 1);
	struct lien_event whole = *ev;
	int err;

	if (!range || range->va != ev->range.va || range->linear)
		return lien_replay_skip(b, LIEN_SKIP_UNKNOWN);
	/* The driver does not free a range with mappings in it. */
	err = give_up_mappings(b, range->va, range->bytes);
	if (err)
		return err;
	whole.range.bytes = range->bytes;
	lien_replay_space_unreserve(&b->space, range);
	return lien_replay_emit(b, &whole, LIEN_NO_ALLOCATION);
}

static int mem_free(struct lien_replay_build *b, const struct lien_event *ev)
{
	struct lien_replay_range *range = lien_replay_space_range(&b->space, ev->range.va, 1);
	struct lien_replay_mapping *m;
	uint64_t number;

	if (!ev->range.va)
		return 0; /* cudaFree(NULL), a way to initialize the runtime */
	if (!range || range->va != ev->range.va || !range->linear)
		return lien_replay_skip(b, LIEN_SKIP_UNKNOWN);
	m = lien_replay_space_mapping(&b->space, range->va, 1);
	number = m->allocation;
	lien_replay_space_unmap(&b->space, m);
	lien_replay_space_unreserve(&b->space, range);
	return lien_replay_emit(b, ev, number);
}

/* --- what must have been released
 * ----------------------------------------------------------------- */

int lien_replay_give_up_reference(struct lien_replay_build *b, uint64_t handle)
{
	return lien_replay_give_up(b, LIEN_CALL_CU_MEM_RELEASE, handle, release);
}

/* Releases all references to this handle value. */
static int give_up_handle(struct lien_replay_build *b, uint64_t handle)
{
	int err;

	while (lien_replay_names_find(&b->names, LIEN_REPLAY_NAME_HANDLE, handle)) {
		err = lien_replay_give_up_reference(b, handle);
		if (err)
			return err;
	}
	return 0;
}

static int give_up_ranges(struct lien_replay_build *b, uint64_t va, uint64_t bytes)
{
	struct lien_replay_range *range;
	int err;

	while ((range = lien_replay_space_range(&b->space, va, bytes))) {
		err = range->linear
			      ? lien_replay_give_up(b, LIEN_CALL_CU_MEM_FREE, range->va, mem_free)
			      : lien_replay_give_up(
					b, LIEN_CALL_CU_MEM_ADDRESS_FREE, range->va, address_free);
		if (err)
			return err;
	}
	return 0;
}

/* --- calls that make and map
 * ---------------------------------------------------------------------- */

static int create(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t number = LIEN_NO_ALLOCATION;
	int err;

	err = give_up_handle(b, ev->create.handle);
	if (err)
		return err;
	if (ev->flags & LIEN_EVENT_PARTIAL || !ev->create.bytes) {
		lien_replay_skip(b, LIEN_SKIP_PARTIAL);
		return hold(b, ev, ev->create.handle, number);
	}
	if (ev->create.prop.location_type == CU_MEM_LOCATION_TYPE_DEVICE)
		see_device(b, ev->create.prop.location_id, true);
	err = new_allocation(b, ev->create.bytes, &number);
	if (!err)
		err = hold(b, ev, ev->create.handle, number);
	return err ? err : lien_replay_emit(b, ev, number);
}

static int retain(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t handle = ev->retain.handle, number = LIEN_NO_ALLOCATION;
	struct lien_replay_mapping *m = lien_replay_space_mapping(&b->space, ev->retain.va, 1);
	struct lien_replay_name *name;
	int err;

	if (m)
		number = m->allocation;
	/* A retained handle that is live gets another reference; that of another allocation was
	 * released. */
	name = lien_replay_names_find(&b->names, LIEN_REPLAY_NAME_HANDLE, handle);
	if (name && name->tag != number) {
		err = give_up_handle(b, handle);
		if (err)
			return err;
	}
	err = hold(b, ev, handle, number);
	if (err)
		return err;
	if (number == LIEN_NO_ALLOCATION)
		return lien_replay_skip(b, m ? LIEN_SKIP_DEPENDENT : LIEN_SKIP_UNKNOWN);
	return lien_replay_emit(b, ev, number);
}

static int reserve(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t va = ev->reserve.va, bytes = ev->reserve.bytes;
	int err;

	if (!is_range(va, bytes))
		return lien_replay_skip(b, LIEN_SKIP_PARTIAL);
	err = give_up_ranges(b, va, bytes);
	if (err)
		return err;
	if (!lien_replay_space_reserve(&b->space, va, bytes, 0, 0))
		return -ENOMEM;
	return lien_replay_emit(b, ev, LIEN_NO_ALLOCATION);
}

static int map(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t va = ev->map.va, bytes = ev->map.bytes, number = LIEN_NO_ALLOCATION;
	struct lien_replay_range *range;
	struct lien_replay_mapping *m;
	struct lien_replay_name *name;
	int err;

	if (!is_range(va, bytes) || ev->map.offset + bytes < bytes)
		return lien_replay_skip(b, LIEN_SKIP_PARTIAL);
	range = lien_replay_space_range(&b->space, va, 1);
	if (!range || range->linear || range->bytes - (va - range->va) < bytes)
		return lien_replay_skip(b, LIEN_SKIP_UNKNOWN);
	err = give_up_mappings(b, va, bytes);
	if (err)
		return err;
	name = lien_replay_names_find(&b->names, LIEN_REPLAY_NAME_HANDLE, ev->map.handle);
	if (name)
		number = name->tag;
	m = lien_replay_space_map(&b->space, va, bytes, number, 0);
	if (!m)
		return -ENOMEM;
	m->offset = ev->map.offset;
	if (number == LIEN_NO_ALLOCATION)
		return lien_replay_skip(b, name ? LIEN_SKIP_DEPENDENT : LIEN_SKIP_UNKNOWN);
	return lien_replay_emit(b, ev, number);
}

/* Records how much of its allocation the owner can write, now or for some time. */
static void note_filled(struct lien_replay_build *b, const struct lien_replay_mapping *m)
{
	struct lien_replay_allocation *allocation = &b->script->allocations[m->allocation];

	if (allocation->owner == b->index && lien_replay_mapping_writable(m) &&
		m->offset <= allocation->filled && m->offset + m->bytes > allocation->filled)
		allocation->filled = m->offset + m->bytes;
}

static int set_access(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t va = ev->access.va, bytes = ev->access.bytes;
	struct lien_replay_mapping *m;
	uint32_t i;

	if (!is_range(va, bytes) || !ev->access.count)
		return lien_replay_skip(b, LIEN_SKIP_PARTIAL);
	for (i = 0; i < ev->access.count; i++) {
		if (ev->access.access[i].location_type == CU_MEM_LOCATION_TYPE_DEVICE)
			see_device(b, ev->access.access[i].location_id, false);
	}
	FOREACH_INSIDE(b, m, va, bytes)
	{
		lien_replay_mapping_access(m, ev);
		if (m->allocation != LIEN_NO_ALLOCATION)
			note_filled(b, m);
	}
	return emit_over(b, ev);
}

static int mem_alloc(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t va = ev->alloc.va, bytes = ev->alloc.bytes, number;
	struct lien_replay_mapping *m;
	struct lien_replay_range *range;
	int err;

	if (!is_range(va, bytes))
		return lien_replay_skip(b, LIEN_SKIP_PARTIAL);
	err = give_up_ranges(b, va, bytes);
	if (!err)
		err = new_allocation(b, bytes, &number);
	if (err)
		return err;
	range = lien_replay_space_reserve(&b->space, va, bytes, 0, 0);
	if (!range)
		return -ENOMEM;
	range->linear = true;
	m = lien_replay_space_map(&b->space, va, bytes, number, 0);
	if (!m)
		return -ENOMEM;
	m->linear = true;
	note_filled(b, m);
	return lien_replay_emit(b, ev, number);
}

lien_replay_apply lien_replay_memory_call(unsigned int call)
{
	static const lien_replay_apply calls[LIEN_CALL_MAX] = {
		[LIEN_CALL_CU_MEM_CREATE] = create,
		[LIEN_CALL_CU_MEM_RELEASE] = release,
		[LIEN_CALL_CU_MEM_RETAIN] = retain,
		[LIEN_CALL_CU_MEM_RESERVE] = reserve,
		[LIEN_CALL_CU_MEM_ADDRESS_FREE] = address_free,
		[LIEN_CALL_CU_MEM_MAP] = map,
		[LIEN_CALL_CU_MEM_UNMAP] = unmap,
		[LIEN_CALL_CU_MEM_SET_ACCESS] = set_access,
		[LIEN_CALL_CU_MEM_ALLOC] = mem_alloc,
		[LIEN_CALL_CU_MEM_FREE] = mem_free,
	};

	return calls[call];
}
