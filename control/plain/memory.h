/* SPDX-License-Identifier: BSD-2-Clause */
/* The heap and its chunks; what the files of this folder share. No lock is held while the driver is
 * called: the agent may hold a thread there until memory is back. */
#ifndef LIEN_CONTROL_PLAIN_MEMORY_H
#define LIEN_CONTROL_PLAIN_MEMORY_H

#include "control/plain/plain.h"

/* What a chunk is made for. */
struct lien_plain_place {
	struct lien_heap_key key;
	uint64_t granularity;
	int rdma;
};

/* Gives out a block of a chunk that there is; see lien_heap_take(). Returns whether there was a
 * place. */
int lien_plain_reuse(const struct lien_plain_place *place, uint64_t bytes,
	struct lien_heap_order *order, CUdeviceptr *ptr);
/* Gives out a block of a new chunk; see lien_heap_add(). Returns 0 or -errno. */
int lien_plain_add(const struct lien_heap_key *key, struct lien_heap_range chunk, uint64_t bytes,
	struct lien_heap_block *block);
/* Finds the block that contains the address. Returns whether there is one. */
int lien_plain_find(CUdeviceptr address, struct lien_heap_block *block);
/* See lien_heap_set_sync_memops(). */
void lien_plain_set_sync_memops(const struct lien_heap_block *block, int value);
/* See lien_heap_offer(). */
int lien_plain_offer(struct lien_heap_block *block, uint64_t secret);
/* The heap's lock, which orders (struct lien_heap_order) share. */
void lien_plain_lock(void);
void lien_plain_unlock(void);
/* See lien_heap_park(). With the lock. */
int lien_plain_park(const struct lien_heap_block *block, struct lien_heap_order *order);
int lien_plain_any_parked(void);
/* Frees a chunk that lien_heap_trim() finds. Returns its bytes; 0: there was none. */
uint64_t lien_plain_trim(uint64_t pool);
/* Waits until other threads have freed what they are about to. */
void lien_plain_trims_end(void);
/* Takes back a block that nothing uses any more. */
CUresult lien_plain_give(const struct lien_heap_block *block);
/* Frees the memory, and the addresses. */
CUresult lien_plain_unmap(struct lien_heap_range range);

/* The context has ended, and a new one may have its address. Returns a number for its chunks. */
uint64_t lien_plain_end(CUcontext context);
/* Forgets a chunk of a context that has ended, or of a pool, which the caller unmaps. Returns
 * whether there was one. */
int lien_plain_forget(uint64_t ended, struct lien_heap_range *chunk);
/* Finds the first chunk at or above the address. Returns whether there is one. */
int lien_plain_next(CUdeviceptr address, struct lien_heap_range *chunk, struct lien_heap_key *key);
void lien_plain_memory_forked(void);

/* --- chunk.c
 * -------------------------------------------------------------------------------------- */

/* While it is off, as in the beginning, no place is found for memory of ours. */
void lien_plain_enable(int on);
/* Determines the place for memory of the current context, asked for by the code at `caller`.
 * Returns whether memory of ours is possible there, and the driver would allocate now. */
int lien_plain_place(struct lien_plain_place *place, const void *caller);
/* Gives out a block, of a new chunk if no other has a place. Has no effect on failure. *made, if
 * that is asked for, becomes the bytes of a new chunk, and stays as it is without one. */
CUresult lien_plain_take(
	const struct lien_plain_place *place, uint64_t bytes, uint64_t *made, CUdeviceptr *ptr);
/* Reserves addresses, maps the handle's memory there and lets those devices use it that
 * lien_plain_access() names. Releases the handle in any case, because the mapping alone keeps the
 * memory: to free it, unmapping is enough. */
CUresult lien_plain_map(CUmemGenericAllocationHandle handle, uint64_t bytes, CUdevice device,
	int pool, CUdeviceptr *at);
/* Also lets this device use it. */
CUresult lien_plain_allow(struct lien_heap_range range, CUdevice device);
/* Tries twice. */
CUresult lien_plain_release(CUmemGenericAllocationHandle handle);

/* --- asker.c
 * -------------------------------------------------------------------------------------- */

/* Returns the object file that contains the code, as a number that stays the same. */
uint32_t lien_plain_asker(const void *code);
void lien_plain_asker_forked(void);

/* --- context.c -------------------------------------------------------------------------------- */

#define LIEN_PLAIN_DEVICES 64

/* Fills in who has access to memory of the device: itself, and those that the process uses and that
 * can reach it; of a pool the device alone. Returns how many there are, at most LIEN_PLAIN_DEVICES.
 */
