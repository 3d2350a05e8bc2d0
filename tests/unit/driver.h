/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A trivial driver, to compare the graph with: arrays of names, given out lowest first so that they
 * come back as soon as they can. A call has up to three steps, which threads interleave: its entry
 * (of releasing calls, announced), its effect on the driver, its return (told to the graph).
 */
#ifndef TEST_DRIVER_H
#define TEST_DRIVER_H

#include <stdbool.h>

#include "events.h"

#include "agent/graph/internal.h"

#define PROCESSES  3
#define HANDLES	   12
#define RANGES	   8 /* addresses: reservations and plain allocations */
#define PLACES	   2 /* that a reservation has room to map */
#define COMMS	   4
#define REGISTERED 4
#define SHARES	   64
#define KEYS	   16 /* names of 64 bytes, given out again when the memory is freed */
#define CONTEXTS   3
#define POOLS	   3
#define BINDINGS   64
#define SLOTS	   3 /* of a multicast object */
#ifndef MADE
#define MADE 65536 /* more than a job makes */
#endif

enum kind {
	CREATE,
	RELEASE_HANDLE,
	RETAIN,
	RESERVE,
	ADDRESS_FREE,
	MAP,
	UNMAP,
	UNMAP_RANGE, /* both places of a reservation; it may have no holes */
	EXPORT,
	IMPORT,
	ALLOC,
	FREE,
	COMM_INIT,
	COMM_DESTROY,
	REGISTER,
	DEREGISTER,
	KEY_GET, /* legacy IPC, or of a pool's memory */
	KEY_OPEN,
	KEY_CLOSE,
	RANGE_HANDLE,
	POOL_CREATE,
	POOL_DESTROY,
	CONTEXT_CREATE,
	CONTEXT_DESTROY,
	MULTICAST_CREATE,
	MULTICAST_DEVICE,
	BIND,
	UNBIND,
	KINDS,
};

static const struct {
	uint16_t call;
	bool releases;
} kinds[KINDS] = {
	[CREATE] = {LIEN_CALL_CU_MEM_CREATE, false},
	[RELEASE_HANDLE] = {LIEN_CALL_CU_MEM_RELEASE, true},
	[RETAIN] = {LIEN_CALL_CU_MEM_RETAIN, false},
	[RESERVE] = {LIEN_CALL_CU_MEM_RESERVE, false},
	[ADDRESS_FREE] = {LIEN_CALL_CU_MEM_ADDRESS_FREE, true},
	[MAP] = {LIEN_CALL_CU_MEM_MAP, false},
	[UNMAP] = {LIEN_CALL_CU_MEM_UNMAP, true},
	[UNMAP_RANGE] = {LIEN_CALL_CU_MEM_UNMAP, true},
	[EXPORT] = {LIEN_CALL_CU_MEM_EXPORT, false},
	[IMPORT] = {LIEN_CALL_CU_MEM_IMPORT, false},
	[ALLOC] = {LIEN_CALL_CU_MEM_ALLOC, false},
	[FREE] = {LIEN_CALL_CU_MEM_FREE, true},
	[COMM_INIT] = {LIEN_CALL_NCCL_INIT_RANK, false},
	[COMM_DESTROY] = {LIEN_CALL_NCCL_DESTROY, true},
	[REGISTER] = {LIEN_CALL_NCCL_REGISTER, false},
	[DEREGISTER] = {LIEN_CALL_NCCL_DEREGISTER, true},
	[KEY_GET] = {LIEN_CALL_CU_IPC_GET, false},
	[KEY_OPEN] = {LIEN_CALL_CU_IPC_OPEN, false},
	[KEY_CLOSE] = {LIEN_CALL_CU_IPC_CLOSE, true},
	[RANGE_HANDLE] = {LIEN_CALL_CU_RANGE_HANDLE, false},
	[POOL_CREATE] = {LIEN_CALL_CU_POOL_CREATE, false},
	[POOL_DESTROY] = {LIEN_CALL_CU_POOL_DESTROY, true},
	[CONTEXT_CREATE] = {LIEN_CALL_CU_CONTEXT_CREATE, false},
	[CONTEXT_DESTROY] = {LIEN_CALL_CU_CONTEXT_DESTROY, true},
	[MULTICAST_CREATE] = {LIEN_CALL_CU_MULTICAST_CREATE, false},
	[MULTICAST_DEVICE] = {LIEN_CALL_CU_MULTICAST_DEVICE, false},
	[BIND] = {LIEN_CALL_CU_MULTICAST_BIND, false},
	[UNBIND] = {LIEN_CALL_CU_MULTICAST_UNBIND, false},
};

