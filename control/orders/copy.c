// SPDX-License-Identifier: BSD-2-Clause
/* Copies between the arena and the devices, which run until lien_copy_end(). */
#include "control/orders/order.h"

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

static int clear(struct lien_control *control, struct lien_item *item)
{
	struct lien_device *device;
	int result = lien_device_use(control, lien_item_device(&item->wire), &device);

	if (result || !control->driver->cuMemsetD8Async)
		return result;
	return control->driver->cuMemsetD8Async(
		item->wire.va, 0, item->wire.allocation_bytes, device->stream);
}

int lien_copy_fill(struct lien_control *control, struct lien_item *item)
{
	return item->wire.flags & LIEN_WIRE_WORTHLESS ? clear(control, item)
						      : lien_copy_begin(control, item, 0);
}

int lien_copy_end(struct lien_control *control)
{
	int result = lien_devices_synchronize(control);
	struct lien_item *item = NULL;

	while (result && (item = lien_items_next(&control->items, item)))
		if (item->state == LIEN_ITEM_FILLING)
			item->state = LIEN_ITEM_EMPTY;
	return result;
}
