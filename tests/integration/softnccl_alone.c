// SPDX-License-Identifier: BSD-2-Clause
/* Communicators and groups of the stand-in libnccl. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "softnccl_alone.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct softnccl_job *unasked; /* non-blocking calls whose state was not queried yet */
static __thread struct softnccl_job *grouped;
static __thread int group_depth;

bool softnccl_grouped(void)
{
	return group_depth > 0;
}

static ncclResult_t job_run(struct softnccl_job *job)
{
	ncclResult_t result = softnccl_buffer_new_elsewhere(job->comm);

	if (job->where)
		*job->where = result ? NULL : job->comm;
	free(job);
	return result;
}

static ncclResult_t job_later(struct softnccl_job **list, const struct softnccl_job *job)
{
	struct softnccl_job *copy = malloc(sizeof(*copy));

	if (!copy)
		return ncclSystemError;
	*copy = *job;
	pthread_mutex_lock(&lock);
	while (*list)
		list = &(*list)->next;
	*list = copy;
	pthread_mutex_unlock(&lock);
	return ncclSuccess;
}

static uint64_t hash_of_child(ncclComm_t parent, int color)
{
	unsigned number = ++softnccl_of(parent)->children;

	return softnccl_mix(
		softnccl_mix(parent->hash, &number, sizeof(number)), &color, sizeof(color));
}

/*
 * Makes a communicator; `parent` is NULL except for splits and shrinks, whose *comm is set only
 * when they are complete.
 */
static ncclResult_t make(ncclComm_t *comm, ncclComm_t parent, uint64_t hash, int nranks, int rank,
	const ncclConfig_t *config)
{
	struct softnccl_job job = {.parent = parent};
	ncclResult_t result;
	bool blocking = true;

	if (!comm)
		return ncclInvalidArgument;
	result = softnccl_new(&job.comm, sizeof(struct softnccl_comm), hash, nranks, rank);
	if (result)
		return result;
	if (config)
		blocking = config->blocking != 0;
	else if (parent)
		blocking = softnccl_of(parent)->blocking;
	softnccl_of(job.comm)->blocking = blocking;
	*comm = parent ? NULL : job.comm;
	job.where = parent ? comm : NULL;
	if (softnccl_grouped())
		return job_later(&grouped, &job);
	if (!blocking) {
		result = job_later(&unasked, &job);
		return result ? result : ncclInProgress;
	}
	result = softnccl_buffer_new(job.comm);
	*comm = job.comm;
	return result;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	return make(comm, NULL, softnccl_hash(&id), nranks, rank, NULL);
}

EXPORT ncclResult_t ncclCommInitRankConfig(
	ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	return make(comm, NULL, softnccl_hash(&id), nranks, rank, config);
}

EXPORT ncclResult_t ncclCommInitRankScalable(
	ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	if (nids < 1 || !ids)
		return ncclInvalidArgument;
	return make(comm, NULL, softnccl_hash(ids), nranks, rank, config);
}

EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices)
{
	static unsigned calls;
	ncclUniqueId id = {{0}};
	ncclResult_t result = ncclSuccess;
	int i;

	(void)devices;
	calls++;
	memcpy(&id, &calls, sizeof(calls));
	for (i = 0; i < count && !result; i++)
		result = make(&comms[i], NULL, softnccl_hash(&id), count, i, NULL);
	return result;
}

EXPORT ncclResult_t ncclCommSplit(
	ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	(void)key;
	if (!comm || !newcomm)
		return ncclInvalidArgument;
	*newcomm = NULL;
	return color == NCCL_SPLIT_NOCOLOR
		       ? ncclSuccess
		       : make(newcomm, comm, hash_of_child(comm, color), 1, 0, config);
}

EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int excluded_count,
	ncclComm_t *newcomm, ncclConfig_t *config, int flags)
{
	(void)flags;
	if (!comm || !newcomm || !excluded || excluded_count < 1)
		return ncclInvalidArgument;
	return make(newcomm, comm, hash_of_child(comm, -1), 1, 0, config);
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
	struct softnccl_job **at, *job;

	if (!comm || !result)
		return ncclInvalidArgument;
	*result = ncclSuccess;
	pthread_mutex_lock(&lock);
	for (at = &unasked; *at; at = &(*at)->next)
		if ((*at)->comm == comm || (*at)->parent == comm)
			break;
	job = *at;
	if (job)
		*at = job->next;
	pthread_mutex_unlock(&lock);
	if (job)
		*result = job_run(job);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupStart(void)
{
	group_depth++;
	return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
	ncclResult_t result = ncclSuccess;
	struct softnccl_job *job;

	if (group_depth < 1)
		return ncclInvalidArgument;
	if (--group_depth)
		return ncclSuccess;
	while ((job = grouped) && !result) {
		grouped = job->next;
		result = job_run(job);
	}
	return result ? result : softnccl_connect_all();
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	return comm ? ncclSuccess : ncclInvalidArgument;
}

static void end(ncclComm_t comm)
{
	softnccl_proxy_stop(comm);
	softnccl_buffers_free(comm);
	softnccl_free(comm);
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	if (comm)
		end(comm);
	return ncclSuccess;
}

/* Not an alias of the above: a probe on one must not see the other. */
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	if (!comm)
		return ncclInvalidArgument;
	end(comm);
	return ncclSuccess;
}
