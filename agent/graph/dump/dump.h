/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files that tell the graph as events (lien_graph_dump()). Nobody else includes this.
 */
#ifndef LIEN_GRAPH_DUMP_H
#define LIEN_GRAPH_DUMP_H

#include "agent/graph/internal.h"

/* What a process calls an allocation: its own handle, and an imported one; 0: it has none. */
struct lien_dump_names {
	const struct lien_holding *holding;
	uint64_t own, imported;
};

struct lien_dump_share {
	const struct lien_allocation *allocation;
	const struct lien_share *share;
};

#define LIEN_DUMP_REMEMBERED 64

struct lien_dump {
	int (*fn)(void *context, const struct lien_event *event);
	void *context;
	struct lien_graph *graph;
	/* Not where an allocation was asked for: told away, to be told back. NULL: none is. */
	const struct lien_library_map *hidden;
	const struct lien_process *hidden_in;
	/* What was found out of one that has many: it is asked for again and again. */
	struct lien_dump_names names[LIEN_DUMP_REMEMBERED];
	struct lien_dump_share shares[LIEN_DUMP_REMEMBERED];
};

/* What is gone has names that no driver gives out. */
#define LIEN_DUMP_HANDLE (0x4c49ull << 48) /* | id: offloaded or released */
#define LIEN_DUMP_VA	 (1ull << 62)	   /* where its owner has it no more */
#define LIEN_DUMP_CODE	 (3ull << 61)	   /* of a library that has been unmapped */

/* An event of that type without a body. */
struct lien_event lien_dump_event(const struct lien_process *process, unsigned type);
int lien_dump_emit(struct lien_dump *dump, struct lien_event *event, size_t size);
/* Announced, and told. */
int lien_dump_release(struct lien_dump *dump, struct lien_event *event, size_t size);

/* Fills in who asked for it, and for which communicator; if the library that asked is not where it
 * was, tells that it is where the event says. */
int lien_dump_asked(struct lien_dump *dump, struct lien_event *event,
	const struct lien_allocation *allocation, const struct lien_process *process);

/* What was found out of it, if it is older than the agent; the process holds one reference. */
int lien_dump_adopted(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle);

/* The dead, who are made here, come back to make and export what others still have, and die in the
 * end; unless another one has the number now: then nothing can be told of the owner (NULL). */
const struct lien_process *lien_dump_owner(const struct lien_dump *dump,
	const struct lien_allocation *allocation, struct lien_process *dead);

/* graph_dump_comm.c: communicators, and the buffers registered with them and with network cards. */
int lien_dump_comms(struct lien_dump *dump, struct lien_process *process);
int lien_dump_registered(struct lien_dump *dump, struct lien_process *process);

/* graph_dump_memory.c. The process's own or imported handle to it; one made up if it has none any
 * more. */
uint64_t lien_dump_handle(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, bool imported);
/* An export by which it can have been imported; NULL: none is known. */
const struct lien_share *lien_dump_share(
	struct lien_dump *dump, const struct lien_allocation *allocation);
/* Its lowest mapping in the process with the lowest pid. Lists tell in another order what was told
 * in theirs; what is chosen from them is not to depend on it. */
const struct lien_mapping *lien_dump_mapping(const struct lien_allocation *allocation);
/* Flags of the event by which the process's own handle came to be. */
unsigned lien_dump_made_flags(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process);
int lien_dump_exports(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner);
int lien_dump_import(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle);
int lien_dump_handle_release(struct lien_dump *dump, const struct lien_process *process,
	uint64_t handle, unsigned flags);

/* What one of its holders has to do with an allocation. holding NULL: it is the owner, and has
 * nothing of it any more. */
typedef int lien_dump_part(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process, const struct lien_holding *holding);
/* Exports, imports, mappings, references. */
lien_dump_part lien_dump_holder;
/* What the control library took away, and the references that the application gave back. */
lien_dump_part lien_dump_releases;
/* The owner first. */
int lien_dump_part_of_all(
	struct lien_dump *dump, const struct lien_allocation *allocation, lien_dump_part *part);

/* graph_dump_shapes.c: memory that is freed by its address, with who has opened it. */
int lien_dump_by_address(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner);
/* Opened by a name that nobody was seen to give. */
int lien_dump_opened(struct lien_dump *dump, const struct lien_allocation *allocation);
/* A multicast object, without what is bound to it. */
int lien_dump_multicast(struct lien_dump *dump, const struct lien_allocation *object,
	const struct lien_process *owner);
/* The objects that reach it, and its dma-buf descriptors; by a process that has it. */
int lien_dump_bindings(struct lien_dump *dump, const struct lien_allocation *memory,
	const struct lien_process *process);
int lien_dump_dmabufs(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process);

#endif
