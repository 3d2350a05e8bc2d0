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
#include "agent/graph/devices.h"
#include "agent/graph/graph.h"
#include "agent/plan/cause.h"

/* Memory declared worthless: an owner's, or that of a tag. */
struct lien_discard {
	const char *owner; /* library name; NULL: by tag */
	const char *tag;
};

struct lien_plan;

struct lien_selection {
	const char *owner;    /* library name as views show it; NULL: any */
	bool certain;	      /* only what that library alone works on: not what merely seems to be
			       * its own, nor what it has handed out */
	const uint32_t *pids; /* whose memory; none: all processes' */
	unsigned pids_count;
	/* Only memory of these devices: by UUID, and by the processes' own numbers, bit by bit. */
	bool by_gpu;
	const struct lien_uuid *gpus;
	unsigned gpus_count;
	uint64_t ordinals;
	/* Of the owner's memory, only what NCCL needs for communicators of these groups; none: all
	 */
	const uint64_t *groups;
	unsigned groups_count;
	/* Of the owner's memory, only what has one of these tags; none: all */
	const char *const *tags;
	unsigned tags_count;
	bool strict;	   /* refuse if anything would be left behind */
	bool with_closure; /* take in processes outside pids that map the memory */
	/* also memory that is bound to multicast objects or was exported by fabric handles */
	bool multicast;
	bool ahead; /* what an offload would do: see lien_plan_unreachable_then() */
	const struct lien_discard *discard; /* selected too, but not saved */
	unsigned discard_count;
	struct lien_viewer viewer; /* limits the processes */
	/*
	 * Bytes to free on each GPU that is named or, without names, that some of the selection
	 * could be moved from; 0: all. What cannot be moved without a process that cannot take
	 * part, or is not selected, then stays; without this it would be a refusal.
	 */
	uint64_t free;
	const uint32_t *within; /* with `free`: sorted; no others take part; NULL: any may */
	unsigned within_count;
	const struct lien_node *node; /* for the numbers of GPUs; NULL: none is known */
	/* Exports that are open files of some process, or on their way (pid 0), sorted by share:
	 * they keep the memory on the device, and a later import of one would find the old memory.
	 */
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

/* The memory of a process that is not selected because nobody knows whose it is. */
struct lien_unknown {
	uint32_t pid;
	bool read; /* false: the process ran before it was watched; there may be more */
	uint64_t allocations, bytes;
	uint64_t movable; /* bytes that could be moved if they were selected */
};

struct lien_left {
	uint32_t pid;
	uint32_t holder;    /* the process that keeps it there; 0: its own process, or */
	bool other_user;    /* a process that the viewer does not see */
	const char *reason; /* lives as long as the graph */
	uint64_t address;   /* of the first allocation: in its owner, or in a holder; or 0 */
	uint64_t allocations, bytes;
};

#define LIEN_IDLE_OWNERS 8

/* The memory of a process that stays because nobody selected it. In a plan that moves nothing: all
 * memory of a selected process. */
struct lien_idle {
	uint32_t pid;
	const char *command;		      /* these texts live as long as the graph */
	const char *reason;		      /* why it takes part in no offload; NULL: it could */
	uint64_t offloaded;		      /* bytes of its own that are offloaded already */
	uint64_t bytes;			      /* bytes of its own that are on a device */
	uint64_t others;		      /* of these, those whose owner is not selected */
	uint64_t movable;		      /* of these, those that could be moved if it were */
	const char *owners[LIEN_IDLE_OWNERS]; /* of the others */
	unsigned owners_count;
	bool more_owners;
};

/* With lien_selection.free, a GPU. */
struct lien_freed {
	bool has_uuid;
	struct lien_uuid uuid;
	int index;	  /* nvidia-smi's; -1: not known */
	uint32_t pid;	  /* a process whose memory is selected there; 0: none has any */
	unsigned ordinal; /* its number of the device */
	uint64_t bytes;	  /* that are moved away from it */
	uint64_t movable; /* that could be, these included */
	unsigned allocations;
};

struct lien_plan {
	struct lien_plan_process *processes; /* sorted by pid */
	unsigned processes_count;
	struct lien_left *left; /* by pid and reason */
	unsigned left_count;
	uint64_t bytes, discarded;
	struct lien_unknown *unknown; /* sorted by pid */
	unsigned unknown_count;
	/* By pid. All selected processes if nothing is moved; else those that take part and have
	 * something that is not selected. */
	struct lien_idle *idle;
	unsigned idle_count;
	struct lien_freed *freed; /* none without lien_selection.free */
	unsigned freed_count;
	uint64_t free;	   /* lien_selection.free */
	uint64_t nameless; /* bytes that could be moved of all these */
	bool handed_out;   /* some of it is lien_allocation_handed_out() */
	uint64_t inferred; /* bytes that are moved because they seem to be the selected library's */
	struct lien_blame blame; /* of a refusal; lien_plan_clear() keeps it */
};

/* The fate of a thread that needs memory that is away. */
enum lien_on_use {
	LIEN_ON_USE_WAIT,    /* it waits for a restore */
	LIEN_ON_USE_RESTORE, /* the agent begins a restore for it */
	LIEN_ON_USE_IGNORE,  /* the client has promised that there is none: threads run on */
};

struct lien_how {
	unsigned timeout_ms;
	/* of an offload: */
	uint32_t flags;	     /* as for lien_transaction_offload() */
	uint64_t host_limit; /* bytes of the participants' host arenas together; 0: no limit */
	enum lien_on_use on_use;
	bool lazy; /* of a restore: as for lien_transaction_divide() */
};

/*
 * Fills *plan; free it with lien_plan_clear(). Returns 0, with no processes if there is nothing to
 * move; -EBUSY: refused, -ESRCH: a selected pid is not known, with the reason in one line in
 * `error`; -ENOMEM.
 */
int lien_plan_offload(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size);
void lien_plan_clear(struct lien_plan *plan);
/* Are the selected pids those of processes that the viewer sees? 0; -ESRCH with the reason in
 * `error`, and a blame. */
int lien_plan_check_pids(struct lien_graph *graph, const struct lien_selection *selection,
	struct lien_blame *blame, char *error, size_t size);
/* Returns a process's part; NULL: it has none. */
const struct lien_plan_process *lien_plan_part(const struct lien_plan *plan, uint32_t pid);

/* Finds the processes among the selected pids (none: among all) that hold something offloaded for a
 * selected group and with a selected tag (none: any), and all processes that share such memory with
 * them. Processes of which only their control libraries know are always included. Fills `all`,
 * which has room for every process, and returns the count;
 * -ENOMEM. */
int lien_plan_restore(
	struct lien_graph *graph, const struct lien_selection *selection, uint32_t *all);

/* Returns the number that stands for a tag on the wire; never 0. */
uint64_t lien_plan_tag_hash(const char *tag);
/* Returns NULL if the kind of allocation allows moving it; else why not. */
const char *lien_plan_unmovable(const struct lien_allocation *allocation);
/* Returns its address in its owner, or else in any process; 0: it is not mapped. */
uint64_t lien_plan_address(const struct lien_allocation *allocation);
/* Returns NULL, or that an export of it is open or on its way; *holder: the process that has it, 0:
 * none. `open`: as in struct lien_selection. */
const char *lien_plan_open(const struct lien_allocation *allocation,
	const struct lien_probe_open_file *open, unsigned count, uint32_t *holder);
/* Lists the handles that a process got from the driver itself, or may have. The caller frees the
 * list. -ENOMEM. */
int lien_plan_raw(struct lien_process *process, struct lien_wire_raw **list, unsigned *count);
/* Returns the library that got such a handle last; "a library" if that is not known. */
const char *lien_plan_raw_to(struct lien_process *process, uint64_t handle);
/* Did it run before it was watched, so that what it has must be read from the driver? */
bool lien_plan_unread(const struct lien_process *process);
/* Returns NULL if the process takes orders; else why not. */
const char *lien_plan_unreachable(const struct lien_process *process);
/* The same, for the moment at which an offload requested now makes its plan. */
const char *lien_plan_unreachable_then(const struct lien_process *process);

#endif
