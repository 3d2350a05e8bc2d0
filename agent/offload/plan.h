/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What an offload would do: a pure function from the graph and a selection to what each process has
 * to move, what is left behind and why, or the reason for a refusal. Touches nothing.
 */
#ifndef LIEN_PLAN_H
#define LIEN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/probe.h>
#include <lien/wire.h>
#include "agent/graph/viewer.h"

/* The same for a process that the asker may not see. */
#define LIEN_UNKNOWN_PROCESS                                                                       \
	"process %u is not known to the agent: it does not run, has not used CUDA or is another "  \
	"user's (see `lien ps`)"

/* Memory that is declared worthless: an owner's, or the allocation that is mapped at an address. */
struct lien_discard {
	const char *owner; /* library name; NULL: by address */
	uint32_t pid;
	uint64_t address;
};

struct lien_selection {
	const char *owner;    /* library name as views show it; NULL: any */
	const uint32_t *pids; /* whose memory; none: everybody's */
	unsigned pids_count;
	bool strict;			    /* anything left behind is a refusal */
	bool with_closure;		    /* take in processes outside pids that map the memory */
	const struct lien_discard *discard; /* selected as well, and not to be saved */
	unsigned discard_count;
	struct lien_viewer viewer; /* whose processes it may be */
	/* Exports that are open files of some process: they keep the memory on the device, and an
	 * import of them that comes later would find what it was before. */
	const struct lien_probe_open_file *open;
	unsigned open_count;
};

struct lien_plan_process {
	uint32_t pid;
	struct lien_wire_item *items; /* token: the allocation's number in the graph */
	unsigned items_count, items_room;
	unsigned allocations, imports; /* owned; other processes' */
	uint64_t bytes;		       /* of the owned ones that are saved */
	uint64_t discarded;	       /* of those that are not */
};

struct lien_left {
	uint32_t pid;
	uint32_t holder;    /* the process that keeps it there; 0: itself, or: */
	bool other_user;    /* a process that whoever asked does not see */
	const char *reason; /* static text */
	uint64_t address;   /* of the first of them: where its owner, or a holder, maps it; or 0 */
	uint64_t allocations, bytes;
};

struct lien_plan {
	struct lien_plan_process *processes; /* by pid */
	unsigned processes_count;
	struct lien_left *left; /* by pid and reason */
	unsigned left_count;
	uint64_t bytes, discarded;
	uint64_t nameless; /* not selected: older than the agent, so its owner has no name */
};

/*
 * Fills *plan, which lien_plan_clear() empties. 0 with no processes: nothing to move. -EBUSY:
 * refused, -ESRCH: a selected pid is not known; `error` then says why in one line. -ENOMEM.
 */
int lien_plan_offload(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size);
void lien_plan_clear(struct lien_plan *plan);

/* The processes that hold something offloaded, of these pids (none: of all) and of all that share
 * such memory with them; those of which only their control libraries know are always among them.
 * Fills `all`, which has room for every process, and returns how many; -ENOMEM. */
int lien_plan_restore(
	struct lien_graph *graph, const uint32_t *pids, unsigned pids_count, uint32_t *all);

/* Is anything of it offloaded, as far as the graph knows? */
bool lien_plan_holds_parked(const struct lien_process *process);
/* NULL when the allocation can be moved as far as its own nature goes; else why not. */
const char *lien_plan_unmovable(const struct lien_allocation *allocation);
/* Where its owner has it, or else anybody; 0: nobody maps it. */
uint64_t lien_plan_address(const struct lien_allocation *allocation);
/* NULL, or that an export of it is open somewhere. */
const char *lien_plan_open(struct lien_graph *graph, const struct lien_allocation *allocation,
	const struct lien_probe_open_file *open, unsigned count);
/* The handles that a process got from the driver itself, or may have. The caller frees the list.
 * -ENOMEM. */
int lien_plan_raw(struct lien_process *process, struct lien_wire_raw **list, unsigned *count);
/* The library that got such a handle last; "a library" if that is not known. */
const char *lien_plan_raw_to(struct lien_process *process, uint64_t handle);
/* NULL when the process can be given orders; else why not. */
const char *lien_plan_unreachable(const struct lien_process *process);

#endif
