/* SPDX-License-Identifier: BSD-2-Clause */
/* Which context uses the memory of which other one. All devices reach all plain memory here, so
 * this is bookkeeping: what counts is what is refused. */
#include <stdlib.h>

#include "softcuda.h"

struct pair {
	LIST_ENTRY(pair) entry;
	CUcontext user, owner;
};

static LIST_HEAD(pair_list, pair) pairs = LIST_HEAD_INITIALIZER(pairs);

static struct pair *find(CUcontext user, CUcontext owner)
{
	struct pair *pair;

	LIST_FOREACH (pair, &pairs, entry)
		if (pair->user == user && pair->owner == owner)
			return pair;
	return NULL;
}

bool soft_peer_access(CUcontext user, CUcontext owner)
{
	bool has;

	pthread_mutex_lock(&soft.objects);
	has = find(user, owner) != NULL;
	pthread_mutex_unlock(&soft.objects);
	return has;
}

void soft_peers_drop(CUcontext context)
{
	struct pair *pair, *next;

	for (pair = LIST_FIRST(&pairs); pair; pair = next) {
		next = LIST_NEXT(pair, entry);
		if (pair->user == context || pair->owner == context) {
			LIST_REMOVE(pair, entry);
			free(pair);
		}
	}
}

/* soft.objects held. */
static CUresult check(CUcontext *user, CUcontext owner)
{
	CUresult result = soft_context_current(user);

	if (result)
		return result;
	if (!soft_object_is(owner, SOFT_CONTEXT) || !atomic_load(&owner->alive) || owner == *user)
		return CUDA_ERROR_INVALID_CONTEXT;
	return CUDA_SUCCESS;
}

static CUresult enable(CUcontext owner)
{
	CUcontext user;
	CUresult result = check(&user, owner);
	struct pair *pair;

	if (result)
		return result;
	if (user->device == owner->device)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (find(user, owner))
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	pair = calloc(1, sizeof(*pair));
	if (!pair)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pair->user = user;
	pair->owner = owner;
	LIST_INSERT_HEAD(&pairs, pair, entry);
	return CUDA_SUCCESS;
}

static CUresult disable(CUcontext owner)
{
	CUcontext user;
	CUresult result = check(&user, owner);
	struct pair *pair;

	if (result)
		return result;
	pair = find(user, owner);
	if (!pair)
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	LIST_REMOVE(pair, entry);
	free(pair);
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext owner, unsigned int flags)
{
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&soft.objects);
	result = enable(owner);
	pthread_mutex_unlock(&soft.objects);
	return result;
}

SOFT_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext owner)
{
	CUresult result;

	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&soft.objects);
	result = disable(owner);
	pthread_mutex_unlock(&soft.objects);
	return result;
}