/* What ALLOC and FREE are, by the call's `c`. */
static const struct way {
	uint16_t alloc, free;
	enum lien_origin origin;
	uint16_t get, open, close; /* 0: it cannot be shared */
} ways[] = {
	{LIEN_CALL_CU_MEM_ALLOC, LIEN_CALL_CU_MEM_FREE, LIEN_ORIGIN_ALLOC, LIEN_CALL_CU_IPC_GET,
		LIEN_CALL_CU_IPC_OPEN, LIEN_CALL_CU_IPC_CLOSE},
	{LIEN_CALL_CU_MEM_ALLOC_PITCH, LIEN_CALL_CU_MEM_FREE, LIEN_ORIGIN_PITCH, 0, 0, 0},
	{LIEN_CALL_CU_MEM_ALLOC_MANAGED, LIEN_CALL_CU_MEM_FREE_ASYNC, LIEN_ORIGIN_MANAGED, 0, 0, 0},
	{LIEN_CALL_CU_MEM_ALLOC_ASYNC, LIEN_CALL_CU_MEM_FREE_ASYNC_PTSZ, LIEN_ORIGIN_POOL,
		LIEN_CALL_CU_POOL_EXPORT_POINTER, LIEN_CALL_CU_POOL_IMPORT_POINTER,
		LIEN_CALL_CU_MEM_FREE_ASYNC},
	{LIEN_CALL_CU_HOST_ALLOC, LIEN_CALL_CU_FREE_HOST, LIEN_ORIGIN_HOST, 0, 0, 0},
	{LIEN_CALL_CU_HOST_REGISTER, LIEN_CALL_CU_HOST_UNREGISTER, LIEN_ORIGIN_REGISTERED, 0, 0, 0},
};

/* Numbers that are never used again: what was made, as its size or rank. 0: nothing. */
struct driver {
	unsigned made;
	struct {
		bool alive;
		uint32_t pid;
		struct {
			unsigned memory, references;
			bool imported;
		} handle[HANDLES];
		struct {
			unsigned reserved, allocated, opened;
			unsigned way, context; /* allocated: context 0 is none */
			unsigned opens;
			struct {
				unsigned memory, handle;
				bool imported;
			} place[PLACES];
		} range[RANGES];
		struct {
			unsigned made;
			unsigned registered[REGISTERED];
		} comm[COMMS];
		unsigned pool[POOLS], context[CONTEXTS];
	} process[PROCESSES];
	struct {
		unsigned memory, owner;
		bool open; /* its descriptor is */
	} share[SHARES];
	struct {
		unsigned memory, process, range, way;
	} key[KEYS];
	struct {
		unsigned object, memory, slot;
	} binding[BINDINGS];
	unsigned dmabufs[MADE], devices[MADE];
	unsigned device[MADE]; /* of memory with handles, counted from 1; 0: a multicast object */
};

/* One call. Names are indices; `b` and `c` as the kind needs. */
struct call {
	enum kind kind;
	unsigned process, a, b, c, context;
	int name; /* the result, -1: it failed */
	unsigned made, bytes;
	struct lien_event event;
};

#define HANDLE_NAME(h)	 (0x1000ull + 16 * (h))
#define COMM_NAME(c)	 (0x2000ull + 16 * (c))
#define REGISTER_NAME(r) (0x3000ull + 16 * (r))
#define RANGE_VA(r)	 (VA + (r)*16 * PIECE)
#define PLACE_VA(r, p)	 (RANGE_VA(r) + (p)*4 * PIECE)
#define SHARE_NAME(s)	 (100ull + (s))
#define POOL_NAME(p)	 (0x4000ull + 16 * (p))
#define CONTEXT_NAME(c)	 (0x5000ull + 16 * (c))
/* Of what is called `memory`: tells it from all others. Fits a place. */
#define MEMORY_BYTES(memory) (PIECE + (memory)*8)

static inline bool memory_mapped(const struct driver *driver, unsigned process, unsigned memory)
{
	for (unsigned r = 0; r < RANGES; r++)
		for (unsigned p = 0; p < PLACES; p++)
			if (driver->process[process].range[r].place[p].memory == memory)
				return true;
	return false;
}

