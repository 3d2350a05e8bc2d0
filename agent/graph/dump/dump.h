/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files that dump the graph as events (lien_graph_dump()). No other file includes
 * this. */
#ifndef LIEN_GRAPH_DUMP_H
#define LIEN_GRAPH_DUMP_H

#include "agent/graph/internal.h"

/* A process's names for an allocation: its own handle and an imported one; 0: none. */
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
	/*
	 * A library that was unmapped because an allocation's site at its address has no file;
	 * emitted again later. NULL: none.
	 */
	const struct lien_library_map *hidden;
	const struct lien_process *hidden_in;
	/*
	 * Cached results for allocations with many names or shares, which are looked up again and
	 * again.
	 */
	struct lien_dump_names names[LIEN_DUMP_REMEMBERED];
	struct lien_dump_share shares[LIEN_DUMP_REMEMBERED];
};

/* Memory that is gone gets names that no driver gives out. */
#define LIEN_DUMP_HANDLE (0x4c49ull << 48) /* | id: offloaded or released */
#define LIEN_DUMP_VA	 (1ull << 62)	   /* address of memory that its owner no longer has */
#define LIEN_DUMP_CODE	 (3ull << 61)	   /* address in a library that has been unmapped */

/* Returns an event of this type, without a body. */
struct lien_event lien_dump_event(const struct lien_process *process, unsigned type);
int lien_dump_emit(struct lien_dump *dump, struct lien_event *event, size_t size);
/* Emits the announcement of a release and the release. */
int lien_dump_release(struct lien_dump *dump, struct lien_event *event, size_t size);

/* Fills in who asked for the allocation, and for which communicator. If the library that asked is
 * no longer at its address, first emits it at the address in the event. */
int lien_dump_asked(struct lien_dump *dump, struct lien_event *event,
	const struct lien_allocation *allocation, const struct lien_process *process);

/*
 * Emits what an adoption found out about the allocation, if it is older than the agent. The process
 * holds one reference.
 */
int lien_dump_adopted(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle);

/* Returns the owner. One that has ended is made in `dead`: it comes back to make and export what
 * others still have, and ends at the end of the dump. If another process has its pid now, nothing
 * can be said of the owner (NULL). */
const struct lien_process *lien_dump_owner(const struct lien_dump *dump,
	const struct lien_allocation *allocation, struct lien_process *dead);

/* comm.c: communicators, and the buffers registered with them and with network cards. */
int lien_dump_comms(struct lien_dump *dump, struct lien_process *process);
int lien_dump_registered(struct lien_dump *dump, struct lien_process *process);

/* memory.c. Returns the process's own or imported handle, or a made-up one if it has none any more.
 */
uint64_t lien_dump_handle(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, bool imported);
/* Returns an export by which the allocation may have been imported; NULL: none is known. */
const struct lien_share *lien_dump_share(
	struct lien_dump *dump, const struct lien_allocation *allocation);
/* Returns the lowest mapping in the process with the lowest pid. Lists of a replayed dump may be in
 * another order, so a choice must not depend on their order. */
const struct lien_mapping *lien_dump_mapping(const struct lien_allocation *allocation);
/* Returns the flags of the event that made the process's own handle. */
unsigned lien_dump_made_flags(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process);
int lien_dump_exports(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner);
int lien_dump_import(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process, uint64_t handle);
int lien_dump_handle_release(struct lien_dump *dump, const struct lien_process *process,
	uint64_t handle, unsigned flags);

/* Emits what one of its holders does with an allocation. holding is NULL for an owner that no
 * longer has any of it. */
typedef int lien_dump_part(struct lien_dump *dump, const struct lien_allocation *allocation,
	struct lien_process *process, const struct lien_holding *holding);
/* Exports, imports, mappings, references. */
lien_dump_part lien_dump_holder;
/*
 * Emits what the control library took away, and the references that the application has released.
 */
lien_dump_part lien_dump_releases;
/* Calls part for every holder, the owner first. */
int lien_dump_part_of_all(
	struct lien_dump *dump, const struct lien_allocation *allocation, lien_dump_part *part);

/* shapes.c: memory that is freed by address, and the processes that have opened it. */
int lien_dump_by_address(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *owner);
/* Emits memory opened by a name whose export was not seen. */
int lien_dump_opened(struct lien_dump *dump, const struct lien_allocation *allocation);
/* Emits a multicast object, without the memory bound to it. */
int lien_dump_multicast(struct lien_dump *dump, const struct lien_allocation *object,
	const struct lien_process *owner);
/* Emit the objects that reach the memory, and its dma-buf descriptors, in a process that has it. */
int lien_dump_bindings(struct lien_dump *dump, const struct lien_allocation *memory,
	const struct lien_process *process);
int lien_dump_dmabufs(struct lien_dump *dump, const struct lien_allocation *allocation,
	const struct lien_process *process);

#endif
