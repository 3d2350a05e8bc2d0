/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Plans an offload: a pure function from the graph and a selection to what each process has
 * to move, what is left behind and why, or the reason for a refusal. It changes nothing.
 */
#ifndef LIEN_PLAN_H
#define LIEN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/probe.h>
#include <lien/wire.h>
#include "agent/graph/viewer.h"

/* The message for a process that the viewer may not see, too. */
#define LIEN_UNKNOWN_PROCESS                                                                       \
	"process %u is not known to the agent: it does not run, has not used CUDA or is another "  \
	"user's (see `lien ps`)"

/* Memory declared worthless: an owner's memory, or the allocation mapped at an address. */
struct lien_discard {
	const char *owner; /* library name; NULL: by address */
	uint32_t pid;
	uint64_t address;
};

struct lien_selection {
	const char *owner;    /* library name as views show it; NULL: any */
	const uint32_t *pids; /* whose memory; none: all processes' */
	unsigned pids_count;
	bool strict;			    /* refuse if anything would be left behind */
	bool with_closure;		    /* take in processes outside pids that map the memory */
	const struct lien_discard *discard; /* selected too, but not saved */
	unsigned discard_count;
	struct lien_viewer viewer; /* limits the processes */
	/* Exports that are open files of some process: they keep the memory on the device, and a
	 * later import of one would find the old memory. */
	const struct lien_probe_open_file *open;
	unsigned open_count;
};

struct lien_plan_process {
	uint32_t pid;
	struct lien_wire_item *items; /* token: the allocation's number in the graph */
	unsigned items_count, items_room;
	unsigned allocations, imports; /* owned allocations; imports of other processes' */
	uint64_t bytes;		       /* bytes of owned allocations that are saved */
	uint64_t discarded;	       /* bytes of those that are not */
};

struct lien_left {
	uint32_t pid;
	uint32_t holder;    /* the process that keeps it there; 0: its own process, or */
	bool other_user;    /* a process that the viewer does not see */
	const char *reason; /* static text */
	uint64_t address;   /* of the first allocation: in its owner, or in a holder; or 0 */
	uint64_t allocations, bytes;
};

struct lien_plan {
	struct lien_plan_process *processes; /* sorted by pid */
	unsigned processes_count;
	struct lien_left *left; /* by pid and reason */
	unsigned left_count;
	uint64_t bytes, discarded;
	/* bytes not selected: older than the agent, so their owner has no name */
	uint64_t nameless;
};

/*
 * Fills *plan; free it with lien_plan_clear(). Returns 0, with no processes if there is nothing to
 * move; -EBUSY: refused, -ESRCH: a selected pid is not known, with the reason in one line in
 * `error`; -ENOMEM.
 */
int lien_plan_offload(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size);
void lien_plan_clear(struct lien_plan *plan);

/* Finds the processes that hold something offloaded, among these pids (none: among all) and all
 * processes that share such memory with them. Processes of which only their control libraries know
 * are always included. Fills `all`, which has room for every process, and returns the count;
 * -ENOMEM. */
int lien_plan_restore(
	struct lien_graph *graph, const uint32_t *pids, unsigned pids_count, uint32_t *all);

/* Has the process anything offloaded, as far as the graph knows? */
bool lien_plan_holds_parked(const struct lien_process *process);
/* Returns NULL if the kind of allocation allows moving it; else why not. */
const char *lien_plan_unmovable(const struct lien_allocation *allocation);
/* Returns its address in its owner, or else in any process; 0: it is not mapped. */
uint64_t lien_plan_address(const struct lien_allocation *allocation);
/* Returns NULL, or that a process has an export of it open. */
const char *lien_plan_open(struct lien_graph *graph, const struct lien_allocation *allocation,
	const struct lien_probe_open_file *open, unsigned count);
/* Lists the handles that a process got from the driver itself, or may have. The caller frees the
 * list. -ENOMEM. */
int lien_plan_raw(struct lien_process *process, struct lien_wire_raw **list, unsigned *count);
/* Returns the library that got such a handle last; "a library" if that is not known. */
const char *lien_plan_raw_to(struct lien_process *process, uint64_t handle);
/* Returns NULL if the process takes orders; else why not. */
const char *lien_plan_unreachable(const struct lien_process *process);

#endif
