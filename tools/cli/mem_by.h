/* SPDX-License-Identifier: BSD-2-Clause */
/* Parts of the output of `lien mem`; `result` is the agent's reply to `mem`. */
#ifndef LIEN_TOOLS_MEM_BY_H
#define LIEN_TOOLS_MEM_BY_H

#include <stdint.h>

#include <jansson.h>

/* Prints "total: ..."; includes the bytes that an offload would free, if known, and those that are
 * offloaded, unless 0. */
void lien_print_total(const json_t *result, uint64_t offloaded);
/* Prints the answer to a request with `by`. */
void lien_print_mem_by(const json_t *result);
/* Prints a line about host memory, if there is any. */
void lien_print_host_bytes(const json_t *result);

#endif
