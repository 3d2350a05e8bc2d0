/* SPDX-License-Identifier: BSD-2-Clause */
/* What the files of this folder share. No lock is held while the driver is called: the agent may
 * hold a thread there until memory is back. */
#ifndef LIEN_CONTROL_PLAIN_MEMORY_H
#define LIEN_CONTROL_PLAIN_MEMORY_H

#include "control/driver/thread.h"
#include "control/plain/heap.h"
#include "control/plain/plain.h"

#define LIEN_PLAIN_DEVICES 64

/* Begins the definition of plain_NAME(), with these parameters: it replaces the driver's function.
 */
#define LIEN_PLAIN(name, ...)                                                                      \
	LIEN_TRANSLATED CUresult plain_##name(__VA_ARGS__);                                        \
	LIEN_INTERPOSE(LIEN_FROM_START, name, plain_##name);                                       \
	static CUresult plain_##name(__VA_ARGS__)

/* --- memory.c --------------------------------------------------------------------------------- */

extern struct lien_heap lien_plain_heap;
/* While it is 0, as in the beginning, no place is found for memory of ours. */
extern int lien_plain_enabled;

/* What a chunk is made for. */
struct lien_plain_place {
	struct lien_heap_key key;
	uint64_t granularity;
	int rdma;
};

/* Determines the place for memory of the current context, asked for by the code at `caller`.
 * Returns whether memory of ours is possible there, and the driver would allocate now. */
int lien_plain_place(struct lien_plain_place *place, const void *caller);
/* Gives out a block of a chunk that there is; see lien_heap_take(). Returns whether there was a
 * place. */
int lien_plain_reuse(const struct lien_plain_place *place, uint64_t bytes,
	struct lien_heap_order *order, CUdeviceptr *ptr);
/* Gives out a block, of a new chunk if no other has a place. Has no effect on failure. *made, if
 * that is asked for, becomes the bytes of a new chunk, and stays as it is without one. */
CUresult lien_plain_take(
	const struct lien_plain_place *place, uint64_t bytes, uint64_t *made, CUdeviceptr *ptr);
/* Reserves addresses for the range, whose .bytes are given, maps the handle's memory there, and
 * gives access to the device and to those that the process uses and that can reach it; with `pool`
 * to the device alone. Releases the handle in any case, because the mapping alone keeps the memory:
 * to free it, unmapping is enough. */
CUresult lien_plain_map(CUmemGenericAllocationHandle handle, CUdevice device, int pool,
	struct lien_heap_range *range);
/* Also lets this device use it. */
CUresult lien_plain_allow(struct lien_heap_range range, CUdevice device);
/* Frees the memory, and the addresses. */
CUresult lien_plain_unmap(struct lien_heap_range range);
/* Forgets and frees all chunks of a context that has ended (lien_heap_end()), or of a pool. */
void lien_plain_drop(uint64_t context);
/* Tries twice. A function of its own would be one more than the probes go up through. */
static inline __attribute__((always_inline)) CUresult lien_plain_release(
	CUmemGenericAllocationHandle handle)
{
	CUresult result = lien_translate_cuMemRelease(handle);

	return result ? lien_translate_cuMemRelease(handle) : CUDA_SUCCESS;
}
/* The process has a context on the device. */
void lien_plain_use(CUdevice device);

/* --- context.c -------------------------------------------------------------------------------- */

/* Returns the current context; NULL: there is none, or the driver would fail there. */
CUcontext lien_plain_current(void);
/* Returns whether a capture of the stream is under way, or cannot tell. */
int lien_plain_is_capturing(CUstream stream);
/* Makes the context current, until leave(). leave() only after success. */
CUresult lien_plain_enter(CUcontext context, int *pushed);
void lien_plain_leave(int pushed);
/* Makes an event in the context, which need not be current. */
CUresult lien_plain_make_event(CUcontext context, CUevent *event);
/* Call it where the driver would allocate plain memory in the context: this does so. */
CUresult lien_plain_wait_prepare(CUcontext context);
/* Waits for the work of the context, and fails, as the driver does before it frees memory. */
CUresult lien_plain_wait(CUcontext context);
/* From now on lien_plain_wait(context) waits for the event, too, which may be another context's. */
CUresult lien_plain_wait_also(CUcontext context, CUevent event);
/* Returns whether a capture forbids this thread to allocate, and to free in a stream; this has then
 * invalidated it, as the driver's own call does. */
int lien_plain_refused(CUcontext context);
/* Returns what is kept in the context: memory of the driver's own; 0: nothing. */
CUdeviceptr lien_plain_wait_kept(CUcontext context);
/* Returns the address to free; if the application frees what the control library keeps, which it
 * must have had itself before, an address in it that nobody can free. */
CUdeviceptr lien_plain_hide(CUdeviceptr ptr);
/* The context is gone. */
void lien_plain_wait_forget(CUcontext context);

/* --- pool.c ----------------------------------------------------------------------------------- */

struct lien_plain_stream {
	CUstream handle;
	unsigned long long id; /* never given to another stream */
	CUcontext context;
};

/* Returns the last context that took memory from the device's default pool; NULL: it has ended. */
CUcontext lien_plain_pool_context(CUdevice device);
/* Gives out memory of the pool, or else of the device's current one, asked for by the code at
 * `caller` for use in the stream. Returns whether it did; otherwise the driver decides. */
int lien_plain_pool_alloc(
	CUdeviceptr *ptr, size_t bytes, CUmemoryPool wanted, CUstream stream, const void *caller);
/* Frees the block, of a pool or of none, when the stream has come to this point. */
CUresult lien_plain_pool_park(
	const struct lien_plain_stream *in, const struct lien_heap_block *block);
/* A block of a pool has been freed at once, behind all work. */
void lien_plain_pool_given(const struct lien_heap_block *block);
/* For when memory is short: waits for the streams of the current context, and frees all chunks that
 * nobody has memory in. */
void lien_plain_reap(void);
/* The context is gone, with its streams and events. */
void lien_plain_pool_end(CUcontext context);
/* Forgets what the default pool of the device has. */
void lien_plain_pool_reset(CUdevice device);

/* --- alloc.c ---------------------------------------------------------------------------------- */

/* Returns whether the process has, or had, more than one context. */
int lien_plain_several(void);

/* --- ipc_open.c ------------------------------------------------------------------------------- */

/* Finds the block that contains the address: one of ours, or one of another process that is open
 * here (lien_plain_is_opened()). Returns whether there is one. */
int lien_plain_find(CUdeviceptr address, struct lien_heap_block *block);
static inline int lien_plain_is_opened(const struct lien_heap_block *block)
{
	return !block->chunk_id;
}
extern int lien_plain_any_sync_memops; /* SYNC_MEMOPS has been set for a block */
/* See lien_heap_set_sync_memops(). */
void lien_plain_set_sync_memops(const struct lien_heap_block *block, int value);
/* The context is gone. */
void lien_plain_opened_drop(CUcontext context);

#endif
