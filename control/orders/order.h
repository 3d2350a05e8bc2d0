/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shared by the orders that move memory. Functions return 0, -errno or a CUresult; except for
 * device.c and copy.c, a failure has then been recorded in the reply.
 */
#ifndef LIEN_CONTROL_ORDER_H
#define LIEN_CONTROL_ORDER_H

#include "control/orders/control.h"

/* device.c. Waits for our streams. */
int lien_devices_synchronize(struct lien_control *control);
/* Returns the free memory, according to the driver, of the devices that the order's own memory is
 * or was on. */
uint64_t lien_devices_free(struct lien_control *control);
/* Returns a device whose context can do the work on the item: copy it or, for an import, query
 * it. If the application uses none of those that have access to an import, one that it does not
 * use; -1: none has access. */
int lien_item_context_device(struct lien_control *control, const struct lien_wire_item *wire);

/* copy.c. Begins to copy one allocation between the device and the arena. */
int lien_copy_begin(struct lien_control *control, struct lien_item *item, int to_host);
/* Begins to give mapped memory its bytes. */
int lien_copy_fill(struct lien_control *control, struct lien_item *item);
/* Waits for the copies. If one of them failed, none counts. */
int lien_copy_end(struct lien_control *control);

/* scratch.c. map: makes the allocation's first mapping, which the application lacks. end: removes
 * it, if there is one, as lien_scratch_free(). */
int lien_scratch_map(struct lien_control *control, struct lien_item *item);
void lien_scratch_end(struct lien_control *control, struct lien_item *item);

/* place.c. Unmaps one allocation and gives back every reference to it, ours and the application's.
 * On failure it is unchanged or, if its state says so, away. */
int lien_item_unmap(struct lien_control *control, struct lien_item *item);
/* Maps memory at the allocation's addresses again, and leaves the handle with the application's
 * number of references, plus ours if others import it; the caller passes one. On failure it is away
 * as before. */
int lien_item_map(
	struct lien_control *control, struct lien_item *item, CUmemGenericAllocationHandle handle);

#endif
