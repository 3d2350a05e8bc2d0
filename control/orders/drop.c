// SPDX-License-Identifier: BSD-2-Clause
/* UNMAP and DROP: takes memory off the device. */
#include <errno.h>

#include "control/orders/order.h"

int lien_order_drop(struct lien_control *control, uint32_t kind)
{
	struct lien_item *item = NULL;
	struct lien_device *device;
	int result = 0;

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
						: lien_item_context_device(control, &item->wire),
			&device);
		if (kind == LIEN_WIRE_OWNED)
			control->reply.arg += item->wire.allocation_bytes;
	}
	if (kind == LIEN_WIRE_OWNED)
		control->reply.arg2 = lien_devices_free(control);
	lien_devices_close(control);
	return result;
}
