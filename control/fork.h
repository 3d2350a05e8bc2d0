/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Handles fork(): the child has a copy of all its data, but only one thread: no
 * control thread, and none that held a lock or was calling the driver. Offloaded memory stays the
 * parent's, and the driver does not work in the child of a process that has used it. So the child
 * begins as if the library had just been loaded. No lock is taken before: other libraries' fork
 * handlers run then, and may be held in a call of the driver. A child of _Fork() or clone() may
 * only call exec().
 */
#ifndef LIEN_CONTROL_FORK_H
#define LIEN_CONTROL_FORK_H

/* The constructor calls it, once. dlclose() undoes it. */
void lien_fork_prepare(void);

#endif
