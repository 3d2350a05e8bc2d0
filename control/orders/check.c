// SPDX-License-Identifier: BSD-2-Clause
/* CHECK: is everything that is to move as the agent knows it? */
#include <errno.h>
#include <string.h>

#include "control/memory/handles.h"
#include "control/orders/order.h"

static int check_access(struct lien_control *control, const struct lien_wire_item *wire)
{
	unsigned long long flags;
	CUmemLocation location;
	CUresult result;
	unsigned i;

	for (i = 0; i < wire->places; i++) {
		location.type = wire->place[i].location_type;
		location.id = wire->place[i].location_id;
		result = control->driver->cuMemGetAccess(&flags, &location, wire->va);
		if (result)
			return lien_control_fail(control, result, wire->va, "cuMemGetAccess");
		if (flags != wire->place[i].flags)
			return lien_control_fail(
				control, -ESTALE, wire->va, "access is not as the agent knows it");
	}
	return 0;
}

/* The driver does not say as what an import may be exported, and of memory with several handles one
 * may be an import. */
static int check_properties(struct lien_control *control, const struct lien_wire_item *wire,
	CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop;
	CUresult result;

	memset(&prop, 0, sizeof(prop));
	result = control->driver->cuMemGetAllocationPropertiesFromHandle(&prop, handle);
	if (result)
		return lien_control_fail(
			control, result, wire->va, "cuMemGetAllocationPropertiesFromHandle");
	if (prop.location.type != wire->location_type || prop.location.id != wire->location_id ||
		(prop.requestedHandleTypes != wire->handle_types &&
			!(prop.requestedHandleTypes == 0 && wire->handles > 1)))
		return lien_control_fail(
			control, -ESTALE, wire->va, "properties are not as the agent knows them");
	return 0;
}

static int is_known(const struct lien_wire_item *wire, CUmemGenericAllocationHandle handle)
{
	unsigned i;

	for (i = 0; i < wire->handles; i++)
		if (wire->handle[i].value == handle)
			return 1;
	return 0;
}

/* The caller must own a reference: the application may have none. */
static int check_named(struct lien_control *control, const struct lien_wire_item *wire,
	struct lien_item *first, CUmemGenericAllocationHandle handle)
{
	if (wire->index == 0 && !first->held)
		first->handle = handle;
	if (wire->handles > 1 ? !is_known(&first->wire, handle) : handle != first->handle)
		return lien_control_fail(control, -ESTALE, wire->va,
			"not an alias of the allocation it was known for");
	return wire->index == 0 && wire->flags & LIEN_WIRE_OWNED
		       ? check_properties(control, wire, handle)
		       : 0;
}

static int check_mapping(
	struct lien_control *control, const struct lien_wire_item *wire, struct lien_item *first)
{
	const struct lien_driver *driver = control->driver;
	CUmemGenericAllocationHandle handle;
	int result, released = 0;
	CUdeviceptr base;
	size_t size;

	result = driver->cuMemRetainAllocationHandle(&handle, (void *)wire->va);
	if (result)
		return lien_control_fail(control, result, wire->va, "not mapped here any more");
	result = check_named(control, wire, first, handle);
	if (!result && lien_item_shared(first) && !first->held)
		first->held = 1;
	else
		released = lien_handle_release(driver, handle);
	if (result)
		return result;
	if (released)
		return lien_control_fail(control, released, wire->va, "cuMemRelease");
	/* NVIDIA's (580) finds no mapping that nobody may access. */
	if (!wire->places)
		return 0;
	result = driver->cuMemGetAddressRange_v2(&base, &size, wire->va);
	if (result)
		return lien_control_fail(control, result, wire->va, "cuMemGetAddressRange");
	if (base != wire->va || size != wire->bytes)
		return lien_control_fail(control, -ESTALE, wire->va,
			"the mapping is not as large as the agent knows it");
	return check_access(control, wire);
}

/* The driver does not say what is bound. */
static int check_binding(struct lien_control *control, const struct lien_wire_item *wire)
{
	return control->driver->cuMulticastUnbind && control->driver->cuMulticastBindMem
		       ? 0
		       : lien_control_fail(control, -ENOSYS, wire->va, "cuMulticastUnbind");
}

/* Makes a context current in which its mappings can be queried. No device may reach an import that
 * is only mapped: then none is needed. */
static int use_context(struct lien_control *control, const struct lien_item *item)
{
	const int imported = item->wire.flags & LIEN_WIRE_IMPORTED;
	struct lien_device *device;
	int ordinal = -1, result;
	unsigned i;

	for (i = 0; i < item->wire.mappings && (!i || imported) && ordinal < 0; i++)
		ordinal = lien_item_context_device(control, &item[i].wire);
	if (ordinal < 0 && imported)
		return 0;
	result = lien_device_use(control, ordinal, &device);
	if (result)
		lien_control_fail(control, result, item->wire.va,
			"no device that may reach it has a primary context");
	return result;
}

int lien_order_check(struct lien_control *control)
{
	struct lien_item *item = NULL;
	unsigned i;
	int result = 0;

	while ((item = lien_items_next(&control->items, item))) {
		if (item->state != LIEN_ITEM_STAGED || !lien_order_means(control, item))
			continue;
		if (!item->wire.va && (result = lien_scratch_map(control, item)))
			break;
		if (item->scratch && !item->wire.places && !lien_item_mapped(item)) {
			item->handle = item->wire.handle[0].value;
			continue;
		}
		result = use_context(control, item);
		for (i = 0; i < item->wire.mappings && !result; i++)
			result = item[i].wire.object ? check_binding(control, &item[i].wire)
						     : check_mapping(control, &item[i].wire, item);
		if (result)
			break;
	}
	lien_devices_close(control);
	return result;
}
