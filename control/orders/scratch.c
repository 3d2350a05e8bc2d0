// SPDX-License-Identifier: BSD-2-Clause
/*
 * Mappings of ours, for memory that the application has not mapped, or not so that all of it can be
 * copied. The agent sees them like the application's: an allocation that is away is known by the
 * places where it was mapped.
 */
#include <errno.h>

#include "control/memory/handles.h"
#include "control/orders/order.h"

void lien_scratch_end(struct lien_control *control, struct lien_item *item)
{
	if (!item->scratch)
		return;
	lien_scratch_free(control->driver, (struct lien_scratch){item->wire.va, item->wire.bytes,
						   item->mapped || item->stuck});
	item->scratch = item->mapped = item->stuck = 0;
}

/* Chooses a device that can reach it: the memory's own if the application has its context. */
static int choose_device(struct lien_control *control, const struct lien_wire_item *wire)
{
	struct lien_device *device;
	int i;

	if (wire->location_id >= 0 && !lien_device_use(control, wire->location_id, &device))
		return wire->location_id;
	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (!lien_device_use(control, i, &device))
			return i;
	return -1;
}

/* Maps the memory at `va`, with access for its place. */
static CUresult map(struct lien_control *control, const struct lien_wire_item *wire, CUdeviceptr va,
	CUmemGenericAllocationHandle handle)
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
	int ordinal = choose_device(control, wire);
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
		result = map(control, wire, va, handle);
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
