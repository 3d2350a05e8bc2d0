/* SPDX-License-Identifier: BSD-2-Clause */
/* Parts of a process of the `ps` reply, for tables. The caller must free() the strings. */
#ifndef LIEN_TOOLS_PROCESS_TEXT_H
#define LIEN_TOOLS_PROCESS_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "tools/text/terminal.h"

/* "0/2 0/2 +2": a rank per communicator, the first ones. */
char *lien_ranks_text(const json_t *process, size_t max);

/* "0-3,6": consecutive devices of a sorted list are shown as a range. */
char *lien_devices_text(const json_t *process);

/* Returns the color for that state. */
enum lien_color lien_state_color(const json_t *process);

/* "partly": another column shows how much is offloaded. The reply owns the string. */
const char *lien_state_text(const json_t *process);

/* Does the process have GPU memory: of its own, imported or offloaded? Of an incomplete one that is
 * not known: true. */
bool lien_uses_memory(const json_t *process);
/* Returns the line that says how many processes are left out; the caller frees. */
char *lien_left_out_text(unsigned count);
/* Removes lien's own host memory, which is not the job's, from the allocations of a reply to
 * `graph`.
 */
void lien_drop_arena(json_t *graph);

#endif
