/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The steps of a replay: one op per successful call of a recorded process, in its order, and the
 * allocations that those calls made. Workers receive both in an image (image.h).
 */
#ifndef LIEN_REPLAY_OP_H
#define LIEN_REPLAY_OP_H

#include <lien/event.h>

/* The stand-in libnccl issues the call. */
#define LIEN_OP_NCCL 0x1
/* Not a recorded return: the driver gave the name out again, so this release must have happened. */
#define LIEN_OP_INFERRED 0x2
/* An export with an import in the recording. */
#define LIEN_OP_SHARED 0x4

/* The allocation of a handle or mapping whose origin is not in the recording. */
#define LIEN_NO_ALLOCATION UINT64_MAX

struct lien_replay_op {
	struct lien_event event; /* names and addresses as recorded */
	uint64_t allocation;	 /* number of the allocation that the call makes, takes or names */
	uint32_t flags;
	uint32_t record; /* number of the record that caused it, from 1 */
};

/* Numbers are unique over all processes, and determine the pattern. All lengths count from the
 * first byte. */
struct lien_replay_allocation {
	uint64_t bytes;
	uint64_t filled;     /* bytes its owner had mapped writable at some time: has the pattern */
	uint64_t rewritable; /* bytes its owner has mapped writable at the recording's end */
	uint32_t owner;	     /* index of its process */
	uint32_t zero;
};

#endif
