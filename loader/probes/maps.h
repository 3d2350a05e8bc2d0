/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads all that the BPF programs know: their maps, and what they find as iterators. */
#ifndef LIEN_PROBES_MAPS_H
#define LIEN_PROBES_MAPS_H

#include "loader/probes/probes_internal.h"

/*
 * Visits all entries of a hash map, many per system call. Other users' processes fill the maps, so
 * a walk that costs two calls per entry can take the agent's loop some 50 ms.
 *
 * Calls fn for each entry until it returns non-zero, and returns that value. Key and value are
 * copies, valid during the call; fn may remove the entry that it is given. Entries come and go
 * meanwhile: each that exists throughout is visited once. Returns -errno on error.
 */
int lien_map_each(const struct bpf_map *map, lien_map_fn *fn, void *context);

/*
 * The kernel walks all open files, or all processes, and reports those that matter
 * (bpf/iterators.h). That takes less than a millisecond (measured on 6.18). A forked copy of the
 * agent may read them, too. Reads all records, of `size` bytes each. The caller must free()
 * *records; it is NULL on error or when there are none. Returns 0 or -errno.
 */
int lien_iterator_read(
	const struct bpf_link *iterator, size_t size, void **records, unsigned *count);

#endif
