/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the graph's tests share: a graph, and calls told to it in one line each. `tell` holds what
 * the next calls have in common: set it, and set it back.
 */
#ifndef TEST_EVENTS_H
#define TEST_EVENTS_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/graph/event_check.h"
#include "agent/graph/graph.h"
#include <lien/cuda_abi.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MIB	     (1ull << 20)
#define PIECE	     (2 * MIB)
#define VA	     0x7e0000000000ull

static struct lien_graph *graph;
static uint64_t now;

/* Where this process is said to have mapped libraries. */
#define IN_TORCH 0x7f1000001000ull

static struct {
	unsigned flags;	 /* of the events */
	int result;	 /* of the calls */
	unsigned outer;	 /* outermost call; 0: the call itself */
	uint64_t caller; /* where that was made */
} tell;

static inline int setup(void **state)
{
	(void)state;
	now = 1000;
	memset(&tell, 0, sizeof(tell));
	return lien_graph_new(&graph);
}

static inline int teardown(void **state)
{
	(void)state;
	lien_graph_free(graph);
	graph = NULL;
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static inline void apply(const struct lien_event *ev)
{
	assert_true(lien_event_valid(ev));
	assert_int_equal(lien_graph_apply(graph, ev), 0);
}

static inline struct lien_event event_of(unsigned type, uint32_t pid, struct lien_event ev)
{
	ev.size = sizeof(ev);
	ev.type = type;
	ev.pid = ev.tid = pid;
	ev.start = ev.start ? ev.start : 7000 + pid;
	ev.t_entry = ++now;
	ev.t_return = ++now;
	ev.flags = tell.flags;
	ev.result = tell.result;
	ev.caller = tell.caller;
	if (type >= LIEN_CALL_CU_INIT)
		ev.outer = tell.outer ? tell.outer : type;
	return ev;
}

/* EVENT(LIEN_CALL_CU_MEM_MAP, pid, .map = {...}) */
#define EVENT(type, pid, ...) event_of(type, pid, (struct lien_event){__VA_ARGS__})
#define TELL(type, pid, ...)                                                                       \
	do {                                                                                       \
		struct lien_event told = EVENT(type, pid, __VA_ARGS__);                            \
		apply(&told);                                                                      \
	} while (0)

/* A releasing call: the announcement, to be told first, and the return. */
static inline struct lien_event entry_of(struct lien_event ev)
{
	ev.flags |= LIEN_EVENT_ENTRY;
	ev.result = 0;
	ev.t_return = 0;
	return ev;
}

static inline void tell_release(struct lien_event ev)
{
	struct lien_event entry = entry_of(ev);

	apply(&entry);
	apply(&ev);
}

#define RELEASE(type, pid, ...) tell_release(EVENT(type, pid, __VA_ARGS__))

static inline struct lien_process *process(uint32_t pid)
{
	return lien_graph_process(graph, pid);
}

/* A process that was seen from its start on and can be given orders. */
static inline void started(uint32_t pid)
{
	TELL(LIEN_EVENT_PROCESS, pid, .process = {.uid = 1000, .complete = 1, .comm = "python3"});
	process(pid)->presence = LIEN_CONTROL_READY;
}

static inline void library(uint32_t pid, uint64_t start, const char *name)
{
	struct lien_event ev = EVENT(LIEN_EVENT_LIBRARY, pid,
		.library = {.start = start, .length = MIB, .inode = start >> 12});

	strncpy(ev.library.name, name, sizeof(ev.library.name) - 1);
	apply(&ev);
}

static inline void ended(uint32_t pid)
{
	TELL(LIEN_EVENT_EXIT, pid, );
}

static inline struct lien_prop device_prop(int device)
{
	return (struct lien_prop){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
		.location_id = device,
		.rdma = 1,
		.usage = 2};
}

static inline void create_on(uint32_t pid, uint64_t handle, uint64_t bytes, struct lien_prop prop)
{
	TELL(LIEN_CALL_CU_MEM_CREATE, pid,
		.create = {.handle = handle, .bytes = bytes, .prop = prop});
}

static inline void create(uint32_t pid, uint64_t handle, uint64_t bytes)
{
	create_on(pid, handle, bytes, device_prop(0));
}

static inline void release(uint32_t pid, uint64_t handle)
{
	RELEASE(LIEN_CALL_CU_MEM_RELEASE, pid, .release = {handle});
}

static inline void retain(uint32_t pid, uint64_t handle, uint64_t va)
{
	TELL(LIEN_CALL_CU_MEM_RETAIN, pid, .retain = {.handle = handle, .va = va});
}

static inline void reserve(uint32_t pid, uint64_t va, uint64_t bytes)
{
	TELL(LIEN_CALL_CU_MEM_RESERVE, pid, .reserve = {.va = va, .bytes = bytes});
}

static inline void address_free(uint32_t pid, uint64_t va, uint64_t bytes)
{
	RELEASE(LIEN_CALL_CU_MEM_ADDRESS_FREE, pid, .range = {va, bytes});
}

static inline void map(uint32_t pid, uint64_t va, uint64_t bytes, uint64_t handle)
{
	TELL(LIEN_CALL_CU_MEM_MAP, pid, .map = {.va = va, .bytes = bytes, .handle = handle});
}

static inline void unmap(uint32_t pid, uint64_t va, uint64_t bytes)
{
	RELEASE(LIEN_CALL_CU_MEM_UNMAP, pid, .range = {va, bytes});
}

static inline void set_access(
	uint32_t pid, uint64_t va, uint64_t bytes, unsigned device, unsigned flags)
{
	TELL(LIEN_CALL_CU_MEM_SET_ACCESS, pid,
		.access = {.va = va,
			.bytes = bytes,
			.count = 1,
			.access = {{CU_MEM_LOCATION_TYPE_DEVICE, device, flags}}});
}

static inline void map_rw(uint32_t pid, uint64_t va, uint64_t bytes, uint64_t handle)
{
	map(pid, va, bytes, handle);
	set_access(pid, va, bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* Create, reserve, map, set access: as NCCL makes a buffer. */
static inline void buffer(uint32_t pid, uint64_t handle, uint64_t va, uint64_t bytes)
{
	create(pid, handle, bytes);
	reserve(pid, va, bytes);
	map_rw(pid, va, bytes, handle);
}

static inline void export(uint32_t pid, uint64_t handle, uint64_t share)
{
	TELL(LIEN_CALL_CU_MEM_EXPORT, pid,
		.share = {.handle = handle, .share = share, .handle_type = 1, .fd = 9});
}

static inline void import(uint32_t pid, uint64_t handle, uint64_t share)
{
	TELL(LIEN_CALL_CU_MEM_IMPORT, pid,
		.share = {.handle = handle, .share = share, .handle_type = 1, .fd = 11});
}

/* Import, reserve, map, set access. */
static inline void imported_buffer(
	uint32_t pid, uint64_t handle, uint64_t share, uint64_t va, uint64_t bytes)
{
	import(pid, handle, share);
	reserve(pid, va, bytes);
	map_rw(pid, va, bytes, handle);
}

static inline void alloc(uint32_t pid, uint64_t va, uint64_t bytes)
{
	TELL(LIEN_CALL_CU_MEM_ALLOC, pid, .alloc = {va, bytes, .device = -1});
}

static inline void free_alloc(uint32_t pid, uint64_t va)
{
	RELEASE(LIEN_CALL_CU_MEM_FREE, pid, .range = {va, 0});
}

static inline void comm_init(
	uint32_t pid, uint64_t comm, uint8_t group, int32_t rank, int32_t nranks)
{
	TELL(LIEN_CALL_NCCL_INIT_RANK, pid,
		.comm = {.comm = comm, .rank = rank, .nranks = nranks, .id = {group}});
}

static inline void comm_destroy(uint32_t pid, uint64_t comm)
{
	RELEASE(LIEN_CALL_NCCL_DESTROY, pid, .comm_end = {comm});
}

static inline void comm_register(
	uint32_t pid, uint64_t comm, uint64_t va, uint64_t bytes, uint64_t handle)
{
	TELL(LIEN_CALL_NCCL_REGISTER, pid, .reg = {comm, va, bytes, handle});
}

static inline void window_register(
	uint32_t pid, uint64_t comm, uint64_t va, uint64_t bytes, uint64_t handle)
{
	TELL(LIEN_CALL_NCCL_WINDOW_REGISTER, pid, .reg = {comm, va, bytes, handle});
}

static inline void comm_deregister(uint32_t pid, uint64_t comm, uint64_t handle)
{
	RELEASE(LIEN_CALL_NCCL_DEREGISTER, pid, .reg = {.comm = comm, .handle = handle});
}

static inline void capture_begin(uint32_t pid, uint64_t stream)
{
	TELL(LIEN_CALL_CU_CAPTURE_BEGIN, pid, .capture = {stream});
}

static inline void capture_end(uint32_t pid, uint64_t stream)
{
	TELL(LIEN_CALL_CU_CAPTURE_END, pid, .capture = {stream});
}

/* What the control library does to one mapping, or to an allocation's handle. */
static inline void park(uint32_t pid, uint64_t va, uint64_t bytes)
{
	tell.flags |= LIEN_EVENT_CONTROL;
	unmap(pid, va, bytes);
	tell.flags &= ~LIEN_EVENT_CONTROL;
}

static inline void control_release(uint32_t pid, uint64_t handle)
{
	tell.flags |= LIEN_EVENT_CONTROL;
	release(pid, handle);
	tell.flags &= ~LIEN_EVENT_CONTROL;
}

/* Retain, unmap, release as often as the application holds it, and once for the retain. */
static inline void control_detach(
	uint32_t pid, uint64_t va, uint64_t bytes, uint64_t handle, unsigned references)
{
	tell.flags |= LIEN_EVENT_CONTROL;
	retain(pid, handle, va);
	unmap(pid, va, bytes);
	while (references--)
		release(pid, handle);
	release(pid, handle);
	tell.flags &= ~LIEN_EVENT_CONTROL;
}

/* Map, set access, leave as many references as the application held; the handle is there. */
static inline void control_attach(
	uint32_t pid, uint64_t va, uint64_t bytes, uint64_t handle, unsigned references)
{
	unsigned i;

	tell.flags |= LIEN_EVENT_CONTROL;
	map_rw(pid, va, bytes, handle);
	if (!references)
		release(pid, handle);
	for (i = 1; i < references; i++)
		retain(pid, handle, va);
	tell.flags &= ~LIEN_EVENT_CONTROL;
}

/* Binds memory to a multicast object. */
static inline void bind_object(uint32_t pid, uint64_t object, uint64_t offset, uint64_t memory)
{
	TELL(LIEN_CALL_CU_MULTICAST_BIND, pid,
		.multicast = {
			.handle = object, .offset = offset, .bytes = PIECE, .memory = memory});
}

/* Short cuts to the graph. */
static inline struct lien_mapping *mapping_at(uint32_t pid, uint64_t va)
{
	return process(pid) ? lien_process_mapping(process(pid), va) : NULL;
}

static inline struct lien_allocation *allocation_at(uint32_t pid, uint64_t va)
{
	struct lien_mapping *mapping = mapping_at(pid, va);

	return mapping ? mapping->holding->allocation : NULL;
}

static inline struct lien_handle *handle_of(uint32_t pid, uint64_t value)
{
	struct lien_handle key = {.value = value};

	return process(pid) ? SPLAY_FIND(lien_handle_tree, &process(pid)->handles, &key) : NULL;
}

static inline unsigned references_of(uint32_t pid, uint64_t value)
{
	struct lien_handle *handle = handle_of(pid, value);

	return handle ? handle->references : ~0u;
}

static inline void assert_nothing_odd(void)
{
	assert_int_equal(lien_graph_stats(graph)->odd, 0);
	assert_int_equal(lien_graph_stats(graph)->unmatched_imports, 0);
}

static inline void assert_counts(unsigned processes, unsigned allocations, unsigned mappings)
{
	assert_int_equal(lien_graph_stats(graph)->processes, processes);
	assert_int_equal(lien_graph_stats(graph)->allocations, allocations);
	assert_int_equal(lien_graph_stats(graph)->mappings, mappings);
}

#endif
