// SPDX-License-Identifier: BSD-2-Clause
/* Turns of prog_random: memory without handles, on the device and in the host, and legacy IPC. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "random.h"

#define THINGS	     24
#define PAGES	     16 /* for which threads compete */
#define PAGE	     4096
#define POINTERS_MAX 6

enum kind { PLAIN, PITCH, MANAGED, ASYNC, POOL, HOST, HOST_ANY, REGISTERED, KINDS, IPC, POINTER };

struct thing {
	pthread_mutex_t lock;
	CUdeviceptr va; /* 0: nothing here */
	enum kind kind;
	bool keep;	    /* as long as the process lives */
	unsigned int opens; /* IPC */
	CUmemoryPool pool;  /* POINTER: imported for it alone; NULL: destroyed before its memory */
	CUipcMemHandle handle;
};

static struct thing things[THINGS];
static unsigned char *pages;
static _Atomic unsigned int kept;

void plain_init(void)
{
	for (unsigned int i = 0; i < THINGS; i++)
		pthread_mutex_init(&things[i].lock, NULL);
	pages = mmap(
		NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(pages == MAP_FAILED, "mmap");
}

static struct thing *lock_some(void)
{
	struct thing *thing = &things[below(THINGS)];

	return pthread_mutex_trylock(&thing->lock) ? NULL : thing;
}

CUdeviceptr register_some(void)
{
	unsigned int first = below(PAGES), count = 1 + below(PAGES - first);
	CUresult result = cuMemHostRegister_v2(pages + first * PAGE, count * PAGE, 0);

	if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
		return 0;
	must(result, "cuMemHostRegister");
	return (uintptr_t)(pages + first * PAGE);
}

static uint64_t some_bytes(void)
{
	return below(3) ? 1 + below(PIECE) : PIECE * (1 + below(2));
}

static CUdeviceptr host_alloc(bool any)
{
	void *made;

	if (any)
		DO(cuMemAllocHost_v2, &made, 1 + below(64 * PAGE));
	else
		DO(cuMemHostAlloc, &made, 1 + below(64 * PAGE), below(8));
	return (uintptr_t)made;
}

static void make(struct thing *thing)
{
	size_t pitch;

	thing->kind = below(KINDS);
	thing->keep = false;
	switch (thing->kind) {
	case PLAIN:
		DO(cuMemAlloc_v2, &thing->va, some_bytes());
		break;
	case PITCH:
		DO(cuMemAllocPitch_v2, &thing->va, &pitch, 1 + below(5000), 1 + below(500), 16);
		break;
	case MANAGED:
		DO(cuMemAllocManaged, &thing->va, some_bytes(), CU_MEM_ATTACH_GLOBAL);
		break;
	case ASYNC:
		if (below(2))
			DO(cuMemAllocAsync, &thing->va, some_bytes(), NULL);
		else
			DO(cuMemAllocAsync_ptsz, &thing->va, some_bytes(), NULL);
		break;
	case POOL:
		/* Kept memory must not fill the tables. */
		thing->keep = kept < POINTERS_MAX && !below(4);
		thing->va = pool_alloc(some_bytes(), &thing->keep);
		kept += thing->keep;
		break;
	case HOST:
	case HOST_ANY:
		thing->va = host_alloc(thing->kind == HOST_ANY);
		break;
	default:
		thing->va = register_some();
	}
}

static void free_pointer(struct thing *thing)
{
	if (thing->pool && below(2)) {
		DO(cuMemPoolDestroy, thing->pool);
		thing->pool = NULL;
		if (below(2))
			return; /* the memory outlives the pool */
	}
	DO(cuMemFree_v2, thing->va);
	thing->va = 0;
	if (thing->pool)
		DO(cuMemPoolDestroy, thing->pool);
}

static void free_async(CUdeviceptr va)
{
	switch (below(3)) {
	case 0:
		DO(cuMemFree_v2, va);
		break;
	case 1:
		DO(cuMemFreeAsync, va, NULL);
		break;
	case 2:
		DO(cuMemFreeAsync_ptsz, va, NULL);
	}
}

static void unmake(struct thing *thing)
{
	switch (thing->kind) {
	case HOST:
	case HOST_ANY:
		DO(cuMemFreeHost, (void *)(uintptr_t)thing->va);
		break;
	case REGISTERED:
		DO(cuMemHostUnregister, (void *)(uintptr_t)thing->va);
		break;
	case ASYNC:
	case POOL:
		free_async(thing->va);
		break;
	case IPC:
		DO(cuIpcCloseMemHandle, thing->va);
		if (--thing->opens)
			return;
		break;
	case POINTER:
		free_pointer(thing);
		return;
	default:
		DO(cuMemFree_v2, thing->va);
	}
	thing->va = 0;
}

static void share(struct thing *thing)
{
	struct parcel parcel = {.kind = PARCEL_IPC};
	CUdeviceptr again;
	int fd;

	switch (thing->kind) {
	case PLAIN:
	case PITCH:
		if (below(4)) {
			DO(cuIpcGetMemHandle, (CUipcMemHandle *)parcel.key, thing->va);
			parcel_send(&parcel, -1, false);
			return;
		}
		DO(cuMemGetHandleForAddressRange, &fd, thing->va, PAGE,
			CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
		close(fd);
		return;
	case IPC: /* all openings by one context have one address */
		if (cuIpcOpenMemHandle_v2(
			    &again, thing->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
			return; /* its owner has it no more */
		if (again == thing->va)
			thing->opens++;
		else
			DO(cuIpcCloseMemHandle, again);
		return;
	default:
		return;
	}
}

void plain_turn(void)
{
	struct thing *thing = lock_some();

	if (!thing)
		return;
	if (!thing->va)
		make(thing);
	else if (!below(3))
		share(thing);
	else if (!thing->keep)
		unmake(thing);
	pthread_mutex_unlock(&thing->lock);
}

/* A pool pointer comes with the pool that it is of. Its memory may be gone: then it is refused. */
static void receive_pointer(struct thing *thing, const struct parcel *parcel, int fd)
{
	CUmemPoolPtrExportData data;

	memcpy(&data, parcel->key, sizeof(data));
	DO(cuMemPoolImportFromShareableHandle, &thing->pool, (void *)(intptr_t)fd, FD, 0);
	if (cuMemPoolImportPointer(&thing->va, thing->pool, &data)) {
		DO(cuMemPoolDestroy, thing->pool);
		thing->va = 0;
	}
	thing->kind = POINTER;
}

void plain_receive(const struct parcel *parcel, int fd)
{
	struct thing *thing = lock_some();

	if (!thing)
		return;
	if (!thing->va && parcel->kind == PARCEL_POINTER) {
		receive_pointer(thing, parcel, fd);
	} else if (!thing->va) {
		memcpy(&thing->handle, parcel->key, sizeof(thing->handle));
		thing->kind = IPC;
		thing->opens = 1;
		if (cuIpcOpenMemHandle_v2(
			    &thing->va, thing->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
			thing->va = 0;
	}
	thing->keep = thing->keep && thing->va;
	pthread_mutex_unlock(&thing->lock);
}
