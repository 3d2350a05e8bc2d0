// SPDX-License-Identifier: BSD-2-Clause
/* Primary contexts and streams of the devices that an order works on. */
#include <errno.h>

#include "control/orders/order.h"
#include "control/plain/plain.h"

static void context_release(const struct lien_driver *driver, struct lien_device *device)
{
	lien_plain_primary_release(driver, device->device);
	device->held = 0;
}

int lien_devices_any(const struct lien_driver *driver)
{
	unsigned int flags;
	CUdevice device;
	int active = 0, i;

	for (i = 0; i < LIEN_DEVICES_MAX && !active && !driver->cuDeviceGet(&device, i); i++)
		if (driver->cuDevicePrimaryCtxGetState(device, &flags, &active))
			active = 0;
	return active;
}

static CUresult context_hold(
	const struct lien_driver *driver, struct lien_device *device, int ordinal)
{
	unsigned int flags;
	CUresult result;
	int active;

	if ((result = driver->cuDeviceGet(&device->device, ordinal)) ||
		(result = driver->cuDevicePrimaryCtxGetState(device->device, &flags, &active)))
		return result;
	if (!active)
		return -ENODEV;
	result = driver->cuDevicePrimaryCtxRetain(&device->context, device->device);
	device->held = !result;
	return result;
}

/* Most orders work on thousands of items of one device. NULL: none. */
static CUresult make_current(struct lien_control *control, CUcontext context)
{
	CUresult result;

	if (context && control->current == context)
		return CUDA_SUCCESS;
	result = control->driver->cuCtxSetCurrent(context);
	control->current = result ? NULL : context;
	return result;
}

int lien_device_use(struct lien_control *control, int ordinal, struct lien_device **out)
{
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;
	CUresult result;

	if (ordinal < 0 || ordinal >= LIEN_DEVICES_MAX)
		return -ENODEV;
	device = &control->devices[ordinal];
	*out = device;
	if (device->open)
		return make_current(control, device->context);
	if (!device->held && (result = context_hold(driver, device, ordinal)))
		return result;
	if ((result = make_current(control, device->context)) ||
		(result = driver->cuStreamCreate(&device->stream, CU_STREAM_NON_BLOCKING))) {
		if (!lien_items_any(&control->items, LIEN_ITEMS_MISSING))
			context_release(driver, device);
		return result;
	}
	device->open = 1;
	return 0;
}

int lien_device_transfer(struct lien_control *control, uint32_t ordinal, uint64_t va,
	uint8_t bytes[LIEN_WIRE_MARK_BYTES], int write)
{
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;
	int result = lien_device_use(control, ordinal, &device);

	if (result)
		return result;
	result = write ? driver->cuMemcpyHtoDAsync_v2(
				 va, bytes, LIEN_WIRE_MARK_BYTES, device->stream)
		       : driver->cuMemcpyDtoHAsync_v2(
				 bytes, va, LIEN_WIRE_MARK_BYTES, device->stream);
	if (result)
		return result;
	return driver->cuStreamSynchronize(device->stream);
}

void lien_devices_close(struct lien_control *control)
{
	const int away = lien_items_any(&control->items, LIEN_ITEMS_MISSING);
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;

	if (lien_items_any(&control->items, 1 << LIEN_ITEM_FILLING))
		return; /* copies are in progress: an agent ended before FINISH */
	for (device = control->devices; device < control->devices + LIEN_DEVICES_MAX; device++) {
		if (device->open) {
			make_current(control, device->context);
			if (driver->cuStreamDestroy_v2(device->stream))
				driver->cuStreamDestroy_v2(device->stream);
			make_current(control, NULL);
			device->open = 0;
		}
		if (device->held && !away)
			context_release(driver, device);
	}
}

int lien_devices_synchronize(struct lien_control *control)
{
	CUresult result, first = CUDA_SUCCESS;
	unsigned i;

	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (control->devices[i].open) {
			make_current(control, control->devices[i].context);
			result = control->driver->cuStreamSynchronize(control->devices[i].stream);
			if (!first)
				first = result;
		}
	return first;
}

uint64_t lien_devices_free(struct lien_control *control)
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

int lien_item_device(const struct lien_wire_item *wire)
{
	int device = -1;
	unsigned i;

	for (i = 0; i < wire->places; i++) {
		if (wire->place[i].location_type != CU_MEM_LOCATION_TYPE_DEVICE ||
			wire->place[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			continue;
		if (device < 0 || wire->place[i].location_id == wire->location_id)
			device = wire->place[i].location_id;
	}
	return device;
}

int lien_item_context_device(struct lien_control *control, const struct lien_wire_item *wire)
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

static int is_one_of(uint64_t value, const uint64_t *list, unsigned count)
{
	unsigned i;

	for (i = 0; i < count; i++)
		if (value && value == list[i])
			return 1;
	return !count;
}

int lien_order_chooses(const struct lien_control *control, const struct lien_item *item)
{
	const uint64_t *groups = control->chosen, *tags = groups + control->groups_count;

	/* What objects join comes back together. */
	if (!(control->flags & LIEN_WIRE_CHOSEN) || item->wire.team)
		return 1;
	return is_one_of(item->wire.group, groups, control->groups_count) &&
	       is_one_of(item->wire.tag, tags, control->tags_count);
}

int lien_order_means(const struct lien_control *control, const struct lien_item *item)
{
	return lien_item_of(item, control->generation) && lien_order_chooses(control, item);
}
