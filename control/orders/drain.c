// SPDX-License-Identifier: BSD-2-Clause
/*
 * DRAIN: waits for the devices with a limit, and asks NCCL. The driver's calls that wait have none
 * of their own, so a thread waits in one, and keeps waiting after the limit; the next drain finds
 * it there.
 *
 * cuCtxSynchronize() invalidates every capture in the context, even from a relaxed thread. Freeing
 * plain memory waits for the same work, and leaves other threads' captures alone; but as long as it
 * waits, threads that launch wait as well (seen, 580.159). If one of these is to launch what
 * another rank's device waits for, nobody ever goes on. The agent knows which of the two does no
 * harm.
 *
 * Non-blocking communicators: NCCL returns ncclInProgress when they are made, split or finalized,
 * and from collectives, and continues in a thread of its own. Only NCCL knows when it has finished
 * (ncclCommGetAsyncError, which any thread may call; NCCL 2.14 and later).
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "control/driver/cached.h"
#include "control/driver/gate.h"
#include "control/driver/names.h"
#include "control/driver/thread.h"
#include "control/driver/translate.h"
#include "control/memory/handles.h"
#include "control/orders/control.h"
#include "control/plain/plain.h"

struct lien_drain {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	const struct lien_driver *driver;
	pthread_t thread;
	int stop;
	int wanted, done; /* a pass over all devices: requested, finished */
	int launches;	  /* threads may have to launch meanwhile; nobody captures */
	int given_up;	  /* nobody waits any more for this pass, or for those before it */
	CUresult result;
	int device; /* being waited for */
	/* by device: memory of ours that the driver did not free; 0: none */
	CUdeviceptr left[LIEN_DEVICES_MAX];
};

static CUresult wait_for_context(const struct lien_driver *driver, CUdeviceptr *left, int launches)
{
	CUresult result = CUDA_SUCCESS;

	if (launches)
		return driver->cuCtxSynchronize();
	if (!*left)
		result = driver->cuMemAlloc_v2(left, 1);
	if (result)
		*left = 0;
	if (result == CUDA_ERROR_OUT_OF_MEMORY) /* not even that much is left */
		return driver->cuCtxSynchronize();
	if (!result)
		result = driver->cuMemFree_v2(*left);
	if (!result || result == CUDA_ERROR_INVALID_VALUE) /* it has ended with its context */
		*left = 0;
	return result;
}

static CUresult drain_device(struct lien_drain *drain, int ordinal, int launches)
{
	const struct lien_driver *driver = drain->driver;
	CUcontext context;
	CUdevice device;
	CUresult result = lien_context_retain(driver, ordinal, &device, &context);

	if (result)
		return result == (CUresult)-ENODEV ? CUDA_SUCCESS : result;
	if (!(result = driver->cuCtxSetCurrent(context)))
		result = wait_for_context(driver, &drain->left[ordinal], launches);
	driver->cuCtxSetCurrent(NULL);
	lien_plain_primary_release(driver, device);
	return result;
}

/* Returns the time in so many milliseconds. */
static struct timespec in_ms(unsigned ms)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000l;
	if (until.tv_nsec >= 1000000000l) {
		until.tv_nsec -= 1000000000l;
		until.tv_sec++;
	}
	return until;
}

#define AGAIN_MS 100

/* Waits for a pass to be wanted. Returns 0 if there is something to be freed meanwhile. */
static int wait_for_pass(struct lien_drain *drain)
{
	const struct timespec until = in_ms(AGAIN_MS);
	int i, left = 0;

	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		left |= drain->left[i] != 0;
	while (drain->wanted == drain->done && !drain->stop) {
		if (!left)
			pthread_cond_wait(&drain->changed, &drain->lock);
		else if (pthread_cond_timedwait(&drain->changed, &drain->lock, &until))
			return 0;
	}
	return 1;
}

static void free_left(struct lien_drain *drain)
{
	int i;

	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (drain->left[i])
			drain_device(drain, i, 0);
}

