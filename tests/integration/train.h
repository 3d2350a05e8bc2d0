/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of prog_train.c share. What a job does is a function of its seed: train_plan.c
 * says it, and what must come out, without any device.
 */
#ifndef TRAIN_H
#define TRAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <lien/cuda_abi.h>

#include "sync_nccl.h"

#define TRAIN_RANKS_MAX 16
#define TRAIN_OPS_MAX	64
#define TRAIN_BYTES_MAX (1ul << 20) /* that an operation gives a rank */
#define TRAIN_ARENA	(16ul << 20)

enum train_comm {
	TRAIN_WORLD, /* of the worker */
	TRAIN_HALF,  /* ranks of the same parity; worker 0 only */
	TRAIN_PAIR,  /* ranks 2n and 2n + 1; worker 0 only */
	TRAIN_COMMS,
};

enum train_kind {
	TRAIN_ALL_REDUCE,
	TRAIN_BROADCAST,
	TRAIN_ALL_GATHER,
	TRAIN_REDUCE_SCATTER,
	TRAIN_SHIFT,	/* in a group: to the next rank, from the one before */
	TRAIN_PIPELINE, /* from rank to rank */
	TRAIN_KINDS,
};

extern const char *const train_kind_names[TRAIN_KINDS];

struct train_op {
	enum train_kind kind;
	enum train_comm comm;
	ncclDataType_t type; /* Uint32, Uint64 or Float32 */
	size_t count;
	int root;
	uint64_t seed; /* of its data */
	bool grouped;  /* with the one before */
	bool sync;     /* the results are looked at before the next one */
};

/* Which ranks of the job a communicator has: how many, and the place of `rank` among them. */
int train_members(enum train_comm comm, int rank, int nranks, int *members, int *place);

/* The operations of an iteration, the same in all ranks: how many. */
int train_plan(uint64_t seed, int worker, uint64_t iteration, int nranks, struct train_op *ops);

/* What a rank gives, and what it must get: bytes. The latter without data, too. */
size_t train_give(const struct train_op *op, int rank, int nranks, void *data);
size_t train_expect(const struct train_op *op, int rank, int nranks, void *data);
size_t train_element(ncclDataType_t type);

uint64_t train_mix(uint64_t value);
uint64_t train_sum(uint64_t sum, const void *data, size_t bytes); /* a checksum, continued */

/* train_work.c */
extern struct train_nccl {
#define TRAIN_MEMBER(name, arguments) ncclResult_t(*name) arguments;
	SYNC_NCCL_FUNCTIONS(TRAIN_MEMBER)
#undef TRAIN_MEMBER
	__typeof__(&lien_sync_mark) mark;
	__typeof__(&lien_sync_check) check;
	__typeof__(&cuMemRelease) release; /* a table of pointers, as PyTorch has one */
} train_nccl;

enum train_wish {
	TRAIN_GO,
	TRAIN_PAUSE,
	TRAIN_STOP,
};

struct train_job {
	int rank, nranks;
	uint64_t seed, iterations; /* 0: until it is told to stop */
	unsigned pace_us;	   /* at most, between calls of the host */
	_Atomic int wish;	   /* of rank 0's user */
	_Atomic unsigned goes;	   /* times that it was told to go on */
	_Atomic int paused;	   /* workers */
	_Atomic uint64_t bytes;	   /* verified */
};

struct train_worker {
	struct train_job *job;
	int number;
	ncclComm_t comms[TRAIN_COMMS];
	CUcontext context;
	uint64_t iteration, sum;
};

void *train_work(void *worker);
void train_fail(const struct train_job *job, int status, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

#endif