/* Handles without references go with the last mapping. */
static inline void settle(struct driver *driver, unsigned process)
{
	for (unsigned h = 0; h < HANDLES; h++) {
		unsigned memory = driver->process[process].handle[h].memory;

		if (memory && !driver->process[process].handle[h].references &&
			!memory_mapped(driver, process, memory))
			driver->process[process].handle[h].memory = 0;
	}
}

#define LOWEST(count, free)                                                                        \
	({                                                                                         \
		int i = 0;                                                                         \
		while (i < (int)(count) && !(free))                                                \
			i++;                                                                       \
		i < (int)(count) ? i : -1;                                                         \
	})

/* Memory lives as long as its owner has not freed it; then its name may be another's. */
static inline bool key_alive(const struct driver *driver, unsigned k)
{
	__auto_type key = &driver->key[k];

	return key->memory &&
	       driver->process[key->process].range[key->range].allocated == key->memory;
}

/* Its key if it has one, else the first that is free. */
static inline int key_for(const struct driver *driver, unsigned memory)
{
	int known = LOWEST(KEYS, driver->key[i].memory == memory);

	return known < 0 ? LOWEST(KEYS, !key_alive(driver, i)) : known;
}

static inline bool range_taken(const struct driver *driver, unsigned process, unsigned r)
{
	__auto_type range = &driver->process[process].range[r];

	return range->reserved || range->allocated || range->opened;
}

/* By a handle, a mapping, or a descriptor that has not been imported. */
static inline bool object_alive(const struct driver *driver, unsigned object)
{
	for (unsigned p = 0; p < PROCESSES; p++) {
		if (LOWEST(HANDLES, driver->process[p].handle[i].memory == object) >= 0 ||
			memory_mapped(driver, p, object))
			return true;
	}
	return LOWEST(SHARES, driver->share[i].memory == object && driver->share[i].open) >= 0;
}

static inline bool memory_bound(const struct driver *driver, unsigned memory)
{
	for (unsigned i = 0; i < BINDINGS; i++)
		if (driver->binding[i].object && driver->binding[i].memory == memory &&
			object_alive(driver, driver->binding[i].object))
			return true;
	return false;
}

/* What is bound at a place of an object for a device; -1: nothing. */
static inline int binding_at(
	const struct driver *driver, unsigned object, unsigned slot, unsigned device)
{
	return LOWEST(BINDINGS, driver->binding[i].object == object &&
					driver->binding[i].slot == slot &&
					driver->device[driver->binding[i].memory] == device);
}

/* KEY_OPEN: legacy IPC gives the address that the process has already. */
static inline bool key_open(struct driver *driver, struct call *call)
{
	__auto_type process = &driver->process[call->process];
	__auto_type key = &driver->key[call->a];

	call->c = key->way;
	call->name = ways[key->way].close == LIEN_CALL_CU_IPC_CLOSE
			     ? LOWEST(RANGES, process->range[i].opened == key->memory)
			     : -1;
	if (call->name < 0)
		call->name = LOWEST(RANGES, !range_taken(driver, call->process, i));
	if (call->name < 0 || !key_alive(driver, call->a))
		return false;
	process->range[call->name].opened = key->memory;
	process->range[call->name].way = key->way;
	process->range[call->name].opens++;
	return true;
}

static inline bool bind_memory(struct driver *driver, const struct call *call)
{
	__auto_type handle = driver->process[call->process].handle;
	int i = LOWEST(BINDINGS,
		!driver->binding[i].object || !object_alive(driver, driver->binding[i].object));

	if (i < 0 || binding_at(driver, handle[call->a].memory, call->b,
			     driver->device[handle[call->c].memory]) >= 0)
		return false;
	driver->binding[i].object = handle[call->a].memory;
	driver->binding[i].memory = handle[call->c].memory;
	driver->binding[i].slot = call->b;
	return true;
}

static inline void context_destroy(struct driver *driver, unsigned process, unsigned context)
{
	for (unsigned r = 0; r < RANGES; r++) {
		__auto_type range = &driver->process[process].range[r];

		if (range->allocated && range->context == context + 1 &&
			ways[range->way].origin != LIEN_ORIGIN_POOL)
			range->allocated = 0;
	}
	driver->process[process].context[context] = 0;
}

