/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of replay scripts share: records by hand, and what is expected to come of them. */
#ifndef TEST_REPLAY_SCRIPT_H
#define TEST_REPLAY_SCRIPT_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/graph/event_check.h"
#include <lien/cuda_abi.h>
#include "tools/replay/script.h"

#define MIB    (1ull << 20)
#define VA     0x7e0000000000ull
#define FD     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define DEVICE CU_MEM_LOCATION_TYPE_DEVICE
#define RW     CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static struct lien_script *script;
static uint64_t now;

static inline int setup(void **state)
{
	(void)state;
	now = 1;
	return lien_script_new(&script);
}

static inline int teardown(void **state)
{
	(void)state;
	lien_script_free(script);
	return 0;
}

static inline void add(struct lien_event ev)
{
	assert_true(lien_event_valid(&ev));
	assert_int_equal(lien_script_add(script, &ev), 0);
}

/* Designated: ADD(CU_MEM_MAP, pid, .map = {...}), and whatever else differs. */
#define EVENT(call, p, ...)                                                                        \
	((struct lien_event){.size = sizeof(struct lien_event),                                    \
		.type = LIEN_CALL_##call,                                                          \
		.outer = LIEN_CALL_##call,                                                         \
		.pid = p,                                                                          \
		.tid = p,                                                                          \
		.start = p,                                                                        \
		.t_entry = now++,                                                                  \
		__VA_ARGS__})
#define ADD(call, p, ...) add(EVENT(call, p, __VA_ARGS__))

static inline void create(uint32_t pid, uint64_t handle)
{
	ADD(CU_MEM_CREATE, pid,
		.create = {.handle = handle, .bytes = 2 * MIB, .prop = {.location_type = DEVICE}});
}

static inline void reserve(uint32_t pid, uint64_t va, uint64_t bytes)
{
	ADD(CU_MEM_RESERVE, pid, .reserve = {.va = va, .bytes = bytes});
}

static inline void map(uint32_t pid, uint64_t va, uint64_t handle)
{
	ADD(CU_MEM_MAP, pid, .map = {.va = va, .bytes = 2 * MIB, .handle = handle});
}

static inline void set_access(uint32_t pid, uint64_t va, uint64_t bytes, uint32_t flags)
{
	ADD(CU_MEM_SET_ACCESS, pid,
		.access = {.va = va,
			.bytes = bytes,
			.count = 1,
			.access = {{.location_type = DEVICE, .flags = flags}}});
}

static inline void share(uint32_t pid, uint16_t call, uint64_t handle, uint64_t number)
{
	struct lien_event ev = EVENT(CU_MEM_EXPORT, pid,
		.share = {.handle = handle, .share = number, .handle_type = FD});

	ev.type = call;
	add(ev);
}

/* Announces a release without its return; returns the record of the return. */
static inline struct lien_event announce(struct lien_event ev, uint32_t tid)
{
	ev.tid = tid;
	ev.flags = LIEN_EVENT_ENTRY;
	add(ev);
	ev.flags = 0;
	return ev;
}

/* The calls of a process, as their numbers: ends with 0. */
static inline void expect(size_t process, ...)
{
	const struct lien_replay_process *p;
	va_list args;
	size_t i;
	int call;

	lien_script_finish(script);
	assert_in_range(process, 0, script->process_count - 1);
	p = script->processes[process];
	va_start(args, process);
	for (i = 0; (call = va_arg(args, int)); i++) {
		assert_in_range(i, 0, p->count - 1);
		assert_string_equal(lien_call_name(p->ops[i].event.type), lien_call_name(call));
	}
	va_end(args);
	assert_int_equal(i, p->count);
}

#define OP(process, i) (&script->processes[process]->ops[i])

#define CREATE	LIEN_CALL_CU_MEM_CREATE
#define RELEASE LIEN_CALL_CU_MEM_RELEASE
#define RETAIN	LIEN_CALL_CU_MEM_RETAIN
#define RESERVE LIEN_CALL_CU_MEM_RESERVE
#define AFREE	LIEN_CALL_CU_MEM_ADDRESS_FREE
#define MAP	LIEN_CALL_CU_MEM_MAP
#define UNMAP	LIEN_CALL_CU_MEM_UNMAP
#define ACCESS	LIEN_CALL_CU_MEM_SET_ACCESS
#define EXPORT	LIEN_CALL_CU_MEM_EXPORT
#define IMPORT	LIEN_CALL_CU_MEM_IMPORT
#define ALLOC	LIEN_CALL_CU_MEM_ALLOC
#define FREE	LIEN_CALL_CU_MEM_FREE
#define INIT	LIEN_CALL_NCCL_INIT_RANK
#define DESTROY LIEN_CALL_NCCL_DESTROY
#define ABORT	LIEN_CALL_NCCL_ABORT

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
