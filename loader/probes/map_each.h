/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Visits all entries of a BPF hash map, many per system call. Other users' processes fill the maps,
 * so a walk that costs two calls per entry can take the agent's loop some 50 ms.
 */
#ifndef LIEN_MAP_EACH_H
#define LIEN_MAP_EACH_H

#include <bpf/libbpf.h>

/*
 * Calls fn for each entry until it returns non-zero, and returns that value. Key and value are
 * copies, valid during the call; fn may remove the entry that it is given. Entries come and go
 * meanwhile: each that exists throughout is visited once. Returns -errno on error.
 */
int lien_map_each(const struct bpf_map *map,
	int (*fn)(void *context, const void *key, const void *value), void *context);

#endif
