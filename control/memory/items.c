// SPDX-License-Identifier: BSD-2-Clause

#include <lien/grow.h>
#include "control/memory/items.h"

int lien_items_add(struct lien_items *items, const struct lien_wire_item *wire, unsigned count,
	uint64_t generation)
{
	unsigned i;

	for (i = 0; i < count; i++) {
		if (lien_array_grow(&items->item, items->count, &items->room, sizeof(*items->item)))
			return -ENOMEM;
		items->item[items->count++] = (struct lien_item){
			.wire = wire[i], .state = LIEN_ITEM_STAGED, .generation = generation};
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct lien_item *x = a, *y = b;

	if (x->wire.token != y->wire.token)
		return x->wire.token < y->wire.token ? -1 : 1;
	return (x->wire.index > y->wire.index) - (x->wire.index < y->wire.index);
}

static int sane(const struct lien_wire_item *wire)
{
	unsigned kind = wire->flags & (LIEN_WIRE_OWNED | LIEN_WIRE_IMPORTED);

	if (kind != LIEN_WIRE_OWNED && kind != LIEN_WIRE_IMPORTED)
		return 0;
	if (wire->va > LIEN_WIRE_BYTES_MAX || wire->allocation_bytes > LIEN_WIRE_BYTES_MAX ||
		wire->handles > LIEN_WIRE_HANDLES ||
		lien_item_references(wire) > LIEN_WIRE_REFERENCES_MAX)
		return 0;
	if (!wire->bytes || wire->bytes > wire->allocation_bytes || wire->places > LIEN_WIRE_PLACES)
		return 0;
	if (wire->object)
		return wire->index && kind == LIEN_WIRE_OWNED && !wire->places &&
		       wire->va <= wire->allocation_bytes - wire->bytes;
	if (!wire->va)
		return !wire->index && wire->bytes == wire->allocation_bytes && !wire->places;
	return wire->index || wire->bytes == wire->allocation_bytes ||
	       !(wire->flags & LIEN_WIRE_OWNED);
}

/* Checks one allocation: its mappings must be adjacent and agree. */
static int complete(const struct lien_item *items, unsigned count)
{
	const struct lien_wire_item *first = &items->wire, *wire;
	unsigned i;

	if (!first->mappings || first->mappings > count)
		return 0;
	for (i = 0; i < first->mappings; i++) {
		wire = &items[i].wire;
		if (wire->token != first->token || wire->index != i ||
			wire->mappings != first->mappings || wire->flags != first->flags ||
			wire->allocation_bytes != first->allocation_bytes || !sane(wire))
			return 0;
	}
	/* It can be mapped by a handle alone. */
	return first->va || lien_item_mapped(items) || (first->handles && first->handle[0].value);
}

int lien_items_seal(struct lien_items *items)
{
	unsigned count = items->count - items->sealed, i;
	struct lien_item *added;

	if (!count)
		return 0;
	added = items->item + items->sealed;
	qsort(added, count, sizeof(added[0]), compare);
	for (i = 0; i < count; i += added[i].wire.mappings)
		if ((i && added[i].wire.token == added[i - 1].wire.token) ||
			!complete(added + i, count - i) ||
			lien_items_find(items, added[i].wire.token))
			return -EINVAL;
	qsort(items->item, items->count, sizeof(items->item[0]), compare);
	items->sealed = items->count;
	return 0;
}

void lien_items_forget(struct lien_items *items, unsigned states, uint64_t generation)
{
	unsigned i, n, kept = 0;

	for (i = 0; i < items->sealed; i += n) {
		n = items->item[i].wire.mappings;
		if (lien_item_in(&items->item[i], states) && !items->item[i].spared &&
			lien_item_of(&items->item[i], generation))
			continue;
		memmove(&items->item[kept], &items->item[i], n * sizeof(items->item[0]));
		kept += n;
	}
	items->count = items->sealed = kept;
}

int lien_items_any_awaited(struct lien_items *items)
{
	struct lien_item *item = NULL;

	while ((item = lien_items_next(items, item)))
		if (lien_item_awaited(item))
			return 1;
	return 0;
}

int lien_items_any(struct lien_items *items, unsigned states)
{
	struct lien_item *item = NULL;

	while ((item = lien_items_next(items, item)))
		if (lien_item_in(item, states))
			return 1;
	return 0;
}

struct lien_item *lien_items_find(struct lien_items *items, uint64_t token)
{
	struct lien_item key = {.wire.token = token};

	return items->sealed ? bsearch(&key, items->item, items->sealed, sizeof(key), compare)
			     : NULL;
}
