// SPDX-License-Identifier: BSD-2-Clause
#include "control/memory/checksum.h"

#include <string.h>

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

void lien_checksum_begin(struct lien_checksum *sum)
{
	*sum = (struct lien_checksum){.lane = {PRIME_1 + PRIME_2, PRIME_2, 0, -PRIME_1}};
}

static const unsigned char *add_stripes(
	struct lien_checksum *sum, const unsigned char *data, size_t stripes)
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

static uint64_t merge(const struct lien_checksum *sum)
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

uint64_t lien_checksum_add(struct lien_checksum *sum, const void *data, size_t size)
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
