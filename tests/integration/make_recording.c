// SPDX-License-Identifier: BSD-2-Clause
/*
 * Writes recordings as lien record would of made-up jobs, for the replay's tests:
 *
 *   make_recording basic FILE         two ranks: every call that is replayed, and the odd cases
 *   make_recording pairs FILE N       two ranks with N exported 2 MiB buffers each
 *   make_recording ended FILE         an owner that exits while its memory lives on in an importer
 *   make_recording toobig FILE        one create that no device can satisfy
 *   make_recording many FILE N        N processes
 *   make_recording ranks FILE N C S   a job of N ranks and C communicators, each with NCCL's
 * buffers, of which the smallest has S bytes instead of 2 MiB make_recording interrupted FILE
 * basic, killed before it could be closed
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/journal/recording.h"
#include <lien/cuda_abi.h>

#define MIB (1ull << 20)

/* Return addresses in the libraries that each process is said to have. */
#define IN_NCCL	 0x7f1000001000ull
#define IN_TORCH 0x7f2000001000ull

static struct lien_recording *rec;
static uint64_t clock_ns = 1000;

static void check(int err, const char *what)
{
	if (!err)
		return;
	fprintf(stderr, "make_recording: %s: %s\n", what, strerror(-err));
	exit(1);
}

#define EVENT(call, body, p, ...)                                                                  \
	(&(struct lien_event){.size = LIEN_EVENT_SIZE(body),                                       \
		.type = LIEN_CALL_##call,                                                          \
		.outer = LIEN_CALL_##call,                                                         \
		.pid = p,                                                                          \
		.tid = p,                                                                          \
		.start = (p)*1000ull,                                                              \
		.caller = IN_NCCL,                                                                 \
		.body = {__VA_ARGS__}})

/* Announces releasing calls, as the kernel side does. */
static void put(struct lien_event *ev)
{
	struct lien_event entry;

	ev->t_entry = clock_ns++;
	switch (ev->type) {
	case LIEN_CALL_CU_MEM_RELEASE:
	case LIEN_CALL_CU_MEM_UNMAP:
	case LIEN_CALL_CU_MEM_ADDRESS_FREE:
	case LIEN_CALL_CU_MEM_FREE:
		entry = *ev;
		entry.flags |= LIEN_EVENT_ENTRY;
		check(lien_recording_write(rec, &entry), "write");
	}
	ev->t_return = clock_ns++;
	check(lien_recording_write(rec, ev), "write");
}

static void begin_process(uint32_t pid)
{
	struct lien_event ev = {.size = LIEN_EVENT_SIZE(process),
		.type = LIEN_EVENT_PROCESS,
		.pid = pid,
		.tid = pid,
		.start = pid * 1000ull,
		.process = {.complete = 1, .comm = "python3"}};

	put(&ev);
	ev = (struct lien_event){.size = LIEN_EVENT_SIZE(library),
		.type = LIEN_EVENT_LIBRARY,
		.pid = pid,
		.tid = pid,
		.start = pid * 1000ull,
		.library = {.start = IN_NCCL & ~0xfffull,
			.length = 0x100000,
			.inode = 1,
			.name = "libnccl.so.2"}};
	put(&ev);
	ev.library.start = IN_TORCH & ~0xfffull;
	ev.library.inode = 2;
	strcpy(ev.library.name, "libc10_cuda.so");
	put(&ev);
	ev = (struct lien_event){.size = LIEN_EVENT_HEADER,
		.type = LIEN_CALL_CU_INIT,
		.outer = LIEN_CALL_CU_INIT,
		.pid = pid,
		.tid = pid,
		.start = pid * 1000ull,
		.caller = IN_TORCH};
	put(&ev);
}

static void end_process(uint32_t pid)
{
	struct lien_event ev = {.size = LIEN_EVENT_HEADER,
		.type = LIEN_EVENT_EXIT,
		.pid = pid,
		.tid = pid,
		.start = pid * 1000ull};

	put(&ev);
}

static void create(uint32_t pid, uint64_t handle, uint64_t bytes, int device)
{
	put(EVENT(CU_MEM_CREATE, create, pid, .handle = handle, .bytes = bytes,
		.prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
			.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
			.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
			.location_id = device}));
}

static void reserve(uint32_t pid, uint64_t va, uint64_t bytes)
{
	put(EVENT(CU_MEM_RESERVE, reserve, pid, .va = va, .bytes = bytes, .align = 2 * MIB));
}

