/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Answers as JSON, in the shapes of docs/protocol.md. Each returns a new reference, NULL when out
 * of memory. They read the graph and change nothing.
 */
#ifndef LIEN_VIEWS_H
#define LIEN_VIEWS_H

#include <jansson.h>
#include <lien/probe.h>

#include "agent/graph.h"
#include "agent/plan.h"
#include "agent/transaction.h"

/* Exports that are open files of some process now; none where that cannot be read. */
struct lien_view_files {
	const struct lien_probe_open_file *file;
	unsigned count;
	bool known; /* false: count is 0, and says nothing */
};

json_t *lien_view_ps(struct lien_graph *graph);
json_t *lien_view_mem(struct lien_graph *graph);
json_t *lien_view_dead(struct lien_graph *graph); /* part of ps */
json_t *lien_view_graph(struct lien_graph *graph);
/* NULL also when there is no such process or address: `error` then says which, else it is "". */
json_t *lien_view_holders(struct lien_graph *graph, uint32_t pid, uint64_t address,
	const struct lien_view_files *files, char *error, size_t error_size);

/* What an offload would do. */
json_t *lien_view_plan(const struct lien_plan *plan);
/* What a transaction did; `left` from the plan of an offload, or NULL. */
json_t *lien_view_result(const struct lien_transaction *transaction, const struct lien_plan *plan);

/* Part of several answers. */
json_t *lien_view_left(const struct lien_left *left, unsigned count);

#endif
