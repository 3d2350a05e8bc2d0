/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The handles that the application knows, and the driver's present ones. Restored memory has a new
 * handle, and the driver may have given the old value to something else since; an application that
 * kept the old one (PyTorch's expandable segments, NCCL's windows) still means its memory by it. A
 * name is a value that the application was told. It means a real handle or, while its memory is
 * away, the allocation's token. A value that is no name means itself.
 *
 * A name whose references the application has given back is spent. The driver keeps a handle's
 * value while the memory is mapped, and refuses a release too many; so a spent name still shields
 * whatever has that value now from such a release. Nothing else looks at it.
 *
 * Thread-safe. No lock is taken while there are no names.
 */
#ifndef LIEN_CONTROL_NAMES_H
#define LIEN_CONTROL_NAMES_H

#include <stdint.h>

/* The allocation with this real handle goes away; the application holds references to it. 0;
 * -EEXIST: the application has it by a name of something else; -ENOMEM. On failure nothing is
 * changed. */
int lien_names_park(uint64_t real, uint64_t token, uint32_t references);
/* It is back. */
void lien_names_revive(uint64_t token, uint64_t real);

/* What to give the driver for a handle that the application passes; 0 while its memory is away. */
uint64_t lien_names_real(uint64_t name);
/* The same for a release. */
uint64_t lien_names_real_to_release(uint64_t name);
/* What to tell the application: of a handle that the driver has just made, or of one that it had.
 */
uint64_t lien_names_made(uint64_t real);
uint64_t lien_names_retained(uint64_t real);
/* The application released a name. */
void lien_names_released(uint64_t name);
/* How many names mean another handle than the one that they look like: without translation they
 * would mean the wrong memory, or none. Where there are none, none comes to be but by park(). */
unsigned lien_names_renamed(void);
/* Forgets all, when nothing is translated any more. */
void lien_names_clear(void);

#endif
