/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files that tell the graph as events (lien_graph_dump()). Nobody else includes this.
 */
#ifndef LIEN_GRAPH_DUMP_H
#define LIEN_GRAPH_DUMP_H

#include "agent/graph_internal.h"

struct lien_dump {
	int (*fn)(void *context, const struct lien_event *event);
	void *context;
};

#define LIEN_DUMP_HANDLE (0x4c49ull << 48) /* | id: offloaded or released, the real one is gone */
#define LIEN_DUMP_VA	 (1ull << 62)	   /* where its owner has it no more */

/* An event of that type without a body. */
struct lien_event lien_dump_event(const struct lien_process *process, unsigned type);
int lien_dump_tell(struct lien_dump *dump, struct lien_event *event, size_t size);
/* Fills in who asked for it, and for which communicator. */
void lien_dump_asked(struct lien_event *event, const struct lien_allocation *allocation);
/* The dead come back to make and export what others still have, and die in the end: the file that
 * asked for it is told, `owner` gets the names. */
int lien_dump_dead(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *owner);
/* The process's own or imported handle to it; one made up if it has none any more. */
uint64_t lien_dump_handle(const struct lien_allocation *allocation,
	const struct lien_process *process, bool imported);

/* graph_dump_shapes.c: memory that is freed by its address, with who has opened it. */
int lien_dump_by_address(
	struct lien_dump *dump, struct lien_graph *graph, const struct lien_allocation *allocation);
/* A multicast object, without what is bound to it. */
int lien_dump_multicast(struct lien_dump *dump, const struct lien_allocation *object,
	const struct lien_process *owner);
int lien_dump_bindings(struct lien_dump *dump, const struct lien_allocation *memory);
int lien_dump_dmabufs(struct lien_dump *dump, const struct lien_allocation *allocation);

#endif
