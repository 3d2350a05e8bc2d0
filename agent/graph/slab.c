// SPDX-License-Identifier: BSD-2-Clause
#include <stdlib.h>
#include <string.h>

#include "agent/graph/slab.h"

/* The first chunk is small, for graphs of a few processes; each further one is twice as large. */
#define CHUNK_BYTES_FIRST 1024
#define CHUNK_BYTES_MAX	  65536

struct lien_slab_chunk {
	struct lien_slab_chunk *next;
	char objects[];
};

#ifdef __SANITIZE_ADDRESS__
static const int by_malloc = 1;
#else
static const int by_malloc;
#endif

void lien_slab_init(struct lien_slab *slab, size_t size)
{
	memset(slab, 0, sizeof(*slab));
	slab->size = size;
}

void *lien_slab_get(struct lien_slab *slab)
{
	struct lien_slab_chunk *chunk;
	void *object = slab->put_back;

	if (by_malloc)
		return calloc(1, slab->size);
	if (object) {
		memcpy(&slab->put_back, object, sizeof(void *));
		memset(object, 0, slab->size);
		return object;
	}
	if (slab->used + slab->size > slab->room) {
		if (!slab->room)
			slab->room = CHUNK_BYTES_FIRST;
		else if (slab->room < CHUNK_BYTES_MAX)
			slab->room *= 2;
		chunk = calloc(1, sizeof(*chunk) + slab->room);
		if (!chunk)
			return NULL;
		chunk->next = slab->chunks;
		slab->chunks = chunk;
		slab->used = 0;
	}
	object = slab->chunks->objects + slab->used;
	slab->used += slab->size;
	return object;
}

void lien_slab_put(struct lien_slab *slab, void *object)
{
	if (by_malloc) {
		free(object);
		return;
	}
	memcpy(object, &slab->put_back, sizeof(void *));
	slab->put_back = object;
}

void lien_slab_clear(struct lien_slab *slab)
{
	struct lien_slab_chunk *chunk;

	while ((chunk = slab->chunks)) {
		slab->chunks = chunk->next;
		free(chunk);
	}
	lien_slab_init(slab, slab->size);
}
