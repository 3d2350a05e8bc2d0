/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the software driver holds for the calling process, for tests that compare it with what
 * somebody else believes. Not a function of CUDA: a program finds it with dlsym().
 */
#ifndef SOFTCUDA_DUMP_H
#define SOFTCUDA_DUMP_H

#include <stdbool.h>
#include <stdint.h>

#include <lien/cuda_abi.h>

#define SOFTCUDA_DEVICES 16

enum softcuda_kind {
	SOFTCUDA_HANDLE = 1, /* usable: its references are not 0 */
	SOFTCUDA_RANGE,	     /* an address reservation */
	SOFTCUDA_MAPPING,    /* of cuMemMap */
	SOFTCUDA_PLAIN,	     /* cuMemAlloc */
	SOFTCUDA_PITCH,
	SOFTCUDA_MANAGED,
	SOFTCUDA_ASYNC,	       /* in use: of a pool of this process */
	SOFTCUDA_ASYNC_IMPORT, /* cuMemPoolImportPointer */
	SOFTCUDA_IPC,	       /* cuIpcOpenMemHandle */
	SOFTCUDA_POOL,
	SOFTCUDA_HOST, /* cuMemHostAlloc, cuMemAllocHost */
	SOFTCUDA_HOST_REGISTERED,
	SOFTCUDA_MULTICAST, /* an object with a usable handle; not told as SOFTCUDA_HANDLE too */
	SOFTCUDA_BINDING,
};

/* What has no meaning for a kind is 0. */
struct softcuda_object {
	enum softcuda_kind kind;
	/*
	 * The allocation's number: the same in all processes that share it, and never used again.
	 * The pool's for POOL (0: not shareable), the object's for MULTICAST, the bound memory's
	 * for BINDING. 0 for RANGE and HOST.
	 */
	uint64_t number;
	/*
	 * HANDLE, MULTICAST: the handle; MAPPING: the one that it was mapped by; BINDING: the
	 * memory's, if it has one; POOL: its pointer
	 */
	uint64_t value;
	uint64_t references; /* HANDLE, MULTICAST: of the handle; IPC: times opened */
	uint64_t va;
	uint64_t bytes;	 /* as asked for; POOL: in use */
	uint64_t size;	 /* taken, whole pieces; POOL: reserved */
	uint64_t pool;	 /* ASYNC, ASYNC_IMPORT: the pool's pointer */
	uint64_t buffer; /* CU_POINTER_ATTRIBUTE_BUFFER_ID; HANDLE, POOL, MULTICAST, RANGE: 0 */
	/*
	 * Where: a device's ordinal in this process. HANDLE, MAPPING and the like: the memory's.
	 * HOST: the context's device. MULTICAST: type INVALID, id -1.
	 */
	CUmemLocation location;
	bool imported; /* came from another process, or from an export of this one */
	/* MAPPING, ASYNC, ASYNC_IMPORT, POOL: CUmemAccess_flags by device, the last for the host */
	uint8_t access[SOFTCUDA_DEVICES + 1];
	/* MULTICAST: devices in the team, as bits by number among those of all processes */
	uint64_t team;
	unsigned int team_wanted;
	/* BINDING: to which multicast object, and where in it and in the memory */
	uint64_t multicast;
	uint64_t offset;
	uint64_t memory_offset;
};

/*
 * Calls back once for each live object, in no order, with the driver's lock held for reading: the
 * callback must make no driver call, and nothing changes meanwhile. A callback's value other than 0
 * ends it and is returned. -1 before cuInit.
 */
typedef int (*softcuda_dump_fn)(const struct softcuda_object *object, void *arg);
int softcuda_dump(softcuda_dump_fn fn, void *arg);

#endif
