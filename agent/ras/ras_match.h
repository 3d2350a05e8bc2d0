/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds which communicator that NCCL's RAS names is at an address of a process. Plain C.
 *
 * NCCL keeps the hash that RAS reports in the communicator's structure (struct ncclComm in
 * src/include/comm.h), at an offset that depends on the version, so the hash is found by its value.
 * The structure shows where it ends: its first and its last eight bytes are equal, and a
 * static_assert in NCCL (2.24 to 2.30) guarantees that they are first and last. In all of these
 * versions rank and size follow the hash, 32 bits each; if they equal what RAS says, there is no
 * doubt.
 */
#ifndef LIEN_RAS_MATCH_H
#define LIEN_RAS_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Anything longer is not a structure. That of 2.28.9 takes 1.03 MiB. */
#define LIEN_RAS_STRUCTURE_MAX (16u << 20)

/* A communicator that may belong to a process. */
struct lien_ras_row {
	uint64_t hash, host_hash, pid_hash;
	int32_t rank;	/* of the process; -1: not reported */
	int32_t nranks; /* -1: not reported */
	int32_t device; /* CUDA ordinal; -1: not reported */
	bool sure;	/* RAS says it is this process's; else that pid may mean another process */
	uint64_t address; /* where it was found; 0: not found */
};

/* Returns the size of the structure at the beginning of memory; 0: it does not end there. */
size_t lien_ras_structure(const void *memory, size_t size);

/*
 * Returns the row that the structure matches, and its rank (-1: not known). -1: none, or more than
 * one could be meant.
 */
int lien_ras_match(const void *structure, size_t size, const struct lien_ras_row *row,
	unsigned count, int32_t *rank);

/* Rows that were found at several addresses become unknown: .address 0. `from` has one entry per
 * address of the process, the row's index or -1; those entries become -1. */
void lien_ras_match_once(int *from, unsigned addresses);

#endif
