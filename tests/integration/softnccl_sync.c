// SPDX-License-Identifier: BSD-2-Clause
/* The public functions of the stand-in libnccl: see softnccl_sync.h. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "softnccl_sync.h"

static __thread struct tasks grouped;
static __thread int group_depth;

/* Ours begins as NCCL's does: a number that nobody else has, and the address of the root. */
struct unique_id {
	uint64_t magic;
	struct sockaddr_in root;
};

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	struct unique_id ours = {.root = {.sin_family = AF_INET}};

	if (!id || getrandom(&ours.magic, sizeof(ours.magic), 0) != sizeof(ours.magic))
		return ncclSystemError;
	ours.root.sin_port = htons(20000 + getpid() % 10000);
	ours.root.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (!sync_net_root(ours.magic, &ours.root))
		return ncclSystemError;
	memset(id, 0, sizeof(*id));
	memcpy(id, &ours, sizeof(ours));
	return ncclSuccess;
}

static ncclResult_t init(
	ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank, bool blocking)
{
	struct unique_id given;

	if (!comm || nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	if (!sync_driver_bind())
		return ncclSystemError;
	sync_catch_faults();
	memcpy(&given, id, sizeof(given));
	return blocking ? sync_comm_make(comm, given.magic, &given.root, nranks, rank)
			: sync_comm_make_later(comm, given.magic, &given.root, nranks, rank);
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	return init(comm, nranks, &id, rank, true);
}

EXPORT ncclResult_t ncclCommInitRankConfig(
	ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	return init(comm, nranks, &id, rank, !config || config->blocking);
}

/* A rank's place among those of its color: by key, then by rank. */
static int place(const uint64_t *words, int nranks, int own)
{
	int32_t key = words[own], other;
	int rank = 0, i;

	for (i = 0; i < nranks; i++) {
		other = words[i];
		if (words[i] >> 32 == words[own] >> 32)
			rank += other < key || (other == key && i < own);
	}
	return rank;
}

EXPORT ncclResult_t ncclCommSplit(
	ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	uint64_t words[RANKS_MAX], id;
	int members[RANKS_MAX], count = 0, i;
	ncclResult_t result;

	(void)config;
	if (!comm || !newcomm)
		return ncclInvalidArgument;
	*newcomm = NULL;
	words[comm->rank] = (uint64_t)(uint32_t)color << 32 | (uint32_t)key;
	id = (comm->id + ++comm->splits) * 0x9e3779b97f4a7c15ul + (uint32_t)color;
	result = sync_exchange(comm, words);
	if (!result && color == NCCL_SPLIT_NOCOLOR)
		result = sync_comm_split_without(comm);
	if (result || color == NCCL_SPLIT_NOCOLOR)
		return result;
	for (i = 0; i < comm->nranks; i++) {
		if (words[i] >> 32 != (uint32_t)color)
			continue;
		members[place(words, comm->nranks, i)] = i;
		count++;
	}
	return sync_comm_split(
		newcomm, id, comm, members, count, place(words, comm->nranks, comm->rank));
}

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void wait_for_tasks(ncclComm_t comm)
{
	while (atomic_load(&comm->unfinished))
		nap();
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	if (!comm)
		return ncclInvalidArgument;
	wait_for_tasks(comm);
	return ncclSuccess;
}

/* As NCCL does: what is being made in the background is made first. */
static void wait_until_made(ncclComm_t comm)
{
	while (atomic_load(&comm->error) == ncclInProgress)
		nap();
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	ncclResult_t result = ncclSuccess;

	if (!comm)
		return ncclSuccess;
	wait_until_made(comm);
	wait_for_tasks(comm);
	if (!sync_buffer_is(&comm->own, comm->id ^ comm->rank)) {
		fprintf(stderr, "process %d: the memory of a communicator is not as it was\n",
			getpid());
		result = ncclInternalError;
	}
	sync_comm_free(comm);
	return result;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	if (!comm)
		return ncclInvalidArgument;
	atomic_store(&comm->aborted, true);
	wait_for_tasks(comm);
	sync_comm_free(comm);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
	if (!comm || !result)
		return ncclInvalidArgument;
	*result = atomic_load(&comm->error);
	return ncclSuccess;
}

static uint64_t mark_of(ncclComm_t comm, uint64_t seed, int from, int to)
{
	return (comm->id ^ seed) + ((uint64_t)from << 32) + ((uint64_t)to << 40);
}

EXPORT ncclResult_t lien_sync_mark(ncclComm_t comm, uint64_t seed)
{
	ncclResult_t result = ncclSuccess;
	int i;

	for (i = 0; i < comm->nranks && !result; i++)
		if (i != comm->rank && comm->peers[i].data < 0)
			result = sync_buffer_fill(
				&comm->peers[i].out, mark_of(comm, seed, comm->rank, i));
	return result;
}

EXPORT long lien_sync_check(ncclComm_t comm, uint64_t seed)
{
	struct peer *peer;
	long bytes = 0;
	int i;

	for (i = 0; i < comm->nranks; i++) {
		peer = &comm->peers[i];
		if (i == comm->rank || peer->data >= 0)
			continue;
		if (!sync_buffer_is(&peer->out, mark_of(comm, seed, comm->rank, i)) ||
			!sync_buffer_is(&peer->in, mark_of(comm, seed, i, comm->rank)))
			return -1;
		bytes += peer->out.bytes + peer->in.bytes;
	}
	if (!sync_buffer_is(&comm->own, comm->id ^ comm->rank))
		return -1;
	return bytes + comm->own.bytes;
}

/* From now on the peers know that it comes, and the stream is busy with it. */
static void announce(struct task *task)
{
	ncclComm_t comm = task->comm;
	int i;

	pthread_mutex_lock(&comm->lock);
	if (task->kind != SEND && task->kind != RECEIVE)
		task->number = ++comm->launched;
	atomic_store(&comm->page->launched, comm->launched);
	atomic_fetch_add(&comm->unfinished, 1);
	pthread_mutex_unlock(&comm->lock);
	for (i = 0; i < comm->nranks; i++)
		if (i != comm->rank)
			sync_ring_peer(comm, &comm->peers[i]);
}

/* A launch for each stream, with the calls for it in their order. */
static ncclResult_t launch_one(struct tasks *from)
{
	struct tasks *tasks = malloc(sizeof(*tasks)), rest = STAILQ_HEAD_INITIALIZER(rest);
	cudaStream_t stream = STAILQ_FIRST(from)->stream;
	struct task *task;

	if (!tasks)
		return ncclSystemError;
	STAILQ_INIT(tasks);
	while ((task = STAILQ_FIRST(from))) {
		STAILQ_REMOVE_HEAD(from, entry);
		if (task->stream == stream) {
			announce(task);
			STAILQ_INSERT_TAIL(tasks, task, entry);
		} else {
			STAILQ_INSERT_TAIL(&rest, task, entry);
		}
	}
	STAILQ_CONCAT(from, &rest);
	return sync_launch(stream, sync_play, tasks);
}

static ncclResult_t launch(struct tasks *tasks)
{
	ncclResult_t result = ncclSuccess;

	while (!result && !STAILQ_EMPTY(tasks))
		result = launch_one(tasks);
	return result;
}

#define LAUNCH_NS 20000000 /* NCCL connects first */

struct later {
	struct tasks tasks;
	ncclComm_t comm;
	CUcontext context;
};

static void *launch_in_background(void *arg)
{
	struct later later = *(struct later *)arg;

	free(arg);
	sync_context_set(later.context);
	nanosleep(&(struct timespec){.tv_nsec = LAUNCH_NS}, NULL);
	atomic_store(&later.comm->error, launch(&later.tasks));
	return NULL;
}

static ncclResult_t launch_later(ncclComm_t comm, struct task *task)
{
	struct later *later = malloc(sizeof(*later));
	pthread_t thread;

	if (!later)
		return ncclSystemError;
	STAILQ_INIT(&later->tasks);
	STAILQ_INSERT_TAIL(&later->tasks, task, entry);
	later->comm = comm;
	later->context = sync_context();
	atomic_store(&comm->error, ncclInProgress);
	if (pthread_create(&thread, NULL, launch_in_background, later))
		return ncclSystemError;
	pthread_detach(thread);
	return ncclInProgress;
}

static ncclResult_t call(enum kind kind, const void *src, void *dst, size_t count,
	ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
	struct tasks alone = STAILQ_HEAD_INITIALIZER(alone);
	struct task *task;

	if (!comm || !sync_type_bytes(type) || peer < 0 || peer >= comm->nranks ||
		((kind == SEND || kind == RECEIVE) && peer == comm->rank))
		return ncclInvalidArgument;
	task = calloc(1, sizeof(*task));
	if (!task)
		return ncclSystemError;
	task->comm = comm;
	task->stream = stream;
	task->kind = kind;
	task->src = src;
	task->dst = dst;
	task->bytes = count * sync_type_bytes(type);
	task->type = type;
	task->peer = peer;
	if (comm->background && !group_depth)
		return launch_later(comm, task);
	STAILQ_INSERT_TAIL(group_depth ? &grouped : &alone, task, entry);
	return group_depth ? ncclSuccess : launch(&alone);
}

EXPORT ncclResult_t ncclGroupStart(void)
{
	if (!group_depth++)
		STAILQ_INIT(&grouped);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
	if (group_depth < 1)
		return ncclInvalidUsage;
	return --group_depth ? ncclSuccess : launch(&grouped);
}

EXPORT ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type,
	ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	if (op != ncclSum)
		return ncclInvalidArgument;
	return call(ALL_REDUCE, src, dst, count, type, 0, comm, stream);
}

