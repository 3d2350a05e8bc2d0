/* SPDX-License-Identifier: BSD-2-Clause */
/* The worker threads of a training job: they put operations into a stream, and look at results. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train.h"

#define BLOCKS 6

/* Memory of the worker's own. */
struct block {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va;
	size_t bytes;
	uint64_t seed;
};

/* An operation that is under way, and where its data is in the arenas. */
struct under_way {
	struct train_op op;
	int number;
	size_t at, bytes;
};

struct work {
	struct train_worker *worker;
	struct train_job *job;
	CUstream stream;
	CUevent event;
	CUdeviceptr device;   /* what operations give in the lower half, what they get above */
	char *host, *scratch; /* the same, pinned; a place for what is expected */
	size_t used;
	struct under_way list[TRAIN_OPS_MAX];
	int count;
	uint64_t random; /* of this rank alone */
	struct block blocks[BLOCKS];
};

struct train_nccl train_nccl;

void train_fail(const struct train_job *job, int status, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "rank %d (process %d): ", job->rank, getpid());
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	_exit(status);
}

#define CUDA(work, call)                                                                           \
	do {                                                                                       \
		CUresult result_ = call;                                                           \
		if (result_)                                                                       \
			train_fail((work)->job, 5, "%s: %d", #call, result_);                      \
	} while (0)

#define NCCL(work, call)                                                                           \
	do {                                                                                       \
		ncclResult_t result_ = train_nccl.call;                                            \
		if (result_)                                                                       \
			train_fail((work)->job, 6, "%s: %d", #call, result_);                      \
	} while (0)

static uint64_t any(struct work *work)
{
	return work->random = train_mix(work->random);
}

static void dawdle(struct work *work)
{
	unsigned pace = work->job->pace_us;

	if (pace && any(work) % 4 == 0)
		usleep(any(work) % pace);
}

static CUdeviceptr given(const struct work *work, size_t at)
{
	return work->device + at;
}

static CUdeviceptr got(const struct work *work, size_t at)
{
	return work->device + TRAIN_ARENA / 2 + at;
}

/* In whatever way programs wait, but for the whole device: there the other worker's collectives are
 * waited for, too, which another rank may begin only after this worker's next. */
static void wait_stream(struct work *work)
{
	switch (any(work) % 4) {
	case 1:
		CUDA(work, cuEventRecord(work->event, work->stream));
		while (cuEventQuery(work->event) == CUDA_ERROR_NOT_READY)
			usleep(100);
		break;
	default:
		CUDA(work, cuStreamSynchronize(work->stream));
	}
}

static void check_one(struct work *work, const struct under_way *one)
{
	const char *found = work->host + TRAIN_ARENA / 2 + one->at;
	struct train_job *job = work->job;
	size_t i;

	train_expect(&one->op, job->rank, job->nranks, work->scratch);
	for (i = 0; i < one->bytes && found[i] == work->scratch[i]; i++)
		;
	if (i < one->bytes)
		train_fail(job, 4,
			"wrong: worker %d, iteration %lu, operation %d, %s of %zu in %d: "
			"byte %zu of %zu is %#x, not %#x",
			work->worker->number, (unsigned long)work->worker->iteration, one->number,
			train_kind_names[one->op.kind], one->op.count, one->op.comm, i, one->bytes,
			found[i] & 0xff, work->scratch[i] & 0xff);
	work->worker->sum = train_sum(work->worker->sum, found, one->bytes);
	atomic_fetch_add(&job->bytes, one->bytes);
}

static void finish(struct work *work)
{
	int i;

	wait_stream(work);
	for (i = 0; i < work->count; i++)
		check_one(work, &work->list[i]);
	work->count = 0;
	work->used = 0;
}

/* The last of a pipeline does not give, the first does not wait. */
static void pipeline(struct work *work, const struct train_op *op, void *src, void *dst)
{
	ncclComm_t comm = work->worker->comms[op->comm];
	int members[TRAIN_RANKS_MAX], place, many;
	struct train_job *job = work->job;

	many = train_members(op->comm, job->rank, job->nranks, members, &place);
	if (!place)
		CUDA(work, cuMemcpyDtoDAsync_v2((CUdeviceptr)dst, (CUdeviceptr)src,
				   op->count * train_element(op->type), work->stream));
	else
		NCCL(work, ncclRecv(dst, op->count, op->type, place - 1, comm, work->stream));
	dawdle(work);
	if (place < many - 1)
		NCCL(work, ncclSend(dst, op->count, op->type, place + 1, comm, work->stream));
}

static void shift(struct work *work, const struct train_op *op, void *src, void *dst)
{
	ncclComm_t comm = work->worker->comms[op->comm];
	int members[TRAIN_RANKS_MAX], place, many;
	struct train_job *job = work->job;

	many = train_members(op->comm, job->rank, job->nranks, members, &place);
	if (many == 1) {
		CUDA(work, cuMemcpyDtoDAsync_v2((CUdeviceptr)dst, (CUdeviceptr)src,
				   op->count * train_element(op->type), work->stream));
		return;
	}
	NCCL(work, ncclGroupStart());
	NCCL(work, ncclSend(src, op->count, op->type, (place + 1) % many, comm, work->stream));
	NCCL(work,
		ncclRecv(dst, op->count, op->type, (place + many - 1) % many, comm, work->stream));
	NCCL(work, ncclGroupEnd());
}

static void issue(struct work *work, const struct train_op *op, size_t at)
{
	ncclComm_t comm = work->worker->comms[op->comm];
	void *src = (void *)given(work, at), *dst = (void *)got(work, at);

	switch (op->kind) {
	case TRAIN_ALL_REDUCE:
		NCCL(work,
			ncclAllReduce(src, dst, op->count, op->type, ncclSum, comm, work->stream));
		break;
	case TRAIN_BROADCAST:
		NCCL(work,
			ncclBroadcast(src, dst, op->count, op->type, op->root, comm, work->stream));
		break;
	case TRAIN_ALL_GATHER:
		NCCL(work, ncclAllGather(src, dst, op->count, op->type, comm, work->stream));
		break;
	case TRAIN_REDUCE_SCATTER:
		NCCL(work, ncclReduceScatter(
				   src, dst, op->count, op->type, ncclSum, comm, work->stream));
		break;
	case TRAIN_SHIFT:
		shift(work, op, src, dst);
		break;
	default:
		pipeline(work, op, src, dst);
	}
}

/* Operations from `first` on that belong together; results come behind them. How many. */
static int start(struct work *work, const struct train_op *ops, int first, int count)
{
	struct train_job *job = work->job;
	struct under_way *one;
	int last = first + 1, i;
	size_t bytes;

	while (last < count && ops[last].grouped)
		last++;
	if (work->used + (last - first) * TRAIN_BYTES_MAX > TRAIN_ARENA / 2)
		finish(work);
	for (i = first; i < last; i++) {
		one = &work->list[work->count + i - first];
		*one = (struct under_way){.op = ops[i], .number = i, .at = work->used};
		bytes = train_give(&ops[i], job->rank, job->nranks, work->host + one->at);
		CUDA(work, cuMemcpyHtoDAsync_v2(given(work, one->at), work->host + one->at, bytes,
				   work->stream));
		one->bytes = train_expect(&ops[i], job->rank, job->nranks, NULL);
		bytes = bytes > one->bytes ? bytes : one->bytes;
		work->used += (bytes + 255) & ~255ul;
	}
	if (last > first + 1)
		NCCL(work, ncclGroupStart());
	for (i = first; i < last; i++) {
		issue(work, &ops[i], work->list[work->count + i - first].at);
		dawdle(work);
	}
	if (last > first + 1)
		NCCL(work, ncclGroupEnd());
	for (i = first; i < last; i++) {
		one = &work->list[work->count++];
		CUDA(work, cuMemcpyDtoHAsync_v2(work->host + TRAIN_ARENA / 2 + one->at,
				   got(work, one->at), one->bytes, work->stream));
	}
	if (ops[last - 1].sync)
		finish(work);
	return last - first;
}

static void block_fill(char *to, const struct block *block)
{
	for (size_t i = 0; i < block->bytes / 8; i++)
		((uint64_t *)to)[i] = (block->seed + i) * 0x9e3779b97f4a7c15ul;
}

static void block_make(struct work *work, struct block *block)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location.type = CU_MEM_LOCATION_TYPE_DEVICE};
	CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	CUDA(work, cuCtxGetDevice(&prop.location.id));
	access.location = prop.location;
	block->bytes = (1 + any(work) % 2) * (2ul << 20);
	block->seed = any(work);
	CUDA(work, cuMemCreate(&block->handle, block->bytes, &prop, 0));
	CUDA(work, cuMemAddressReserve(&block->va, block->bytes, 0, 0, 0));
	CUDA(work, cuMemMap(block->va, block->bytes, 0, block->handle, 0));
	CUDA(work, cuMemSetAccess(block->va, block->bytes, &access, 1));
	block_fill(work->scratch, block);
	CUDA(work, cuMemcpyHtoDAsync_v2(block->va, work->scratch, block->bytes, work->stream));
	CUDA(work, cuStreamSynchronize(work->stream));
}

