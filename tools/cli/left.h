/* SPDX-License-Identifier: BSD-2-Clause */
/* The "left" list of mem, offload and restore: memory that cannot be moved, and why; and the
 * "short" one of offload and status: what was moved, and is not free. */
#ifndef LIEN_TOOLS_LEFT_H
#define LIEN_TOOLS_LEFT_H

#include <jansson.h>
#include <stdbool.h>

/* Prints a paragraph per reason under the title, largest first; nothing for an empty list: false.
 */
bool lien_print_left(const char *title, const json_t *left);
/* Prints a paragraph per GPU under the title, which ends with a colon; nothing for an empty list.
 */
void lien_print_short(const char *title, const json_t *rows);

#endif
