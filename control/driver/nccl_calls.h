/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Functions that the process's NCCL may lack, and that this library has (control/nccl/nccl.h). The
 * application gets them
 *
 * - By dlsym() on a handle in whose scope NCCL is, as ctypes looks them up (interpose.c calls
 *   lien_nccl_lookup()).
 * - By linking: this library exports them. Where NCCL has the function as well, the exported one
 *   jumps to NCCL's, so that probes see the application as the caller.
 *
 * Nothing is loaded for this: without NCCL in the process, a lookup finds nothing.
 */
#ifndef LIEN_CONTROL_NCCL_CALLS_H
#define LIEN_CONTROL_NCCL_CALLS_H

/*
 * X(NAME, whose is called where NCCL has it, too):
 * NCCLS: NCCL's. SUSPEND: NCCL's, unless LIEN_NCCL_SUSPEND is set. VERSION: NCCL's, unless
 * LIEN_NCCL_VERSION is set. OURS: ours, which asks NCCL's.
 */
/* clang-format off */
#define LIEN_NCCL_CALLS(X) \
	X(ncclPause,         NCCLS) \
	X(ncclResume,        NCCLS) \
	X(ncclMemStats,      NCCLS) \
	X(ncclSetGroupID,    NCCLS) \
	X(ncclGetGroupID,    NCCLS) \
	X(ncclCommSuspend,   SUSPEND) \
	X(ncclCommResume,    SUSPEND) \
	X(ncclCommMemStats,  SUSPEND) \
	X(ncclGetVersion,    VERSION) \
	X(ncclGetLastError,  OURS)
/* clang-format on */

/* Returns a function that the process's NCCL exports; NULL: there is none. */
void *lien_nccl_genuine(const char *name);
/* Is it the name of one of these functions? */
int lien_nccl_is_call(const char *name);
/* Returns true if a lookup of such a name is to find *value (NULL: nothing), and not what glibc's
 * dlsym() finds. */
int lien_nccl_lookup(void *handle, const char *name, void **value);

#endif
