// SPDX-License-Identifier: BSD-2-Clause
/* Commands of prog_driver: handles, mappings, memory without handles, multicast objects. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"

/* --- handles and mappings --- */

static CUresult create(CUmemGenericAllocationHandle *handle, uint64_t bytes, CUmemLocationType type,
	int id, int handle_types)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = handle_types,
		.location = {type, id}};

	return CALL(cuMemCreate, handle, bytes, &prop, 0);
}

static CUresult create_exportable(CUmemGenericAllocationHandle *handle, uint64_t bytes, int device)
{
	return create(handle, bytes, CU_MEM_LOCATION_TYPE_DEVICE, device, FD);
}

MAKES(create, CUmemGenericAllocationHandle,
	create(&made, arg[0], CU_MEM_LOCATION_TYPE_DEVICE, arg[1], arg[2]))
MAKES(create_fd, CUmemGenericAllocationHandle, create_exportable(&made, arg[0], arg[1]))
MAKES(create_host, CUmemGenericAllocationHandle,
	create(&made, arg[0], CU_MEM_LOCATION_TYPE_HOST_NUMA, arg[1], arg[2]))

/* With a type that there is not. */
static void do_create_bad(void)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemAllocationProp prop = {.type = 77};
	CUresult result = CALL(cuMemCreate, &handle, arg[0], &prop, 0);

	say(result, handle);
}

SAYS(release, CALL(cuMemRelease, arg[0]))
MAKES(retain, CUmemGenericAllocationHandle,
	CALL(cuMemRetainAllocationHandle, &made, (void *)(uintptr_t)arg[0]))
MAKES(reserve_at, CUdeviceptr, CALL(cuMemAddressReserve, &made, arg[0], 0, arg[1], 0))
MAKES(reserve, CUdeviceptr, CALL(cuMemAddressReserve, &made, arg[0], 0, 0, 0))
SAYS(free, CALL(cuMemAddressFree, arg[0], arg[1]))
SAYS(map, CALL(cuMemMap, arg[0], arg[1], arg[3], arg[2], 0))
SAYS(map_whole, CALL(cuMemMap, arg[0], arg[1], 0, arg[2], 0))
SAYS(unmap, CALL(cuMemUnmap, arg[0], arg[1]))

static CUresult set_access(uint64_t va, uint64_t bytes, int device, int flags)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};

	return CALL(cuMemSetAccess, va, bytes, &access, 1);
}

SAYS(access, set_access(arg[0], arg[1], arg[2], arg[3]))

static void do_access_two(void)
{
	CUmemAccessDesc access[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, arg[2]}, arg[3]},
		{{CU_MEM_LOCATION_TYPE_DEVICE, arg[4]}, arg[5]}};

	say(CALL(cuMemSetAccess, arg[0], arg[1], access, 2), 0);
}

MAKES(export, int, CALL(cuMemExportToShareableHandle, &made, arg[0], FD, 0))
MAKES(import, CUmemGenericAllocationHandle,
	CALL(cuMemImportFromShareableHandle, &made, (void *)(uintptr_t)arg[0], FD))

static void do_fabric(void)
{
	CUmemFabricHandle fabric;
	CUresult result = CALL(cuMemExportToShareableHandle, &fabric, arg[0], FABRIC, 0);

	say_bytes(result, &fabric, sizeof(fabric));
}

static void do_fabric_import(void)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemFabricHandle fabric;
	CUresult result;

	parse_bytes(words[0], fabric.data);
	result = CALL(cuMemImportFromShareableHandle, &handle, &fabric, FABRIC);
	say(result, handle);
}

static void do_getfd(void)
{
	int pidfd = syscall(SYS_pidfd_open, (pid_t)arg[0], 0);
	int fd = pidfd < 0 ? -1 : syscall(SYS_pidfd_getfd, pidfd, (int)arg[1], 0);

	say_errno(fd >= 0, fd);
	if (pidfd >= 0)
		close(pidfd);
}

static void do_close(void)
{
	say_errno(!close(arg[0]), 0);
}

/* --- several calls --- */

/* Maps a handle at a new address: reserve, map, access of the device. */
static CUresult show(CUdeviceptr *va, uint64_t bytes, uint64_t handle, int device)
{
	CUresult result = CALL(cuMemAddressReserve, va, bytes, 0, 0, 0);

	if (!result)
		result = CALL(cuMemMap, *va, bytes, 0, handle, 0);
	return result ? result : set_access(*va, bytes, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static void do_show(void)
{
	CUdeviceptr va = 0;
	CUresult result = show(&va, arg[0], arg[1], arg[2]);

	say(result, va);
}

static void do_make(void)
{
	CUmemGenericAllocationHandle handle = 0;
	CUdeviceptr va = 0;
	CUresult result = create_exportable(&handle, arg[0], arg[1]);

	if (!result)
		result = show(&va, arg[0], handle, arg[1]);
	say_two(result, handle, va);
}

/* And closes it again, so many times. */
static void do_export_often(void)
{
	CUresult result = CUDA_SUCCESS;
	uint64_t i;
	int fd;

	for (i = 0; i < arg[1] && !result; i++) {
		result = CALL(cuMemExportToShareableHandle, &fd, arg[0], FD, 0);
		if (!result)
			close(fd);
	}
	say(result, i);
}

/* Retains a mapping's handle and gives it back, so and so often. */
static void do_burn(void)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = CUDA_SUCCESS;
	uint64_t i;

	for (i = 0; i < arg[1] && !result; i++) {
		result = CALL(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)arg[0]);
		if (!result)
			result = CALL(cuMemRelease, handle);
	}
	say(result, i);
}

