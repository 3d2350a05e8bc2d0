/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replaces pointers to the genuine functions of interpose.h that others have cached, in the
 * writable data of the loaded libraries, by pointers to ours. No code is changed: the agent's
 * probes sit on the driver's first instructions. Pointers on heaps and stacks are not found;
 * NVIDIA's own runtime and driver are left alone. Only the control thread uses it.
 */
#ifndef LIEN_CONTROL_CACHED_H
#define LIEN_CONTROL_CACHED_H

#include <stddef.h>

/* Call it before the others, and not while threads are held back: it may wait for a thread that
 * loads a library. */
void lien_cached_prepare(void);
/* Replaces all of them. 0; or -errno if a pointer could not be replaced, and `why` names the
 * library that has it. Takes about 20 ms in a process with PyTorch. */
int lien_cached_replace(char *why, size_t size);
/* 0 if no library has cached a pointer since; else -EAGAIN, and `why` names the library. */
int lien_cached_none_new(char *why, size_t size);
/*
 * Puts the genuine functions back. Somebody may have copied a pointer to one of ours: those pass
 * handles on unchanged from then on. Call it only when no handle is renamed (lien_names_renamed()).
 * Like prepare(), it may wait.
 */
void lien_cached_restore(void);

#endif
