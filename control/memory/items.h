/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The memory that the agent told this process to move: one item per mapping, the mappings of an
 * allocation next to each other, sorted by token. This table is the only record of what is
 * offloaded; it outlives agents. Used by the control thread alone.
 */
#ifndef LIEN_CONTROL_ITEMS_H
#define LIEN_CONTROL_ITEMS_H

#include <lien/wire.h>

enum lien_item_state {
	LIEN_ITEM_STAGED,  /* on the device, as the application left it */
	LIEN_ITEM_SAVED,   /* also in the host arena */
	LIEN_ITEM_AWAY,	   /* not mapped; an owned one's bytes are in the host arena alone */
	LIEN_ITEM_EMPTY,   /* mapped again, without its bytes: the arena alone has them */
	LIEN_ITEM_FILLING, /* a copy is under way, and may fail */
	LIEN_ITEM_BACK,	   /* on the device again, and the restore has not ended */
	LIEN_ITEM_LOST,	   /* an import that will never be there again */
	LIEN_ITEM_LENT,	   /* on the device, and the application's again; we hold a reference, for
			      importers that may wait for it */
};

/* The application still has it as it was. */
#define LIEN_ITEMS_UNTOUCHED (1u << LIEN_ITEM_STAGED | 1u << LIEN_ITEM_SAVED)
/* It has been put back, or partly. */
#define LIEN_ITEMS_RETURNED (1u << LIEN_ITEM_EMPTY | 1u << LIEN_ITEM_FILLING | 1u << LIEN_ITEM_BACK)
/* Something is missing from the device. */
#define LIEN_ITEMS_MISSING (1u << LIEN_ITEM_AWAY | 1u << LIEN_ITEM_EMPTY)

struct lien_item {
	struct lien_wire_item wire;
	enum lien_item_state state; /* of the allocation: kept in its first item */
	uint64_t generation;	    /* the transaction that staged it */
	uint64_t arena;		    /* offset of its bytes */
	uint64_t handle;	    /* as the driver named it when it was checked */
	uint64_t checksum;	    /* of its bytes in the arena, if it is checked */
	int checked;		    /* --verify */
	int stuck; /* the driver did not unmap it: it must, before anything else comes here */
	int held;  /* a reference of ours to the handle keeps memory that others import */
};

struct lien_items {
	struct lien_item *item;
	unsigned sealed; /* these are checked and sorted; those after them have just been staged */
	unsigned count, room;
};

/* Adds items, which do not count before lien_items_seal(). 0 or -ENOMEM. */
int lien_items_add(struct lien_items *items, const struct lien_wire_item *wire, unsigned count,
	uint64_t generation);
/* Takes in what was added. -EINVAL: not what wire.h promises (missing or double mappings, nonsense
 * sizes), or an allocation that is here already; what was sealed before is unchanged. */
int lien_items_seal(struct lien_items *items);
/* Forgets the allocations in these states (bits of 1 << state) that a transaction has staged (0:
 * any), and all that is not sealed. */
void lien_items_forget(struct lien_items *items, unsigned states, uint64_t generation);
int lien_item_in(const struct lien_item *item, unsigned states);
/* Of this transaction; of 0 are all. */
int lien_item_of(const struct lien_item *item, uint64_t generation);
/* Owned, and others import it. */
int lien_item_shared(const struct lien_item *item);
/* Still or again on the device, while importers may lack it: a restore has to export it. */
int lien_item_awaited(const struct lien_item *item);
int lien_items_any_awaited(struct lien_items *items);
/* Is any allocation in one of these states? */
int lien_items_any(struct lien_items *items, unsigned states);
/* The first item of an allocation, or NULL. */
struct lien_item *lien_items_find(struct lien_items *items, uint64_t token);
/* First items in turn: NULL gives the first one; NULL after the last. */
struct lien_item *lien_items_next(struct lien_items *items, struct lien_item *item);

#endif
