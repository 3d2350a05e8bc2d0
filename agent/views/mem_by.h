/* SPDX-License-Identifier: BSD-2-Clause */
/* `mem` by one aspect: what makes one row, and its name. Shared by its two files. */
#ifndef LIEN_VIEWS_MEM_BY_H
#define LIEN_VIEWS_MEM_BY_H

#include "agent/views/mem_rows.h"
#include "agent/views/views.h"

struct lien_mem_key lien_mem_key(
	enum lien_mem_by by, const struct lien_allocation *allocation, const char *kind);

/*
 * Returns the name of the row that `sample` is part of. By rank, `process` has it; NULL: it has
 * ended. The caller frees; NULL: out of memory.
 */
char *lien_mem_words(enum lien_mem_by by, const struct lien_allocation *sample,
	struct lien_process *process, const struct lien_node *node);

#endif
