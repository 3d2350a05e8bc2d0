/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which of the communicators that NCCL's RAS names is the one at an address of a process? Plain C.
 *
 * NCCL keeps the hash that RAS tells in the communicator's structure (struct ncclComm in
 * src/include/comm.h), at a place that changes with its version: it is found by its value. Where
 * the structure ends, it says itself: its first and its last eight bytes are equal, and a
 * static_assert in NCCL (2.24 to 2.30) says that they are first and last. In all of these versions
 * rank and size follow the hash, 32 bits each: where they are what RAS says, there is no doubt.
 */
#ifndef LIEN_RAS_MATCH_H
#define LIEN_RAS_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A structure that is longer is none. 2.28.9's takes 1.03 MiB. */
#define LIEN_RAS_STRUCTURE_MAX (16u << 20)

/* A communicator that may be a process's. */
struct lien_ras_row {
	uint64_t hash, host_hash, pid_hash;
	int32_t rank;	/* that the process has in it; -1: not told */
	int32_t nranks; /* -1: not told */
	int32_t device; /* CUDA ordinal; -1: not told */
	bool sure; /* RAS says that it is this process's; else another may be meant by that pid */
	uint64_t address; /* where it was found; 0: nowhere */
};

/* The structure's bytes at the beginning of memory; 0: it has no end there. */
size_t lien_ras_structure(const void *memory, size_t size);

/*
 * The row that the structure is, and its rank (-1: not known). -1: none, or more than one could be
 * meant.
 */
int lien_ras_match(const void *structure, size_t size, const struct lien_ras_row *row,
	unsigned count, int32_t *rank);

/* Of the rows that were found at several addresses nothing is known: .address 0. `from` has one for
 * each address of the process, the row's index or -1; those become -1. */
void lien_ras_match_once(int *from, unsigned addresses);

#endif
