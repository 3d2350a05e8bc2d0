/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads: ours in the application, the application's where they are held, and the one of a forked
 * child. */
#ifndef LIEN_CONTROL_THREAD_H
#define LIEN_CONTROL_THREAD_H

#include <stdbool.h>
#include <stdint.h>

/* Starts a detached thread. It gets none of the application's signals, only the one below. Returns
 * 0 or an error number. */
int lien_thread_start(void *(*fn)(void *), void *arg);

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
#define LIEN_CONTROL_SIGNAL 33

/*
 * From now on, a thread to which BPF sends the signal calls woken(), in a signal handler, whose
 * address is put into *handler. `live`: the program runs already. Returns 0; -ENOTSUP: the C
 * library is not glibc.
 */
int lien_signal_take(void (*woken)(void), bool live, uint64_t *handler);
/* Undoes lien_signal_take(), unless somebody else has handled the signal since. A signal that comes
 * later has no effect. */
void lien_signal_give_back(void);

/*
 * Of variables that begin as zeros, locks among them: start.c makes them zeros again in the child
 * of a fork(). The child has a copy of all data, but only one thread: no control thread, and none
 * that held a lock or was calling the driver. Offloaded memory stays the parent's, and the driver
 * does not work in the child of a process that has used it. So the child begins as if the library
 * had just been loaded. It frees nothing: the parent may have been changing it. No lock is taken
 * before: other libraries' fork handlers run then, and may be held in a call of the driver. A child
 * of _Fork() or clone() may only call exec().
 */
#define LIEN_ZERO_IN_CHILD __attribute__((section("lien_zero_in_child")))

extern char __start_lien_zero_in_child[] __attribute__((visibility("hidden")));
extern char __stop_lien_zero_in_child[] __attribute__((visibility("hidden")));

#endif
