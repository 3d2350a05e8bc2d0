/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The driver and an NCCL, opened while the program runs: for programs that are built without a
 * header or a library of NVIDIA's, and take the NCCL whose path they are given. Whoever includes
 * this says before it which functions it wants, as lists of X(name) and X(name, (arguments)):
 *
 *	DRIVER_FUNCTIONS(X)	the driver's; <lien/cuda_abi.h> declares them
 *	NCCL_OPTIONAL(X)	NCCL's beside SYNC_NCCL_FUNCTIONS; NULL where this NCCL has none.
 *				Not defined: nothing of NCCL's
 *
 * `driver` and `nccl` have a member for each. CUDA(call) and NCCL(call) end the program with
 * "failed WHY" on standard output and status 1 unless the call succeeds. Not for several threads.
 */
#ifndef LATE_BOUND_H
#define LATE_BOUND_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

static struct {
#define MEMBER(name) __typeof__(&name) name;
	DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
} driver;

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list args;

	printf("failed ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

#define CUDA(call)                                                                                 \
	do {                                                                                       \
		CUresult result_ = driver.call;                                                    \
		if (result_)                                                                       \
			fail("%s: %d", #call, result_);                                            \
	} while (0)

static void bind_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		fail("%s", dlerror());
#define BIND(name)                                                                                 \
	driver.name = (__typeof__(driver.name))dlsym(library, #name);                              \
	if (!driver.name)                                                                          \
		fail("the driver has no %s", #name);
	DRIVER_FUNCTIONS(BIND)
#undef BIND
}

#ifdef NCCL_OPTIONAL

#include "tests/integration/sync_nccl.h"

static struct {
#define MEMBER(name, arguments) ncclResult_t(*name) arguments;
	SYNC_NCCL_FUNCTIONS(MEMBER)
	NCCL_OPTIONAL(MEMBER)
#undef MEMBER
} nccl;

#define NCCL(call)                                                                                 \
	do {                                                                                       \
		ncclResult_t result_ = nccl.call;                                                  \
		if (result_)                                                                       \
			fail("%s: %d", #call, result_);                                            \
	} while (0)

static void bind_nccl(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

	if (!library)
		fail("%s", dlerror());
#define FIND(name, arguments) nccl.name = (__typeof__(nccl.name))dlsym(library, #name);
#define BIND(name, arguments)                                                                      \
	FIND(name, arguments)                                                                      \
	if (!nccl.name)                                                                            \
		fail("%s has no %s", path, #name);
	SYNC_NCCL_FUNCTIONS(BIND)
	NCCL_OPTIONAL(FIND)
#undef BIND
#undef FIND
}

/* 0 if this NCCL does not say. */
static int nccl_version(void)
{
	int number = 0;

	if (nccl.ncclGetVersion && nccl.ncclGetVersion(&number))
		fail("ncclGetVersion");
	return number;
}

/* Prints "devices N". Returns the program's exit status. */
static int say_devices(void)
{
	int count = 0;

	bind_driver();
	CUDA(cuInit(0));
	CUDA(cuDeviceGetCount(&count));
	printf("devices %d\n", count);
	return 0;
}

#endif

#endif
