// SPDX-License-Identifier: BSD-2-Clause
/* What offloads and restores do with an allocation: unmap it from its addresses, map it there
 * again, copy it, forget it. */
#include <errno.h>
#include <string.h>

#include "control/driver/names.h"
#include "control/driver/translate.h"
#include "control/memory/handles.h"
#include "control/orders/control.h"

static CUresult leave(const struct lien_driver *driver, const struct lien_wire_item *wire)
{
	return wire->object ? driver->cuMulticastUnbind(wire->object, wire->location_id,
				      wire->object_offset, wire->bytes)
			    : driver->cuMemUnmap(wire->va, wire->bytes);
}

/* Unmaps one place, or unbinds it. Remembers a place that the driver fails to unmap. */
static CUresult unmap_place(struct lien_control *control, struct lien_item *item)
{
	CUresult result = leave(control->driver, &item->wire);

	if (result)
		result = leave(control->driver, &item->wire);
	item->stuck = result != CUDA_SUCCESS;
	return result;
}

static CUresult bind_place(struct lien_control *control, const struct lien_wire_item *wire,
	CUmemGenericAllocationHandle handle)
{
	CUresult result = control->driver->cuMulticastBindMem(
		wire->object, wire->object_offset, handle, wire->va, wire->bytes, 0);

	if (result)
		lien_control_fail(control, result, wire->va, "cuMulticastBindMem");
	return result;
}

/* Maps places [from, to) of an allocation with their former access. On failure none of them is
 * mapped. */
static int map_places(struct lien_control *control, struct lien_item *item, unsigned from,
	unsigned to, CUmemGenericAllocationHandle handle)
{
	const struct lien_driver *driver = control->driver;
	CUmemAccessDesc places[LIEN_WIRE_PLACES];
	CUresult result = CUDA_SUCCESS;
	unsigned i, j;

	for (i = from; i < to; i++) {
		const struct lien_wire_item *wire = &item[i].wire;

		if (wire->object) {
			result = bind_place(control, wire, handle);
			if (result)
				break;
			continue;
		}
		result = driver->cuMemMap(wire->va, wire->bytes, 0, handle, 0);
		if (result) {
			lien_control_fail(control, result, wire->va, "cuMemMap");
			break;
		}
		for (j = 0; j < wire->places; j++) {
			places[j].location.type = wire->place[j].location_type;
			places[j].location.id = wire->place[j].location_id;
			places[j].flags = wire->place[j].flags;
		}
		if (wire->places)
			result =
				driver->cuMemSetAccess(wire->va, wire->bytes, places, wire->places);
		if (result) {
			unmap_place(control, &item[i]);
			lien_control_fail(control, result, wire->va, "cuMemSetAccess");
			break;
		}
	}
	while (result && i-- > from)
		unmap_place(control, &item[i]);
	return result;
}

/* Unmaps all places of an allocation. On failure it maps them again; -EUCLEAN: that failed as well,
 * and none is usable. */
static int unmap_places(
	struct lien_control *control, struct lien_item *item, CUmemGenericAllocationHandle handle)
{
	unsigned i, failed;
	int result = 0;

	for (i = 0; i < item->wire.mappings && !result; i++)
		result = unmap_place(control, &item[i]);
	if (!result)
		return 0;
	failed = i - 1;
	lien_control_fail(control, result, item[failed].wire.va,
		item[failed].wire.object ? "cuMulticastUnbind" : "cuMemUnmap");
	if (!map_places(control, item, 0, failed, handle)) {
		item[failed].stuck = 0; /* it is in its place */
		return result;
	}
	for (i = failed + 1; i < item->wire.mappings; i++)
		unmap_place(control, &item[i]);
	return -EUCLEAN;
}

/* Gives back all references to a handle. Returns 0, or the first failure, which is recorded. */
static int release(struct lien_control *control, struct lien_item *item,
	CUmemGenericAllocationHandle handle, unsigned references)
{
	int result = 0, released;

	while (references--) {
		released = lien_handle_release(control->driver, handle);
		if (released && !result)
			result =
				lien_control_fail(control, released, item->wire.va, "cuMemRelease");
	}
	return result;
}

/* Lists the application's handles. Returns their number, at least 1: of a single one, and of none,
 * the value is the one that the driver gave us. */
static unsigned handles_of(const struct lien_item *item, CUmemGenericAllocationHandle handle,
	struct lien_wire_handle handles[LIEN_WIRE_HANDLES])
{
	unsigned count = item->wire.handles;

	memcpy(handles, item->wire.handle, sizeof(item->wire.handle));
	if (count > 1)
		return count;
	handles[0].value = handle;
	handles[0].references = count ? handles[0].references : 0;
	return 1;
}

