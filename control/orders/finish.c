// SPDX-License-Identifier: BSD-2-Clause
/* FINISH: the end of a restore, and of what was kept for it. */
#include <errno.h>

#include "control/memory/handles.h"
#include "control/orders/order.h"

/* The arena has bytes of these that are still needed. */
#define IN_ARENA (1u << LIEN_ITEM_SAVED | LIEN_ITEMS_MISSING | 1u << LIEN_ITEM_FILLING)

void lien_order_forget(struct lien_control *control, unsigned states, uint64_t generation)
{
	struct lien_item *item = NULL;
	uint64_t end;

	while ((item = lien_items_next(&control->items, item))) {
		if (!lien_item_in(item, states) || item->spared || !lien_item_of(item, generation))
			continue;
		lien_scratch_end(control, item);
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
			lien_scratch_end(control, item);
			item->state = LIEN_ITEM_LENT;
		}
}

void lien_order_give_up(
	struct lien_control *control, const struct lien_wire_share *shares, unsigned count)
{
	struct lien_item *item;
	unsigned i;

	for (i = 0; i < count; i++) {
		item = lien_items_find(&control->items, shares[i].token);
		if (!item || !(item->wire.flags & LIEN_WIRE_IMPORTED) ||
			item->state != LIEN_ITEM_AWAY)
			continue;
		item->state = LIEN_ITEM_LOST;
		control->reply.arg2 += item->wire.mappings;
	}
	lien_order_forget(control, 1 << LIEN_ITEM_LOST, 0);
}

/* Repeats the copies that failed. */
static int fill_again(struct lien_control *control)
{
	struct lien_item *item = NULL;
	int result = 0, ended;

	while (!result && (item = lien_items_next(&control->items, item)))
		if (item->state == LIEN_ITEM_EMPTY && lien_order_means(control, item) &&
			!(result = lien_copy_fill(control, item)))
			item->state = LIEN_ITEM_FILLING;
	ended = lien_copy_end(control);
	return result ? result : ended;
}

/* Returns 0, or why the copies did not complete; *differs: the data differs from the saved one. */
static int wait_for_copies(struct lien_control *control, int *differs)
{
	int result = lien_copy_end(control);

	if (result)
		result = fill_again(control);
	if (result)
		lien_control_fail(control, result, 0, "copies to the device did not complete");
	*differs = lien_verify_device(control); /* marks filled items as back */
	return result;
}

int lien_order_filled(struct lien_control *control)
{
	int differs, result = wait_for_copies(control, &differs);

	lien_devices_close(control);
	return result ? result : differs;
}

/* What was not chosen stays as it is. */
static void spare(struct lien_control *control, int on)
{
	struct lien_item *item = NULL;

	while ((item = lien_items_next(&control->items, item)))
		item->spared = on && !lien_order_chooses(control, item);
}

int lien_order_finish(struct lien_control *control, uint32_t flags)
{
	unsigned kept = LIEN_ITEMS_MISSING;
	struct lien_item *item = NULL;
	int differs, result = wait_for_copies(control, &differs);

	lien_devices_close(control);
	if (result)
		return result;
	spare(control, 1);
	if (flags & LIEN_WIRE_KEEP) {
		lien_order_lend(
			control, 1 << LIEN_ITEM_SAVED | 1 << LIEN_ITEM_BACK, control->generation);
		kept |= 1 << LIEN_ITEM_LENT;
	}
	lien_order_forget(control, ~kept, control->generation);
	spare(control, 0);
	if (differs)
		return differs;
	while ((item = lien_items_next(&control->items, item)))
		if (lien_item_in(item, LIEN_ITEMS_MISSING) && lien_order_means(control, item))
			return lien_control_fail(
				control, -EBUSY, item->wire.va, "not all memory is back");
	return 0;
}
