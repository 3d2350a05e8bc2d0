/* SPDX-License-Identifier: BSD-2-Clause */
/* Search and order in arrays; rows found by a hash. */
#ifndef LIEN_ARRAY_H
#define LIEN_ARRAY_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include <lien/grow.h>

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

/* --- rows of an array, found by a hash of their keys ------------------------------------------ */

struct lien_place {
	uint64_t hash;
	unsigned row; /* from 1; 0: empty */
};

struct lien_rows {
	struct lien_place *place;
	unsigned places; /* a power of 2, at least twice the count of rows */
	unsigned room;	 /* of the array */
};

/* Adds a part of a key to a hash; start with 0. */
static inline uint64_t lien_rows_mix(uint64_t hash, uint64_t part)
{
	hash = (hash ^ part) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 32;
}

static inline int lien_rows_grow(struct lien_rows *rows)
{
	struct lien_rows grown = {
		.places = rows->places ? 2 * rows->places : 64, .room = rows->room};
	unsigned i, at;

	grown.place = calloc(grown.places, sizeof(*grown.place));
	if (!grown.place)
		return -ENOMEM;
	for (i = 0; i < rows->places; i++) {
		if (!rows->place[i].row)
			continue;
		for (at = rows->place[i].hash; grown.place[at & (grown.places - 1)].row; at++)
			;
		grown.place[at & (grown.places - 1)] = rows->place[i];
	}
	free(rows->place);
	*rows = grown;
	return 0;
}

/*
 * Returns the row for which is_row() returns true; if there is none, a new one at the end of the
 * array, of zeros. `array`: the address of a pointer to *count rows of `size` bytes. NULL: out of
 * memory.
 */
static inline void *lien_rows_find(struct lien_rows *rows, uint64_t hash,
	bool (*is_row)(const void *row, const void *key), const void *key, void *array,
	unsigned *count, size_t size)
{
	struct lien_place *place;
	unsigned at = hash;
	char *first;

	if ((2 * (*count + 1) > rows->places && lien_rows_grow(rows)) ||
		lien_array_grow(array, *count, &rows->room, size))
		return NULL;
	memcpy(&first, array, sizeof(first));
	for (;; at++) {
		place = &rows->place[at & (rows->places - 1)];
		if (!place->row)
			break;
		if (place->hash == hash && is_row(first + (place->row - 1) * size, key))
			return first + (place->row - 1) * size;
	}
	*place = (struct lien_place){hash, ++*count};
	return memset(first + (*count - 1) * size, 0, size);
}

#endif
