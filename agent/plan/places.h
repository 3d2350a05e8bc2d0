/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds rows of the caller's array by a hash of their keys. Rows are appended and never removed. */
#ifndef LIEN_PLACES_H
#define LIEN_PLACES_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct lien_place {
	uint64_t hash;
	unsigned row; /* from 1; 0: empty */
};

struct lien_places {
	struct lien_place *place;
	unsigned count, room; /* a power of 2, at least twice the count */
};

/* Adds a part of a key to a hash; start with 0. */
static inline uint64_t lien_places_mix(uint64_t hash, uint64_t part)
{
	hash = (hash ^ part) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 32;
}

static inline int lien_places_grow(struct lien_places *places)
{
	struct lien_places grown = {
		.count = places->count, .room = places->room ? 2 * places->room : 64};
	unsigned i, at;

	grown.place = calloc(grown.room, sizeof(*grown.place));
	if (!grown.place)
		return -ENOMEM;
	for (i = 0; i < places->room; i++) {
		if (!places->place[i].row)
			continue;
		for (at = places->place[i].hash; grown.place[at & (grown.room - 1)].row; at++)
			;
		grown.place[at & (grown.room - 1)] = places->place[i];
	}
	free(places->place);
	*places = grown;
	return 0;
}

/*
 * Returns the row for which is_row() returns true. Returns places->count if there is none, and the
 * caller must then append that row. -ENOMEM.
 */
static inline int lien_places_find(struct lien_places *places, uint64_t hash,
	bool (*is_row)(const void *rows, unsigned row, const void *key), const void *rows,
	const void *key)
{
	struct lien_place *place;
	unsigned at;

	if (2 * (places->count + 1) > places->room && lien_places_grow(places))
		return -ENOMEM;
	for (at = hash;; at++) {
		place = &places->place[at & (places->room - 1)];
		if (!place->row)
			break;
		if (place->hash == hash && is_row(rows, place->row - 1, key))
			return place->row - 1;
	}
	*place = (struct lien_place){hash, ++places->count};
	return places->count - 1;
}

static inline void lien_places_free(struct lien_places *places)
{
	free(places->place);
}

#endif
