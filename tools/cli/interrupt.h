/* SPDX-License-Identifier: BSD-2-Clause */
/* Ctrl-C and similar signals, for commands that run until then and end cleanly, and for those that
 * cancel what they have begun. */
#ifndef LIEN_TOOLS_INTERRUPT_H
#define LIEN_TOOLS_INTERRUPT_H

#include <signal.h>
#include <stdbool.h>

/* From here on SIGINT, SIGTERM and SIGHUP arrive only in a ppoll() with the mask *waiting. */
void lien_interrupt_catch(sigset_t *waiting);
bool lien_interrupted(void);

/* From here on SIGINT and SIGTERM can be read from the descriptor that is returned; -1: they have
 * no effect. *before: the signals that were blocked. */
int lien_interrupt_open(sigset_t *before);
/* Takes one signal; false: there is none. */
bool lien_interrupt_take(int fd);
/* Signals have their earlier effect again; one that was not taken has it now. */
void lien_interrupt_close(int fd, const sigset_t *before);

#endif
