/* SPDX-License-Identifier: BSD-2-Clause */
/* Parts of a process of the `ps` reply, for tables. The caller must free() the strings. */
#ifndef LIEN_TOOLS_PROCESS_TEXT_H
#define LIEN_TOOLS_PROCESS_TEXT_H

#include <stddef.h>

#include <jansson.h>

/* "0/2 0/2 +2": a rank per communicator, the first ones. */
char *lien_ranks_text(const json_t *process, size_t max);

/* "0-3,6": consecutive devices of a sorted list are shown as a range. */
char *lien_devices_text(const json_t *process);

/* "partly": another column shows how much is offloaded. The reply owns the string. */
const char *lien_state_text(const json_t *process);

#endif