static void map(uint32_t pid, uint64_t va, uint64_t bytes, uint64_t handle)
{
	put(EVENT(CU_MEM_MAP, map, pid, .va = va, .bytes = bytes, .handle = handle));
}

static void set_access(uint32_t pid, uint64_t va, uint64_t bytes, int device, int peer)
{
	struct lien_event *ev = EVENT(CU_MEM_SET_ACCESS, access, pid, .va = va, .bytes = bytes,
		.count = peer >= 0 ? 2 : 1,
		.access = {{.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
				   .location_id = device,
				   .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
			{.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
				.location_id = peer,
				.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}});

	ev->size = LIEN_EVENT_HEADER + 24 + ev->access.count * sizeof(struct lien_access);
	put(ev);
}

/* reserve, map, set access */
static void show(uint32_t pid, uint64_t va, uint64_t bytes, uint64_t handle, int device)
{
	reserve(pid, va, bytes);
	map(pid, va, bytes, handle);
	set_access(pid, va, bytes, device, -1);
}

static void release(uint32_t pid, uint64_t handle)
{
	put(EVENT(CU_MEM_RELEASE, release, pid, .handle = handle));
}

static void share(uint32_t pid, int call, uint64_t handle, uint64_t number)
{
	struct lien_event *ev = EVENT(CU_MEM_EXPORT, share, pid, .handle = handle, .share = number,
		.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .fd = 40);

	ev->type = call;
	ev->outer = call;
	put(ev);
}

static void unshow(uint32_t pid, uint64_t va, uint64_t bytes)
{
	put(EVENT(CU_MEM_UNMAP, range, pid, .va = va, .bytes = bytes));
	put(EVENT(CU_MEM_ADDRESS_FREE, range, pid, .va = va, .bytes = bytes));
}

static void communicator(uint32_t pid, int rank)
{
	put(EVENT(NCCL_INIT_RANK, comm, pid, .comm = 0x5500000000 + pid, .nranks = 2, .rank = rank,
		.id = {1, 2, 3}));
}

static void basic(void)
{
	const uint32_t a = 101, b = 102;
	struct lien_event *ev;
	const uint64_t va = 0x7e0000000000ull, vb = 0x7d0000000000ull;
	uint64_t i;

	begin_process(a);
	begin_process(b);
	communicator(a, 0);
	communicator(b, 1);

	/* Local buffers; the handle is released once it is mapped. */
	for (i = 0; i < 8; i++) {
		create(a, 0x100 + i, 2 * MIB, 0);
		show(a, va + i * 16 * MIB, 2 * MIB, 0x100 + i, 0);
		release(a, 0x100 + i);
	}
	/* Exported to the peer, each in its own direction; import released after mapping in b. */
	for (i = 0; i < 4; i++) {
		create(a, 0x200 + i, 10 * MIB, 0);
		reserve(a, va + (64 + i) * 16 * MIB, 10 * MIB);
		map(a, va + (64 + i) * 16 * MIB, 10 * MIB, 0x200 + i);
		set_access(a, va + (64 + i) * 16 * MIB, 10 * MIB, 0, 1);
		share(a, LIEN_CALL_CU_MEM_EXPORT, 0x200 + i, 500 + i);
		share(b, LIEN_CALL_CU_MEM_IMPORT, 0x300 + i, 500 + i);
		show(b, vb + i * 16 * MIB, 10 * MIB, 0x300 + i, 1);
		release(b, 0x300 + i);
		create(b, 0x400 + i, 4 * MIB, 1);
		share(b, LIEN_CALL_CU_MEM_EXPORT, 0x400 + i, 600 + i);
		show(b, vb + (64 + i) * 16 * MIB, 4 * MIB, 0x400 + i, 1);
		share(a, LIEN_CALL_CU_MEM_IMPORT, 0x500 + i, 600 + i);
		show(a, va + (128 + i) * 16 * MIB, 4 * MIB, 0x500 + i, 0);
	}
	/* One export, imported twice; one that nobody imports; one within the process. */
	share(a, LIEN_CALL_CU_MEM_EXPORT, 0x200, 700);
	share(b, LIEN_CALL_CU_MEM_IMPORT, 0x600, 700);
	share(b, LIEN_CALL_CU_MEM_IMPORT, 0x601, 700);
	show(b, vb + 4096 * MIB, 10 * MIB, 0x600, 1);
	share(a, LIEN_CALL_CU_MEM_EXPORT, 0x201, 701);
	share(a, LIEN_CALL_CU_MEM_EXPORT, 0x202, 702);
	share(a, LIEN_CALL_CU_MEM_IMPORT, 0x602, 702);
	show(a, va + 4096 * MIB, 10 * MIB, 0x602, 0);

	/* Aliases: once more at a window's flat range, two pieces under one access call. */
	put(EVENT(CU_MEM_RETAIN, retain, a, .va = va, .handle = 0x110));
	reserve(a, va + 8192 * MIB, 1024 * MIB);
	map(a, va + 8192 * MIB, 2 * MIB, 0x110);
	map(a, va + 8194 * MIB, 10 * MIB, 0x203);
	set_access(a, va + 8192 * MIB, 12 * MIB, 0, -1);
	put(EVENT(NCCL_WINDOW_REGISTER, reg, a, .comm = 0x5500000000 + a, .va = va + 8192 * MIB,
		.bytes = 2 * MIB, .handle = 0x7000));
	put(EVENT(NCCL_REGISTER, reg, a, .comm = 0x5500000000 + a, .va = va, .bytes = 2 * MIB,
		.handle = 0x7001));
	put(EVENT(NCCL_REGISTER, reg, b, .comm = 0x5500000000 + b, .va = vb, .bytes = 2 * MIB,
		.handle = 0x7001));
	put(EVENT(NCCL_DEREGISTER, reg, b, .comm = 0x5500000000 + b, .handle = 0x7001));

	/* The application's own memory: of an odd size, and some that is freed again. */
	for (i = 0; i < 3; i++) {
		ev = EVENT(CU_MEM_ALLOC, alloc, a, .va = 0x7c0000000000ull + i * 64 * MIB,
			.bytes = 3000001);
		ev->caller = IN_TORCH;
		put(ev);
	}
	put(EVENT(CU_MEM_FREE, range, a, .va = 0x7c0000000000ull + 64 * MIB));

	/* Freed and made again, the second time with the release's return too late. */
	create(b, 0x800, 2 * MIB, 1);
	show(b, vb + 6144 * MIB, 2 * MIB, 0x800, 1);
	unshow(b, vb + 6144 * MIB, 2 * MIB);
	ev = EVENT(CU_MEM_RELEASE, release, b, .handle = 0x800);
	ev->tid = 9;
	ev->t_entry = clock_ns++;
	ev->flags = LIEN_EVENT_ENTRY;
	check(lien_recording_write(rec, ev), "write");
	create(b, 0x800, 4 * MIB, 1);
	ev->flags = 0;
	ev->t_return = clock_ns++;
	check(lien_recording_write(rec, ev), "write");
	show(b, vb + 6144 * MIB, 4 * MIB, 0x800, 1);

	/* Not replayed: the control library's calls, a failure, an import from outside. */
	ev = EVENT(CU_MEM_CREATE, create, a, .handle = 0x900, .bytes = 2 * MIB);
	ev->flags = LIEN_EVENT_CONTROL;
	put(ev);
	ev = EVENT(CU_MEM_CREATE, create, a, .handle = 0, .bytes = 2 * MIB);
	ev->result = CUDA_ERROR_OUT_OF_MEMORY;
	put(ev);
	share(b, LIEN_CALL_CU_MEM_IMPORT, 0xa00, 0);
	show(b, vb + 7168 * MIB, 2 * MIB, 0xa00, 1);
	unshow(b, vb + 7168 * MIB, 2 * MIB);
	release(b, 0xa00);
}

static void pairs(uint64_t count)
{
	const uint64_t base = 0x7e0000000000ull, peer = 0x7d0000000000ull;
	uint32_t pid;
	uint64_t i;

	for (pid = 101; pid <= 102; pid++)
		begin_process(pid);
	for (i = 0; i < count; i++) {
		for (pid = 101; pid <= 102; pid++) {
			create(pid, 0x1000 + i, 2 * MIB, pid - 101);
			show(pid, base + i * 4 * MIB, 2 * MIB, 0x1000 + i, pid - 101);
			share(pid, LIEN_CALL_CU_MEM_EXPORT, 0x1000 + i, i * 1000 + pid);
		}
		for (pid = 101; pid <= 102; pid++) {
			share(pid, LIEN_CALL_CU_MEM_IMPORT, 0x100000 + i, i * 1000 + 203 - pid);
			show(pid, peer + i * 4 * MIB, 2 * MIB, 0x100000 + i, pid - 101);
		}
	}
}

/* What NCCL 2.28 makes for a communicator, in multiples of its smallest buffer. */
#define OWN	  98
#define TO_PEERS  112 /* exported, each to one peer, every second one of them */
#define LARGE	  5   /* so large */
#define IMPORT_AT 0x7d0000000000ull

/* The first handle of a communicator's buffers, and a place for each. */
static uint64_t number_of(uint64_t comm, uint64_t buffer)
{
	return 1 + comm * (OWN + TO_PEERS) + buffer;
}

static uint64_t size_of(uint64_t buffer, uint64_t small)
{
	return buffer >= OWN && buffer % 2 ? LARGE * small : small;
}

static void peers_of(uint32_t rank, uint32_t ranks, uint64_t comm, uint64_t small)
{
	const uint64_t step = 2 * LARGE * small;
	uint64_t i, bytes, at, number;
	uint32_t from;

	/* From each peer as many as go to it. */
	for (i = 0; i < TO_PEERS; i++) {
		from = (rank + ranks - 1 - i % (ranks - 1)) % ranks;
		number = number_of(comm, OWN + i);
		bytes = size_of(OWN + i, small);
		at = IMPORT_AT + number * step;
		share(101 + rank, LIEN_CALL_CU_MEM_IMPORT, 0x1000000 + number,
			(number << 8) + from);
		reserve(101 + rank, at, bytes);
		map(101 + rank, at, bytes, 0x1000000 + number);
		set_access(101 + rank, at, bytes, rank, -1);
		release(101 + rank, 0x1000000 + number);
	}
}

static void ranks(uint32_t count, uint64_t comms, uint64_t small)
{
	const uint64_t base = 0x7e0000000000ull, step = 2 * LARGE * small;
	uint64_t comm, i, number, bytes;
	uint32_t rank;

	for (rank = 0; rank < count; rank++)
		begin_process(101 + rank);
	for (comm = 0; comm < comms; comm++) {
		for (rank = 0; rank < count; rank++)
			put(EVENT(NCCL_INIT_RANK, comm, 101 + rank,
				.comm = 0x5500000000 + (comm << 12), .nranks = count, .rank = rank,
				.id = {1 + comm, 2, 3}));
		for (rank = 0; rank < count; rank++)
			for (i = 0; i < OWN + TO_PEERS; i++) {
				number = number_of(comm, i);
				bytes = size_of(i, small);
				create(101 + rank, number, bytes, rank);
				show(101 + rank, base + number * step, bytes, number, rank);
				if (i >= OWN)
					share(101 + rank, LIEN_CALL_CU_MEM_EXPORT, number,
						(number << 8) + rank);
			}
		for (rank = 0; rank < count; rank++)
			peers_of(rank, count, comm, small);
	}
}

static void ended(void)
{
	begin_process(101);
	begin_process(102);
	create(101, 0x10, 4 * MIB, 0);
	show(101, 0x7e0000000000ull, 4 * MIB, 0x10, 0);
	share(101, LIEN_CALL_CU_MEM_EXPORT, 0x10, 1);
	share(102, LIEN_CALL_CU_MEM_IMPORT, 0x20, 1);
	show(102, 0x7d0000000000ull, 4 * MIB, 0x20, 0);
	end_process(101);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	uint64_t count = argc > 3 ? strtoull(argv[3], NULL, 0) : 1, i;

	if (argc < 3)
		return 2;
	check(lien_recording_create(argv[2], &rec), argv[2]);
	if (!strcmp(what, "pairs")) {
		pairs(count);
	} else if (!strcmp(what, "ranks") && argc == 6) {
		ranks(count, strtoull(argv[4], NULL, 0), strtoull(argv[5], NULL, 0));
	} else if (!strcmp(what, "ended")) {
		ended();
	} else if (!strcmp(what, "toobig")) {
		begin_process(101);
		begin_process(102);
		create(101, 0x10, 1ull << 45, 0);
	} else if (!strcmp(what, "many")) {
		for (i = 0; i < count; i++)
			begin_process(1000 + i);
	} else {
		basic();
	}
	if (!strcmp(what, "interrupted")) {
		check(lien_recording_flush(rec), "flush");
		_exit(0);
	}
	check(lien_recording_close(rec), "close");
	return 0;
}
