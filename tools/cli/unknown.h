/* SPDX-License-Identifier: BSD-2-Clause */
/* The "unknown" list of an offload: memory that is not selected because its owner is not known. */
#ifndef LIEN_TOOLS_UNKNOWN_H
#define LIEN_TOOLS_UNKNOWN_H

#include <jansson.h>

/* Prints a line for each process, and the commands that move the memory; nothing for an empty list.
 */
void lien_print_unknown(const json_t *unknown);

#endif
