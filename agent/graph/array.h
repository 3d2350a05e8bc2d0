/* SPDX-License-Identifier: BSD-2-Clause */
/* Search and order in arrays. */
#ifndef LIEN_GRAPH_ARRAY_H
#define LIEN_GRAPH_ARRAY_H

#include <lien/array.h>
#include <stdint.h>

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

#endif
