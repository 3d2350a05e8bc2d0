/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stand-in libnccl.so.2 for replays: the functions of NCCL that a replay calls, without
 * communication or memory of its own. Signatures are those of nccl.h 2.28, so that a probe finds
 * each argument where the real library has it.
 */
#ifndef SOFTNCCL_H
#define SOFTNCCL_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
	ncclSuccess = 0,
	ncclSystemError = 2,
	ncclInvalidArgument = 4,
	ncclInProgress = 7,
} ncclResult_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;

/* Only the beginning, the part that is read. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} ncclConfig_t;

typedef struct {
	char internal[128];
} ncclUniqueId;

#define EXPORT __attribute__((visibility("default"), noinline))

/*
 * As in the real one, the first and the last eight bytes are equal, and between them is the 64-bit
 * hash that names the communicator, followed by rank and size.
 */
#define SOFTNCCL_MAGIC 0x0280028002800280ull

struct ncclComm {
	uint64_t start_magic;
	char channels[8192]; /* stands for the real one's fields */
	uint64_t magic;	     /* equal to the hash in split communicators */
	uint64_t hash;
	int rank, nranks;
	uint64_t end_magic;
};

/* Mixes more bytes into a hash. */
uint64_t softnccl_mix(uint64_t hash, const void *data, size_t size);
/* Equal in all ranks, like NCCL's. */
uint64_t softnccl_hash(const ncclUniqueId *id);
/* Makes a communicator, the beginning of so many bytes. */
ncclResult_t softnccl_new(ncclComm_t *comm, size_t bytes, uint64_t hash, int nranks, int rank);
/* Its registrations remain until they are withdrawn. */
void softnccl_free(ncclComm_t comm);

#endif
