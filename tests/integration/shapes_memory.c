// SPDX-License-Identifier: BSD-2-Clause
/* Commands of prog_shapes: handles, mappings, memory without handles, multicast objects. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shapes.h"

/* --- handles and mappings --- */

static void create(CUmemLocationType type)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = arg[2],
		.location = {type, arg[1]}};
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = cuMemCreate(&handle, arg[0], &prop, 0);

	say(result, handle);
}

static void do_create(void)
{
	create(CU_MEM_LOCATION_TYPE_DEVICE);
}

static void do_create_host(void)
{
	create(CU_MEM_LOCATION_TYPE_HOST_NUMA);
}

SAYS(release, cuMemRelease(arg[0]))
MAKES(retain, CUmemGenericAllocationHandle,
	cuMemRetainAllocationHandle(&made, (void *)(uintptr_t)arg[0]))
MAKES(reserve, CUdeviceptr, cuMemAddressReserve(&made, arg[0], 0, 0, 0))
SAYS(free, cuMemAddressFree(arg[0], arg[1]))
SAYS(map, cuMemMap(arg[0], arg[1], arg[3], arg[2], 0))
SAYS(unmap, cuMemUnmap(arg[0], arg[1]))

static void set_access(size_t count)
{
	CUmemAccessDesc access[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, arg[2]}, arg[3]},
		{{CU_MEM_LOCATION_TYPE_DEVICE, arg[4]}, arg[5]}};

	say(cuMemSetAccess(arg[0], arg[1], access, count), 0);
}

static void do_access(void)
{
	set_access(1);
}

static void do_access_two(void)
{
	set_access(2);
}

MAKES(export, int, cuMemExportToShareableHandle(&made, arg[0], FD, 0))
MAKES(import, CUmemGenericAllocationHandle,
	cuMemImportFromShareableHandle(&made, (void *)(uintptr_t)arg[0], FD))

static void do_fabric(void)
{
	CUmemFabricHandle fabric;
	CUresult result = cuMemExportToShareableHandle(&fabric, arg[0], FABRIC, 0);

	say_bytes(result, &fabric, sizeof(fabric));
}

static void do_fabric_import(void)
{
	CUmemGenericAllocationHandle handle = 0;
	CUmemFabricHandle fabric;
	CUresult result;

	parse_bytes(words[0], fabric.data);
	result = cuMemImportFromShareableHandle(&handle, &fabric, FABRIC);
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

/* --- memory without handles --- */

MAKES(alloc, CUdeviceptr, cuMemAlloc_v2(&made, arg[0]))

static void do_pitch(void)
{
	CUdeviceptr va = 0;
	size_t pitch = 0;
	CUresult result = cuMemAllocPitch_v2(&va, &pitch, arg[0], arg[1], 16);

	say_two(result, va, pitch);
}

MAKES(managed, CUdeviceptr, cuMemAllocManaged(&made, arg[0], CU_MEM_ATTACH_GLOBAL))
SAYS(memfree, cuMemFree_v2(arg[0]))
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
SAYS(host_unregister, cuMemHostUnregister((void *)(uintptr_t)arg[0]))
MAKES(range_handle, int,
	cuMemGetHandleForAddressRange(
		&made, arg[0], arg[1], CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0))

static void do_fill(void)
{
	CUresult result = cuMemsetD8_v2(arg[0], arg[2], arg[1]);

	say(result, 0);
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
SAYS(mc_bind_addr, cuMulticastBindAddr(arg[0], arg[1], arg[2], arg[3], 0))
SAYS(mc_unbind, cuMulticastUnbind(arg[0], arg[1], arg[2], arg[3]))

const struct command memory_commands[] = {
	C("create", create, 3),		  /* BYTES DEVICE TYPES */
	C("create-host", create_host, 3), /* BYTES NODE TYPES */
	C("release", release, 1),	  /* HANDLE */
	C("retain", retain, 1),		  /* ADDRESS */
	C("reserve", reserve, 1),	  /* BYTES */
	C("free", free, 2),		  /* ADDRESS BYTES */
	C("map", map, 4),		  /* ADDRESS BYTES HANDLE OFFSET */
	C("unmap", unmap, 2),		  /* ADDRESS BYTES */
	C("access", access, 4),		  /* ADDRESS BYTES DEVICE FLAGS */
	C("access-two", access_two, 6),	  /* ADDRESS BYTES DEVICE FLAGS DEVICE FLAGS */
	C("export", export, 1),		  /* HANDLE: an fd */
	C("import", import, 1),		  /* FD */
	C("fabric", fabric, 1),		  /* HANDLE: 64 bytes */
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
	C("host-unregister", host_unregister, 1),
	C("range-handle", range_handle, 2), /* ADDRESS BYTES: an fd */
	C("fill", fill, 3),		    /* ADDRESS BYTES VALUE */
	C("check", check, 3),		    /* ADDRESS BYTES VALUE: how many are wrong */
	C("mc-create", mc_create, 3),	    /* DEVICES BYTES TYPES */
	C("mc-add", mc_add, 2),		    /* MULTICAST DEVICE */
	C("mc-bind", mc_bind, 5),	    /* MULTICAST OFFSET HANDLE OFFSET BYTES */
	C("mc-bind-addr", mc_bind_addr, 4), /* MULTICAST OFFSET ADDRESS BYTES */
	C("mc-unbind", mc_unbind, 4),	    /* MULTICAST DEVICE OFFSET BYTES */
	{NULL, NULL, 0},
};
