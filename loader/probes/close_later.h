/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_CLOSE_LATER_H
#define LIEN_CLOSE_LATER_H

#include <stdbool.h>

/* Closes a link, for which the kernel makes a thread wait until calls under way are over: 10 ms and
 * more. Not this thread. */
void lien_close_later(int fd);

/* Are links being closed? No process of the machine can fork() for the most of that time. */
bool lien_close_later_busy(void);
/* The same for many of them: work(arg) closes them, in a thread of its own. */
void lien_close_later_by(void (*work)(void *arg), void *arg);

/* Around a fork(): no closing begins from the first until the second, which comes once for each. */
void lien_close_later_hold(void);
void lien_close_later_go_on(void);
/* In the process that fork() made: gives up its part in all links. Otherwise a link that the parent
 * closes would only be taken away when the child ends, and the child would wait for the kernel. */
void lien_close_inherited_links(void);

#endif
