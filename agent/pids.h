/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists of pids, as requests and transactions have them: short, in any order. */
#ifndef LIEN_PIDS_H
#define LIEN_PIDS_H

#include <stdbool.h>
#include <stdint.h>

static inline bool lien_pids_have(const uint32_t *pids, unsigned count, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < count; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

#endif
