// SPDX-License-Identifier: BSD-2-Clause
/* What stand-in libnccls have in common: what a communicator is, registrations, calls from inside.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

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

uint64_t softnccl_mix(uint64_t hash, const void *data, size_t size)
{
	const unsigned char *bytes = data;

	while (size--)
		hash = (hash ^ *bytes++) * 0x100000001b3ull;
	return hash;
}

uint64_t softnccl_hash(const ncclUniqueId *id)
{
	return softnccl_mix(0xcbf29ce484222325ull, id, sizeof(*id));
}

ncclResult_t softnccl_new(ncclComm_t *comm, size_t bytes, uint64_t hash, int nranks, int rank)
{
	ncclComm_t made;

	if (!comm || nranks < 1 || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	made = calloc(1, bytes);
	if (!made)
		return ncclSystemError;
	made->start_magic = made->end_magic = SOFTNCCL_MAGIC;
	made->hash = made->magic = hash;
	made->nranks = nranks;
	made->rank = rank;
	*comm = made;
	return ncclSuccess;
}

void softnccl_free(ncclComm_t comm)
{
	struct registration *registration;

	pthread_mutex_lock(&lock);
	for (registration = registrations; registration; registration = registration->next)
		if (registration->comm == comm)
			registration->comm = NULL; /* its handle stays valid for a late call */
	pthread_mutex_unlock(&lock);
	free(comm);
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