EXPORT ncclResult_t ncclBroadcast(const void *src, void *dst, size_t count, ncclDataType_t type,
	int root, ncclComm_t comm, cudaStream_t stream)
{
	return call(BROADCAST, src, dst, count, type, root, comm, stream);
}

EXPORT ncclResult_t ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type,
	ncclComm_t comm, cudaStream_t stream)
{
	return call(ALL_GATHER, src, dst, count, type, 0, comm, stream);
}

EXPORT ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type,
	ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	if (op != ncclSum)
		return ncclInvalidArgument;
	return call(REDUCE_SCATTER, src, dst, count, type, 0, comm, stream);
}

EXPORT ncclResult_t ncclSend(const void *src, size_t count, ncclDataType_t type, int peer,
	ncclComm_t comm, cudaStream_t stream)
{
	return call(SEND, src, NULL, count, type, peer, comm, stream);
}

EXPORT ncclResult_t ncclRecv(void *dst, size_t count, ncclDataType_t type, int peer,
	ncclComm_t comm, cudaStream_t stream)
{
	return call(RECEIVE, NULL, dst, count, type, peer, comm, stream);
}

#if SYNC_VERSION >= 22800
EXPORT ncclResult_t ncclAlltoAll(const void *src, void *dst, size_t count, ncclDataType_t type,
	ncclComm_t comm, cudaStream_t stream)
{
	size_t bytes = count * sync_type_bytes(type);
	ncclResult_t result;
	int i;

	if (!comm)
		return ncclInvalidArgument;
	if (!group_depth++)
		STAILQ_INIT(&grouped);
	result = sync_copy(stream, (char *)dst + comm->rank * bytes,
		(const char *)src + comm->rank * bytes, bytes);
	for (i = 0; i < comm->nranks && !result; i++) {
		if (i == comm->rank)
			continue;
		result = call(
			SEND, (const char *)src + i * bytes, NULL, count, type, i, comm, stream);
		if (!result)
			result = call(RECEIVE, NULL, (char *)dst + i * bytes, count, type, i, comm,
				stream);
	}
	if (--group_depth)
		return result;
	return result ? result : launch(&grouped);
}
#endif