/* Has the application a reference to the handle that we map by? */
static int is_referred(const struct lien_item *item)
{
	unsigned i;

	if (item->wire.handles <= 1)
		return lien_item_references(&item->wire) != 0;
	for (i = 0; i < item->wire.handles; i++)
		if (item->wire.handle[i].value == item->handle)
			return item->wire.handle[i].references != 0;
	return 0;
}

int lien_item_unmap(struct lien_control *control, struct lien_item *item)
{
	const struct lien_driver *driver = control->driver;
	struct lien_wire_handle handles[LIEN_WIRE_HANDLES];
	CUmemGenericAllocationHandle handle = item->handle;
	unsigned i, count, ours = item->held;
	int result, released;

	/* Without any reference the handle would end with its last mapping. */
	if (!ours && !is_referred(item)) {
		result = lien_handle_retain(driver, &handle, item->wire.va);
		if (result)
			return lien_control_fail(
				control, result, item->wire.va, "not mapped here any more");
		ours = 1;
	}
	count = handles_of(item, handle, handles);
	result = lien_names_park(handles, count, item->wire.token);
	if (result)
		lien_control_fail(control, result, item->wire.va,
			result == -EEXIST
				? "the application has it by a handle that means other memory"
				: "out of memory");
	else
		result = unmap_places(control, item, handle);
	if (result && result != -EUCLEAN) {
		lien_names_revive(item->wire.token, 0);
		if (ours && !item->held)
			lien_handle_release(driver, handle);
		return result;
	}
	item->state = LIEN_ITEM_AWAY;
	item->held = item->mapped = 0;
	released = release(control, item, handle, ours);
	result = result ? result : released;
	for (i = 0; i < count; i++) {
		released = release(control, item, handles[i].value, handles[i].references);
		result = result ? result : released;
	}
	return result;
}

/* Unmaps the places that the driver failed to unmap before. All of them must go: as long as one is
 * left, the old handle names the memory, and the agent would see two allocations. */
static CUresult unstick(struct lien_control *control, struct lien_item *item)
{
	CUresult result;
	unsigned i;

	for (i = 0; i < item->wire.mappings; i++)
		if (item[i].stuck && (result = unmap_place(control, &item[i])))
			return lien_control_fail(control, result, item[i].wire.va, "cuMemUnmap");
	return CUDA_SUCCESS;
}

int lien_item_map(
	struct lien_control *control, struct lien_item *item, CUmemGenericAllocationHandle handle)
{
	const struct lien_driver *driver = control->driver;
	CUmemGenericAllocationHandle again;
	uint64_t references = 1;
	uint64_t wanted = lien_item_references(&item->wire) + lien_item_shared(item);
	unsigned i;
	CUresult result;

	result = unstick(control, item);
	if (!result)
		result = map_places(control, item, 0, item->wire.mappings, handle);
	while (!result && references < wanted) {
		result = lien_handle_retain(driver, &again, item->wire.va);
		if (!result) {
			references++;
			continue;
		}
		lien_control_fail(control, result, item->wire.va, "cuMemRetainAllocationHandle");
		for (i = 0; i < item->wire.mappings; i++)
			unmap_place(control, &item[i]);
	}
	if (!result && !wanted)
		lien_handle_release(driver, handle);
	while (result && references--)
		lien_handle_release(driver, handle);
	if (result)
		return result;
	lien_names_revive(item->wire.token, handle);
	/* From now on it has one handle, for a later item_unmap() as well. */
	item->wire.handle[0].references = lien_item_references(&item->wire);
	item->wire.handles = item->wire.handles != 0;
	item->handle = handle;
	item->held = lien_item_shared(item);
	item->state = LIEN_ITEM_BACK;
	item->mapped = item->scratch;
	return 0;
}

/*
 * --- mappings of ours ----------------------------------------------------------------------------
 *
 * For memory that the application has not mapped, or not so that all of it can be copied. The agent
 * sees them like the application's: an allocation that is away is known by the places where it was
 * mapped.
 */

/* Maps the memory at `va`, with access for its place. */
static CUresult map_scratch(struct lien_control *control, const struct lien_wire_item *wire,
	CUdeviceptr va, CUmemGenericAllocationHandle handle)
{
	const CUmemAccessDesc access = {
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, wire->place[0].location_id},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	const struct lien_driver *driver = control->driver;
	CUresult result = driver->cuMemMap(va, wire->bytes, 0, handle, 0);
	const int mapped = !result;

	if (mapped && wire->places)
		result = driver->cuMemSetAccess(va, wire->bytes, &access, 1);
	if (result)
		lien_scratch_free(driver, (struct lien_scratch){va, wire->bytes, mapped});
	return result;
}

