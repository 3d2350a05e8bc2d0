// SPDX-License-Identifier: BSD-2-Clause
/* Memory of a context ends with it, and its peers may use it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "control/driver/thread.h"
#include "control/plain/memory.h"

static CUmemAccessDesc access_of(CUdevice device, CUmemAccess_flags flags)
{
	return (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

/* --- peers ------------------------------------------------------------------------------------ */

/* Contexts that use the memory of another. */
struct peer {
	CUcontext owner, user;
	CUdevice device; /* the user's */
};

static struct {
	pthread_mutex_t lock;
	struct peer *list;
	unsigned count, room;
	unsigned turn;
} peers = {.lock = PTHREAD_MUTEX_INITIALIZER};

unsigned lien_plain_peers_turn(void)
{
	return __atomic_load_n(&peers.turn, __ATOMIC_SEQ_CST);
}

unsigned lien_plain_access(CUcontext context, CUdevice device, CUmemAccessDesc *access)
{
	unsigned i, j, n = 0;

	access[n++] = access_of(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	pthread_mutex_lock(&peers.lock);
	for (i = 0; i < peers.count && n < LIEN_PLAIN_DEVICES; i++) {
		if (peers.list[i].owner != context)
			continue;
		for (j = 0; j < n && access[j].location.id != peers.list[i].device; j++)
			;
		if (j == n)
			access[n++] =
				access_of(peers.list[i].device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	}
	pthread_mutex_unlock(&peers.lock);
	return n;
}

static int add_peer(const struct peer *peer)
{
	unsigned room = peers.room ? peers.room * 2 : 8;
	struct peer *larger;

	if (peers.count == peers.room) {
		larger = realloc(peers.list, room * sizeof(*larger));
		if (!larger)
			return 0;
		peers.list = larger;
		peers.room = room;
	}
	peers.list[peers.count++] = *peer;
	return 1;
}

/* Removes the pairs with these contexts; NULL: any. Returns whether the device still is a peer of
 * the owner's. */
static int remove_peers(CUcontext owner, CUcontext user, CUdevice device)
{
	unsigned i, n = 0;

	for (i = 0; i < peers.count; i++)
		if ((owner && peers.list[i].owner != owner) || (user && peers.list[i].user != user))
			peers.list[n++] = peers.list[i];
	peers.count = n;
	__atomic_fetch_add(&peers.turn, 1, __ATOMIC_SEQ_CST);
	for (i = 0; i < peers.count; i++)
		if (peers.list[i].owner == owner && peers.list[i].device == device)
			return 1;
	return 0;
}

/* Lets a device use the memory that the context has, or no longer. */
LIEN_TRANSLATED static CUresult change_access(CUcontext owner, const CUmemAccessDesc *access)
{
	struct lien_heap_range chunk = {0}, still;
	CUresult result = CUDA_SUCCESS;
	struct lien_heap_key key;

	while (!result && lien_plain_next(chunk.base + chunk.bytes, &chunk, &key)) {
		if (key.context != (uintptr_t)owner || key.device == access->location.id)
			continue;
		result = LIEN_REAL(cuMemSetAccess)(chunk.base, chunk.bytes, access, 1);
		/* Another thread may have freed it. */
		if (result &&
			(!lien_plain_next(chunk.base, &still, &key) || still.base != chunk.base))
			result = CUDA_SUCCESS;
	}
	return result;
}

/* Where it fails, the device can still do what it must no longer try. */
LIEN_TRANSLATED static void take_back(const struct peer *peer)
{
	const CUmemAccessDesc none = access_of(peer->device, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	int still;

	pthread_mutex_lock(&peers.lock);
	still = remove_peers(peer->owner, peer->user, peer->device);
	pthread_mutex_unlock(&peers.lock);
	if (!still)
		change_access(peer->owner, &none);
}

/* Fills in the current context as a user of the owner's memory. */
LIEN_TRANSLATED static CUresult current_peer(CUcontext owner, struct peer *peer)
{
	CUresult result = LIEN_REAL(cuCtxGetCurrent)(&peer->user);

	peer->owner = owner;
	if (!result && peer->user)
		result = LIEN_REAL(cuCtxGetDevice)(&peer->device);
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxEnablePeerAccess(CUcontext owner, unsigned int flags)
{
	CUmemAccessDesc access;
	struct peer peer = {0};
	CUresult result = current_peer(owner, &peer);
	int added;

	if (!result)
		result = LIEN_REAL(cuCtxEnablePeerAccess)(owner, flags);
	if (result)
		return result;
	pthread_mutex_lock(&peers.lock);
	added = add_peer(&peer);
	__atomic_fetch_add(&peers.turn, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&peers.lock);
	access = access_of(peer.device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	result = added ? change_access(owner, &access) : CUDA_ERROR_OUT_OF_MEMORY;
	if (result) {
		take_back(&peer);
		LIEN_REAL(cuCtxDisablePeerAccess)(owner);
	}
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxDisablePeerAccess(CUcontext owner)
{
	struct peer peer = {0};
	CUresult result = current_peer(owner, &peer);

	if (!result)
		result = LIEN_REAL(cuCtxDisablePeerAccess)(owner);
	if (!result)
		take_back(&peer);
	return result;
}

/* --- the end of a context --------------------------------------------------------------------- */

static struct {
	/* Held while a primary context begins or ends: nobody is held in these calls. */
	pthread_mutex_t lock;
	CUcontext context[LIEN_PLAIN_DEVICES];
} primary = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A context that has ended, and the number of the chunks that it had (lien_plain_end()). */
struct ended {
	CUcontext context;
	uint64_t chunks; /* 0: it has not */
};

/* The driver has freed the plain memory of this context. */
LIEN_TRANSLATED static void drop_context(struct ended ended)
{
	struct lien_heap_range chunk;

	if (!ended.chunks)
		return;
	pthread_mutex_lock(&peers.lock);
	remove_peers(ended.context, NULL, -1);
	remove_peers(NULL, ended.context, -1);
	pthread_mutex_unlock(&peers.lock);
	lien_plain_wait_forget(ended.context);
	lien_plain_opened_drop(ended.context);
	while (lien_plain_forget(ended.chunks, &chunk))
		lien_plain_unmap(chunk);
}

static struct ended end_context(CUcontext context)
{
	return (struct ended){context, lien_plain_end(context)};
}

CUcontext lien_plain_primary(CUdevice device)
{
	return device >= 0 && device < LIEN_PLAIN_DEVICES
		       ? __atomic_load_n(&primary.context[device], __ATOMIC_ACQUIRE)
		       : NULL;
}

LIEN_TRANSLATED CUresult lien_plain_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult result;

	pthread_mutex_lock(&primary.lock);
	result = LIEN_REAL(cuDevicePrimaryCtxRetain)(context, device);
	if (!result && device >= 0 && device < LIEN_PLAIN_DEVICES)
		__atomic_store_n(&primary.context[device], *context, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&primary.lock);
	return result;
}

/* With the lock: ends the context if nobody has it any more. */
static struct ended end_primary(CUdevice device)
{
	unsigned int flags;
	int active = 1;

	if (!lien_plain_primary(device) ||
		LIEN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) || active)
		return (struct ended){0};
	return end_context(lien_plain_primary(device));
}

LIEN_TRANSLATED CUresult lien_plain_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	struct ended ended = {0};
	CUresult result;

	pthread_mutex_lock(&primary.lock);
	result = LIEN_REAL(cuDevicePrimaryCtxRelease_v2)(device);
	if (!result)
		ended = end_primary(device);
	pthread_mutex_unlock(&primary.lock);
	drop_context(ended);
	return result;
}

LIEN_TRANSLATED static void *drop_ended(void *arg)
{
	drop_context(*(struct ended *)arg);
	free(arg);
	return NULL;
}

/* The rest is not done in this thread: threads that are held may have locks that it needs. */
void lien_plain_primary_release(const struct lien_driver *driver, CUdevice device)
{
	struct ended ended, *copy;

	pthread_mutex_lock(&primary.lock);
	if (driver->cuDevicePrimaryCtxRelease_v2(device))
		driver->cuDevicePrimaryCtxRelease_v2(device);
	ended = end_primary(device);
	pthread_mutex_unlock(&primary.lock);
	if (!ended.chunks || !(copy = malloc(sizeof(*copy))))
		return;
	*copy = ended;
	if (lien_thread_start(drop_ended, copy))
		free(copy);
}

LIEN_TRANSLATED CUresult lien_plain_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	struct ended ended = {0};
	CUresult result;

	pthread_mutex_lock(&primary.lock);
	result = LIEN_REAL(cuDevicePrimaryCtxReset_v2)(device);
	if (!result && lien_plain_primary(device))
		ended = end_context(lien_plain_primary(device));
	pthread_mutex_unlock(&primary.lock);
	drop_context(ended);
	if (!result)
		lien_plain_pool_drop(device);
	return result;
}

LIEN_TRANSLATED CUresult lien_plain_cuCtxDestroy_v2(CUcontext context)
{
	CUresult result = LIEN_REAL(cuCtxDestroy_v2)(context);

	if (!result)
		drop_context(end_context(context));
	return result;
}

void lien_plain_context_forked(void)
{
	memset(&peers, 0, sizeof(peers));
	pthread_mutex_init(&peers.lock, NULL);
	memset(&primary, 0, sizeof(primary));
	pthread_mutex_init(&primary.lock, NULL);
}

LIEN_EXPORT_AS(cuCtxEnablePeerAccess, lien_plain_cuCtxEnablePeerAccess);
LIEN_EXPORT_AS(cuCtxDisablePeerAccess, lien_plain_cuCtxDisablePeerAccess);
LIEN_EXPORT_AS(cuDevicePrimaryCtxRetain, lien_plain_cuDevicePrimaryCtxRetain);
LIEN_EXPORT_AS(cuDevicePrimaryCtxRelease_v2, lien_plain_cuDevicePrimaryCtxRelease_v2);
LIEN_EXPORT_AS(cuDevicePrimaryCtxReset_v2, lien_plain_cuDevicePrimaryCtxReset_v2);
LIEN_EXPORT_AS(cuCtxDestroy_v2, lien_plain_cuCtxDestroy_v2);