/* What the driver does. False: the call fails, and nothing has changed. */
static inline bool effect(struct driver *driver, struct call *call)
{
	__auto_type process = &driver->process[call->process];
	__auto_type range = &process->range[call->a % RANGES];
	__auto_type handle = &process->handle[call->a % HANDLES];
	__auto_type comm = &process->comm[call->a % COMMS];
	bool any = false;

	call->name = 0;
	switch (call->kind) {
	case CREATE:
	case IMPORT:
	case MULTICAST_CREATE:
		if (call->kind == IMPORT && !driver->share[call->a].open)
			return false;
		call->name = LOWEST(HANDLES, !process->handle[i].memory);
		if (call->name < 0)
			return false;
		handle = &process->handle[call->name];
		handle->imported = call->kind == IMPORT;
		handle->memory = handle->imported ? driver->share[call->a].memory : ++driver->made;
		handle->references = 1;
		if (call->kind == CREATE)
			driver->device[handle->memory] = call->process + 1;
		if (call->kind == IMPORT)
			driver->share[call->a].open = false;
		call->made = handle->memory;
		return true;
	case RELEASE_HANDLE:
		if (!handle->memory || !handle->references)
			return false;
		handle->references--;
		settle(driver, call->process);
		return true;
	case RETAIN:
		if (!range->place[call->b].memory)
			return false;
		call->name = range->place[call->b].handle;
		process->handle[call->name].references++;
		return true;
	case RESERVE:
	case ALLOC:
		call->name = LOWEST(RANGES, !range_taken(driver, call->process, i));
		if (call->name < 0)
			return false;
		range = &process->range[call->name];
		range->way = call->c;
		range->context = call->context;
		*(call->kind == RESERVE ? &range->reserved : &range->allocated) = ++driver->made;
		call->made = driver->made;
		return true;
	case ADDRESS_FREE:
		for (unsigned p = 0; p < PLACES; p++)
			any |= range->place[p].memory;
		if (any || !range->reserved)
			return false;
		range->reserved = 0;
		return true;
	case MAP:
		handle = &process->handle[call->c];
		if (!range->reserved || range->place[call->b].memory || !handle->memory)
			return false;
		range->place[call->b].memory = handle->memory;
		range->place[call->b].handle = call->c;
		range->place[call->b].imported = handle->imported;
		call->made = handle->memory;
		return true;
	case UNMAP:
		if (!range->place[call->b].memory)
			return false;
		range->place[call->b].memory = 0;
		settle(driver, call->process);
		return true;
	case UNMAP_RANGE:
		for (unsigned p = 0; p < PLACES; p++)
			any |= !range->place[p].memory;
		for (unsigned p = 0; p < PLACES && !any; p++)
			range->place[p].memory = 0;
		settle(driver, call->process);
		return !any;
	case EXPORT:
		if (!handle->memory || !handle->references)
			return false;
		call->name = LOWEST(SHARES, !driver->share[i].memory);
		if (call->name < 0)
			return false;
		driver->share[call->name].memory = handle->memory;
		driver->share[call->name].owner = call->process;
		driver->share[call->name].open = true;
		return true;
	case FREE:
		any = range->allocated;
		range->allocated = 0;
		return any;
	case COMM_INIT:
		call->name = LOWEST(COMMS, !process->comm[i].made);
		if (call->name < 0)
			return false;
		memset(&process->comm[call->name], 0, sizeof(*comm));
		call->made = process->comm[call->name].made = ++driver->made;
		return true;
	case COMM_DESTROY:
		any = comm->made;
		comm->made = 0;
		return any;
	case REGISTER:
		if (!comm->made)
			return false;
		call->name = LOWEST(REGISTERED, !comm->registered[i]);
		if (call->name < 0)
			return false;
		call->made = comm->registered[call->name] = ++driver->made;
		return true;
	case DEREGISTER:
		if (!comm->made || !comm->registered[call->b])
			return false;
		comm->registered[call->b] = 0;
		return true;
	case KEY_GET:
		call->name = key_for(driver, range->allocated);
		if (call->name < 0 || !range->allocated)
			return false;
		driver->key[call->name].memory = range->allocated;
		driver->key[call->name].process = call->process;
		driver->key[call->name].range = call->a;
		driver->key[call->name].way = range->way;
		return true;
	case KEY_OPEN:
		return key_open(driver, call);
	case KEY_CLOSE:
		if (!range->opens)
			return false;
		range->opens--;
		range->opened = range->opens ? range->opened : 0;
		return true;
	case RANGE_HANDLE:
		call->made = range->place[call->b].memory;
		driver->dmabufs[call->made]++;
		return true;
	case POOL_CREATE:
		call->name = LOWEST(POOLS, !process->pool[i]);
		if (call->name < 0)
			return false;
		call->made = process->pool[call->name] = ++driver->made;
		return true;
	case POOL_DESTROY:
		process->pool[call->a] = 0;
		return true;
	case CONTEXT_CREATE:
		call->name = LOWEST(CONTEXTS, !process->context[i]);
		if (call->name < 0)
			return false;
		call->made = process->context[call->name] = ++driver->made;
		return true;
	case CONTEXT_DESTROY:
		context_destroy(driver, call->process, call->a);
		return true;
	case MULTICAST_DEVICE:
		driver->devices[handle->memory] |= 1u << call->process;
		return true;
	case BIND:
		return bind_memory(driver, call);
	case UNBIND:
		call->name = binding_at(driver, handle->memory, call->b, call->c + 1);
		if (call->name < 0)
			return false;
		driver->binding[call->name].object = 0;
		return true;
	default:
		return false;
	}
}

