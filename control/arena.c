// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <lien/wire.h>
#include "control/arena.h"

#define CHUNK_ALIGN (64ull << 20)

int lien_arena_reserve(struct lien_arena *arena, const struct lien_driver *driver, uint64_t bytes)
{
	struct lien_arena_chunk *chunks;
	uint64_t missing;
	CUresult result;
	void *memory;

	if (bytes > LIEN_WIRE_BYTES_MAX) /* no sum overflows */
		return -ENOMEM;
	if (arena->used + bytes <= arena->bytes)
		return 0;
	missing = arena->used + bytes - arena->bytes;
	missing = (missing + CHUNK_ALIGN - 1) & ~(CHUNK_ALIGN - 1);
	chunks = realloc(arena->chunks, (arena->count + 1) * sizeof(*chunks));
	if (!chunks)
		return -ENOMEM;
	arena->chunks = chunks;
	memory = mmap(NULL, missing, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -ENOMEM;
	madvise(memory, missing, MADV_HUGEPAGE);
	madvise(memory, missing, MADV_DONTFORK);
	result = driver->cuMemHostRegister_v2(memory, missing, CU_MEMHOSTREGISTER_PORTABLE);
	if (result) {
		munmap(memory, missing);
		return result;
	}
	chunks[arena->count].memory = memory;
	chunks[arena->count++].bytes = missing;
	arena->bytes += missing;
	return 0;
}

uint64_t lien_arena_take(struct lien_arena *arena, uint64_t bytes)
{
	uint64_t offset = arena->used;

	arena->used += bytes;
	return offset;
}

void *lien_arena_at(const struct lien_arena *arena, uint64_t offset, uint64_t *length)
{
	unsigned i;

	for (i = 0; i < arena->count; i++) {
		if (offset < arena->chunks[i].bytes) {
			if (*length > arena->chunks[i].bytes - offset)
				*length = arena->chunks[i].bytes - offset;
			return arena->chunks[i].memory + offset;
		}
		offset -= arena->chunks[i].bytes;
	}
	return NULL;
}
