/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads of the control library's own in the application. */
#ifndef LIEN_CONTROL_THREAD_H
#define LIEN_CONTROL_THREAD_H

/* Starts a detached thread. It gets none of the application's signals, only the one that holds
 * threads (control/signal.h). Returns 0 or an error number. */
int lien_thread_start(void *(*fn)(void *), void *arg);

#endif