static void block_check(struct work *work, const struct block *block)
{
	char *found = work->scratch + block->bytes;

	block_fill(work->scratch, block);
	CUDA(work, cuMemcpyDtoHAsync_v2(found, block->va, block->bytes, work->stream));
	CUDA(work, cuStreamSynchronize(work->stream));
	if (memcmp(found, work->scratch, block->bytes))
		train_fail(work->job, 4, "wrong: own memory at %#llx", block->va);
	atomic_fetch_add(&work->job->bytes, block->bytes);
}

static void block_free(struct work *work, struct block *block)
{
	block_check(work, block);
	CUDA(work, cuMemUnmap(block->va, block->bytes));
	CUDA(work, train_nccl.release(block->handle));
	CUDA(work, cuMemAddressFree(block->va, block->bytes));
	block->va = 0;
}

static void change_blocks(struct work *work)
{
	struct block *block = &work->blocks[any(work) % BLOCKS];

	if (any(work) % 4)
		return;
	if (!block->va)
		block_make(work, block);
	else if (any(work) % 2)
		block_free(work, block);
	else
		block_check(work, block);
}

/* What rank 0 was told is for all: it comes to them as data does. */
static int agree(struct work *work)
{
	struct train_worker *worker = work->worker;
	struct train_job *job = work->job;
	int *wish = (int *)work->host;

	*wish = atomic_load(&job->wish);
	if (job->iterations && worker->iteration >= job->iterations)
		*wish = TRAIN_STOP;
	CUDA(work, cuMemcpyHtoDAsync_v2(given(work, 0), wish, 4, work->stream));
	NCCL(work, ncclBroadcast((void *)given(work, 0), (void *)got(work, 0), 1, ncclInt32, 0,
			   worker->comms[TRAIN_WORLD], work->stream));
	CUDA(work, cuMemcpyDtoHAsync_v2(wish, got(work, 0), 4, work->stream));
	wait_stream(work);
	return *wish;
}

