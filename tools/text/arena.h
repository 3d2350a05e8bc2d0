/* SPDX-License-Identifier: BSD-2-Clause */
/* lien's own host memory in a process, which is not the job's. */
#ifndef LIEN_TEXT_ARENA_H
#define LIEN_TEXT_ARENA_H

#include <jansson.h>

/* Removes it from the allocations of a reply to `graph`. */
void lien_drop_arena(json_t *graph);

#endif