unsigned lien_plain_access(CUdevice device, int pool, CUmemAccessDesc *access);
/* The process has a context on the device. */
void lien_plain_use(CUdevice device);
/* Bits: the devices on which the process has a context, or had one. */
uint64_t lien_plain_used(void);
/* Returns the current context; NULL: there is none, or the driver would fail there. */
CUcontext lien_plain_current(void);
/* Makes the context current, until leave(). leave() only after success. */
CUresult lien_plain_enter(CUcontext context, int *pushed);
void lien_plain_leave(int pushed);
/* Makes an event in the context, which need not be current. */
CUresult lien_plain_make_event(CUcontext context, CUevent *event);
void lien_plain_context_forked(void);

/* --- lifetime.c
 * ----------------------------------------------------------------------------------- */

/* Returns the device's primary context; NULL: the application has not asked for it. */
CUcontext lien_plain_primary(CUdevice device);
/* Returns whether the process has, or had, more than one context. */
int lien_plain_several(void);
void lien_plain_lifetime_forked(void);

/* --- wait.c ----------------------------------------------------------------------------------- */

/* Call it in that context where the driver would allocate plain memory: this does so. */
CUresult lien_plain_wait_prepare(CUcontext context);
/* Waits for the work of the context, and fails, as the driver does before it frees memory. */
CUresult lien_plain_wait(CUcontext context);
/* Returns whether a capture forbids this thread to allocate, and to free in a stream; this has then
 * invalidated it, as the driver's own call does. */
int lien_plain_refused(CUcontext context);
/* From now on lien_plain_wait(context) waits for the event, too, which may be another context's. */
CUresult lien_plain_wait_also(CUcontext context, CUevent event);
/* Returns what is kept in the context: memory of the driver's own; 0: nothing. */
CUdeviceptr lien_plain_wait_kept(CUcontext context);
/* Returns the address to free; if the application frees what the control library keeps, which it
 * must have had itself before, an address in it that nobody can free. */
CUdeviceptr lien_plain_hide(CUdeviceptr ptr);
/* The context is gone. */
void lien_plain_wait_forget(CUcontext context);
void lien_plain_wait_forked(void);

/* --- copies.c --------------------------------------------------------------------------------- */

/* SYNC_MEMOPS is being set for a block. */
void lien_plain_sync_memops_used(void);

/* --- stream.c --------------------------------------------------------------------------------- */

struct lien_plain_stream {
	CUstream handle;
	unsigned long long id; /* never given to another stream */
	CUcontext context;
};

/* Frees the block when the stream has come to this point. */
CUresult lien_plain_stream_park(
	const struct lien_plain_stream *in, const struct lien_heap_block *block);
/* Gives out a place that a stream of the context has freed, or makes this stream wait until another
 * one has. Returns whether there was one. */
int lien_plain_stream_reuse(const struct lien_plain_stream *in,
	const struct lien_plain_place *place, uint64_t bytes, CUdeviceptr *ptr);
/* Checks how far the streams of the current context have come; with `wait`, waits for them. */
void lien_plain_look(int wait);
/* The context is gone, with its streams and events. */
void lien_plain_stream_end(CUcontext context);
void lien_plain_stream_forked(void);

/* --- pool.c ----------------------------------------------------------------------------------- */

/* Returns the pool from which memory of the device is to come, if that is ours: `wanted`, or the
 * device's current one. */
CUmemoryPool lien_plain_pool(CUdevice device, CUmemoryPool wanted);
/* The context takes memory from the device's default pool; the context has ended. */
void lien_plain_pool_use(CUdevice device, CUcontext context);
void lien_plain_pool_unuse(CUcontext context);
/* Returns the last context that took memory from the device's default pool; NULL: it has ended. */
CUcontext lien_plain_pool_context(CUdevice device);
/* Adds to the bytes of a pool that are in use, and to those of its chunks. Ignores other keys. */
void lien_plain_account(uint64_t key, int64_t used, int64_t reserved);
/* For when memory is short: waits for the streams of the current context, and frees all chunks that
 * nobody has memory in. */
void lien_plain_reap(void);
/* Frees chunks that the pools do not keep. Call it when somebody has synchronized. */
void lien_plain_synchronized(void);
/* Forgets what the default pool of the device has. */
void lien_plain_pool_drop(CUdevice device);
void lien_plain_pool_forked(void);

/* --- ipc_open.c ------------------------------------------------------------------------------- */

/* Finds opened memory of another process that contains the address. */
int lien_plain_find_opened(CUdeviceptr address, struct lien_heap_block *block);
/* As lien_plain_set_sync_memops(), of such memory. */
void lien_plain_set_opened_sync_memops(const struct lien_heap_block *block, int value);
void lien_plain_opened_drop(CUcontext context);
void lien_plain_opened_forked(void);

/* --- ipc_offer.c ------------------------------------------------------------------------------ */

void lien_plain_offered_forked(void);

#endif