/* Buffers of 2 MiB, each with an address of its own in one reservation with as much room again. */
static void do_many(void)
{
	const uint64_t piece = 2 << 20;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va = 0;
	CUresult result = CALL(cuMemAddressReserve, &va, 2 * piece * arg[0], 0, 0, 0);
	uint64_t i;

	for (i = 0; i < arg[0] && !result; i++) {
		result = create_exportable(&handle, piece, arg[1]);
		if (!result)
			result = CALL(cuMemMap, va + 2 * piece * i, piece, 0, handle, 0);
		if (!result)
			result = set_access(va + 2 * piece * i, piece, arg[1], 3);
	}
	say(result, va);
}

/* Maps, moves and unmaps at the same few addresses until it is given its next command. */
static void do_loop(void)
{
	CUmemGenericAllocationHandle handle[4] = {0};
	struct pollfd input = {.fd = 0, .events = POLLIN};
	CUdeviceptr va = 0;
	CUresult result = CALL(cuMemAddressReserve, &va, 64 << 20, 0, 0, 0);
	uint64_t rounds = 0;
	unsigned i;

	printf("ok 0\n");
	while (!result && !poll(&input, 1, 0)) {
		for (i = 0; i < 4 && !result; i++) {
			result = create_exportable(&handle[i], 2 << 20, arg[0]);
			if (!result)
				result = CALL(cuMemMap, va + ((i + rounds) % 8 << 21), 2 << 20, 0,
					handle[i], 0);
			if (!result)
				result = set_access(va + ((i + rounds) % 8 << 21), 2 << 20, arg[0],
					rounds & 1 ? 1 : 3);
		}
		for (i = 0; i < 4 && !result; i++) {
			result = CALL(cuMemUnmap, va + ((i + rounds) % 8 << 21), 2 << 20);
			if (!result)
				result = CALL(cuMemRelease, handle[i]);
		}
		rounds++;
	}
	say(result, rounds);
}

/* --- memory without handles --- */

MAKES(alloc, CUdeviceptr, CALL(cuMemAlloc_v2, &made, arg[0]))

static void do_pitch(void)
{
	CUdeviceptr va = 0;
	size_t pitch = 0;
	CUresult result = cuMemAllocPitch_v2(&va, &pitch, arg[0], arg[1], 16);

	say_two(result, va, pitch);
}

MAKES(managed, CUdeviceptr, cuMemAllocManaged(&made, arg[0], CU_MEM_ATTACH_GLOBAL))
SAYS(memfree, CALL(cuMemFree_v2, arg[0]))
MAKES(host_alloc, void *, cuMemHostAlloc(&made, arg[0], arg[1]))
MAKES(alloc_host, void *, cuMemAllocHost_v2(&made, arg[0]))
SAYS(host_free, cuMemFreeHost((void *)(uintptr_t)arg[0]))

