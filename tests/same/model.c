// SPDX-License-Identifier: BSD-2-Clause
/* The program's contexts, each thread's stack of them, its pools and blocks of memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "same.h"

#define CONTEXTS 256 /* that are ever made: one that is gone keeps its name */
#define POOLS	 64
#define BLOCKS	 64
#define STACK	 64
#define ROOM	 (192 * MIB) /* allocated at once */
#define LIVE	 40
#define LOST	 512

struct context primary[DEVICES];
bool address_was_freed;
enum kind address_kind;

static struct context made[CONTEXTS];
static unsigned made_count;
static struct pool pools[POOLS];
static struct block blocks[BLOCKS];
static unsigned numbers;
static bool device_lost[DEVICES];
static struct {
	struct context *context[STACK];
	unsigned depth;
} stacks[THREADS];

/* Names live until a few more have been asked for. */
static char *name_new(void)
{
	static char names[16][48];
	static unsigned next;

	return names[next++ % COUNT(names)];
}

/* --- contexts --- */

void model_open(void)
{
	for (int i = 0; i < DEVICES; i++)
		primary[i] = (struct context){.primary = true, .device = i, .number = i};
}

struct context *context_add(CUcontext handle, int device)
{
	struct context *context = &made[made_count++];

	if (made_count > CONTEXTS)
		abort();
	*context = (struct context){
		.number = made_count, .handle = handle, .device = device, .alive = true};
	return context;
}

struct context *context_any(void)
{
	struct context *alive[CONTEXTS + DEVICES];
	unsigned count = 0;

	for (int i = 0; i < devices; i++)
		if (primary[i].alive)
			alive[count++] = &primary[i];
	for (unsigned i = 0; i < made_count; i++)
		if (made[i].alive)
			alive[count++] = &made[i];
	return count ? alive[below(count)] : NULL;
}

unsigned contexts_made(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < made_count; i++)
		count += made[i].alive;
	return count;
}

/* All that is in it goes with it. */
void context_gone(struct context *context)
{
	context->alive = false;
	context->retained = 0;
	for (unsigned i = 0; i < BLOCKS; i++)
		if (blocks[i].live && blocks[i].context == context)
			block_gone(&blocks[i]);
	stream_gone(NULL);
	event_gone(NULL);
}

const char *context_name(CUcontext handle)
{
	char *name = name_new();

	snprintf(name, 48, handle ? "?" : "0");
	for (int i = 0; handle && i < DEVICES; i++)
		if (primary[i].handle == handle)
			snprintf(name, 48, "primary%d", i);
	for (unsigned i = 0; handle && i < made_count; i++)
		if (made[i].handle == handle)
			snprintf(name, 48, "c%u", made[i].number);
	return name;
}

struct context *current(void)
{
	struct context *top = stacks[thread_now].depth
				      ? stacks[thread_now].context[stacks[thread_now].depth - 1]
				      : NULL;

	return top && top->alive ? top : NULL;
}

unsigned current_depth(void)
{
	return stacks[thread_now].depth;
}

void current_push(struct context *context)
{
	if (stacks[thread_now].depth < STACK)
		stacks[thread_now].context[stacks[thread_now].depth++] = context;
}

void current_pop(void)
{
	if (stacks[thread_now].depth)
		stacks[thread_now].depth--;
}

void current_set(struct context *context)
{
	current_pop();
	if (context)
		current_push(context);
}

int current_device(void)
{
	return current() ? current()->device : 0;
}

/* --- pools --- */

struct pool *pool_add(CUmemoryPool handle, int device, bool is_default)
{
	static unsigned number;
	unsigned i;

	for (i = 0; i < POOLS; i++)
		if (pools[i].alive && pools[i].handle == handle)
			return &pools[i];
	for (i = 0; i < POOLS && pools[i].alive;)
		i++;
	if (i == POOLS)
		abort();
	pools[i] = (struct pool){
		is_default ? 0 : ++number, handle, device, is_default, true, device_lost[device]};
	return &pools[i];
}

struct pool *pool_any(bool is_made)
{
	struct pool *found[POOLS];
	unsigned count = 0;

	for (unsigned i = 0; i < POOLS; i++)
		if (pools[i].alive && !(is_made && pools[i].is_default))
			found[count++] = &pools[i];
	return count ? found[below(count)] : NULL;
}

unsigned pools_made(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < POOLS; i++)
		count += pools[i].alive && !pools[i].is_default;
	return count;
}

const char *pool_name(CUmemoryPool handle)
{
	char *name = name_new();

	snprintf(name, 48, handle ? "?" : "0");
	for (unsigned i = 0; handle && i < POOLS; i++) {
		if (!pools[i].alive || pools[i].handle != handle)
			continue;
		if (pools[i].is_default)
			snprintf(name, 48, "default%d", pools[i].device);
		else
			snprintf(name, 48, "p%u", pools[i].number);
	}
	return name;
}

/* --- blocks --- */

