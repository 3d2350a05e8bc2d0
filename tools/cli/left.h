/* SPDX-License-Identifier: BSD-2-Clause */
/* The "left" list of mem, offload and restore: what can't be moved, and why. */
#ifndef LIEN_TOOLS_LEFT_H
#define LIEN_TOOLS_LEFT_H

#include <jansson.h>

/* A paragraph per reason under the title, largest first; nothing when the list is empty. */
void lien_print_left(const char *title, const json_t *left);

#endif
