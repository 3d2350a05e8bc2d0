// SPDX-License-Identifier: BSD-2-Clause
/* The room that restored memory needs, and that its devices have. */
#include <errno.h>
#include <string.h>

#include "control/orders/order.h"

static int room_of(struct lien_control *control, int ordinal, struct lien_wire_room *room)
{
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;
	size_t free_bytes, total;
	CUuuid uuid;

	memset(room, 0, sizeof(*room));
	if (lien_device_use(control, ordinal, &device) ||
		driver->cuMemGetInfo_v2(&free_bytes, &total))
		return -ENODEV;
	room->device = ordinal;
	room->free_bytes = free_bytes;
	if (driver->cuDeviceGetUuid_v2 && !driver->cuDeviceGetUuid_v2(&uuid, device->device))
		memcpy(room->uuid, uuid.bytes, sizeof(room->uuid));
	return 0;
}

unsigned lien_order_room(struct lien_control *control, struct lien_wire_room *rooms)
{
	uint64_t needed[LIEN_DEVICES_MAX] = {0};
	struct lien_item *item = NULL;
	unsigned i, n = 0;

	while ((item = lien_items_next(&control->items, item)))
		if (item->wire.flags & LIEN_WIRE_OWNED && item->state == LIEN_ITEM_AWAY &&
			lien_order_means(control, item) && item->wire.location_id >= 0 &&
			item->wire.location_id < LIEN_DEVICES_MAX)
			needed[item->wire.location_id] += item->wire.allocation_bytes;
	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (needed[i] && !room_of(control, i, &rooms[n]))
			rooms[n++].needed = needed[i];
	return n;
}