static inline struct lien_event key_event(uint16_t type, uint32_t pid, uint64_t va, uint64_t key)
{
	struct lien_event ev = EVENT(type, pid, .key = {.va = va});

	memset(ev.key.key, (int)key + 1, LIEN_KEY_BYTES);
	return ev;
}

/* The record of a call, but for the times and the result. */
static inline struct lien_event record(const struct driver *driver, const struct call *call)
{
	uint64_t name = call->name < 0 ? 0 : call->name, bytes = MEMORY_BYTES(call->made);
	uint64_t place = PLACE_VA(call->a, call->b);
	uint32_t pid = driver->process[call->process].pid;
	uint16_t type = kinds[call->kind].call;

	switch (call->kind) {
	case CREATE:
		return EVENT(type, pid,
			.create = {.handle = HANDLE_NAME(name),
				.bytes = bytes,
				.prop = device_prop(call->process)});
	case RELEASE_HANDLE:
		return EVENT(type, pid, .release = {HANDLE_NAME(call->a)});
	case RETAIN:
		return EVENT(type, pid, .retain = {.handle = HANDLE_NAME(name), .va = place});
	case RESERVE:
		return EVENT(type, pid,
			.reserve = {.va = RANGE_VA(name), .bytes = 8 * PIECE + call->made});
	case ADDRESS_FREE:
		return EVENT(type, pid, .range = {.va = RANGE_VA(call->a)});
	case FREE:
		return EVENT(ways[call->c].free, pid, .range = {.va = RANGE_VA(call->a)});
	case KEY_CLOSE:
		return EVENT(ways[call->c].close, pid, .range = {.va = RANGE_VA(call->a)});
	case KEY_GET:
		return key_event(ways[call->c].get, pid, RANGE_VA(call->a), name);
	case KEY_OPEN:
		return key_event(ways[call->c].open, pid, RANGE_VA(name), call->a);
	case RANGE_HANDLE:
		return EVENT(type, pid, .range_handle = {place, bytes, 1, 9});
	case POOL_CREATE:
		return EVENT(type, pid, .pool = {.pool = POOL_NAME(name), .device = call->made});
	case POOL_DESTROY:
		return EVENT(type, pid, .pool = {.pool = POOL_NAME(call->a)});
	case CONTEXT_CREATE:
		return EVENT(type, pid,
			.context = {.context = CONTEXT_NAME(name), .device = call->made});
	case CONTEXT_DESTROY:
		return EVENT(type, pid, .context = {.context = CONTEXT_NAME(call->a)});
	case MULTICAST_CREATE:
		return EVENT(type, pid,
			.multicast = {.handle = HANDLE_NAME(name), .bytes = bytes, .device = 3});
	case MULTICAST_DEVICE:
		return EVENT(type, pid,
			.multicast = {.handle = HANDLE_NAME(call->a), .device = call->process});
	case BIND:
		return EVENT(type, pid,
			.multicast = {.handle = HANDLE_NAME(call->a),
				.offset = call->b * PIECE,
				.bytes = PIECE,
				.memory = HANDLE_NAME(call->c)});
	case UNBIND:
		return EVENT(type, pid,
			.multicast = {.handle = HANDLE_NAME(call->a),
				.offset = call->b * PIECE,
				.bytes = PIECE,
				.device = call->c});
	case MAP:
		return EVENT(type, pid,
			.map = {.va = place, .bytes = bytes, .handle = HANDLE_NAME(call->c)});
	case UNMAP:
		return EVENT(type, pid, .range = {place, call->bytes});
	case UNMAP_RANGE:
		return EVENT(type, pid, .range = {RANGE_VA(call->a), 12 * PIECE});
	case EXPORT:
		return EVENT(type, pid,
			.share = {.handle = HANDLE_NAME(call->a), .share = SHARE_NAME(name)});
	case IMPORT:
		return EVENT(type, pid,
			.share = {.handle = HANDLE_NAME(name), .share = SHARE_NAME(call->a)});
	case ALLOC:
		return EVENT(ways[call->c].alloc, pid,
			.alloc = {RANGE_VA(name), bytes, .device = -1,
				.context = call->context ? CONTEXT_NAME(call->context - 1) : 0});
	case COMM_INIT:
		return EVENT(type, pid,
			.comm = {.comm = COMM_NAME(name), .nranks = call->made, .id = {1}});
	case COMM_DESTROY:
		return EVENT(type, pid, .comm_end = {COMM_NAME(call->a)});
	case REGISTER:
		return EVENT(type, pid,
			.reg = {COMM_NAME(call->a), VA, call->made, REGISTER_NAME(name)});
	case DEREGISTER:
		return EVENT(type, pid,
			.reg = {.comm = COMM_NAME(call->a), .handle = REGISTER_NAME(call->b)});
	default:
		fail();
		return (struct lien_event){};
	}
}

