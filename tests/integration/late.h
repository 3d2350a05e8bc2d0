/* SPDX-License-Identifier: BSD-2-Clause */
/* A library that prog_late.c loads while it runs. Each gets the driver's functions in its own way
 * (late.c). */
#ifndef LATE_H
#define LATE_H

#include <lien/cuda_abi.h>

struct late {
	CUresult (*init)(int device); /* its primary context becomes current */
	CUresult (*create)(CUmemGenericAllocationHandle *handle, size_t bytes, int device);
	/* Reserve, map, access of the device. */
	CUresult (*show)(
		CUdeviceptr *va, size_t bytes, CUmemGenericAllocationHandle handle, int device);
	CUresult (*retain)(CUmemGenericAllocationHandle *handle, CUdeviceptr va);
	CUresult (*release)(CUmemGenericAllocationHandle handle);
	CUresult (*unmap)(CUdeviceptr va, size_t bytes);
	CUresult (*fill)(CUdeviceptr va, size_t bytes, unsigned char value);
	CUresult (*read)(void *to, CUdeviceptr va, size_t bytes);
	CUresult (*export)(int *fd, CUmemGenericAllocationHandle handle);
	/* Of one device, which is added to it. */
	CUresult (*multicast)(CUmemGenericAllocationHandle *handle, size_t bytes, int device);
	CUresult (*bind)(CUmemGenericAllocationHandle multicast,
		CUmemGenericAllocationHandle memory, size_t bytes);
};

/* Every such library has it. */
typedef const struct late *late_fn(void);

#endif