static void *drain_main(void *arg)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct lien_drain *drain = arg;
	int count, i, pass, wanted, launches;
	CUresult result;

	drain->driver->cuThreadExchangeStreamCaptureMode(&mode);
	for (;;) {
		pthread_mutex_lock(&drain->lock);
		wanted = wait_for_pass(drain);
		pass = drain->wanted;
		launches = drain->launches;
		pthread_mutex_unlock(&drain->lock);
		if (drain->stop)
			return NULL;
		if (!wanted) {
			free_left(drain);
			continue;
		}
		result = drain->driver->cuDeviceGetCount(&count);
		if (result == CUDA_ERROR_NOT_INITIALIZED) {
			result = CUDA_SUCCESS; /* the application has used no device */
			count = 0;
		}
		for (i = 0; !result && i < count && i < LIEN_DEVICES_MAX &&
			    __atomic_load_n(&drain->given_up, __ATOMIC_RELAXED) < pass;
			i++) {
			__atomic_store_n(&drain->device, i, __ATOMIC_RELAXED);
			result = drain_device(drain, i, launches);
		}
		pthread_mutex_lock(&drain->lock);
		drain->done = pass;
		drain->result = result;
		pthread_cond_broadcast(&drain->changed);
		pthread_mutex_unlock(&drain->lock);
	}
}

static struct lien_drain *drain_start(const struct lien_driver *driver)
{
	struct lien_drain *drain = calloc(1, sizeof(*drain));
	pthread_condattr_t monotonic;

	if (!drain)
		return NULL;
	drain->driver = driver;
	pthread_mutex_init(&drain->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&drain->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	if (pthread_create(&drain->thread, NULL, drain_main, drain)) {
		free(drain);
		return NULL;
	}
	return drain;
}

/* Does its thread still wait for a device? */
static int is_busy(struct lien_drain *drain)
{
	int busy;

	if (!drain)
		return 0;
	pthread_mutex_lock(&drain->lock);
	busy = drain->wanted != drain->done;
	pthread_mutex_unlock(&drain->lock);
	return busy;
}

/* Its thread must not be waiting. */
static void drain_end(struct lien_drain *drain)
{
	if (!drain)
		return;
	pthread_mutex_lock(&drain->lock);
	drain->stop = 1;
	pthread_cond_broadcast(&drain->changed);
	pthread_mutex_unlock(&drain->lock);
	pthread_join(drain->thread, NULL);
	pthread_cond_destroy(&drain->changed);
	pthread_mutex_destroy(&drain->lock);
	free(drain);
}

static int drain(struct lien_control *control, unsigned limit_ms, int launches)
{
	struct timespec until;
	CUresult result;
	int pass, waited = 0;

	if (!control->drain && !(control->drain = drain_start(control->driver)))
		return lien_control_fail(control, -EAGAIN, 0, "no room for another thread");
	until = in_ms(limit_ms);
	pthread_mutex_lock(&control->drain->lock);
	/* A pass that an earlier drain gave up on may still run: only a pass that starts now
	 * counts. */
	pass = ++control->drain->wanted;
	control->drain->launches = launches;
	pthread_cond_broadcast(&control->drain->changed);
	while (control->drain->done < pass && !waited)
		waited = pthread_cond_timedwait(
			&control->drain->changed, &control->drain->lock, &until);
	result = control->drain->result;
	waited = control->drain->done < pass;
	if (waited)
		__atomic_store_n(&control->drain->given_up, pass, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&control->drain->lock);
	if (waited)
		return lien_control_fail(control, -ETIMEDOUT,
			__atomic_load_n(&control->drain->device, __ATOMIC_RELAXED),
			"the device is still busy");
	if (result)
		return lien_control_fail(control, result, 0, "waiting for the devices");
	if (!lien_translate_idle())
		return lien_control_fail(control, -ETIMEDOUT, 0,
			"a thread is in a call that names memory by handle");
	return 0;
}

/* --- NCCL's own threads ----------------------------------------------------------------------- */

#define NCCL_IN_PROGRESS 7

typedef int async_error_fn(void *comm, int *error);

static async_error_fn *async_error;

void lien_nccl_find(void)
{
	void *library, *symbol;

	if (async_error)
		return;
	library = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_NOW);
	symbol = library ? dlsym(library, "ncclCommGetAsyncError")
			 : dlsym(RTLD_DEFAULT, "ncclCommGetAsyncError");
	__atomic_store_n(&async_error, (async_error_fn *)symbol, __ATOMIC_RELEASE);
	/* Keep the reference, so that the function stays loaded. */
}

/* Returns on how many of these communicators NCCL is at work in a thread of its own; 0 also if it
 * cannot be asked. */
static unsigned working_on(const uint64_t *comms, unsigned count)
{
	unsigned i, working = 0;
	int error;

	for (i = 0; async_error && i < count; i++) {
		error = 0;
		working += !async_error((void *)comms[i], &error) && error == NCCL_IN_PROGRESS;
	}
	return working;
}

