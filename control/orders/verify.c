// SPDX-License-Identifier: BSD-2-Clause
/*
 * `lien offload --verify`. The item keeps a checksum of the data that arrived in the host arena, so
 * the checksum outlives the agent. The arena's data is compared before the copy back; the device's
 * data is read back and compared afterwards. The arena keeps the bytes until then.
 */
#include <errno.h>
#include <stdio.h>

#include "control/memory/checksum.h"
#include "control/orders/control.h"

static uint64_t checksum_of_host(const struct lien_control *control, const struct lien_item *item)
{
	uint64_t done, length, value = 0;
	struct lien_checksum sum;
	const void *host;

	lien_checksum_begin(&sum);
	for (done = 0; done < item->wire.allocation_bytes; done += length) {
		length = item->wire.allocation_bytes - done;
		host = lien_arena_at(&control->arena, item->arena + done, &length);
		value = lien_checksum_add(&sum, host, length);
	}
	return value;
}

static int saved(const struct lien_item *item)
{
	return item->wire.flags & LIEN_WIRE_OWNED && !(item->wire.flags & LIEN_WIRE_WORTHLESS);
}

void lien_verify_keep(struct lien_control *control)
{
	struct lien_item *item = NULL;

	while ((item = lien_items_next(&control->items, item)))
		if (item->state == LIEN_ITEM_SAVED && lien_item_of(item, control->generation) &&
			saved(item)) {
			item->checksum = checksum_of_host(control, item);
			item->checked = 1;
		}
}

static int differs(struct lien_control *control, const struct lien_item *item, const char *what)
{
	char text[sizeof(control->reply.text)];

	snprintf(text, sizeof(text), "%s: %llu bytes", what,
		(unsigned long long)item->wire.allocation_bytes);
	return lien_control_fail(control, -EBADMSG, item->wire.va, text);
}

int lien_verify_host(struct lien_control *control, const struct lien_item *item)
{
	if (!item->checked || checksum_of_host(control, item) == item->checksum)
		return 0;
	return differs(control, item, "the copy in host memory was changed");
}

/* Buffers for pieces of the device's memory: one is read into while the other is summed up. */
struct bounce {
	char *half[2];
	uint64_t bytes; /* of one half; a multiple of 32 */
};

/* Begins to read the piece at `done`. Returns its length, 0 after the last one. */
static uint64_t read_piece(struct lien_control *control, struct lien_device *device,
	const struct lien_item *item, const struct bounce *bounce, uint64_t done, int *result)
{
	uint64_t length = item->wire.allocation_bytes - done;

	if (length > bounce->bytes)
		length = bounce->bytes;
	if (length)
		*result = control->driver->cuMemcpyDtoHAsync_v2(
			bounce->half[done / bounce->bytes % 2], item->wire.va + done, length,
			device->stream);
	return length;
}

static int checksum_of_device(struct lien_control *control, const struct lien_item *item,
	const struct bounce *bounce, uint64_t *value)
{
	uint64_t done = 0, length = 0, next;
	struct lien_device *device;
	struct lien_checksum sum;
	int result;

	result = lien_device_use(control, lien_item_device(&item->wire), &device);
	lien_checksum_begin(&sum);
	if (!result)
		length = read_piece(control, device, item, bounce, done, &result);
	while (!result && length) {
		result = control->driver->cuStreamSynchronize(device->stream);
		if (result)
			break;
		next = read_piece(control, device, item, bounce, done + length, &result);
		*value = lien_checksum_add(&sum, bounce->half[done / bounce->bytes % 2], length);
		done += length;
		length = next;
	}
	return result;
}

static int verify_item(
	struct lien_control *control, struct lien_item *item, const struct bounce *bounce)
{
	uint64_t value = 0;
	int result = checksum_of_device(control, item, bounce, &value);

	if (result)
		result = checksum_of_device(control, item, bounce, &value);
	if (result)
		return lien_control_fail(control, result, item->wire.va, "copy for --verify");
	if (value != item->checksum)
		return differs(control, item, "not restored as it was saved");
	item->checked = 0; /* the application may change it from now on */
	return 0;
}

/* Uses the arena behind the used part. The device can also be read without pinned memory, but
 * slowly. */
static struct bounce bounce_of(const struct lien_control *control, char *small, uint64_t size)
{
	uint64_t used = control->arena.used, room = LIEN_WIRE_ARENA_BOUNCE;
	char *memory = lien_arena_at(&control->arena, used, &room);

	if (!memory || room < size) {
		memory = small;
		room = size;
	}
	room = room / 2 & ~31ull;
	return (struct bounce){.half = {memory, memory + room}, .bytes = room};
}

int lien_verify_device(struct lien_control *control)
{
	char small[16 << 10];
	const struct bounce bounce = bounce_of(control, small, sizeof(small));
	struct lien_item *item = NULL;
	int result, first = 0;
	uint64_t bytes = 0;

	while ((item = lien_items_next(&control->items, item))) {
		if (item->state != LIEN_ITEM_FILLING)
			continue;
		item->state = LIEN_ITEM_BACK;
		if (!item->checked)
			continue;
		result = verify_item(control, item, &bounce);
		if (result) /* only the arena has the right data */
			item->state = LIEN_ITEM_EMPTY;
		first = first ? first : result;
		bytes += item->wire.allocation_bytes;
	}
	if (!control->reply.text[0])
		control->reply.arg = bytes; /* otherwise it says where */
	return first;
}
