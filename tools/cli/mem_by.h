/* SPDX-License-Identifier: BSD-2-Clause */
/* Parts of what `lien mem` prints; `result` is the agent's reply to `mem`. */
#ifndef LIEN_TOOLS_MEM_BY_H
#define LIEN_TOOLS_MEM_BY_H

#include <jansson.h>

/* "total: ...", without the end of the line: what an offload would free only where it is known. */
void lien_print_total(const json_t *result);
/* The answer to a request with `by`. */
void lien_print_mem_by(const json_t *result);
/* A line about the host's memory, if there is any. */
void lien_print_host_bytes(const json_t *result);

#endif
