/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Maps the handles that the application knows to the driver's. Restored memory has a new handle,
 * and the driver may have reused the old value since; an application that kept the old one
 * (PyTorch's expandable segments, NCCL's windows) still means its memory by it. A name is a
 * handle's value as the application knows it. It stands for a real handle or, while the memory is
 * away, for the allocation's token. A value that is not a name stands for itself.
 *
 * A name is spent when the application has released all its references. The driver keeps a handle's
 * value while the memory is mapped, and refuses excess releases. So a release of a spent name still
 * goes to the memory that it stood for, not to the memory that has that value now. All other calls
 * ignore spent names.
 *
 * Thread-safe. Takes no lock while there are no names.
 */
#ifndef LIEN_CONTROL_NAMES_H
#define LIEN_CONTROL_NAMES_H

#include <stdint.h>

#include <lien/wire.h>

/* Records that the allocation that the application knows by these real handles and references goes
 * away. References that it got without us are known by the driver's own value, which becomes
 * a name. Returns 0; -EEXIST: that value is a name of something else; -ENOMEM. On failure no name
 * means anything else than before. */
int lien_names_park(const struct lien_wire_handle *reals, unsigned count, uint64_t token);
/* Records that the allocation is back, with one handle for all; 0: it did not go. */
void lien_names_revive(uint64_t token, uint64_t real);

/* Returns the driver's handle for one that the application passes, maybe to release it; 0 while its
 * memory is away. */
uint64_t lien_names_real(uint64_t name, int releasing);
/* Returns the value to give the application for a handle that the driver has just made, or for one
 * that the application already had. 0: out of memory, and the handle's value means something
 * else. */
uint64_t lien_names_made(uint64_t real);
uint64_t lien_names_retained(uint64_t real);
/* Records that the application released a name. */
void lien_names_released(uint64_t name);
/* The application got the handle `real` directly from the driver, or (not `certain`) may have.
 * Returns true if that value is a name of something else. */
int lien_names_clash(uint64_t real, int certain);
/* Returns the number of names that differ from their handle: without translation they would refer
 * to the wrong memory, or to none. From 0 the number grows only by park(). */
unsigned lien_names_renamed(void);
/* Forgets all names. */
void lien_names_clear(void);

#endif