static inline unsigned steps(const struct call *call)
{
	return kinds[call->kind].releases ? 3 : 2;
}

/* Takes the next of a call's steps; `step` counts from 0. `thread` tells threads of a process from
 * each other. What is told goes to `told`. */
static inline void take_step(struct driver *driver, struct call *call, unsigned thread,
	unsigned step, void (*told)(const struct lien_event *))
{
	unsigned last = steps(call) - 1;

	if (step == 0 && last == 2) {
		if (call->kind == UNMAP)
			call->bytes = MEMORY_BYTES(driver->process[call->process]
							   .range[call->a]
							   .place[call->b]
							   .memory);
		call->name = 0;
		call->event = record(driver, call);
		call->event.tid = 1000 * call->process + thread;
		call->event.flags |= LIEN_EVENT_ENTRY;
		call->event.result = 0;
		call->event.t_return = 0;
		told(&call->event);
		call->event.flags &= ~LIEN_EVENT_ENTRY;
	} else if (step + 1 == last) {
		bool worked = effect(driver, call);

		if (last == 1)
			call->event = record(driver, call);
		call->event.tid = 1000 * call->process + thread;
		call->event.result = worked ? 0 : CUDA_ERROR_INVALID_VALUE;
	} else {
		call->event.t_return = ++now;
		told(&call->event);
	}
}

/* --- is the graph what the driver is? ------------------------------------------------------- */

struct comparison {
	struct lien_graph *graph;
	const struct driver *driver;
	const struct lien_allocation *allocations[MADE]; /* by memory */
	unsigned differences;
};

#define DIFFERS(c, ...)                                                                            \
	do {                                                                                       \
		(c)->differences++;                                                                \
		print_error(__VA_ARGS__);                                                          \
		print_error("\n");                                                                 \
	} while (0)

static inline void compare_memory(
	struct comparison *c, const struct lien_allocation *allocation, unsigned memory)
{
	bool object;

	if (!allocation) {
		DIFFERS(c, "memory %u: no allocation", memory);
		return;
	}
	if (allocation->bytes != MEMORY_BYTES(memory))
		DIFFERS(c, "memory %u is known as memory %d", memory,
			(int)((int64_t)(allocation->bytes - PIECE) / 8));
	if (c->allocations[memory] && c->allocations[memory] != allocation)
		DIFFERS(c, "memory %u is two allocations", memory);
	object = allocation->origin == LIEN_ORIGIN_MULTICAST; /* nobody asks for those of one */
	if (!object && allocation->dmabufs != c->driver->dmabufs[memory])
		DIFFERS(c, "memory %u: %u dma-bufs, not %u", memory, allocation->dmabufs,
			c->driver->dmabufs[memory]);
	if (object && allocation->devices != c->driver->devices[memory])
		DIFFERS(c, "memory %u: devices 0x%x, not 0x%x", memory,
			(unsigned)allocation->devices, c->driver->devices[memory]);
	c->allocations[memory] = allocation;
}

