/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists of pids as they occur in requests and transactions: in any order. */
#ifndef LIEN_PIDS_H
#define LIEN_PIDS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
