/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replaces pointers to the genuine functions of interpose.h that other libraries have cached in
 * their writable data by pointers to ours. Changes no code: the agent's probes sit on the driver's
 * first instructions. Pointers on heaps and stacks are not found; NVIDIA's own runtime and driver
 * are left alone. Only the control thread uses it.
 */
#ifndef LIEN_CONTROL_CACHED_H
#define LIEN_CONTROL_CACHED_H

#include <stddef.h>

/*
 * Call this before the others, and not while threads are held: it may wait for a thread that loads
 * a library. Replaces all of them, unless that has been done since the last library was loaded:
 * whoever looks one up in between gets ours. Returns 0; or -errno if a pointer could not be
 * replaced, and `why` names the library that has it. Takes about 30 ms in a process with PyTorch.
 */
int lien_cached_replace(char *why, size_t size);
/* Returns 0 if no library has cached a pointer since, otherwise -EAGAIN, and `why` names the
 * library; the next replace() then finds it. */
int lien_cached_none_new(char *why, size_t size);
/*
 * Restores the genuine functions. Copies of pointers to ours may remain: those functions then pass
 * handles on unchanged. Call only when no handle is renamed (lien_names_renamed()). May wait, like
 * replace().
 */
void lien_cached_restore(void);

#endif
