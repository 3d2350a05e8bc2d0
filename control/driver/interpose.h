/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replaces some of the driver's functions by ours, which call the driver's. The application gets
 * ours in whatever way it looks them up:
 *
 * - By linking to libcuda. This library exports ours under the driver's names. If it is preloaded
 *   (`lien run`), the linker finds them before libcuda's.
 * - By dlsym() or dlvsym(), which this library exports as well.
 * - By cuGetProcAddress(). Both of its versions are in the table.
 *
 * If the library comes into a process later, cached.h replaces the pointers that others have
 * cached. Functions that are not in the table remain the driver's own.
 *
 * Another preloaded library may hook the same functions. Whether it comes before or behind this
 * one, the program calls its functions, and they get ours as the driver's: so its view of the
 * application's memory is the same as without this library.
 *
 * - If it exports a driver's function, ours of that name jumps to it (exported.h).
 * - If it exports dlsym(), ours asks it. To find glibc's, it looks up "dlsym", and gets one that
 *   does not ask it.
 *
 * This library never loads libcuda, which may come and go: dlsym() returns ours only while glibc's
 * dlsym() finds the driver's. Soon after one of ours has been called, libcuda stays loaded. The
 * application can see one difference: a weak reference to one of these functions is never NULL.
 */
#ifndef LIEN_CONTROL_INTERPOSE_H
#define LIEN_CONTROL_INTERPOSE_H

#include "control/driver/driver.h"
#include "control/driver/exported.h"

/* All functions of cuda.h that take or return a handle (translate.h);
 * tests/unit/test_cuda_handles.c compares the list with cuda.h. */
#define LIEN_INTERPOSED_HANDLES(X)                                                                 \
	X(cuMemCreate)                                                                             \
	X(cuMemRelease)                                                                            \
	X(cuMemRetainAllocationHandle)                                                             \
	X(cuMemMap)                                                                                \
	X(cuMemMapArrayAsync)                                                                      \
	X(cuMemMapArrayAsync_ptsz)                                                                 \
	X(cuMemExportToShareableHandle)                                                            \
	X(cuMemImportFromShareableHandle)                                                          \
	X(cuMemGetAllocationPropertiesFromHandle)                                                  \
	X(cuMulticastCreate)                                                                       \
	X(cuMulticastAddDevice)                                                                    \
	X(cuMulticastBindMem)                                                                      \
	X(cuMulticastBindMem_v2)                                                                   \
	X(cuMulticastBindAddr)                                                                     \
	X(cuMulticastBindAddr_v2)                                                                  \
	X(cuMulticastUnbind)

struct lien_interposed {
	const char *name; /* its name in the driver or glibc */
	void *ours;
	void *exported; /* leads to ours, or to the function of a library behind this one */
	size_t member;	/* of struct lien_driver; LIEN_NOT_THE_DRIVERS for dlsym() and dlvsym() */
};

#define LIEN_NOT_THE_DRIVERS ((size_t)-1)

/* Those that are replaced in every process. */
extern const struct lien_interposed lien_interposed[];
extern const unsigned lien_interposed_count;

/* Exports a function of control/plain/ and replaces the driver's by it, but only in a process that
 * had this library from its start. */
#define LIEN_INTERPOSE_PLAIN(driver, function)                                                     \
	_Static_assert(__builtin_types_compatible_p(__typeof__(driver), __typeof__(function)),     \
		"as the driver's");                                                                \
	LIEN_EXPORTED_DECLARE(driver)                                                              \
	static const struct lien_interposed lien_plain_row_##driver                                \
		__attribute__((section("lien_plain_rows"), used, aligned(8))) = {#driver,          \
			function, LIEN_EXPORTED(driver), offsetof(struct lien_driver, driver)};    \
	LIEN_EXPORT_AS(driver, function)

/* Returns true if the functions for plain memory are replaced, too. Decided at the first lookup of
 * a driver function, which may come before this library's constructor. */
int lien_interpose_has_plain(void);

/* Returns what a lookup that found the genuine function gets: the exported one, if it leads to
 * ours. Otherwise it may be the library behind this one that looks it up, to call it. */
void *lien_interposed_given(const struct lien_interposed *interposed);

/* Returns the genuine function. NULL: there is no driver, or it lacks the function. */
void *lien_interposed_real(const struct lien_interposed *interposed);

/* Assembly for functions that decide where to jump: what keeps the caller's first three arguments
 * around the decision, with the stack aligned for a call. */
#define LIEN_KEEP_ARGUMENTS                                                                        \
	"	push %rdi\n"                                                                             \
	"	.cfi_adjust_cfa_offset 8\n"                                                              \
	"	push %rsi\n"                                                                             \
	"	.cfi_adjust_cfa_offset 8\n"                                                              \
	"	push %rdx\n"                                                                             \
	"	.cfi_adjust_cfa_offset 8\n"
#define LIEN_GIVE_ARGUMENTS_BACK                                                                   \
	"	pop %rdx\n"                                                                              \
	"	.cfi_adjust_cfa_offset -8\n"                                                             \
	"	pop %rsi\n"                                                                              \
	"	.cfi_adjust_cfa_offset -8\n"                                                             \
	"	pop %rdi\n"                                                                              \
	"	.cfi_adjust_cfa_offset -8\n"

#endif
