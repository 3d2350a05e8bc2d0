/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Values that are given out again: handles, pointers to streams, events, graphs and pools, and
 * addresses. The one that was freed last comes first, as NVIDIA's driver may do it, so that whoever
 * keeps a stale value means something else by it, and a test finds out. With LIEN_SOFTCUDA_STRICT=1
 * nothing is given out twice.
 *
 * Contexts are not among them: see softcuda.h.
 */
#include <stdlib.h>
#include <string.h>

#include "softcuda.h"

/* Blocks of one size. There are as many sizes as kinds of objects, and few more. */
struct blocks {
	SLIST_ENTRY(blocks) next;
	size_t size;
	struct soft_freed freed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static SLIST_HEAD(, blocks) sizes = SLIST_HEAD_INITIALIZER(sizes);

bool soft_freed_push(struct soft_freed *freed, uint64_t value)
{
	size_t room = freed->room ? 2 * freed->room : 64;
	uint64_t *grown;

	if (soft.config.strict)
		return false;
	if (freed->count == freed->room) {
		grown = realloc(freed->value, room * sizeof(*grown));
		if (!grown)
			return false;
		freed->value = grown;
		freed->room = room;
	}
	freed->value[freed->count++] = value;
	return true;
}

bool soft_freed_pop(struct soft_freed *freed, uint64_t *value)
{
	if (!freed->count)
		return false;
	*value = freed->value[--freed->count];
	return true;
}

static struct blocks *blocks_of(size_t size)
{
	struct blocks *blocks;

	SLIST_FOREACH (blocks, &sizes, next) {
		if (blocks->size == size)
			return blocks;
	}
	blocks = calloc(1, sizeof(*blocks));
	if (blocks) {
		blocks->size = size;
		SLIST_INSERT_HEAD(&sizes, blocks, next);
	}
	return blocks;
}

void *soft_block_new(size_t size)
{
	struct blocks *blocks;
	uint64_t value = 0;

	pthread_mutex_lock(&lock);
	blocks = blocks_of(size);
	if (blocks)
		soft_freed_pop(&blocks->freed, &value);
	pthread_mutex_unlock(&lock);
	return value ? memset((void *)value, 0, size) : calloc(1, size);
}

/* A block that is not given out again is not given back to malloc either, which would. */
void soft_block_free(void *block, size_t size)
{
	struct blocks *blocks;

	pthread_mutex_lock(&lock);
	blocks = blocks_of(size);
	if (blocks)
		soft_freed_push(&blocks->freed, (uintptr_t)block);
	pthread_mutex_unlock(&lock);
}
