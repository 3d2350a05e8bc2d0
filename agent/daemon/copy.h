/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A copy of the agent, made by fork() in a thread of its own: the kernel lets no process fork()
 * while anybody on the machine makes uprobes or takes them away, and the loop is not to wait for
 * that. All calls are the loop's.
 */
#ifndef LIEN_COPY_H
#define LIEN_COPY_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * child(arg) runs in the copy, and does not return. The copy has the memory as it is now.
 * > 0: its number. No link is closed until the caller has called lien_close_later_go_on() for it.
 * -EAGAIN: that took too long. The copy that may still be made ends at once.
 * -EBUSY: an earlier one is still being made. Or -errno.
 */
pid_t lien_copy(void (*child)(void *arg), void *arg);
/* Is one being made that took too long? */
bool lien_copy_busy(void);

#endif
