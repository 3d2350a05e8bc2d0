// SPDX-License-Identifier: BSD-2-Clause
/* CREATE: makes memory again, and begins to copy it back. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "control/orders/order.h"

/* Grace period, granted once, for another job to give memory back. */
#define CREATE_AGAIN_US 50000

static int create_memory(struct lien_control *control, struct lien_item *item)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop;
	int result;

	memset(&prop, 0, sizeof(prop));
	prop.type = item->wire.prop_type;
	prop.requestedHandleTypes = item->wire.handle_types;
	prop.location.type = item->wire.location_type;
	prop.location.id = item->wire.location_id;
	prop.allocFlags.compressionType = item->wire.compression;
	prop.allocFlags.gpuDirectRDMACapable = item->wire.rdma;
	prop.allocFlags.usage = item->wire.usage;
	result = control->driver->cuMemCreate(&handle, item->wire.allocation_bytes, &prop, 0);
	if (result)
		return lien_control_fail(control, result, item->wire.va, "cuMemCreate");
	result = lien_item_map(control, item, handle);
	if (!result)
		item->state = LIEN_ITEM_EMPTY;
	return result;
}

/* An allocation that is mapped without its bytes needs only these. */
static int create(struct lien_control *control, struct lien_item *item)
{
	int result = lien_verify_host(control, item);

	if (!result && item->state == LIEN_ITEM_AWAY)
		result = create_memory(control, item);
	if (result)
		return result;
	result = lien_copy_fill(control, item);
	if (!result) {
		item->state = LIEN_ITEM_FILLING;
		return 0;
	}
	lien_control_fail(control, result, item->wire.va, "copy to the device");
	lien_copy_end(control);
	lien_item_unmap(control, item); /* otherwise it stays empty */
	return result;
}

/* Retries, because the failure may be temporary: another job has just given memory back. */
static int create_again(struct lien_control *control, struct lien_item *item, int *waited)
{
	int reported = control->reply.text[0], result = create(control, item);

	if (!result || result == -EBADMSG) /* a retry would not help */
		return result;
	if (result == CUDA_ERROR_OUT_OF_MEMORY && !*waited) {
		usleep(CREATE_AGAIN_US);
		*waited = 1;
	}
	result = create(control, item);
	if (!result && !reported)
		lien_control_forgive(control);
	return result;
}

int lien_order_create(struct lien_control *control)
{
	struct lien_item *item = NULL;
	int result, first = 0, waited = 0;
	uint64_t bytes = 0;

	while ((item = lien_items_next(&control->items, item)))
		if (item->wire.flags & LIEN_WIRE_OWNED && lien_item_in(item, LIEN_ITEMS_MISSING) &&
			lien_order_means(control, item)) {
			result = create_again(control, item, &waited);
			/* A failed one does not stop the others. */
			first = first ? first : result;
			bytes += result ? 0 : item->wire.allocation_bytes;
		}
	if (!first)
		control->reply.arg = bytes; /* otherwise it says where */
	return first;
}