/* Pages of the program's own, which stay its own. */
static void do_pages(void)
{
	void *pages =
		mmap(NULL, arg[0], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	say_errno(pages != MAP_FAILED, (uintptr_t)pages);
}

SAYS(host_register, cuMemHostRegister_v2((void *)(uintptr_t)arg[0], arg[1], arg[2]))
SAYS(host_register_older, cuMemHostRegister((void *)(uintptr_t)arg[0], arg[1], arg[2]))
SAYS(host_unregister, cuMemHostUnregister((void *)(uintptr_t)arg[0]))
MAKES(range_handle, int,
	cuMemGetHandleForAddressRange(
		&made, arg[0], arg[1], CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0))

static void do_fill(void)
{
	CUresult result = cuMemsetD8_v2(arg[0], arg[2], arg[1]);

	say(result ? result : cuCtxSynchronize(), 0);
}

/* Says how many bytes are not as they should be. */
static void do_check(void)
{
	unsigned char *bytes = malloc(arg[1]);
	uint64_t wrong = 0, i;
	CUresult result = bytes ? cuMemcpyDtoH_v2(bytes, arg[0], arg[1]) : CUDA_ERROR_OUT_OF_MEMORY;

	for (i = 0; !result && i < arg[1]; i++)
		wrong += bytes[i] != (unsigned char)arg[2];
	free(bytes);
	say(result, wrong);
}

/* --- multicast --- */

static void do_mc_create(void)
{
	CUmulticastObjectProp prop = {.numDevices = arg[0], .size = arg[1], .handleTypes = arg[2]};
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = cuMulticastCreate(&handle, &prop);

	say(result, handle);
}

SAYS(mc_add, cuMulticastAddDevice(arg[0], arg[1]))
SAYS(mc_bind, cuMulticastBindMem(arg[0], arg[1], arg[2], arg[3], arg[4], 0))
SAYS(mc_bind_v2, cuMulticastBindMem_v2(arg[0], arg[1], arg[2], arg[3], arg[4], arg[5], 0))
SAYS(mc_bind_addr_v2, cuMulticastBindAddr_v2(arg[0], arg[1], arg[2], arg[3], arg[4], 0))
SAYS(mc_bind_addr, cuMulticastBindAddr(arg[0], arg[1], arg[2], arg[3], 0))
SAYS(mc_unbind, cuMulticastUnbind(arg[0], arg[1], arg[2], arg[3]))

const struct command memory_commands[] = {
	C("create", create, 3),		  /* BYTES DEVICE TYPES */
	C("create", create_fd, 2),	  /* BYTES DEVICE: for descriptors */
	C("create-bad", create_bad, 1),	  /* BYTES */
	C("create-host", create_host, 3), /* BYTES NODE TYPES */
	C("release", release, 1),	  /* HANDLE */
	C("retain", retain, 1),		  /* ADDRESS */
	C("reserve", reserve, 1),	  /* BYTES */
	C("reserve", reserve_at, 2),	  /* BYTES HINT */
	C("free", free, 2),		  /* ADDRESS BYTES */
	C("map", map, 4),		  /* ADDRESS BYTES HANDLE OFFSET */
	C("map", map_whole, 3),		  /* ADDRESS BYTES HANDLE */
	C("unmap", unmap, 2),		  /* ADDRESS BYTES */
	C("access", access, 4),		  /* ADDRESS BYTES DEVICE FLAGS */
	C("access-two", access_two, 6),	  /* ADDRESS BYTES DEVICE FLAGS DEVICE FLAGS */
	C("show", show, 3),		  /* BYTES HANDLE DEVICE: reserve, map, access */
	C("make", make, 2),		  /* BYTES DEVICE: create and show; handle and address */
	C("burn", burn, 2),		  /* ADDRESS TIMES */
	C("many", many, 2),		  /* HOW-MANY DEVICE: the first one's address */
	C("loop", loop, 1), /* DEVICE: two answers, the second with the next command */
	C("export-often", export_often, 2), /* HANDLE TIMES */
	C("export", export, 1),		    /* HANDLE: an fd */
	C("import", import, 1),		    /* FD */
	C("fabric", fabric, 1),		    /* HANDLE: 64 bytes */
	C("fabric-import", fabric_import, 1),
	C("getfd", getfd, 2), /* PID FD: a copy of another process's */
	C("close", close, 1), /* FD */
	C("alloc", alloc, 1), /* BYTES */
	C("pitch", pitch, 2), /* WIDTH HEIGHT: address and pitch */
	C("managed", managed, 1),
	C("memfree", memfree, 1),
	C("host-alloc", host_alloc, 2), /* BYTES FLAGS */
	C("alloc-host", alloc_host, 1), /* BYTES */
	C("host-free", host_free, 1),
	C("pages", pages, 1),		      /* BYTES: pageable memory */
	C("host-register", host_register, 3), /* ADDRESS BYTES FLAGS */
	C("host-register-older", host_register_older, 3),
	C("host-unregister", host_unregister, 1),
	C("range-handle", range_handle, 2),	  /* ADDRESS BYTES: an fd */
	C("fill", fill, 3),			  /* ADDRESS BYTES VALUE */
	C("check", check, 3),			  /* ADDRESS BYTES VALUE: how many are wrong */
	C("mc-create", mc_create, 3),		  /* DEVICES BYTES TYPES */
	C("mc-add", mc_add, 2),			  /* MULTICAST DEVICE */
	C("mc-bind", mc_bind, 5),		  /* MULTICAST OFFSET HANDLE OFFSET BYTES */
	C("mc-bind-addr", mc_bind_addr, 4),	  /* MULTICAST OFFSET ADDRESS BYTES */
	C("mc-bind-v2", mc_bind_v2, 6),		  /* MULTICAST DEVICE OFFSET HANDLE OFFSET BYTES */
	C("mc-bind-addr-v2", mc_bind_addr_v2, 5), /* MULTICAST DEVICE OFFSET ADDRESS BYTES */
	C("mc-unbind", mc_unbind, 4),		  /* MULTICAST DEVICE OFFSET BYTES */
	{NULL, NULL, 0},
};
