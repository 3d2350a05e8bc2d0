// SPDX-License-Identifier: BSD-2-Clause
/* Commands of prog_driver: pools and legacy IPC. */
#include "driver.h"

/* --- pools --- */

MAKES(alloc_async, CUdeviceptr, cuMemAllocAsync(&made, arg[0], NULL))
MAKES(alloc_async_ptsz, CUdeviceptr, cuMemAllocAsync_ptsz(&made, arg[0], NULL))
SAYS(free_async, cuMemFreeAsync(arg[0], NULL))
SAYS(free_async_ptsz, cuMemFreeAsync_ptsz(arg[0], NULL))

#define POOL ((CUmemoryPool)(uintptr_t)arg[0])

static void do_pool(void)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = arg[1],
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, arg[0]}};
	CUmemoryPool pool = NULL;
	CUresult result = cuMemPoolCreate(&pool, &props);

	say(result, (uintptr_t)pool);
}

MAKES(pool_default, CUmemoryPool, cuDeviceGetDefaultMemPool(&made, arg[0]))
SAYS(pool_use, cuDeviceSetMemPool(arg[1], POOL))
SAYS(pool_destroy, cuMemPoolDestroy(POOL))
MAKES(pool_alloc, CUdeviceptr, cuMemAllocFromPoolAsync(&made, arg[1], POOL, NULL))
MAKES(pool_alloc_ptsz, CUdeviceptr, cuMemAllocFromPoolAsync_ptsz(&made, arg[1], POOL, NULL))

/* Bytes reserved and bytes in use. */
static void do_pool_state(void)
{
	uint64_t reserved = 0, used = 0;
	CUresult result =
		cuMemPoolGetAttribute(POOL, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);

	if (!result)
		result = cuMemPoolGetAttribute(POOL, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
	say_two(result, reserved, used);
}

SAYS(pool_threshold, cuMemPoolSetAttribute(POOL, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &arg[1]))
SAYS(pool_trim, cuMemPoolTrimTo(POOL, arg[1]))

static void do_pool_access(void)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, arg[1]}, arg[2]};

	say(cuMemPoolSetAccess(POOL, &access, 1), 0);
}

MAKES(pool_export, int, cuMemPoolExportToShareableHandle(&made, POOL, FD, 0))
MAKES(pool_import, CUmemoryPool,
	cuMemPoolImportFromShareableHandle(&made, (void *)(uintptr_t)arg[0], FD, 0))

static void do_pointer_export(void)
{
	CUmemPoolPtrExportData data;
	CUresult result = cuMemPoolExportPointer(&data, arg[0]);

	say_bytes(result, &data, sizeof(data));
}

static void do_pointer_import(void)
{
	CUmemPoolPtrExportData data;
	CUdeviceptr va = 0;
	CUresult result;

	parse_bytes(words[1], data.reserved);
	result = cuMemPoolImportPointer(&va, POOL, &data);
	say(result, va);
}

/* --- legacy IPC --- */

static void do_ipc_get(void)
{
	CUipcMemHandle handle;
	CUresult result = cuIpcGetMemHandle(&handle, arg[0]);

	say_bytes(result, &handle, sizeof(handle));
}

static void do_ipc_open(void)
{
	CUipcMemHandle handle;
	CUdeviceptr va = 0;
	CUresult result;

	parse_bytes(words[0], (unsigned char *)handle.reserved);
	result = cuIpcOpenMemHandle_v2(&va, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	say(result, va);
}

SAYS(ipc_close, cuIpcCloseMemHandle(arg[0]))

const struct command pool_commands[] = {
	C("alloc-async", alloc_async, 1),
	C("alloc-async-ptsz", alloc_async_ptsz, 1),
	C("free-async", free_async, 1),
	C("free-async-ptsz", free_async_ptsz, 1),
	C("pool", pool, 2),		    /* DEVICE TYPES */
	C("pool-default", pool_default, 1), /* DEVICE */
	C("pool-use", pool_use, 2),	    /* POOL DEVICE: cuDeviceSetMemPool */
	C("pool-destroy", pool_destroy, 1),
	C("pool-alloc", pool_alloc, 2),		  /* POOL BYTES */
	C("pool-alloc-ptsz", pool_alloc_ptsz, 2), /* POOL BYTES */
	C("pool-state", pool_state, 1),		  /* POOL: bytes reserved and in use */
	C("pool-threshold", pool_threshold, 2),	  /* POOL BYTES */
	C("pool-trim", pool_trim, 2),		  /* POOL BYTES */
	C("pool-access", pool_access, 3),	  /* POOL DEVICE FLAGS */
	C("pool-export", pool_export, 1),	  /* POOL: an fd */
	C("pool-import", pool_import, 1),	  /* FD */
	C("pointer-export", pointer_export, 1),	  /* ADDRESS: 64 bytes */
	C("pointer-import", pointer_import, 2),	  /* POOL POINTER */
	C("ipc-get", ipc_get, 1),		  /* ADDRESS: 64 bytes */
	C("ipc-open", ipc_open, 1),
	C("ipc-close", ipc_close, 1), /* ADDRESS */
	{NULL, NULL, 0},
};
