/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Handles fork(): the child has a copy of all its data, but only one thread: no
 * control thread, and none that held a lock or was calling the driver. Offloaded memory stays the
 * parent's. So the child begins as if the library had just been loaded; only the names of handles
 * are kept, because the child's program knows them as well. fork() waits for the lock of names.c;
 * all other state is reset. A child of _Fork() or clone() may only call exec().
 */
#ifndef LIEN_CONTROL_FORK_H
#define LIEN_CONTROL_FORK_H

/* The constructor calls it, once. dlclose() undoes it. */
void lien_fork_prepare(void);

#endif
