// SPDX-License-Identifier: BSD-2-Clause
/* Compiled with frame pointers and without tail calls: the probes find the application's return
 * address through the frame of the function that calls the driver for it. */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/driver/gate.h"
#include "control/driver/names.h"
#include "control/driver/thread.h"
#include "control/driver/translate.h"

/* --- the driver's own functions --------------------------------------------------------------- */

static CUresult not_loaded(void)
{
	return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult not_in_this_driver(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* The driver may have this function even if it lacks others that an offload needs. */
void *lien_translate_real(const char *const *name)
{
	const struct lien_driver *driver = lien_driver_called();
	void *function = driver ? lien_driver_real(driver, name) : lien_driver_symbol(*name);

	if (function)
		return function;
	return driver ? (void *)not_in_this_driver : (void *)not_loaded;
}

#define REAL LIEN_REAL

/* --- threads that pass a handle --------------------------------------------------------------- */

/* Threads with a looked-up handle, on their way to the driver and back. */
static unsigned inside LIEN_ZERO_IN_CHILD;
static int hold_all LIEN_ZERO_IN_CHILD;
static int closed LIEN_ZERO_IN_CHILD; /* no thread is let in any more */

void lien_translate_hold_all(int all)
{
	__atomic_store_n(&hold_all, all, __ATOMIC_SEQ_CST);
	__atomic_store_n(&closed, 0, __ATOMIC_SEQ_CST);
	if (!all)
		lien_gate_look_again();
}

int lien_translate_wait_idle(void)
{
	__atomic_store_n(&closed, 1, __ATOMIC_SEQ_CST);
	return lien_translate_idle();
}

int lien_translate_idle(void)
{
	return !__atomic_load_n(&inside, __ATOMIC_SEQ_CST);
}

/*
 * A thread that passes a handle waits here, not in the driver: after a restore another handle means
 * the same memory. Handle 0 names no memory. If the agent holds such calls, it holds the thread at
 * a call with handle 0 (bpf/gate.h), and so learns of it. `frees`: the thread wants to release the
 * memory.
 */
LIEN_TRANSLATED static void ask_agent(int frees)
{
	int fd = -1;

	if (frees)
		REAL(cuMemRelease)(0);
	else if (!REAL(cuMemExportToShareableHandle)(
			 &fd, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
		close(fd);
}

/* Waits until the gate opens. Blocks signals: a handler of the application might never return. */
static void wait_quietly(void)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	lien_gate_wait();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* What the thread waits for: the driver's handles of these names. */
struct question {
	const uint64_t *names;
	uint64_t *handles;
	unsigned n;
	int frees;
};

static __thread __attribute__((tls_model("initial-exec"))) const struct question *asking;

/* Looks up the handles. Returns whether the memory of one is away; *known: each has one. */
static int look_up(const struct question *question, int *known)
{
	uint64_t name, handle;
	int away = 0;
	unsigned i;

	*known = 1;
	for (i = 0; i < question->n; i++) {
		name = question->names[i];
		handle = question->handles[i] = lien_names_real(name, question->frees);
		*known &= handle != 0;
		away |= name && !handle;
	}
	return away;
}

/* After a transaction the gate may stay shut for other memory. */
static int needless(void)
{
	int known;

	return asking && !__atomic_load_n(&hold_all, __ATOMIC_SEQ_CST) &&
	       !__atomic_load_n(&closed, __ATOMIC_SEQ_CST) && !look_up(asking, &known);
}

/* Looks up the driver's handles for the names. They stay valid until leave(). */
static void enter_all(const uint64_t *names, uint64_t *handles, unsigned n, int frees)
{
	const struct question question = {names, handles, n, frees};
	int asked = 0, known, away;

	lien_gate_needless = needless;
	for (;;) {
		__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
		away = look_up(&question, &known);
		if (!lien_gate_is_shut() ||
			(!__atomic_load_n(&hold_all, __ATOMIC_SEQ_CST) && !away))
			return;
		/* The agent let this thread in, because others wait for it. */
		if (asked && known && !__atomic_load_n(&closed, __ATOMIC_SEQ_CST))
			return;
		__atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
		asking = &question;
		if (asked)
			wait_quietly();
		else
			ask_agent(frees);
		asking = NULL;
		asked = !asked;
	}
}

static uint64_t enter(uint64_t name)
{
	uint64_t handle;

	enter_all(&name, &handle, 1, 0);
	return handle;
}

static CUresult leave(CUresult result)
{
	__atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
	return result;
}

int (*lien_translate_is_plain)(CUdeviceptr address);

/* --- functions called instead of the driver's ------------------------------------------------- */

/* Gives the application `name` for the driver's handle; 0: it gets none. Inlined, because the
 * probes look for the application in the caller of the function that calls the driver. */
static inline __attribute__((always_inline)) CUresult give(
	CUmemGenericAllocationHandle *handle, CUmemGenericAllocationHandle name)
{
	if (!name) {
		REAL(cuMemRelease)(*handle);
		*handle = 0;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*handle = name;
	return CUDA_SUCCESS;
}

LIEN_TRANSLATED CUresult lien_translate_cuMemCreate(CUmemGenericAllocationHandle *handle,
	size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result = REAL(cuMemCreate)(handle, size, prop, flags);

	return result ? result : give(handle, lien_names_made(*handle));
}

LIEN_TRANSLATED CUresult lien_translate_cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type)
{
	CUresult result = REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);

	return result ? result : give(handle, lien_names_made(*handle));
}

LIEN_TRANSLATED CUresult lien_translate_retain(
	CUmemGenericAllocationHandle *handle, CUdeviceptr address)
{
	CUresult result = REAL(cuMemRetainAllocationHandle)(handle, (void *)(uintptr_t)address);

	return result ? result : give(handle, lien_names_retained(*handle));
}

LIEN_TRANSLATED static CUresult lien_translate_cuMemRetainAllocationHandle(
	CUmemGenericAllocationHandle *handle, void *addr)
{
	if (lien_translate_is_plain && lien_translate_is_plain((uintptr_t)addr))
		return CUDA_ERROR_INVALID_VALUE;
	return lien_translate_retain(handle, (uintptr_t)addr);
}

LIEN_TRANSLATED CUresult lien_translate_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	uint64_t name = handle, real;
	CUresult result;

	enter_all(&name, &real, 1, 1);
	result = REAL(cuMemRelease)(real);
	if (!result)
		lien_names_released(name);
	return leave(result);
}

LIEN_TRANSLATED CUresult lien_translate_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	return leave(REAL(cuMemMap)(ptr, size, offset, enter(handle), flags));
}

LIEN_TRANSLATED CUresult lien_translate_cuMemExportToShareableHandle(void *shareable,
	CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	return leave(REAL(cuMemExportToShareableHandle)(shareable, enter(handle), type, flags));
}

LIEN_TRANSLATED static CUresult lien_translate_cuMemGetAllocationPropertiesFromHandle(
	CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	return leave(REAL(cuMemGetAllocationPropertiesFromHandle)(prop, enter(handle)));
}

LIEN_TRANSLATED static CUresult lien_translate_cuMulticastCreate(
	CUmemGenericAllocationHandle *multicast, const CUmulticastObjectProp *prop)
{
	CUresult result = REAL(cuMulticastCreate)(multicast, prop);

	return result ? result : give(multicast, lien_names_made(*multicast));
}

LIEN_TRANSLATED static CUresult lien_translate_cuMulticastAddDevice(
	CUmemGenericAllocationHandle multicast, CUdevice device)
{
	return leave(REAL(cuMulticastAddDevice)(enter(multicast), device));
}

LIEN_TRANSLATED static CUresult lien_translate_cuMulticastBindMem(
	CUmemGenericAllocationHandle multicast, size_t offset, CUmemGenericAllocationHandle memory,
	size_t memory_offset, size_t size, unsigned long long flags)
{
	uint64_t names[] = {multicast, memory}, handles[2];

	enter_all(names, handles, 2, 0);
	return leave(REAL(cuMulticastBindMem)(
		handles[0], offset, handles[1], memory_offset, size, flags));
}

LIEN_TRANSLATED static CUresult lien_translate_cuMulticastBindMem_v2(
	CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	uint64_t names[] = {multicast, memory}, handles[2];

	enter_all(names, handles, 2, 0);
	return leave(REAL(cuMulticastBindMem_v2)(
		handles[0], device, offset, handles[1], memory_offset, size, flags));
}

/* The agent holds these two in the driver, because they name memory by address. So they do not
 * count as inside. Multicast objects are never away. */
LIEN_TRANSLATED static CUresult lien_translate_cuMulticastBindAddr(
	CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr memory, size_t size,
	unsigned long long flags)
{
	return REAL(cuMulticastBindAddr)(
		lien_names_real(multicast, 0), offset, memory, size, flags);
}

LIEN_TRANSLATED static CUresult lien_translate_cuMulticastBindAddr_v2(
	CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, CUdeviceptr memory,
	size_t size, unsigned long long flags)
{
	return REAL(cuMulticastBindAddr_v2)(
		lien_names_real(multicast, 0), device, offset, memory, size, flags);
}

LIEN_TRANSLATED static CUresult lien_translate_cuMulticastUnbind(
	CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, size_t size)
{
	return leave(REAL(cuMulticastUnbind)(enter(multicast), device, offset, size));
}

/* --- arrays: the handles lie in the caller's list --------------------------------------------- */

static int has_handle(const CUarrayMapInfo *info)
{
	return info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
}

/* Returns a copy of the list with the driver's handles; NULL: no memory. */
static CUarrayMapInfo *enter_list(const CUarrayMapInfo *list, unsigned int count)
{
	CUarrayMapInfo *copy = calloc((size_t)count + 1, sizeof(*copy));
	uint64_t *names = calloc((size_t)count + 1, 2 * sizeof(*names)), *handles;
	unsigned int i, n = 0;

	if (copy && names) {
		handles = names + count;
		for (i = 0; i < count; i++) {
			copy[i] = list[i];
			if (has_handle(&copy[i]))
				names[n++] = copy[i].memHandle.memHandle;
		}
		enter_all(names, handles, n, 0);
		for (i = n = 0; i < count; i++)
			if (has_handle(&copy[i]))
				copy[i].memHandle.memHandle = handles[n++];
	} else {
		free(copy);
		copy = NULL;
	}
	free(names);
	return copy;
}

LIEN_TRANSLATED static CUresult map_arrays(__typeof__(cuMemMapArrayAsync) *real,
	CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	CUarrayMapInfo *copy = enter_list(list, list ? count : 0);
	CUresult result;

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = leave(real(list ? copy : NULL, count, stream));
	free(copy);
	return result;
}

LIEN_TRANSLATED static CUresult lien_translate_cuMemMapArrayAsync(
	CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return map_arrays(REAL(cuMemMapArrayAsync), list, count, stream);
}

LIEN_TRANSLATED static CUresult lien_translate_cuMemMapArrayAsync_ptsz(
	CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	return map_arrays(REAL(cuMemMapArrayAsync_ptsz), list, count, stream);
}

#define ROW(name) LIEN_INTERPOSE(LIEN_IN_EVERY_PROCESS, name, lien_translate_##name);
LIEN_INTERPOSED_HANDLES(ROW)
