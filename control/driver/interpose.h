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
 * - If it exports a driver's function, ours of that name jumps to it.
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

/*
 * Functions that the process's NCCL may lack, and that this library has (control/nccl/nccl.c). The
 * application gets them
 *
 * - By dlsym() on a handle in whose scope NCCL is, as ctypes looks them up.
 * - By linking: this library exports them. Where NCCL has the function as well, the exported one
 *   jumps to NCCL's, so that probes see the application as the caller.
 *
 * Nothing is loaded for this: without NCCL in the process, a lookup finds nothing.
 *
 * X(NAME, variable, its result, its arguments). Where NCCL has it, too, NCCL's is called unless the
 * variable is set; NULL: ours is, which asks NCCL's.
 */
/* clang-format off */
#define LIEN_NCCL_CALLS(X) \
	X(ncclPause,        "",                  int, lien_nccl_comm *) \
	X(ncclResume,       "",                  int, lien_nccl_comm *) \
	X(ncclMemStats,     "",                  int, void) \
	X(ncclSetGroupID,   "",                  int, int) \
	X(ncclGetGroupID,   "",                  int, int *) \
	X(ncclCommSuspend,  "LIEN_NCCL_SUSPEND", int, lien_nccl_comm, int) \
	X(ncclCommResume,   "LIEN_NCCL_SUSPEND", int, lien_nccl_comm) \
	X(ncclCommMemStats, "LIEN_NCCL_SUSPEND", int, lien_nccl_comm, int, uint64_t *) \
	X(ncclGetVersion,   "LIEN_NCCL_VERSION", int, int *) \
	X(ncclGetLastError, NULL,                const char *, lien_nccl_comm)
/* clang-format on */

typedef void *lien_nccl_comm; /* ncclComm_t */

#define LIEN_NCCL_DECLARE(name, whose, result, ...)                                                \
	extern result lien_##name(__VA_ARGS__) __attribute__((visibility("hidden")));
LIEN_NCCL_CALLS(LIEN_NCCL_DECLARE)
#undef LIEN_NCCL_DECLARE

/*
 * The functions that this library exports under the driver's names. Another preloaded library may
 * export the same name behind this one: a quota (HAMi-core, nvshare), a tracer. Its function is the
 * one that the program would call without this library, and gets ours in place of the driver's. So
 * an exported function jumps to such a one if there is any, otherwise to ours.
 *
 * The target of an exported function's jump; its assembly defines this.
 */
struct lien_exported {
	void *target; /* NULL: not looked for yet */
	void *ours;
	const char *name;
	void *(*choose)(const char *name); /* NULL, or returns the target, anew for each call */
};

#define LIEN_EXPORTED(name) lien_exported_##name
#define LIEN_EXPORTED_DECLARE(name)                                                                \
	extern char LIEN_EXPORTED(name)[] __attribute__((visibility("hidden")));

/* Exports the function as `name`; within this library that is LIEN_EXPORTED(name). Nothing in this
 * library may use `name` itself: the linker may find another library's first. */
/* clang-format off */
#define LIEN_EXPORT_AS(name, function, choose)                                                     \
	__asm__("	.pushsection .text\n"                                                      \
		"	.p2align 4\n"                                                              \
		"	.globl " #name ", lien_exported_" #name "\n"                               \
		"	.hidden lien_exported_" #name "\n"                                         \
		"	.type " #name ", @function\n"                                              \
		#name ":\n"                                                                        \
		"lien_exported_" #name ":\n"                                                       \
		"	.cfi_startproc\n"                                                          \
		"	endbr64\n"                                                                 \
		"	mov 2f(%rip), %rax\n"                                                      \
		"	test %rax, %rax\n"                                                         \
		"	jz 1f\n"                                                                   \
		"	jmp *%rax\n"                                                               \
		"1:	lea 2f(%rip), %rax\n"                                                      \
		"	jmp lien_exported_first_call\n"                                            \
		"	.cfi_endproc\n"                                                            \
		"	.size " #name ", . - " #name "\n"                                          \
		"	.popsection\n"                                                             \
		"	.pushsection .data.rel.local, \"aw\"\n"                                    \
		"	.p2align 3\n"                                                              \
		"2:	.quad 0, " #function ", 3f, " #choose "\n"                                 \
		"3:	.asciz \"" #name "\"\n"                                                    \
		"	.popsection\n")
/* clang-format on */

enum lien_interposed_kind {
	LIEN_GLIBCS,	       /* dlsym() and dlvsym() */
	LIEN_IN_EVERY_PROCESS, /* the driver's */
	LIEN_FROM_START,       /* those of control/plain/, in a process that had this library from
				* its start */
	LIEN_NCCLS,
};

struct lien_interposed {
	enum lien_interposed_kind kind;
	const char *const *name; /* in the library that has it; see LIEN_REAL_NAME() */
	void *ours;
	void *exported;	      /* leads to ours, or to the function of a library behind this one */
	const char *variable; /* of LIEN_NCCL_CALLS */
};

#define LIEN_INTERPOSED_ROW(name)                                                                  \
	static const struct lien_interposed lien_row_##name                                        \
		__attribute__((section("lien_interposed"), used, aligned(8)))

extern const struct lien_interposed __start_lien_interposed[] __attribute__((visibility("hidden"))),
	__stop_lien_interposed[] __attribute__((visibility("hidden")));

/* Exports the function and replaces the driver's of that name by it. */
#define LIEN_INTERPOSE(kind, driver, function)                                                     \
	_Static_assert(__builtin_types_compatible_p(__typeof__(driver), __typeof__(function)),     \
		"as the driver's");                                                                \
	LIEN_EXPORTED_DECLARE(driver)                                                              \
	LIEN_REAL_NAME(lien_name_##driver, driver);                                                \
	LIEN_INTERPOSED_ROW(driver) = {                                                            \
		kind, &lien_name_##driver, function, LIEN_EXPORTED(driver), NULL};                 \
	LIEN_EXPORT_AS(driver, function, 0)

/* Returns true if the functions for plain memory are replaced, too. Decided at the first lookup of
 * a driver function, which may come before this library's constructor. */
int lien_interpose_has_plain(void);

/* Returns what a lookup that found the genuine function gets: the exported one, if it leads to
 * ours. Otherwise it may be the library behind this one that looks it up, to call it. */
void *lien_interposed_given(const struct lien_interposed *interposed);

/* Returns the genuine function. NULL: there is no driver, or it lacks the function. */
void *lien_interposed_real(const struct lien_interposed *interposed);

#endif