static inline void compare_handles(struct comparison *c, unsigned p, struct lien_process *known)
{
	struct lien_handle *handle;
	unsigned count = 0, h;

	SPLAY_FOREACH (handle, lien_handle_tree, &known->handles)
		count++;
	for (h = 0; h < HANDLES; h++) {
		__auto_type real = &c->driver->process[p].handle[h];
		struct lien_handle key = {.value = HANDLE_NAME(h)};

		handle = SPLAY_FIND(lien_handle_tree, &known->handles, &key);
		count -= handle != NULL;
		if (!handle != !real->memory) {
			DIFFERS(c, "process %u, handle %u: %s", p + 1, h,
				handle ? "only the graph has it" : "the graph does not have it");
			continue;
		}
		if (!handle)
			continue;
		if (handle->references != real->references)
			DIFFERS(c, "process %u, handle %u: %u references, not %u", p + 1, h,
				handle->references, real->references);
		if (handle->imported != real->imported)
			DIFFERS(c, "process %u, handle %u: imported %d", p + 1, h,
				handle->imported);
		compare_memory(c, handle->holding->allocation, real->memory);
	}
	if (count)
		DIFFERS(c, "process %u: %u handles of unknown value", p + 1, count);
}

static inline void compare_place(struct comparison *c, unsigned p, uint64_t va, unsigned memory,
	struct lien_mapping *mapping)
{
	if (!mapping != !memory) {
		DIFFERS(c, "process %u, 0x%llx: %s", p + 1, (unsigned long long)va,
			mapping ? "mapped only in the graph" : "not mapped in the graph");
		return;
	}
	if (!mapping)
		return;
	if (mapping->va != va || mapping->bytes != MEMORY_BYTES(memory))
		DIFFERS(c, "process %u, 0x%llx: another mapping", p + 1, (unsigned long long)va);
	compare_memory(c, mapping->holding->allocation, memory);
}

static inline void compare_ranges(struct comparison *c, unsigned p, struct lien_process *known)
{
	struct lien_reservation *reservation;
	unsigned mapped = 0, reserved = 0, r, i;
	struct lien_mapping *mapping;

	RB_FOREACH (mapping, lien_mapping_tree, &known->mappings)
		mapped++;
	SPLAY_FOREACH (reservation, lien_reservation_tree, &known->reservations)
		reserved++;
	for (r = 0; r < RANGES; r++) {
		struct lien_reservation key = {.va = RANGE_VA(r)};
		__auto_type real = &c->driver->process[p].range[r];

		reservation = SPLAY_FIND(lien_reservation_tree, &known->reservations, &key);
		reserved -= reservation != NULL;
		if (!reservation != !real->reserved)
			DIFFERS(c, "process %u, range %u: %s", p + 1, r,
				reservation ? "reserved only in the graph"
					    : "not reserved in the graph");
		else if (reservation && reservation->bytes != 8 * PIECE + real->reserved)
			DIFFERS(c, "process %u, range %u: another reservation", p + 1, r);
		for (i = 0; i < PLACES; i++) {
			unsigned memory = real->place[i].memory;

			if (!i && (real->allocated || real->opened))
				memory = real->allocated ? real->allocated : real->opened;
			mapping = lien_process_mapping(known, PLACE_VA(r, i));
			mapped -= mapping != NULL;
			compare_place(c, p, PLACE_VA(r, i), memory, mapping);
			if (mapping && mapping->imported != real->place[i].imported &&
				real->place[i].memory)
				DIFFERS(c, "process %u, range %u: imported", p + 1, r);
			if (mapping && !i && lien_mapping_opens(mapping) != real->opens)
				DIFFERS(c, "process %u, range %u: opened %u times, not %u", p + 1,
					r, lien_mapping_opens(mapping), real->opens);
			if (mapping && !i && real->allocated &&
				mapping->holding->allocation->origin != ways[real->way].origin)
				DIFFERS(c, "process %u, range %u: origin %u", p + 1, r,
					mapping->holding->allocation->origin);
		}
	}
	if (mapped || reserved)
		DIFFERS(c, "process %u: %u more mappings, %u more reservations", p + 1, mapped,
			reserved);
}

static inline void compare_comms(struct comparison *c, unsigned p, struct lien_process *known)
{
	struct lien_registration *registration;
	unsigned count = 0, i, r;
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &known->comms)
		count++;
	for (i = 0; i < COMMS; i++) {
		__auto_type real = &c->driver->process[p].comm[i];
		struct lien_comm key = {.address = COMM_NAME(i)};
		unsigned registered = 0;

		comm = RB_FIND(lien_comm_tree, &known->comms, &key);
		count -= comm != NULL;
		if (!comm != !real->made || (comm && comm->nranks != (int)real->made)) {
			DIFFERS(c, "process %u, communicator %u: %d, not %u", p + 1, i,
				comm ? comm->nranks : 0, real->made);
			continue;
		}
		if (!comm)
			continue;
		RB_FOREACH (registration, lien_registration_tree, &comm->registrations) {
			registered++;
			r = (registration->handle - REGISTER_NAME(0)) / 16;
			if (registration->bytes != real->registered[r])
				DIFFERS(c, "process %u, communicator %u: registration %u is %u",
					p + 1, i, r, (unsigned)registration->bytes);
		}
		for (r = 0; r < REGISTERED; r++)
			registered -= real->registered[r] != 0;
		if (registered)
			DIFFERS(c, "process %u, communicator %u: %d more registrations", p + 1, i,
				(int)registered);
	}
	if (count)
		DIFFERS(c, "process %u: %u more communicators", p + 1, count);
}

