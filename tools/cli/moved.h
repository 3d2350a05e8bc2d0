/* SPDX-License-Identifier: BSD-2-Clause */
/* What an offload or a restore did, from its result or that of one of its processes. */
#ifndef LIEN_TOOLS_MOVED_H
#define LIEN_TOOLS_MOVED_H

#include <stdint.h>

#include <jansson.h>

#include "tools/text/output.h"

/* Bytes that were moved, with those that were not saved. */
uint64_t lien_moved_bytes(const json_t *result);
/* How much more of a process's GPUs is free now; "-": the driver did not say; the caller frees */
char *lien_freed_text(const json_t *process);

#endif
