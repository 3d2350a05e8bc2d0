// SPDX-License-Identifier: BSD-2-Clause
#include <stdlib.h>
#include <string.h>

#include "agent/slab.h"

#define CHUNK_BYTES 65536

struct lien_slab_chunk {
	struct lien_slab_chunk *next;
	char objects[CHUNK_BYTES - sizeof(void *)];
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
	slab->used = sizeof(slab->chunks->objects);
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
	if (slab->used + slab->size > sizeof(chunk->objects)) {
		chunk = calloc(1, sizeof(*chunk));
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
