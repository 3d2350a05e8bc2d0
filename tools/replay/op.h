/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a replay does: one op per call that a recorded process made with success, in its order, and
 * the allocations those calls made. Both travel to the workers in an image (image.h).
 */
#ifndef LIEN_REPLAY_OP_H
#define LIEN_REPLAY_OP_H

#include <lien/event.h>

/* The call is issued from inside the stand-in libnccl. */
#define LIEN_OP_NCCL 0x1
/* Not a recorded return: the driver gave the name out again, so this release had happened. */
#define LIEN_OP_INFERRED 0x2
/* An export that some import of the recording takes. */
#define LIEN_OP_SHARED 0x4

/* The allocation of a handle or mapping whose origin the recording does not have. */
#define LIEN_NO_ALLOCATION UINT64_MAX

struct lien_replay_op {
	struct lien_event event; /* names and addresses as recorded */
	uint64_t allocation;	 /* number of the one that the call makes, takes or names */
	uint32_t flags;
	uint32_t record; /* the record in the recording that caused it, from 1 */
};

/* Numbered through over all processes: the number makes the pattern. All lengths count from its
 * first byte. */
struct lien_replay_allocation {
	uint64_t bytes;
	uint64_t filled;     /* that its owner had mapped writable at some time: hold the pattern */
	uint64_t rewritable; /* that its owner has mapped writable at the end of the recording */
	uint32_t owner;	     /* index of its process */
	uint32_t zero;
};

/* "cuMemCreate" of LIEN_CALL_CU_MEM_CREATE. */
const char *lien_replay_call_name(unsigned int call);

#endif
