/* SPDX-License-Identifier: BSD-2-Clause */
/* Ctrl-C and similar signals, for commands that run until then and end cleanly. */
#ifndef LIEN_TOOLS_INTERRUPT_H
#define LIEN_TOOLS_INTERRUPT_H

#include <signal.h>
#include <stdbool.h>

/* From here on SIGINT, SIGTERM and SIGHUP arrive only in a ppoll() with the mask *waiting. */
void lien_interrupt_catch(sigset_t *waiting);
bool lien_interrupted(void);

#endif
