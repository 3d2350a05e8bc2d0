/* SPDX-License-Identifier: BSD-2-Clause */
/* What a training job does, and what must come out of it. */
#include <string.h>

#include "train.h"

const char *const train_kind_names[TRAIN_KINDS] = {
	"all-reduce", "broadcast", "all-gather", "reduce-scatter", "shift", "pipeline"};

uint64_t train_mix(uint64_t value)
{
	value += 0x9e3779b97f4a7c15ul;
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ul;
	value = (value ^ value >> 27) * 0x94d049bb133111ebul;
	return value ^ value >> 31;
}

uint64_t train_sum(uint64_t sum, const void *data, size_t bytes)
{
	const uint32_t *words = data;

	for (size_t i = 0; i < bytes / sizeof(*words); i++)
		sum = (sum ^ words[i]) * 0x100000001b3ul;
	return sum;
}

int train_members(enum train_comm comm, int rank, int nranks, int *members, int *place)
{
	int count = 0, i;

	for (i = 0; i < nranks; i++) {
		if (comm == TRAIN_HALF && i % 2 != rank % 2)
			continue;
		if (comm == TRAIN_PAIR && i / 2 != rank / 2)
			continue;
		if (i == rank)
			*place = count;
		members[count++] = i;
	}
	return count;
}

/* The number of members must not differ between the ranks: all-gathers would outgrow. */
static size_t count_of(uint64_t random, int nranks)
{
	static const size_t most[] = {16, 500, 500, 4000, 4000, 16000, 16000, 60000};
	size_t limit = TRAIN_BYTES_MAX / sizeof(uint64_t) / nranks, count;

	count = 1 + (random >> 8) % most[random % 8];
	return count < limit ? count : limit;
}

static struct train_op op_of(uint64_t random, int worker, int nranks)
{
	static const ncclDataType_t types[] = {ncclUint32, ncclUint64, ncclFloat32};
	struct train_op op = {.seed = random};

	random = train_mix(random);
	op.kind = random % TRAIN_KINDS;
	if (random >> 8 & 1) /* what there is most of */
		op.kind = TRAIN_ALL_REDUCE;
	op.comm = worker ? TRAIN_WORLD : (random >> 9) % TRAIN_COMMS;
	op.type = types[(random >> 16) % 3];
	op.root = 0;
	op.count = count_of(train_mix(random), nranks);
	op.grouped = (random >> 24) % 4 == 0;
	op.sync = (random >> 32) % 4 == 0;
	return op;
}

int train_plan(uint64_t seed, int worker, uint64_t iteration, int nranks, struct train_op *ops)
{
	uint64_t random = train_mix(train_mix(seed + worker) ^ iteration);
	bool run_ahead = random % 5 == 0;
	int count = run_ahead ? 20 + (random >> 8) % 40 : 2 + (random >> 8) % 7, i;

	for (i = 0; i < count; i++) {
		random = train_mix(random);
		ops[i] = op_of(random, worker, nranks);
		ops[i].sync = i == count - 1 || (!run_ahead && ops[i].sync);
		/* A pipeline's second half waits for its first. */
		if (!i || ops[i - 1].sync || ops[i].kind == TRAIN_PIPELINE ||
			ops[i - 1].kind == TRAIN_PIPELINE)
			ops[i].grouped = false;
		if (run_ahead && ops[i].count > 2000)
			ops[i].count %= 2000;
	}
	return count;
}

size_t train_element(ncclDataType_t type)
{
	return type == ncclUint64 ? 8 : 4;
}

static uint32_t word(const struct train_op *op, int rank, size_t at)
{
	return train_mix(op->seed ^ (uint64_t)rank << 48 ^ at);
}

/* Sums of floats are exact. */
static void set(const struct train_op *op, void *data, size_t at, int rank, size_t index)
{
	uint32_t value = word(op, rank, index);

	if (op->type == ncclUint64)
		((uint64_t *)data)[at] = (uint64_t)value << 20 | rank;
	else if (op->type == ncclUint32)
		((uint32_t *)data)[at] = value;
	else
		((float *)data)[at] = value & 0xfff;
}

static void add(const struct train_op *op, void *data, size_t at, int rank, size_t index)
{
	uint32_t value = word(op, rank, index);

	if (op->type == ncclUint64)
		((uint64_t *)data)[at] += (uint64_t)value << 20 | rank;
	else if (op->type == ncclUint32)
		((uint32_t *)data)[at] += value;
	else
		((float *)data)[at] += value & 0xfff;
}

size_t train_give(const struct train_op *op, int rank, int nranks, void *data)
{
	int members[TRAIN_RANKS_MAX], place;
	size_t count = op->count, i;

	if (op->kind == TRAIN_REDUCE_SCATTER)
		count *= train_members(op->comm, rank, nranks, members, &place);
	for (i = 0; i < count; i++)
		set(op, data, i, rank, i);
	return count * train_element(op->type);
}

size_t train_expect(const struct train_op *op, int rank, int nranks, void *data)
{
	int members[TRAIN_RANKS_MAX], place, many, from, m;
	size_t count = op->count, first = 0, i;

	many = train_members(op->comm, rank, nranks, members, &place);
	if (!data)
		return count * (op->kind == TRAIN_ALL_GATHER ? many : 1) * train_element(op->type);
	switch (op->kind) {
	case TRAIN_ALL_GATHER:
		for (m = 0; m < many; m++)
			for (i = 0; i < count; i++)
				set(op, data, m * count + i, members[m], i);
		count *= many;
		break;
	case TRAIN_REDUCE_SCATTER:
		first = place * count;
		/* fall through */
	case TRAIN_ALL_REDUCE:
		memset(data, 0, count * train_element(op->type));
		for (m = 0; m < many; m++)
			for (i = 0; i < count; i++)
				add(op, data, i, members[m], first + i);
		break;
	default:
		from = op->kind == TRAIN_SHIFT ? members[(place + many - 1) % many]
					       : members[op->root];
		for (i = 0; i < count; i++)
			set(op, data, i, from, i);
	}
	return count * train_element(op->type);
}
