// SPDX-License-Identifier: BSD-2-Clause
/* Unmaps allocations from their addresses, and maps them there again. */
#include <errno.h>

#include "control/driver/names.h"
#include "control/memory/handles.h"
#include "control/orders/order.h"

/* Unmaps one place. Remembers a place that the driver fails to unmap. */
static CUresult unmap_place(struct lien_control *control, struct lien_item *item)
{
	const struct lien_driver *driver = control->driver;
	CUresult result = driver->cuMemUnmap(item->wire.va, item->wire.bytes);

	if (result)
		result = driver->cuMemUnmap(item->wire.va, item->wire.bytes);
	item->stuck = result != CUDA_SUCCESS;
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
	lien_control_fail(control, result, item[failed].wire.va, "cuMemUnmap");
	if (!map_places(control, item, 0, failed, handle)) {
		item[failed].stuck = 0; /* it is in its place */
		return result;
	}
	for (i = failed + 1; i < item->wire.mappings; i++)
		unmap_place(control, &item[i]);
	return -EUCLEAN;
}

int lien_item_unmap(struct lien_control *control, struct lien_item *item)
{
	const struct lien_driver *driver = control->driver;
	CUmemGenericAllocationHandle handle = item->handle;
	unsigned i, references = item->wire.references + item->held;
	int result, released, borrowed = !references;

	/* Without any reference the handle would end with the last mapping. */
	if (borrowed) {
		result = lien_handle_retain(driver, &handle, item->wire.va);
		if (result)
			return lien_control_fail(
				control, result, item->wire.va, "not mapped here any more");
		references = 1;
	}
	result = lien_names_park(handle, item->wire.token, item->wire.references);
	if (result)
		lien_control_fail(control, result, item->wire.va,
			result == -EEXIST
				? "the application has it by a handle that means other memory"
				: "out of memory");
	else
		result = unmap_places(control, item, handle);
	if (result && result != -EUCLEAN) {
		lien_names_revive(item->wire.token, handle);
		if (borrowed)
			lien_handle_release(driver, handle);
		return result;
	}
	item->state = LIEN_ITEM_AWAY;
	item->held = 0;
	for (i = 0; i < references; i++) {
		released = lien_handle_release(driver, handle);
		if (released && !result)
			result =
				lien_control_fail(control, released, item->wire.va, "cuMemRelease");
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
	unsigned i, references = 1, wanted = item->wire.references + lien_item_shared(item);
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
	item->handle = handle;
	item->held = lien_item_shared(item);
	item->state = LIEN_ITEM_BACK;
	return 0;
}
