/* SPDX-License-Identifier: BSD-2-Clause */
/* Arrays that grow by doubling, and search and order in them. */
#ifndef LIEN_ARRAY_H
#define LIEN_ARRAY_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Makes room for `count` elements. `array`: the address of a pointer to elements of `size` bytes;
 * NULL and a *room of 0 are an empty one. Returns 0, or -ENOMEM with the array as it was.
 */
static inline int lien_array_reserve(void *array, unsigned count, unsigned *room, size_t size)
{
	unsigned more = *room ? *room : 16;
	void *old, *grown;

	if (count <= *room)
		return 0;
	while (more < count && more <= UINT_MAX / 2)
		more *= 2;
	memcpy(&old, array, sizeof(old));
	grown = more >= count ? reallocarray(old, more, size) : NULL;
	if (!grown)
		return -ENOMEM;
	memcpy(array, &grown, sizeof(grown));
	*room = more;
	return 0;
}

/* Makes room for one more element after the first `count`. */
static inline int lien_array_grow(void *array, unsigned count, unsigned *room, size_t size)
{
	return count < UINT_MAX ? lien_array_reserve(array, count + 1, room, size) : -ENOMEM;
}

/* Returns the index of the first element of a sorted array that is not less than the key; `count`
 * if there is none. */
static inline unsigned lien_array_at_least(const void *array, unsigned count, size_t size,
	const void *key, int (*cmp)(const void *, const void *))
{
	unsigned low = 0, high = count, mid;

	while (low < high) {
		mid = low + (high - low) / 2;
		if (cmp((const char *)array + mid * size, key) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* For qsort() and bsearch() of uint64_t. */
static inline int lien_u64_cmp(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static inline bool lien_u64_find(const uint64_t *sorted, unsigned count, uint64_t value)
{
	return count && bsearch(&value, sorted, count, sizeof(value), lien_u64_cmp);
}

/* For a list in any order. */
static inline bool lien_u64_have(const uint64_t *list, unsigned count, uint64_t value)
{
	unsigned i;

	for (i = 0; i < count && list[i] != value; i++)
		;
	return i < count;
}

#endif
