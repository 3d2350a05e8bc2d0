// SPDX-License-Identifier: BSD-2-Clause
/* The way out: STAGE, CHECK, SAVE, UNMAP, DROP and DISCARD; and the arena's room for it. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "control/driver/cached.h"
#include "control/driver/gate.h"
#include "control/driver/names.h"
#include "control/driver/translate.h"
#include "control/memory/handles.h"
#include "control/orders/control.h"

/* --- STAGE: the agent's list ------------------------------------------------------------------ */

/* A library that got the driver's functions without us knows the driver's own values. Soon its
 * calls are translated as well: none of these values may be a name of something else. */
static int check_raw(struct lien_control *control)
{
	const struct lien_wire_raw *raw;
	unsigned count, i;

	raw = lien_control_body(control, sizeof(*raw), &count);
	for (i = 0; i < count; i++)
		if (lien_names_clash(raw[i].handle, raw[i].certain))
			return lien_control_fail(control, -ENOTUNIQ, raw[i].handle,
				"a handle means other memory here");
	return 0;
}

/* Has the application made the primary context of any device? If the driver does not say, what
 * needs the context will fail, with the driver's reason. */
static int any_context(const struct lien_driver *driver)
{
	unsigned int flags;
	CUdevice device;
	int active = 0, i;
	CUresult result;

	for (i = 0; i < LIEN_DEVICES_MAX && !active; i++) {
		result = driver->cuDeviceGet(&device, i);
		if (result == CUDA_ERROR_INVALID_DEVICE)
			break;
		if (result || driver->cuDevicePrimaryCtxGetState(device, &flags, &active))
			return 1;
	}
	return active;
}

/* The first message of a list. */
static int stage_first(struct lien_control *control)
{
	char why[sizeof(control->reply.text)];
	int result;

	if (access("/proc/self/maps", R_OK)) /* lien_cached_replace() reads it */
		return lien_control_fail(
			control, -ENOENT, 0, "it sees no /proc: mount one in its container");
	if (lien_items_any_awaited(&control->items))
		return lien_control_fail(control, -EBUSY, 0,
			"an earlier offload was cut short here: `lien restore` first");
	if (lien_items_any(&control->items, LIEN_ITEMS_RETURNED))
		return lien_control_fail(
			control, -EBUSY, 0, "an earlier restore is not finished here");
	/* The same STAGE once more, at rest: refused if the job has been released meanwhile. */
	if (control->expired && control->staged == control->generation)
		return lien_control_expired(control);
	if (control->staged != control->generation) { /* while the job still runs */
		lien_order_hold(control, control->flags & LIEN_WIRE_ALL);
		result = lien_cached_replace(why, sizeof(why));
		if (result)
			return lien_control_fail(control, result, 0, why);
	}
	control->staged = control->generation;
	control->expired = 0;
	lien_order_forget(control, LIEN_ITEMS_UNTOUCHED, 0);
	return 0;
}

int lien_order_stage(struct lien_control *control)
{
	const struct lien_wire_item *items;
	unsigned count;
	int result;

	if (control->flags & LIEN_WIRE_RAW)
		return check_raw(control);
	if (control->flags & LIEN_WIRE_FIRST) {
		if ((result = stage_first(control)))
			return result;
	} else if (control->expired) {
		return lien_control_expired(control);
	}
	items = lien_control_body(control, sizeof(*items), &count);
	result = lien_items_add(&control->items, items, count, control->generation);
	if (!result && control->flags & LIEN_WIRE_LAST)
		result = lien_items_seal(&control->items);
	if (result) {
		lien_order_forget(control, LIEN_ITEMS_UNTOUCHED, control->generation);
		return lien_control_fail(
			control, result, 0, "the list of memory to move is not valid");
	}
	if (control->flags & LIEN_WIRE_LAST)
		control->reply.arg2 = !any_context(control->driver);
	return 0;
}

