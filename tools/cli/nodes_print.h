/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TOOLS_NODES_PRINT_H
#define LIEN_TOOLS_NODES_PRINT_H

#include <stdbool.h>

#include <jansson.h>

/* Prints the result of an offload or a restore over several nodes. */
void lien_print_nodes_move(const json_t *result, bool restore);

#endif