static int map_with(
	struct lien_control *control, struct lien_item *item, CUmemGenericAllocationHandle handle)
{
	struct lien_wire_item *wire = &item->wire;
	int ordinal = lien_device_near(control, wire->location_id);
	CUdeviceptr va;
	CUresult result;

	/* An import that no device of the process reaches only has to be mapped. */
	if (ordinal < 0 && wire->flags & LIEN_WIRE_OWNED)
		return lien_control_fail(
			control, -ENODEV, 0, "no device that may reach it has a primary context");
	wire->place[0] = (struct lien_wire_place){
		CU_MEM_LOCATION_TYPE_DEVICE, ordinal, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	wire->places = ordinal >= 0;
	result = control->driver->cuMemAddressReserve(&va, wire->bytes, 0, 0, 0);
	if (!result)
		result = map_scratch(control, wire, va, handle);
	if (result) {
		wire->places = 0;
		return lien_control_fail(control, result, 0, "mapping it to copy it");
	}
	wire->va = va;
	item->scratch = item->mapped = 1;
	return 0;
}

int lien_scratch_map(struct lien_control *control, struct lien_item *item)
{
	CUmemGenericAllocationHandle handle = item->wire.handle[0].value;
	int result;

	if (!lien_item_mapped(item))
		return map_with(control, item, handle);
	result = control->driver->cuMemRetainAllocationHandle(&handle, (void *)item[1].wire.va);
	if (result)
		return lien_control_fail(
			control, result, item[1].wire.va, "not mapped here any more");
	result = map_with(control, item, handle);
	lien_handle_release(control->driver, handle);
	return result;
}

/* Removes it, if there is one, as lien_scratch_free(). */
static void scratch_end(struct lien_control *control, struct lien_item *item)
{
	if (!item->scratch)
		return;
	lien_scratch_free(control->driver, (struct lien_scratch){item->wire.va, item->wire.bytes,
						   item->mapped || item->stuck});
	item->scratch = item->mapped = item->stuck = 0;
}

/* --- copies, and the end ---------------------------------------------------------------------- */

int lien_copy_begin(struct lien_control *control, struct lien_item *item, int to_host)
{
	const struct lien_driver *driver = control->driver;
	uint64_t done = 0, length;
	struct lien_device *device;
	void *host;
	int result;

	result = lien_device_use(control, lien_item_device(&item->wire), &device);
	while (!result && done < item->wire.allocation_bytes) {
		length = item->wire.allocation_bytes - done;
		host = lien_arena_at(&control->arena, item->arena + done, &length);
		result = to_host ? driver->cuMemcpyDtoHAsync_v2(
					   host, item->wire.va + done, length, device->stream)
				 : driver->cuMemcpyHtoDAsync_v2(
					   item->wire.va + done, host, length, device->stream);
		done += length;
	}
	return result;
}

/* The arena has bytes of these that are still needed. */
#define IN_ARENA (1u << LIEN_ITEM_SAVED | LIEN_ITEMS_MISSING | 1u << LIEN_ITEM_FILLING)

void lien_order_forget(struct lien_control *control, unsigned states, uint64_t generation)
{
	struct lien_item *item = NULL;
	uint64_t end;

	while ((item = lien_items_next(&control->items, item))) {
		if (!lien_item_in(item, states) || item->spared || !lien_item_of(item, generation))
			continue;
		scratch_end(control, item);
		if (item->held)
			lien_handle_release(control->driver, item->handle);
		item->held = 0;
	}
	lien_items_forget(&control->items, states, generation);
	control->arena.used = 0;
	while ((item = lien_items_next(&control->items, item))) {
		end = item->arena + item->wire.allocation_bytes;
		if (item->wire.flags & LIEN_WIRE_OWNED && lien_item_in(item, IN_ARENA) &&
			!(item->wire.flags & LIEN_WIRE_WORTHLESS) && end > control->arena.used)
			control->arena.used = end;
	}
}

void lien_order_lend(struct lien_control *control, unsigned states, uint64_t generation)
{
	struct lien_item *item = NULL;

	while ((item = lien_items_next(&control->items, item)))
		if (item->held && !item->spared && lien_item_in(item, states) &&
			lien_item_of(item, generation)) {
			scratch_end(control, item);
			item->state = LIEN_ITEM_LENT;
		}
}

void lien_order_hold(struct lien_control *control, int all)
{
	struct lien_item *item = NULL;

	while (!all && (item = lien_items_next(&control->items, item))) /* bindings come last */
		all = lien_item_in(item, LIEN_ITEMS_MISSING) &&
		      item[item->wire.mappings - 1].wire.object;
	lien_translate_hold_all(all);
}
