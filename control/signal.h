/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The signal at which a thread of the application runs the control library's code. The agent's BPF
 * program sends it to a thread that enters a call.
 *
 * It is the one with which glibc has all threads carry out a setuid() (SIGSETXID, 33). glibc lets
 * no program block it, handle it, wait for it or send it, and runtimes that make system calls of
 * their own (Go's, the sanitizers') leave it alone for that reason: so any thread can be held,
 * whatever the application does with signals. What glibc sends is passed on to glibc. Facts: glibc,
 * sysdeps/unix/sysv/linux/internal-signals.h, nptl/nptl_setxid.c, and nptl/pthread_create.c, which
 * installs its handler before the first thread is made (before 2.34: when libpthread is loaded).
 */
#ifndef LIEN_CONTROL_SIGNAL_H
#define LIEN_CONTROL_SIGNAL_H

#include <stdbool.h>
#include <stdint.h>

#define LIEN_CONTROL_SIGNAL 33

/*
 * From now on, a thread to which BPF sends the signal calls woken(), in a signal handler. `live`:
 * the program runs already. Returns 0; -ENOTSUP: the C library is not glibc.
 */
int lien_signal_take(void (*woken)(void), bool live);
/* Returns the address of the handler, by which BPF knows that it is installed. */
uintptr_t lien_signal_handler(void);
/* Undoes lien_signal_take(), unless somebody else has handled the signal since. A signal that comes
 * later has no effect. */
void lien_signal_give_back(void);

#endif
