/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_CLOSE_LATER_H
#define LIEN_CLOSE_LATER_H

/* Closes a link, for which the kernel makes a thread wait until calls under way are over: 10 ms and
 * more. Not this thread. */
void lien_close_later(int fd);

#endif