int lien_order_drain(struct lien_control *control)
{
	const uint64_t *comms;
	unsigned count, working;
	int result = 0;

	comms = lien_control_body(control, sizeof(*comms), &count);
	if (control->order->header.arg)
		result = drain(
			control, control->order->header.arg, control->flags & LIEN_WIRE_LAUNCHES);
	else if (is_busy(control->drain)) /* asked before, and it has not answered */
		result = lien_control_fail(control, -ETIMEDOUT, 0, "the device is still busy");
	if (result == -ETIMEDOUT && working_on(comms, count)) {
		control->reply.text[0] = '\0'; /* the device is busy for NCCL's sake */
		result = 0;
	}
	working = working_on(comms, count);
	control->reply.arg2 = working;
	if (!result && count && !async_error)
		return lien_control_fail(control, -ENOSYS, comms[0],
			"NCCL cannot be asked whether it is still at work");
	if (!result && working)
		return lien_control_fail(
			control, -ETIMEDOUT, 0, "NCCL is still at work on a communicator");
	return result;
}

/* --- END --------------------------------------------------------------------------------------
 *
 * The last order: restores the process to its original state. Steps that can fail come first,
 * irreversible ones last. The library's code stays mapped: someone may have copied the address of
 * one of its functions, or have a frame of its handler on the stack.
 */

#define FORBID_US    1000
#define FORBID_TRIES 1000

int lien_starting;

static int refuse(struct lien_control *control, const char *why)
{
	return lien_control_fail(control, -EBUSY, 0, why);
}

/* Refuses if the process needs what END would remove. */
static int check(struct lien_control *control)
{
	if (lien_items_any(&control->items, LIEN_ITEMS_MISSING | LIEN_ITEMS_RETURNED))
		return refuse(control, "memory of it is offloaded: `lien restore` first");
	if (lien_items_any_awaited(&control->items))
		return refuse(control, "an offload was cut short here: `lien restore` first");
	if (lien_gate_is_shut())
		return refuse(control, "its gate is shut: try again when that is open");
	if (control->marks.written)
		return refuse(control, "marks lie in its memory: try again");
	if (lien_handles_owed()) {
		lien_handles_release_owed(control->driver);
		if (lien_handles_owed())
			return refuse(control, "the driver has not taken back a reference yet");
	}
	if (lien_names_renamed())
		return refuse(control, "it uses handles from before a restore, which lien "
				       "translates: NCCL does until its communicators end");
	if (is_busy(control->drain))
		return refuse(control, "a device is still waited for: try again when it is idle");
	return 0;
}

static int give_back_arena(struct lien_control *control)
{
	int result;

	lien_order_forget(control, LIEN_ITEMS_UNTOUCHED, 0);
	result = control->arena.bytes ? lien_order_release(control) : 0;
	if (result)
		return result;
	free(control->arena.chunks);
	free(control->items.item);
	memset(&control->arena, 0, sizeof(control->arena));
	memset(&control->items, 0, sizeof(control->items));
	return 0;
}

static int forbid_start(struct lien_control *control)
{
	int tries;

	/* A thread that starts is making two sockets and a thread. */
	for (tries = 0; __atomic_exchange_n(&lien_starting, 1, __ATOMIC_ACQUIRE); tries++) {
		if (tries == FORBID_TRIES)
			return refuse(control, "its control thread is being started: try again");
		usleep(FORBID_US);
	}
	return 0;
}

/* Gives back the signal, and says so in lien_control_state. Returns the agent's end of the sockets,
 * or -1. */
static int undo_start(void)
{
	struct lien_control_state *state = &lien_control_state;
	int fd = state->agent_fd;

	lien_plain_stop();
	lien_signal_give_back();
	if (fd >= 0 && lien_control_inode(fd) != state->agent_ino)
		fd = -1; /* belongs to the application by now */
	state->agent_fd = -1;
	__atomic_store_n(&state->magic, LIEN_WIRE_MAGIC_ENDED, __ATOMIC_RELEASE);
	return fd;
}

int lien_order_end(struct lien_control *control)
{
	int result = check(control);

	if (result || (result = forbid_start(control)))
		return result;
	result = give_back_arena(control);
	if (result) {
		__atomic_store_n(&lien_starting, 0, __ATOMIC_RELEASE);
		return result;
	}
	drain_end(control->drain);
	control->drain = NULL;
	lien_translate_hold_all(0);
	lien_cached_restore();
	lien_names_clear();
	control->agent_end = undo_start();
	control->ended = 1;
	return 0;
}
