// SPDX-License-Identifier: BSD-2-Clause
/* The context that is current, and who may reach its memory: all devices that the process uses. */
#include <string.h>

#include "control/plain/memory.h"

/* --- devices that are used ---------------------------------------------------------------------
 */

/*
 * The driver copies plain memory of one device when another one's context is current, and between
 * two, whether or not peer access is enabled; virtual memory only where both have access. So each
 * device that the process has a context on has access to all plain memory that it can reach, from
 * then on, and cuCtxEnablePeerAccess() finds everything done.
 */
static struct {
	uint64_t used;			    /* bits: devices with a context, now or before */
	uint64_t reach[LIEN_PLAIN_DEVICES]; /* bits: of each of these, whose memory it can reach */
} used;

static CUmemAccessDesc access_of(CUdevice device)
{
	return (CUmemAccessDesc){
		{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

uint64_t lien_plain_used(void)
{
	return __atomic_load_n(&used.used, __ATOMIC_SEQ_CST);
}

unsigned lien_plain_access(CUdevice device, int pool, CUmemAccessDesc *access)
{
	uint64_t others = lien_plain_used() & ~(1ull << device);
	unsigned n = 0;

	access[n++] = access_of(device);
	for (; others && !pool; others &= others - 1)
		if (used.reach[__builtin_ctzll(others)] >> device & 1)
			access[n++] = access_of(__builtin_ctzll(others));
	return n;
}

LIEN_TRANSLATED static uint64_t reach_of(CUdevice device)
{
	uint64_t reach = 0;
	CUdevice other;
	int count, can;

	if (LIEN_REAL(cuDeviceGetCount)(&count))
		return 0;
	for (other = 0; other < count && other < LIEN_PLAIN_DEVICES; other++)
		if (other != device && !LIEN_REAL(cuDeviceCanAccessPeer)(&can, device, other) &&
			can)
			reach |= 1ull << other;
	return reach;
}

/* Where it fails, copies of that chunk with this device's context current do, too. */
LIEN_TRANSLATED static void let_reach(CUdevice device)
{
	const CUmemAccessDesc access = access_of(device);
	struct lien_heap_range chunk = {0};
	struct lien_heap_key key;

	while (lien_plain_next(chunk.base + chunk.bytes, &chunk, &key))
		if (!key.pool && used.reach[device] >> key.device & 1)
			LIEN_REAL(cuMemSetAccess)(chunk.base, chunk.bytes, &access, 1);
}

LIEN_TRANSLATED void lien_plain_use(CUdevice device)
{
	uint64_t bit;

	if (device < 0 || device >= LIEN_PLAIN_DEVICES)
		return;
	bit = 1ull << device;
	if (lien_plain_used() & bit)
		return;
	/* Threads that come here at the same time write the same. */
	__atomic_store_n(&used.reach[device], reach_of(device), __ATOMIC_RELAXED);
	if (!(__atomic_fetch_or(&used.used, bit, __ATOMIC_SEQ_CST) & bit))
		let_reach(device);
}

/* --- the current context ---------------------------------------------------------------------- */

/* cuCtxGetCurrent() does not tell whether the context is in order, and neither do the functions of
 * virtual memory. A question about the legacy default stream would invalidate captures. */
LIEN_TRANSLATED CUcontext lien_plain_current(void)
{
	CUcontext context = NULL;

	return LIEN_REAL(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &context) ? NULL : context;
}

LIEN_TRANSLATED CUresult lien_plain_enter(CUcontext context, int *pushed)
{
	CUcontext current = NULL;

	LIEN_REAL(cuCtxGetCurrent)(&current);
	*pushed = current != context;
	return *pushed ? LIEN_REAL(cuCtxPushCurrent_v2)(context) : CUDA_SUCCESS;
}

LIEN_TRANSLATED void lien_plain_leave(int pushed)
{
	CUcontext context;

	if (pushed)
		LIEN_REAL(cuCtxPopCurrent_v2)(&context);
}

LIEN_TRANSLATED CUresult lien_plain_make_event(CUcontext context, CUevent *event)
{
	int pushed;
	CUresult result = lien_plain_enter(context, &pushed);

	if (result)
		return result;
	result = LIEN_REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
	lien_plain_leave(pushed);
	return result;
}

void lien_plain_context_forked(void)
{
	memset(&used, 0, sizeof(used));
}
