// SPDX-License-Identifier: BSD-2-Clause
/* Communicators, groups and registrations of the stand-in libnccl. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tools/replay/softnccl.h"

/* A buffer that is registered again keeps its handle, and must be deregistered as often. */
struct registration {
	struct registration *next;
	ncclComm_t comm;
	void *buffer;
	size_t bytes;
	unsigned references;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct registration *registrations;
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

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
	const unsigned char *bytes = data;

	while (size--)
		hash = (hash ^ *bytes++) * 0x100000001b3ull;
	return hash;
}

/* Equal in all ranks, like NCCL's. */
static uint64_t hash_of(const ncclUniqueId *id)
{
	return mix(0xcbf29ce484222325ull, id, sizeof(*id));
}

static uint64_t hash_of_child(ncclComm_t parent, int color)
{
	unsigned number = ++parent->children;

	return mix(mix(parent->hash, &number, sizeof(number)), &color, sizeof(color));
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

	if (!comm || nranks < 1 || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	job.comm = calloc(1, sizeof(*job.comm));
	if (!job.comm)
		return ncclSystemError;
	job.comm->start_magic = job.comm->end_magic = SOFTNCCL_MAGIC;
	job.comm->hash = job.comm->magic = hash;
	job.comm->nranks = nranks;
	job.comm->rank = rank;
	job.comm->blocking = true;
	if (config)
		job.comm->blocking = config->blocking != 0;
	else if (parent)
		job.comm->blocking = parent->blocking;
	*comm = parent ? NULL : job.comm;
	job.where = parent ? comm : NULL;
	if (softnccl_grouped())
		return job_later(&grouped, &job);
	if (!job.comm->blocking) {
		result = job_later(&unasked, &job);
		return result ? result : ncclInProgress;
	}
	result = softnccl_buffer_new(job.comm);
	*comm = job.comm;
	return result;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	return make(comm, NULL, hash_of(&id), nranks, rank, NULL);
}

EXPORT ncclResult_t ncclCommInitRankConfig(
	ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
	return make(comm, NULL, hash_of(&id), nranks, rank, config);
}

EXPORT ncclResult_t ncclCommInitRankScalable(
	ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids, ncclConfig_t *config)
{
	if (nids < 1 || !ids)
		return ncclInvalidArgument;
	return make(comm, NULL, hash_of(ids), nranks, rank, config);
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
		result = make(&comms[i], NULL, hash_of(&id), count, i, NULL);
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
	struct registration *registration;

	pthread_mutex_lock(&lock);
	for (registration = registrations; registration; registration = registration->next)
		if (registration->comm == comm)
			registration->comm = NULL; /* its handle stays valid for a late call */
	pthread_mutex_unlock(&lock);
	softnccl_proxy_stop(comm);
	softnccl_buffers_free(comm);
	free(comm);
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

static ncclResult_t enroll(ncclComm_t comm, void *buffer, size_t bytes, void **handle, bool again)
{
	struct registration *registration;

	pthread_mutex_lock(&lock);
	for (registration = again ? registrations : NULL; registration;
		registration = registration->next)
		if (registration->comm == comm && registration->buffer == buffer &&
			registration->bytes == bytes)
			break;
	if (!registration && (registration = calloc(1, sizeof(*registration)))) {
		registration->comm = comm;
		registration->buffer = buffer;
		registration->bytes = bytes;
		registration->next = registrations;
		registrations = registration;
	}
	if (registration)
		registration->references++;
	pthread_mutex_unlock(&lock);
	*handle = registration;
	return registration ? ncclSuccess : ncclSystemError;
}

static ncclResult_t withdraw(void *handle)
{
	struct registration **at, *registration = NULL;

	pthread_mutex_lock(&lock);
	for (at = &registrations; *at; at = &(*at)->next)
		if (*at == handle)
			break;
	if (*at && !--(*at)->references) {
		registration = *at;
		*at = registration->next;
	}
	pthread_mutex_unlock(&lock);
	free(registration);
	return ncclSuccess;
}

EXPORT ncclResult_t ncclCommRegister(
	const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
	return comm && handle ? enroll(comm, buffer, bytes, handle, true) : ncclInvalidArgument;
}

EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
	(void)comm;
	return withdraw(handle);
}

EXPORT ncclResult_t ncclCommWindowRegister(
	ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags)
{
	(void)flags;
	return comm && window ? enroll(comm, buffer, bytes, (void **)window, false)
			      : ncclInvalidArgument;
}

EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
	return comm ? withdraw(window) : ncclInvalidArgument;
}

EXPORT long lien_softnccl_call(void *fn, long a0, long a1, long a2, long a3, long a4, long a5)
{
	long (*call)(long, long, long, long, long, long);
	long result;

	call = (__typeof__(call))fn;
	result = call(a0, a1, a2, a3, a4, a5);
	/* Prevents a tail call, which would be compiled to a jump. */
	__asm__ volatile("" : "+r"(result));
	return result;
}