static inline void compare_pools(struct comparison *c, unsigned p, struct lien_process *known)
{
	struct lien_context *context;
	struct lien_pool *pool;
	unsigned pools = 0, contexts = 0, i;

	RB_FOREACH (pool, lien_pool_tree, &known->pools) {
		i = (pool->value - POOL_NAME(0)) / 16;
		pools++;
		if (pool->device != (int)c->driver->process[p].pool[i])
			DIFFERS(c, "process %u, pool %u: another one", p + 1, i);
	}
	RB_FOREACH (context, lien_context_tree, &known->contexts) {
		i = (context->value - CONTEXT_NAME(0)) / 16;
		contexts++;
		if (context->device != (int)c->driver->process[p].context[i])
			DIFFERS(c, "process %u, context %u: another one", p + 1, i);
	}
	for (i = 0; i < POOLS; i++)
		pools -= c->driver->process[p].pool[i] != 0;
	for (i = 0; i < CONTEXTS; i++)
		contexts -= c->driver->process[p].context[i] != 0;
	if (pools || contexts)
		DIFFERS(c, "process %u: %d more pools, %d more contexts", p + 1, (int)pools,
			(int)contexts);
}

/* Each of the driver's is in the graph, and no more are. */
static inline void compare_bindings(struct comparison *c)
{
	struct lien_allocation *object;
	struct lien_binding *binding;
	unsigned count = 0;

	for (object = lien_graph_first_allocation(c->graph); object;
		object = lien_graph_next_allocation(object)) {
		if (object->origin != LIEN_ORIGIN_MULTICAST)
			continue;
		RB_FOREACH (binding, lien_binding_tree, &object->bound) {
			unsigned made = (object->bytes - PIECE) / 8;
			unsigned memory = (binding->memory->bytes - PIECE) / 8;
			int i = binding_at(c->driver, made, binding->offset / PIECE,
				c->driver->device[memory]);

			count++;
			if (i < 0 || c->driver->binding[i].memory != memory)
				DIFFERS(c, "object %u: memory %u is not bound", made, memory);
			else
				compare_memory(c, binding->memory, memory);
		}
	}
	for (unsigned i = 0; i < BINDINGS; i++)
		count -= c->driver->binding[i].object &&
			 object_alive(c->driver, c->driver->binding[i].object);
	if (count)
		DIFFERS(c, "%d more bindings", (int)count);
}

/* The number of differences; each is printed. */
static inline unsigned compare(struct lien_graph *with, const struct driver *driver)
{
	struct comparison *c = calloc(1, sizeof(*c));
	struct lien_allocation *allocation;
	unsigned p, differences, held = 0;

	c->graph = with;
	c->driver = driver;
	for (p = 0; p < PROCESSES; p++) {
		struct lien_process *known = lien_graph_process(with, driver->process[p].pid);

		if (!known != !driver->process[p].alive)
			DIFFERS(c, "process %u: %s", p + 1, known ? "has ended" : "not known");
		if (!known)
			continue;
		if (known->incomplete)
			DIFFERS(c, "process %u: incomplete 0x%x", p + 1, known->incomplete);
		if (!TAILQ_EMPTY(&known->pending))
			DIFFERS(c, "process %u: something is pending", p + 1);
		compare_handles(c, p, known);
		compare_ranges(c, p, known);
		compare_comms(c, p, known);
		compare_pools(c, p, known);
	}
	compare_bindings(c);
	for (allocation = lien_graph_first_allocation(with); allocation;
		allocation = lien_graph_next_allocation(allocation))
		held += lien_allocation_held(allocation);
	for (unsigned i = 0; i < COUNT(c->allocations); i++)
		held -= c->allocations[i] != NULL;
	if (held)
		DIFFERS(c, "%d more allocations", (int)held);
	differences = c->differences;
	free(c);
	return differences;
}

#endif
