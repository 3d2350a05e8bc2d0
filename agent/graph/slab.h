/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An allocator for a million objects of one size. It avoids malloc()'s overhead of 8 to 16 bytes
 * per object, and places consecutive objects side by side. A freed object is reused for the next
 * one of that size; memory goes back to the system with the whole slab. Under AddressSanitizer
 * every object comes from malloc(), so that a use after free is caught.
 */
#ifndef LIEN_SLAB_H
#define LIEN_SLAB_H

#include <stddef.h>

struct lien_slab_chunk;

struct lien_slab {
	size_t size; /* of one object; lien_slab_init() sets it */
	void *put_back;
	struct lien_slab_chunk *chunks;
	size_t used, room; /* bytes of the current chunk */
};

/* `size` must be a multiple of a pointer's size. */
void lien_slab_init(struct lien_slab *slab, size_t size);
/* Returns a zeroed object; NULL: out of memory. */
void *lien_slab_get(struct lien_slab *slab);
void lien_slab_put(struct lien_slab *slab, void *object);
/* Frees all objects. */
void lien_slab_clear(struct lien_slab *slab);

#endif
