/* SPDX-License-Identifier: BSD-2-Clause */
/* Parts of several answers, shared by the views' own files. All return new references. */
#ifndef LIEN_VIEWS_INTERNAL_H
#define LIEN_VIEWS_INTERNAL_H

#include <inttypes.h>
#include <stdarg.h>

#include "agent/views/views.h"

/* Appends what json_pack() makes of this. */
static inline void lien_view_add(json_t *list, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	json_array_append_new(list, json_vpack_ex(NULL, 0, format, args));
	va_end(args);
}

/* "0x7f00": addresses and handles do not fit JSON's numbers. */
static inline json_t *lien_view_hex(uint64_t value)
{
	return json_sprintf("0x%" PRIx64, value);
}

/* Names a communicator's group by the start of the unique id, which is NCCL's random magic. */
static inline json_t *lien_view_group(const struct lien_comm *comm)
{
	return json_sprintf("%016" PRIx64, lien_comm_group(comm));
}

json_t *lien_view_left(const struct lien_left *left, unsigned count);
/* Returns the GPU that device memory lies on; NULL: its owner's ordinals are not known. */
const struct lien_uuid *lien_allocation_gpu(const struct lien_allocation *allocation);
/*
 * Returns the name of the row of `mem` by an aspect that `sample` is part of. By rank, `process`
 * has it; NULL: it has ended. The caller frees; NULL: out of memory.
 */
char *lien_mem_words(enum lien_mem_by by, const struct lien_allocation *sample,
	struct lien_process *process, const struct lien_node *node);

#endif