/* --- CHECK: is everything that is to move as the agent knows it? ------------------------------ */

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

/* Returns a device whose context can do the work on the item: copy it or, for an import, query
 * it. If the application uses none of those that have access to an import, one that it does not
 * use; -1: none has access. */
static int context_device(struct lien_control *control, const struct lien_wire_item *wire)
{
	struct lien_device *device;
	int first = -1;
	unsigned i;

	if (wire->flags & LIEN_WIRE_OWNED)
		return lien_item_device(wire);
	for (i = 0; i < wire->places; i++) {
		if (wire->place[i].location_type != CU_MEM_LOCATION_TYPE_DEVICE)
			continue;
		if (!lien_device_use(control, wire->place[i].location_id, &device))
			return wire->place[i].location_id;
		if (first < 0)
			first = wire->place[i].location_id;
	}
	return first;
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
		ordinal = context_device(control, &item[i].wire);
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

	if (!lien_translate_wait_idle())
		return lien_control_fail(
			control, -EBUSY, 0, "a thread is in a call that names memory by handle");
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

/* --- SAVE: copies memory to the arena --------------------------------------------------------- */

/* Returns the free memory, according to the driver, of the devices that the order's own memory is
 * or was on. */
static uint64_t devices_free(struct lien_control *control)
{
	uint8_t counted[LIEN_DEVICES_MAX] = {0};
	struct lien_item *item = NULL;
	struct lien_device *device;
	size_t free_bytes, total;
	uint64_t sum = 0;

	while ((item = lien_items_next(&control->items, item))) {
		const uint32_t number = item->wire.location_id;

		if (!(item->wire.flags & LIEN_WIRE_OWNED) || !lien_order_means(control, item) ||
			number >= LIEN_DEVICES_MAX || counted[number])
			continue;
		counted[number] = 1;
		if (!lien_device_use(control, number, &device) &&
			!control->driver->cuMemGetInfo_v2(&free_bytes, &total))
			sum += free_bytes;
	}
	return sum;
}

/* Returns true if its bytes go to the arena. */
static int to_be_saved(const struct lien_control *control, const struct lien_item *item)
{
	return item->state == LIEN_ITEM_STAGED && lien_order_means(control, item) &&
	       item->wire.flags & LIEN_WIRE_OWNED && !(item->wire.flags & LIEN_WIRE_WORTHLESS);
}

int lien_order_save(struct lien_control *control)
{
	uint64_t bytes = 0, bounce = control->flags & LIEN_WIRE_VERIFY ? LIEN_WIRE_ARENA_BOUNCE : 0;
	struct lien_item *item = NULL;
	struct lien_device *device = NULL;
	char why[sizeof(control->reply.text)];
	int result = 0, unseen, ended;

	while ((item = lien_items_next(&control->items, item)))
		if (to_be_saved(control, item)) {
			if (bytes <= LIEN_WIRE_BYTES_MAX) /* more is invalid, and would overflow */
				bytes += item->wire.allocation_bytes;
			result = result ? result
					: lien_device_use(
						  control, lien_item_device(&item->wire), &device);
		}
	if (result)
		lien_control_fail(control, result, 0, "no primary context to copy with");
	if (!result && bytes &&
		(result = lien_arena_reserve(
			 &control->arena, control->driver, device->device, bytes + bounce)))
		lien_control_fail(control, result, 0, "no pinned host memory for the arena");
	if (result)
		goto out;
	while ((item = lien_items_next(&control->items, item))) {
		if (!to_be_saved(control, item))
			continue;
		item->arena = lien_arena_take(&control->arena, item->wire.allocation_bytes);
		result = lien_copy_begin(control, item, 1);
		if (result) {
			lien_control_fail(control, result, item->wire.va, "copy to the host");
			break;
		}
	}
	/* The driver will soon reuse handle values that the application still knows. */
	unseen = lien_cached_none_new(why, sizeof(why)); /* while the copies run */
	ended = lien_devices_synchronize(control);
	if (ended && !result)
		result = lien_control_fail(control, ended, 0, "copy to the host");
	if (unseen && !result)
		result = lien_control_fail(control, unseen, 0, why);
	while (!result && (item = lien_items_next(&control->items, item)))
		if (item->state == LIEN_ITEM_STAGED && lien_order_means(control, item))
			item->state = LIEN_ITEM_SAVED;
	if (!result) {
		if (bounce)
			lien_verify_keep(control);
		control->reply.arg = bytes;
		control->reply.arg2 = devices_free(control);
	}
out:
	lien_devices_close(control);
	return result;
}

/* --- UNMAP, DROP: takes memory off the device ------------------------------------------------- */

static int drop(struct lien_control *control, uint32_t kind)
{
	struct lien_item *item = NULL;
	struct lien_device *device;
	int result = 0;

	lien_watchdog_away();
	while (!result && (item = lien_items_next(&control->items, item))) {
		if (!(item->wire.flags & kind) || item->state == LIEN_ITEM_AWAY ||
			!lien_order_means(control, item))
			continue;
		if (item->state != LIEN_ITEM_SAVED) {
			result = lien_control_fail(
				control, -EPROTO, item->wire.va, "not saved, so not dropped");
			break;
		}
		result = lien_item_unmap(control, item);
		if (result)
			continue;
		lien_device_use(control,
			kind == LIEN_WIRE_OWNED ? item->wire.location_id
						: context_device(control, &item->wire),
			&device);
		if (kind == LIEN_WIRE_OWNED)
			control->reply.arg += item->wire.allocation_bytes;
	}
	if (kind == LIEN_WIRE_OWNED)
		control->reply.arg2 = devices_free(control);
	lien_devices_close(control);
	return result;
}

int lien_order_unmap(struct lien_control *control)
{
	return drop(control, LIEN_WIRE_IMPORTED);
}

int lien_order_drop(struct lien_control *control)
{
	int result = drop(control, LIEN_WIRE_OWNED);

	lien_order_hold(control, result != 0);
	return result;
}

/* No import was unmapped: nobody waits for lent memory. */
int lien_order_discard(struct lien_control *control)
{
	lien_order_forget(control, LIEN_ITEMS_UNTOUCHED | 1 << LIEN_ITEM_LENT, control->generation);
	lien_order_hold(control, 0);
	return 0;
}

/* --- PREPARE, RELEASE: grows the arena ahead of its use, and gives it back -------------------- */

int lien_order_prepare(struct lien_control *control)
{
	const uint64_t bytes = control->order->header.arg, ordinal = control->order->header.arg2;
	struct lien_device *device;
	int result;

	if (bytes > LIEN_WIRE_BYTES_MAX || ordinal >= LIEN_DEVICES_MAX)
		return lien_control_fail(control, -EINVAL, 0, "no such size or device");
	if (bytes <= control->arena.bytes)
		return 0;
	result = lien_device_use(control, ordinal, &device);
	if (result)
		lien_control_fail(control, result, 0, "no primary context to pin memory in");
	else if ((result = lien_arena_grow(&control->arena, control->driver, device->device,
			  bytes - control->arena.bytes)))
		lien_control_fail(control, result, 0, "no pinned host memory for the arena");
	lien_devices_close(control);
	return result;
}

int lien_order_release(struct lien_control *control)
{
	uint64_t before = control->arena.bytes;
	int result;

	/* Any context will do: the memory is registered for all of them. */
	if (before && lien_device_near(control, 0) < 0)
		return lien_control_fail(
			control, -ENODEV, 0, "no device has a primary context to unpin it in");
	result = lien_arena_release(&control->arena, control->driver);
	lien_devices_close(control);
	if (result)
		return lien_control_fail(control, result, 0, "cuMemHostUnregister");
	control->reply.arg = before - control->arena.bytes;
	return 0;
}