static void rest(struct work *work)
{
	struct train_job *job = work->job;
	unsigned seen = atomic_load(&job->goes);

	if (atomic_fetch_add(&job->paused, 1) == 1) {
		printf("paused\n");
		fflush(stdout);
	}
	while (atomic_load(&job->goes) == seen)
		usleep(1000);
	atomic_fetch_sub(&job->paused, 1);
}

static void prepare(struct work *work)
{
	CUDA(work, cuCtxSetCurrent(work->worker->context));
	CUDA(work, cuStreamCreate(&work->stream, CU_STREAM_NON_BLOCKING));
	CUDA(work, cuEventCreate(&work->event, CU_EVENT_DISABLE_TIMING));
	CUDA(work, cuMemAlloc_v2(&work->device, TRAIN_ARENA));
	CUDA(work, cuMemAllocHost_v2((void **)&work->host, TRAIN_ARENA));
	work->scratch = malloc(TRAIN_ARENA / 2);
	if (!work->scratch)
		abort();
}

void *train_work(void *arg)
{
	struct train_op ops[TRAIN_OPS_MAX];
	struct train_worker *worker = arg;
	struct train_job *job = worker->job;
	struct work work = {.worker = worker, .job = job};
	int wish, count, i;

	work.random = train_mix(job->seed ^ (uint64_t)(job->rank * 2 + worker->number + 1) << 32);
	prepare(&work);
	while ((wish = agree(&work)) != TRAIN_STOP) {
		if (wish == TRAIN_PAUSE) {
			rest(&work);
			continue;
		}
		count = train_plan(job->seed, worker->number, worker->iteration, job->nranks, ops);
		for (i = 0; i < count;)
			i += start(&work, ops, i, count);
		change_blocks(&work);
		worker->iteration++;
	}
	for (i = 0; i < BLOCKS; i++)
		if (work.blocks[i].va)
			block_free(&work, &work.blocks[i]);
	CUDA(&work, cuMemFree_v2(work.device));
	CUDA(&work, cuMemFreeHost(work.host));
	CUDA(&work, cuStreamDestroy_v2(work.stream));
	free(work.scratch);
	return NULL;
}
