/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The functions that the application gets instead of the driver's that take or return a handle
 * (interpose.h): handles that it kept from before a restore still reach their memory (names.h).
 */
#ifndef LIEN_CONTROL_TRANSLATE_H
#define LIEN_CONTROL_TRANSLATE_H

#include "control/driver/interpose.h"

/* The section of these functions: driver calls from here belong to the application. */
extern const char __start_lien_translate[] __attribute__((visibility("hidden"))),
	__stop_lien_translate[] __attribute__((visibility("hidden")));

/*
 * A function of that section: the probes go up through at most six of them to find the
 * application (bpf/trace.bpf.c). Files with such functions are compiled with frame pointers and
 * without tail calls (Makefile).
 */
#define LIEN_TRANSLATED __attribute__((section("lien_translate"), noinline, used))

/* Returns the driver's function. Never NULL: a missing function fails when called. */
void *lien_translate_real(const char *const *name);
#define LIEN_REAL(name)                                                                            \
	({                                                                                         \
		LIEN_REAL_NAME(lien_real_name, name);                                              \
		(__typeof__(name) *)lien_translate_real(&lien_real_name);                          \
	})

/* Ours of these names. */
extern __typeof__(cuMemCreate) lien_translate_cuMemCreate;
extern __typeof__(cuMemImportFromShareableHandle) lien_translate_cuMemImportFromShareableHandle;
extern __typeof__(cuMemRelease) lien_translate_cuMemRelease;
extern __typeof__(cuMemMap) lien_translate_cuMemMap;
extern __typeof__(cuMemExportToShareableHandle) lien_translate_cuMemExportToShareableHandle;

/* If set: returns whether the address lies in memory that the application knows as plain. Plain
 * memory has no handle, so cuMemRetainAllocationHandle() must not find one. */
extern int (*lien_translate_is_plain)(CUdeviceptr address);
/* cuMemRetainAllocationHandle() for any memory. */
CUresult lien_translate_retain(CUmemGenericAllocationHandle *handle, CUdeviceptr address)
	__attribute__((visibility("hidden")));

/* While the gate is shut, threads that pass a handle whose memory is away wait. With `all`, threads
 * that pass any handle wait: its memory may be about to go, or to come back. */
void lien_translate_hold_all(int all);
/* Returns true if no thread is between looking up a handle and the driver's answer. */
int lien_translate_idle(void);
/* Also lets no thread in from now on, not even those that the agent lets pass, until hold_all(). */
int lien_translate_wait_idle(void);

#endif
