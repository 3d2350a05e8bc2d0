/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The memory that the agent told this process to move: one item per mapping, the mappings of an
 * allocation next to each other, sorted by token. This table is the only record of what is
 * offloaded; it outlives agents. Used by the control thread alone.
 */
#ifndef LIEN_CONTROL_ITEMS_H
#define LIEN_CONTROL_ITEMS_H

#include <stddef.h>

#include <lien/wire.h>

enum lien_item_state {
	LIEN_ITEM_STAGED,  /* on the device, as the application left it */
	LIEN_ITEM_SAVED,   /* also in the host arena */
	LIEN_ITEM_AWAY,	   /* not mapped; if owned, only the host arena has its bytes */
	LIEN_ITEM_EMPTY,   /* mapped again without its bytes: only the arena has them */
	LIEN_ITEM_FILLING, /* a copy is in progress, and may fail */
	LIEN_ITEM_BACK,	   /* on the device again, and the restore has not ended */
	LIEN_ITEM_LOST,	   /* an import that will never come back */
	LIEN_ITEM_LENT,	   /* on the device, and the application's again; we hold a reference,
			    * for importers that may wait for it */
};

/* The application still has it unchanged. */
#define LIEN_ITEMS_UNTOUCHED (1u << LIEN_ITEM_STAGED | 1u << LIEN_ITEM_SAVED)
/* It has been restored, at least partly. */
#define LIEN_ITEMS_RETURNED (1u << LIEN_ITEM_EMPTY | 1u << LIEN_ITEM_FILLING | 1u << LIEN_ITEM_BACK)
/* Something is missing from the device. */
#define LIEN_ITEMS_MISSING (1u << LIEN_ITEM_AWAY | 1u << LIEN_ITEM_EMPTY)

struct lien_item {
	struct lien_wire_item wire;
	enum lien_item_state state; /* of the allocation; only the first item's is valid */
	uint64_t generation;	    /* the transaction that staged it */
	uint64_t arena;		    /* offset of its bytes */
	uint64_t handle;	    /* the driver's value when it was checked */
	uint64_t checksum;	    /* of its bytes in the arena, if .checked */
	int checked;		    /* --verify */
	int stuck; /* the driver failed to unmap it, and must before anything is mapped here */
	int held;  /* our reference to the handle keeps memory that others import */
	/* The first mapping is ours (wire.h: .va 0), at reserved addresses, */
	int scratch;
	int mapped; /* and the memory is mapped there. */
	int spared; /* lien_items_forget() leaves it alone */
};

struct lien_items {
	struct lien_item *item;
	unsigned sealed; /* number of checked and sorted items; the rest is newly staged */
	unsigned count, room;
};

/* Adds items, which take effect with lien_items_seal(). Returns 0, or -ENOMEM: not all of them. */
int lien_items_add(struct lien_items *items, const struct lien_wire_item *wire, unsigned count,
	uint64_t generation);
/* Accepts the added items. -EINVAL: they violate wire.h (missing or double mappings, nonsense
 * sizes), or an allocation is already here; the items sealed before are unchanged. */
int lien_items_seal(struct lien_items *items);
/* Forgets allocations in these states (bits of 1 << state) that a transaction has staged (0: any),
 * except spared ones, and everything unsealed. */
void lien_items_forget(struct lien_items *items, unsigned states, uint64_t generation);
/* Returns the first item of an allocation, or NULL. */
struct lien_item *lien_items_find(struct lien_items *items, uint64_t token);
/* Return true if any allocation is in one of these states, or awaited (see below). */
int lien_items_any(struct lien_items *items, unsigned states);
int lien_items_any_awaited(struct lien_items *items);

/* Iterates over first items: NULL gives the first one; returns NULL after the last. */
static inline struct lien_item *lien_items_next(struct lien_items *items, struct lien_item *item)
{
	item = item ? item + item->wire.mappings : items->item;
	return item && item < items->item + items->sealed ? item : NULL;
}

static inline int lien_item_in(const struct lien_item *item, unsigned states)
{
	return (1u << item->state & states) != 0;
}

/* Has this transaction staged it? 0 means any. */
static inline int lien_item_of(const struct lien_item *item, uint64_t generation)
{
	return !generation || item->generation == generation;
}

/* Is it owned, and do others import it? */
static inline int lien_item_shared(const struct lien_item *item)
{
	return item->wire.flags & LIEN_WIRE_OWNED && item->wire.flags & LIEN_WIRE_SHARED;
}

/* Is it on the device while importers may lack it? Then a restore must export it. */
static inline int lien_item_awaited(const struct lien_item *item)
{
	return lien_item_shared(item) &&
	       lien_item_in(item, 1 << LIEN_ITEM_SAVED | 1 << LIEN_ITEM_LENT);
}

/* Has the application mapped an allocation whose first mapping is ours? */
static inline int lien_item_mapped(const struct lien_item *item)
{
	return item->wire.mappings > 1 && !item[1].wire.object;
}

/* Returns the number of references that the application has, by all handles. */
static inline uint64_t lien_item_references(const struct lien_wire_item *wire)
{
	uint64_t sum = 0;
	unsigned i;

	for (i = 0; i < wire->handles; i++)
		sum += wire->handle[i].references;
	return sum;
}

#endif
