// SPDX-License-Identifier: BSD-2-Clause
#include "agent/views/mem_rows.h"

#include <stdlib.h>
#include <string.h>

#define WORDS (sizeof(struct lien_mem_key) / sizeof(uint64_t))

_Static_assert(sizeof(struct lien_mem_key) == 5 * sizeof(uint64_t) + 4 * sizeof(uint32_t),
	"padding is not compared");

static unsigned *place_of(const struct lien_mem_rows *rows, const struct lien_mem_key *key)
{
	uint64_t words[WORDS], hash = 0;

	memcpy(words, key, sizeof(words));
	for (unsigned i = 0; i < WORDS; i++) {
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 29;
	}
	for (unsigned at = hash >> 32;; at++) {
		unsigned *place = &rows->place[at & (2 * rows->room - 1)];

		if (!*place || !memcmp(&rows->row[*place - 1].key, key, sizeof(*key)))
			return place;
	}
}

/* Doubles the room, which is a power of two. */
static bool grow(struct lien_mem_rows *rows)
{
	unsigned room = rows->room ? 2 * rows->room : 64, i;
	struct lien_mem_row *row = realloc(rows->row, room * sizeof(*row));
	unsigned *place = calloc(2 * room, sizeof(*place));

	rows->row = row ? row : rows->row;
	if (!row || !place) {
		free(place);
		return false;
	}
	free(rows->place);
	rows->place = place;
	rows->room = room;
	for (i = 0; i < rows->count; i++)
		*place_of(rows, &row[i].key) = i + 1;
	return true;
}

struct lien_mem_row *lien_mem_row(struct lien_mem_rows *rows, const struct lien_mem_key *key,
	const struct lien_allocation *sample)
{
	unsigned *place;

	if (rows->count == rows->room && !grow(rows))
		return NULL;
	place = place_of(rows, key);
	if (!*place) {
		rows->row[rows->count] = (struct lien_mem_row){.key = *key, .sample = sample};
		*place = ++rows->count;
	}
	return &rows->row[*place - 1];
}

void lien_mem_row_own(
	struct lien_mem_row *row, const struct lien_allocation *allocation, bool frees)
{
	row->allocations++;
	if (lien_allocation_offloaded(allocation)) {
		row->offloaded += allocation->bytes;
		return;
	}
	row->bytes += allocation->bytes;
	if (allocation->comm_inferred && allocation->comm)
		row->inferred += allocation->bytes;
	if (frees)
		row->frees += allocation->bytes;
}

void lien_mem_row_import(struct lien_mem_row *row, const struct lien_holding *holding)
{
	const struct lien_mapping *first = LIST_FIRST(&holding->mappings);

	row->mappings += holding->mapped;
	row->allocations++;
	if (first->parked)
		row->offloaded += first->bytes;
	else
		row->bytes += first->bytes;
}

void lien_mem_rows_free(struct lien_mem_rows *rows)
{
	for (unsigned i = 0; i < rows->count; i++)
		free(rows->row[i].text);
	free(rows->row);
	free(rows->place);
}
