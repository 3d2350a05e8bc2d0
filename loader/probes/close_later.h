/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_CLOSE_LATER_H
#define LIEN_CLOSE_LATER_H

#include <stdbool.h>

/* Closes a link in another thread: the kernel makes the closing thread wait until calls in progress
 * are over, 10 ms and more. */
void lien_close_later(int fd);

/* Returns true while links are being closed. fork() blocks in every process of the machine for most
 * of that time. */
bool lien_close_later_busy(void);
/* Closes those fds that are not negative, one after the other in one thread. Copies fds[]. */
void lien_close_all_later(const int *fds, unsigned count);
/* Closes many links: work(arg) closes them, in a thread of its own. */
void lien_close_later_by(void (*work)(void *arg), void *arg);

/* Bracket a fork(): no closing begins between the first and the second, which must be called once
 * for each. */
void lien_close_later_hold(void);
void lien_close_later_go_on(void);
/* For the child of a fork(): gives up its references to all links. Otherwise a link that the parent
 * closes would only be removed when the child ends, and the child would wait for the kernel. */
void lien_close_inherited_links(void);

#endif
