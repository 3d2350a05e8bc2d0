// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/gate_places.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "loader/discover/file_state.h"
#include "loader/hash.h"

struct lien_gate_places {
	struct lien_file_state file;
	enum lien_library library;
	bool all;
	uint64_t hash;
	struct lien_probe_set set;
};

static bool is_of(const struct lien_gate_places *places, const struct stat *st,
	enum lien_library library, bool all)
{
	return lien_file_state_is(&places->file, st) && places->library == library &&
	       places->all == all;
}

static uint64_t hash_of(const struct lien_probe_set *set)
{
	uint64_t hash =
		lien_hash(LIEN_HASH_START, set->offsets, set->count * sizeof(set->offsets[0]));

	return lien_hash(hash, set->cookies, set->count * sizeof(set->cookies[0]));
}

/* Moves the one at the index to the front, where one that is new takes the last one's place. */
static void move_to_front(struct lien_gate_places_kept *kept, unsigned index)
{
	struct lien_gate_places *places = kept->kept[index];

	memmove(kept->kept + 1, kept->kept, index * sizeof(kept->kept[0]));
	kept->kept[0] = places;
}

static int look_up(struct lien_gate_places *places, int fd, const struct stat *st,
	enum lien_library library, bool all)
{
	memset(places, 0, sizeof(*places));
	places->file = lien_file_state_of(st);
	places->library = library;
	places->all = all;
	return lien_calls_gated(&places->set, fd, library, all);
}

int lien_gate_places(struct lien_gate_places_kept *kept, int fd, const struct stat *st,
	enum lien_library library, bool all, const struct lien_probe_set **set, uint64_t *hash)
{
	struct lien_gate_places *places;
	unsigned i = 0;
	int err = 0;

	*set = NULL;
	while (i < LIEN_GATE_PLACES_KEPT - 1 && kept->kept[i] &&
		!is_of(kept->kept[i], st, library, all))
		i++;
	places = kept->kept[i];
	if (!places)
		places = kept->kept[i] = calloc(1, sizeof(*places));
	if (!places)
		return -ENOMEM;
	move_to_front(kept, i);
	if (!is_of(places, st, library, all)) {
		err = look_up(places, fd, st, library, all);
		places->hash = hash_of(&places->set);
	}
	if (err) {
		places->file.inode = 0; /* no file has it: it is looked up again */
		return err;
	}
	*set = &places->set;
	*hash = places->hash;
	return 0;
}

void lien_gate_places_free(struct lien_gate_places_kept *kept)
{
	unsigned i;

	for (i = 0; i < LIEN_GATE_PLACES_KEPT; i++) {
		free(kept->kept[i]);
		kept->kept[i] = NULL;
	}
}
