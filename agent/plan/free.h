/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Chooses what to move to free so many bytes of a GPU: in little time, with few driver calls, and
 * nothing that is not needed. Pure.
 */
#ifndef LIEN_FREE_H
#define LIEN_FREE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * What a move costs, there and back: about 0.17 ms for each mapping in each process, 0.04 ms for
 * each MiB (docs/measurements.md: 966 mappings, 2,604 MiB).
 */
#define LIEN_FREE_MAPPING_NS 170000ull
#define LIEN_FREE_MIB_NS     40000ull

/* An allocation that can be moved. */
struct lien_free_item {
	uint64_t whole; /* all items of this number move together, or none */
	unsigned gpu;	/* index */
	uint64_t bytes;
	uint64_t cost; /* ns */
	uint32_t pid;  /* of the owner: of equal items those of one process come first */
	unsigned of;   /* the caller's number for it */
	bool chosen;
};

struct lien_free_gpu {
	uint64_t wanted, movable, chosen; /* bytes */
};

/*
 * Sets .chosen of the items, which it sorts, and .movable and .chosen of the GPUs. Returns 0;
 * -ENOSPC: a GPU has less that is movable than wanted, and nothing is chosen; -ENOMEM.
 *
 * It takes what costs least per byte first, and ends with what makes up the rest at the least cost:
 * at most twice the least cost there is for each GPU.
 */
int lien_free_choose(struct lien_free_item *items, unsigned count, struct lien_free_gpu *gpus,
	unsigned gpus_count);

#endif
