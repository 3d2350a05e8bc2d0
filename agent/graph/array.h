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
 * Makes room for one more element after the first `count`. `array`: the address of a pointer to
 * elements of `size` bytes; NULL and a *room of 0 are an empty one. Returns 0, or -ENOMEM with the
 * array as it was.
 */
static inline int lien_array_grow(void *array, unsigned count, unsigned *room, size_t size)
{
	const unsigned more = *room ? 2 * *room : 16;
	void *old, *grown;

	if (count < *room)
		return 0;
	memcpy(&old, array, sizeof(old));
	grown = *room <= UINT_MAX / 2 ? reallocarray(old, more, size) : NULL;
	if (!grown)
		return -ENOMEM;
	memcpy(array, &grown, sizeof(grown));
	*room = more;
	return 0;
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

/* Sorts the array, and keeps the first of equal elements. Returns how many are left. */
static inline unsigned lien_array_unique(
	void *array, unsigned count, size_t size, int (*cmp)(const void *, const void *))
{
	char *at = array;
	unsigned i, left = 0;

	if (count)
		qsort(array, count, size, cmp);
	for (i = 0; i < count; i++)
		if (!left || cmp(at + (left - 1) * size, at + i * size))
			memmove(at + left++ * size, at + i * size, size);
	return left;
}

/* For qsort() and bsearch() of uint64_t. */
static inline int lien_u64_cmp(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Lists of pids as they occur in requests and transactions: in any order. */
static inline bool lien_pids_have(const uint32_t *pids, unsigned count, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < count; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

static inline int lien_pid_cmp(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Returns a sorted copy for lien_pids_find(). NULL: out of memory. */
static inline uint32_t *lien_pids_sorted(const uint32_t *pids, unsigned count)
{
	uint32_t *sorted = calloc(count + 1, sizeof(*sorted));

	if (sorted && count) {
		memcpy(sorted, pids, count * sizeof(*sorted));
		qsort(sorted, count, sizeof(*sorted), lien_pid_cmp);
	}
	return sorted;
}

static inline bool lien_pids_find(const uint32_t *sorted, unsigned count, uint32_t pid)
{
	return bsearch(&pid, sorted, count, sizeof(pid), lien_pid_cmp);
}

#endif
