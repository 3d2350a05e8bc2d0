/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Maps the handles that the application knows to the driver's. Restored memory has a new handle,
 * and the driver may have reused the old value since; an application that kept the old one
 * (PyTorch's expandable segments, NCCL's windows) still means its memory by it. A name is a
 * handle's value as the application knows it. It stands for a real handle or, while the memory is
 * away, for the allocation's token. A value that is no name stands for itself.
 *
 * A name is spent when the application has released all its references. The driver keeps a handle's
 * value while the memory is mapped, and refuses a release too many. So a release of a spent name
 * still goes to the memory that it stood for, not to whatever has that value now. All other calls
 * ignore spent names.
 *
 * Thread-safe. No lock is taken while there are no names.
 */
#ifndef LIEN_CONTROL_NAMES_H
#define LIEN_CONTROL_NAMES_H

#include <stdint.h>

/* The allocation with this real handle goes away; the application holds so many references to it.
 * Those that came without us are by the driver's own value, which becomes a name. 0; -EEXIST: that
 * value is a name of something else; -ENOMEM. On failure nothing is changed. */
int lien_names_park(uint64_t real, uint64_t token, uint32_t references);
/* It is back. */
void lien_names_revive(uint64_t token, uint64_t real);

/* What to give the driver for a handle that the application passes; 0 while its memory is away. */
uint64_t lien_names_real(uint64_t name);
/* The same for a release. */
uint64_t lien_names_real_to_release(uint64_t name);
/* What the application gets for a handle that the driver has just made, or for one that it had. 0:
 * out of memory; the handle's value means something else. */
uint64_t lien_names_made(uint64_t real);
uint64_t lien_names_retained(uint64_t real);
/* The application released a name. */
void lien_names_released(uint64_t name);
/* The application got the handle `real` from the driver itself, or (not `certain`) may have. Is
 * that value a name of something else? */
int lien_names_clash(uint64_t real, int certain);
/* How many names mean another handle than the one that they look like: without translation they
 * would mean the wrong memory, or none. Where there are none, none comes to be but by park(). */
unsigned lien_names_renamed(void);
/* Forgets all names. */
void lien_names_clear(void);

/* fork(): the child's names are as consistent as the parent's. In between the parent's
 * thread may call everything above: other libraries have handlers, too. */
void lien_names_before_fork(void);
void lien_names_after_fork(int is_child);

#endif
