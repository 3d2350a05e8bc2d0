/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where the gate's probes go in a library's file. A gate asks several times, as does each other
 * gate of the same file, and it takes a millisecond to find out: so the last answers are kept,
 * until the file changes.
 */
#ifndef LIEN_GATE_PLACES_H
#define LIEN_GATE_PLACES_H

#include <stdbool.h>
#include <sys/stat.h>

#include "loader/probes/calls.h"

#define LIEN_GATE_PLACES_KEPT 8

struct lien_gate_places;

/* Of a struct lien_probes, which begins as zeros. */
struct lien_gate_places_kept {
	struct lien_gate_places
		*kept[LIEN_GATE_PLACES_KEPT]; /* the last one that was asked for first */
};

/*
 * Returns the places, as lien_calls_gated(), and a hash of them and their cookies. Valid until the
 * next call. *set is NULL if it returns an error.
 */
int lien_gate_places(struct lien_gate_places_kept *kept, int fd, const struct stat *st,
	enum lien_library library, bool all, const struct lien_probe_set **set, uint64_t *hash);
void lien_gate_places_free(struct lien_gate_places_kept *kept);

#endif
