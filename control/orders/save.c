// SPDX-License-Identifier: BSD-2-Clause
/* SAVE: copies memory to the arena. */
#include "control/driver/cached.h"
#include "control/orders/order.h"

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
		control->reply.arg2 = lien_devices_free(control);
	}
out:
	lien_devices_close(control);
	return result;
}
