// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "control/items.h"

int lien_items_add(struct lien_items *items, const struct lien_wire_item *wire, unsigned count)
{
	unsigned room = items->room ? items->room : 256, i;
	struct lien_item *grown;

	while (room < items->count + count)
		room *= 2;
	if (room != items->room) {
		grown = realloc(items->item, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		items->item = grown;
		items->room = room;
	}
	for (i = 0; i < count; i++) {
		struct lien_item *item = &items->item[items->count++];

		memset(item, 0, sizeof(*item));
		item->wire = wire[i];
		item->state = LIEN_ITEM_STAGED;
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
	if (!wire->bytes || wire->bytes > wire->allocation_bytes || wire->places > LIEN_WIRE_PLACES)
		return 0;
	return wire->index || wire->bytes == wire->allocation_bytes ||
	       !(wire->flags & LIEN_WIRE_OWNED);
}

int lien_items_seal(struct lien_items *items)
{
	unsigned i, j;

	if (!items->count)
		return 0;
	qsort(items->item, items->count, sizeof(items->item[0]), compare);
	for (i = 0; i < items->count; i += items->item[i].wire.mappings) {
		const struct lien_wire_item *first = &items->item[i].wire;

		if (!first->mappings || first->mappings > items->count - i)
			return -EINVAL;
		for (j = 0; j < first->mappings; j++) {
			const struct lien_wire_item *wire = &items->item[i + j].wire;

			if (wire->token != first->token || wire->index != j ||
				wire->mappings != first->mappings || wire->flags != first->flags ||
				!sane(wire))
				return -EINVAL;
		}
	}
	return 0;
}

void lien_items_forget(struct lien_items *items, unsigned states)
{
	unsigned i, n, kept = 0;

	for (i = 0; i < items->count; i += n) {
		n = items->item[i].wire.mappings;
		if (!n || n > items->count - i) /* not sealed */
			n = 1;
		if (1u << items->item[i].state & states)
			continue;
		memmove(&items->item[kept], &items->item[i], n * sizeof(items->item[0]));
		kept += n;
	}
	items->count = kept;
}

int lien_items_any(struct lien_items *items, unsigned states)
{
	struct lien_item *item = NULL;

	while ((item = lien_items_next(items, item)))
		if (1u << item->state & states)
			return 1;
	return 0;
}

struct lien_item *lien_items_find(struct lien_items *items, uint64_t token)
{
	struct lien_item key = {.wire.token = token};

	return items->count ? bsearch(&key, items->item, items->count, sizeof(key), compare) : NULL;
}

struct lien_item *lien_items_next(struct lien_items *items, struct lien_item *item)
{
	item = item ? item + item->wire.mappings : items->item;
	return item && item < items->item + items->count ? item : NULL;
}
