// SPDX-License-Identifier: BSD-2-Clause
/*
 * `lien offload --verify`. The item keeps a checksum of the data that arrived in the host arena, so
 * the checksum outlives the agent. The arena's data is compared before the copy back; the device's
 * data is read back and compared afterwards. The arena keeps the bytes until then.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "control/orders/control.h"

/*
 * XXH64 (xxhash.com, seed 0). Detects damage, but not deliberate tampering. One thread computes it
 * faster than it copies memory, without instructions that some processors lack.
 */
struct checksum {
	uint64_t lane[4];
	uint64_t bytes;
};

#define PRIME_1 0x9e3779b185ebca87ull
#define PRIME_2 0xc2b2ae3d27d4eb4full
#define PRIME_3 0x165667b19e3779f9ull
#define PRIME_4 0x85ebca77c2b2ae63ull
#define PRIME_5 0x27d4eb2f165667c5ull

static inline uint64_t rotate(uint64_t value, int bits)
{
	return value << bits | value >> (64 - bits);
}

static inline uint64_t read64(const unsigned char *data)
{
	uint64_t value;

	memcpy(&value, data, sizeof(value));
	return value;
}

static inline uint64_t take(uint64_t lane, uint64_t value)
{
	return rotate(lane + value * PRIME_2, 31) * PRIME_1;
}

static void checksum_begin(struct checksum *sum)
{
	*sum = (struct checksum){.lane = {PRIME_1 + PRIME_2, PRIME_2, 0, -PRIME_1}};
}

static const unsigned char *add_stripes(
	struct checksum *sum, const unsigned char *data, size_t stripes)
{
	uint64_t a = sum->lane[0], b = sum->lane[1], c = sum->lane[2], d = sum->lane[3];

	for (; stripes; stripes--, data += 32) {
		a = take(a, read64(data));
		b = take(b, read64(data + 8));
		c = take(c, read64(data + 16));
		d = take(d, read64(data + 24));
	}
	sum->lane[0] = a;
	sum->lane[1] = b;
	sum->lane[2] = c;
	sum->lane[3] = d;
	return data;
}

static uint64_t merge(const struct checksum *sum)
{
	const uint64_t *lane = sum->lane;
	uint64_t value =
		rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);

	for (unsigned i = 0; i < 4; i++)
		value = (value ^ take(0, lane[i])) * PRIME_1 + PRIME_4;
	return value;
}

static uint64_t add_rest(uint64_t value, const unsigned char *data, size_t size)
{
	uint32_t half;

	for (; size >= 8; size -= 8, data += 8)
		value = rotate(value ^ take(0, read64(data)), 27) * PRIME_1 + PRIME_4;
	if (size >= 4) {
		memcpy(&half, data, sizeof(half));
		value = rotate(value ^ half * PRIME_1, 23) * PRIME_2 + PRIME_3;
		size -= 4;
		data += 4;
	}
	for (; size; size--, data++)
		value = rotate(value ^ *data * PRIME_5, 11) * PRIME_1;
	return value;
}

/* Adds the next piece; all but the last must be multiples of 32 bytes. Returns the checksum up to
 * its end. */
static uint64_t checksum_add(struct checksum *sum, const void *data, size_t size)
{
	const unsigned char *rest = add_stripes(sum, data, size / 32);
	uint64_t value;

	sum->bytes += size;
	value = (sum->bytes < 32 ? PRIME_5 : merge(sum)) + sum->bytes;
	value = add_rest(value, rest, size % 32);
	value = (value ^ value >> 33) * PRIME_2;
	value = (value ^ value >> 29) * PRIME_3;
	return value ^ value >> 32;
}

/* --- comparing -------------------------------------------------------------------------------- */

static uint64_t checksum_of_host(const struct lien_control *control, const struct lien_item *item)
{
	uint64_t done, length, value = 0;
	struct checksum sum;
	const void *host;

	checksum_begin(&sum);
	for (done = 0; done < item->wire.allocation_bytes; done += length) {
		length = item->wire.allocation_bytes - done;
		host = lien_arena_at(&control->arena, item->arena + done, &length);
		value = checksum_add(&sum, host, length);
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
	struct checksum sum;
	int result;

	result = lien_device_use(control, lien_item_device(&item->wire), &device);
	checksum_begin(&sum);
	if (!result)
		length = read_piece(control, device, item, bounce, done, &result);
	while (!result && length) {
		result = control->driver->cuStreamSynchronize(device->stream);
		if (result)
			break;
		next = read_piece(control, device, item, bounce, done + length, &result);
		*value = checksum_add(&sum, bounce->half[done / bounce->bytes % 2], length);
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
