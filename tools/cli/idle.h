/* SPDX-License-Identifier: BSD-2-Clause */
/* What is said when a command finds nothing to do. */
#ifndef LIEN_TOOLS_IDLE_H
#define LIEN_TOOLS_IDLE_H

#include <jansson.h>
#include <stdbool.h>

/* Prints why an offload has nothing to move, by process, and what would move it. The result is that
 * of `offload`. */
void lien_print_idle(const json_t *result);
/* Prints what was not selected of the processes of which something was moved, under the title
 * unless it is NULL. false: they have nothing. */
bool lien_print_not_selected(const char *title, const json_t *result);
/* Prints that the answer leaves out other users' processes, if it does. */
void lien_print_hidden(const json_t *result);
/* The same as a warning on stderr, for output that is not for humans. */
void lien_warn_hidden(const char *command, const json_t *result);
/* Returns " of yours" if the answer leaves out other users' processes; otherwise "". */
const char *lien_of_yours(const json_t *result);
/* Prints that no process is known; `from` NULL: to an agent. */
void lien_print_no_process(const json_t *result, const char *from);

#endif