/* The oldest that was freed makes room. */
struct block *block_add(enum kind kind, CUdeviceptr va, size_t size)
{
	struct block *block = NULL;

	for (unsigned i = 0; i < BLOCKS; i++)
		if (!blocks[i].live && (!block || blocks[i].number < block->number))
			block = &blocks[i];
	if (!block)
		abort();
	*block = (struct block){.number = ++numbers,
		.kind = kind,
		.va = va,
		.size = size,
		.live = true,
		.context = kind & (ASYNC | VIRTUAL) ? NULL : current(),
		.device = current_device()};
	return block;
}

struct block *block_any(unsigned kinds)
{
	struct block *found[BLOCKS];
	unsigned count = 0;

	for (unsigned i = 0; i < BLOCKS; i++)
		if (blocks[i].live && blocks[i].kind & kinds)
			found[count++] = &blocks[i];
	return count ? found[below(count)] : NULL;
}

struct block *block_freed(void)
{
	struct block *found[BLOCKS];
	unsigned count = 0;

	for (unsigned i = 0; i < BLOCKS; i++)
		if (blocks[i].number && !blocks[i].live && blocks[i].kind & ON_DEVICE)
			found[count++] = &blocks[i];
	return count ? found[below(count)] : NULL;
}

void block_gone(struct block *block)
{
	block->live = false;
}

static struct block *block_at(CUdeviceptr va)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		if (blocks[i].live && va - blocks[i].va < blocks[i].size)
			return &blocks[i];
	return NULL;
}

/* Where memory is that may still be there. */
static struct {
	CUdeviceptr va;
	size_t size;
} lost[LOST];
static unsigned lost_count;

static void lose(struct block *block)
{
	lost[lost_count % LOST].va = block->va;
	lost[lost_count++ % LOST].size = block->size;
	*block = (struct block){0};
}

static bool is_used(CUdeviceptr va)
{
	for (unsigned i = 0; i < lost_count && i < LOST; i++)
		if (va - lost[i].va < lost[i].size)
			return true;
	return block_at(va);
}

void pools_lose(int device)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		if (blocks[i].live && blocks[i].device == device && blocks[i].kind == ASYNC)
			lose(&blocks[i]);
	device_lost[device] = true;
	for (unsigned i = 0; i < POOLS; i++)
		if (pools[i].device == device)
			pools[i].unclear = true;
}

bool block_room(size_t size)
{
	size_t used = 0;
	unsigned live = 0;

	for (unsigned i = 0; i < BLOCKS; i++) {
		used += blocks[i].live ? blocks[i].size : 0;
		live += blocks[i].live;
	}
	return live < LIVE && (size > ROOM || used + size <= ROOM);
}

const char *address_name(CUdeviceptr va)
{
	struct block *block = block_at(va);
	char *name = name_new();

	if (!va)
		snprintf(name, 48, "0");
	else if (!block)
		snprintf(name, 48, "?");
	else if (block->va == va)
		snprintf(name, 48, "a%u", block->number);
	else
		snprintf(name, 48, "a%u+%llu", block->number, va - block->va);
	return name;
}

CUdeviceptr address_whole(unsigned kinds, struct block **of)
{
	*of = block_any(kinds);
	if (*of)
		say("a%u", (*of)->number);
	else
		say("0");
	return *of ? (*of)->va : 0;
}

CUdeviceptr address_any(unsigned kinds, struct block **of)
{
	static char on_host[64];
	unsigned draw = below(20);
	struct block *block;

	*of = NULL;
	address_was_freed = false;
	address_kind = 0;
	block = draw < 2 && !(kinds & NOT_FREED) ? block_freed() : block_any(kinds);
	draw = kinds & NOT_FREED && draw < 2 ? 19 : draw;
	if (block && block->live)
		address_kind = block->kind;
	if (block && draw >= 7) {
		*of = block;
		say("a%u", block->number);
		return block->va;
	}
	if (block && draw >= 2) {
		size_t offset = draw < 4 ? block->size - 1 : below(block->size) / 8 * 8;

		say("a%u+%zu", block->number, offset);
		*of = offset ? NULL : block;
		return block->va + offset;
	}
	if (block) { /* where something else may be by now */
		address_was_freed = true;
		say("a%u freed%s", block->number, is_used(block->va) ? " and used again" : "");
		return is_used(block->va) ? 0x10000 : block->va;
	}
	draw = below(3);
	say(draw == 0 ? "0" : draw == 1 ? "a host address" : "a wrong address");
	return draw == 0 ? 0 : draw == 1 ? (uintptr_t)on_host : 0x7ff000000000;
}

size_t size_any(void)
{
	static const size_t usual[] = {1, 3, 16, 511, 512, 513, 1000, 4096, 5000, 65536, 65537, MIB,
		2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 4 * MIB, 7 * MIB, 20 * MIB};
	static const size_t wrong[] = {0, 1ull << 50, SIZE_MAX / 2, SIZE_MAX};

	return one_in(25) ? ANY(wrong) : ANY(usual);
}
