/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Objects of one size, a million of them, without malloc()'s 8 to 16 bytes for each, and those made
 * one after the other side by side. What is put back serves the next one of that size; memory goes
 * back to the system with the slab. Under AddressSanitizer every object is malloc()'s, so that its
 * late use is seen.
 */
#ifndef LIEN_SLAB_H
#define LIEN_SLAB_H

#include <stddef.h>

struct lien_slab_chunk;

struct lien_slab {
	size_t size; /* of an object: set by lien_slab_init() */
	void *put_back;
	struct lien_slab_chunk *chunks;
	size_t used, room; /* bytes of the first chunk */
};

/* `size` is a multiple of a pointer's. */
void lien_slab_init(struct lien_slab *slab, size_t size);
/* Zeroed; NULL: out of memory. */
void *lien_slab_get(struct lien_slab *slab);
void lien_slab_put(struct lien_slab *slab, void *object);
/* Frees all objects. */
void lien_slab_clear(struct lien_slab *slab);

#endif
