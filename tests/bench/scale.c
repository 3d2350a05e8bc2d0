// SPDX-License-Identifier: BSD-2-Clause
/*
 * What the graph costs when it is large: a job of many processes, each with NCCL's buffers as
 * FACTS.md has them (create, reserve, map, set access; handle kept, or released while mapped), half
 * of them exported and imported by a neighbour. `scale [mappings [processes]]` prints one JSON
 * object.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/graph/graph.h"
#include "agent/plan/plan.h"
#include "agent/views/views.h"
#include <lien/cuda_abi.h>

#define MIB   (1ull << 20)
#define PIECE (2 * MIB)
#define VA    0x7e0000000000ull
#define CODE  0x7f0000000000ull
#define BATCH 4096

static struct lien_graph *graph;
static struct lien_event batch[BATCH];
static unsigned batched;
static double seconds; /* in lien_graph_apply() */
static uint64_t events, now = 1ull << 40;

static double clock_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void flush(void)
{
	double from = clock_s();
	unsigned i;

	for (i = 0; i < batched; i++)
		if (lien_graph_apply(graph, &batch[i])) {
			fprintf(stderr, "scale: the graph refused an event of type %u\n",
				batch[i].type);
			exit(1);
		}
	seconds += clock_s() - from;
	events += batched;
	batched = 0;
}

/* The next record, but for its body. */
static struct lien_event *next(unsigned type, uint32_t process, size_t size)
{
	struct lien_event *event;

	if (batched == BATCH)
		flush();
	event = &batch[batched++];
	memset(event, 0, size);
	event->size = size;
	event->type = type;
	event->pid = event->tid = 1000 + process;
	event->start = 5;
	event->t_entry = now++;
	event->t_return = now++;
	event->outer = type < LIEN_CALL_CU_INIT ? 0 : LIEN_CALL_NCCL_INIT_RANK;
	event->caller = CODE + 0x1234;
	event->scope = 0x5000;
	return event;
}

#define NEXT(type, process, body) next(type, process, LIEN_EVENT_SIZE(body))

static void release_call(unsigned type, uint32_t process, uint64_t name, uint64_t bytes)
{
	struct lien_event *event = NEXT(type, process, range), *returned;

	event->flags = LIEN_EVENT_ENTRY;
	event->range.va = name;
	event->range.bytes = bytes;
	returned = NEXT(type, process, range);
	returned->t_entry = now - 4; /* the announcement's */
	returned->range.va = name;
	returned->range.bytes = bytes;
}

static uint64_t va_of(uint64_t n)
{
	return VA + n * PIECE;
}

static void map(uint32_t process, uint64_t n, uint64_t handle)
{
	struct lien_event *event = NEXT(LIEN_CALL_CU_MEM_RESERVE, process, reserve);

	event->reserve.va = va_of(n);
	event->reserve.bytes = PIECE;
	event = NEXT(LIEN_CALL_CU_MEM_MAP, process, map);
	event->map.va = va_of(n);
	event->map.bytes = PIECE;
	event->map.handle = handle;
	event = next(LIEN_CALL_CU_MEM_SET_ACCESS, process,
		offsetof(struct lien_event, access.access) + sizeof(struct lien_access));
	event->access.va = va_of(n);
	event->access.bytes = PIECE;
	event->access.count = 1;
	event->access.access[0] = (struct lien_access){CU_MEM_LOCATION_TYPE_DEVICE, process % 8, 3};
	if (n % 2)
		release_call(LIEN_CALL_CU_MEM_RELEASE, process, handle, 0);
}

/* Handles are pointers, addresses ascend. */
static uint64_t handle_of(uint64_t n)
{
	return 0x550000000000ull + n * 0x60;
}

static void make(uint32_t process, uint64_t n)
{
	struct lien_event *event = NEXT(LIEN_CALL_CU_MEM_CREATE, process, create);

	event->create.handle = handle_of(n);
	event->create.bytes = PIECE;
	event->create.prop = (struct lien_prop){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
		.location_id = process % 8,
		.rdma = 1};
	map(process, n, handle_of(n));
}

static void export_import(uint32_t from, uint64_t n, uint32_t to, uint64_t at)
{
	static uint64_t share;
	struct lien_event *event;

	event = next(LIEN_CALL_CU_MEM_EXPORT, from, offsetof(struct lien_event, share.key));
	event->share.handle = handle_of(n);
	event->share.share = ++share;
	event->share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event->share.fd = 50;
	event = next(LIEN_CALL_CU_MEM_IMPORT, to, offsetof(struct lien_event, share.key));
	event->share.handle = handle_of(at);
	event->share.share = share;
	event->share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event->share.fd = 51;
	map(to, at, handle_of(at));
}

/* As NCCL frees a buffer that it holds a reference to. */
static void unmake(uint32_t process, uint64_t n)
{
	struct lien_event *event = NEXT(LIEN_CALL_CU_MEM_RETAIN, process, retain);

	event->retain.handle = handle_of(n);
	event->retain.va = va_of(n);
	release_call(LIEN_CALL_CU_MEM_RELEASE, process, handle_of(n), 0);
	release_call(LIEN_CALL_CU_MEM_UNMAP, process, va_of(n), PIECE);
	if (n % 2 == 0)
		release_call(LIEN_CALL_CU_MEM_RELEASE, process, handle_of(n), 0);
	release_call(LIEN_CALL_CU_MEM_ADDRESS_FREE, process, va_of(n), PIECE);
}

static void start(uint32_t process)
{
	struct lien_event *event = NEXT(LIEN_EVENT_PROCESS, process, process);

	event->process.complete = 1;
	strcpy(event->process.comm, "python3");
	event = NEXT(LIEN_EVENT_LIBRARY, process, library);
	event->library.start = CODE;
	event->library.length = MIB;
	event->library.inode = 77;
	strcpy(event->library.name, "libnccl.so.2");
	event = NEXT(LIEN_CALL_NCCL_INIT_RANK, process, comm);
	event->comm.comm = 0x5000;
	event->comm.rank = process;
	event->comm.nranks = 64;
	event->comm.id[0] = 9;
}

static double resident_mib(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long pages = 0;

	if (!file || fscanf(file, "%*u %lu", &pages) != 1)
		exit(1);
	fclose(file);
	return pages * (double)sysconf(_SC_PAGESIZE) / MIB;
}

static double view_ms(void)
{
	double best = 1e9, from;

	for (unsigned i = 0; i < 5; i++) {
		from = clock_s();
		json_decref(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
		from = (clock_s() - from) * 1e3;
		best = from < best ? from : best;
	}
	return best;
}

#define GROUPS 1024

/* A plan of the memory of communicators: of groups that nobody is in, and of one that all are in.
 */
static double plan_ms(unsigned count)
{
	static uint64_t groups[GROUPS];
	struct lien_selection selection = {.groups = groups, .groups_count = count};
	struct lien_plan plan;
	double best = 1e9, from;
	char error[256];

	for (unsigned i = 0; i < count; i++)
		groups[i] = count - 1 - i ? 1000 + i : 9;
	for (unsigned i = 0; i < 3; i++) {
		from = clock_s();
		if (lien_plan_offload(graph, &selection, &plan, error, sizeof(error)))
			exit(1);
		from = (clock_s() - from) * 1e3;
		best = from < best ? from : best;
		lien_plan_clear(&plan);
	}
	return best;
}

static int nothing(void *context, const struct lien_event *event)
{
	(void)event;
	++*(uint64_t *)context;
	return 0;
}

static double rate(void)
{
	double of = events / seconds;

	events = 0;
	seconds = 0;
	return of;
}

int main(int argc, char **argv)
{
	uint64_t mappings = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000000, told = 0;
	uint32_t processes = argc > 2 ? strtoul(argv[2], NULL, 0) : 64, p;
	uint64_t rounds = mappings / processes / 3, i;
	double empty, dump_s, free_s, full, filling, churning, view, plan_one, plan_all;

	/* Every page of what is not the graph's is there before. */
	memset(batch, 0, sizeof(batch));
	if (!processes || !rounds || lien_graph_new(&graph))
		return 1;
	empty = resident_mib();
	for (p = 0; p < processes; p++)
		start(p);
	/* Three mappings a round and process: two of its own, one of which it exports, one import.
	 */
	for (i = 0; i < rounds; i++)
		for (p = 0; p < processes; p++) {
			make(p, 4 * i);
			make(p, 4 * i + 1);
			export_import(p, 4 * i + i % 2, (p + 1) % processes, 4 * i + 2 + i % 2);
		}
	flush();
	filling = rate();
	full = resident_mib();
	view = view_ms();
	plan_one = plan_ms(1);
	plan_all = plan_ms(GROUPS);
	for (i = 0; i < rounds && i < 400000 / processes; i++)
		for (p = 0; p < processes; p++) {
			uint64_t n = 4 * (i * 7919 % rounds) + !(i * 7919 % rounds % 2);

			unmake(p, n);
			make(p, n);
		}
	flush();
	churning = rate();
	dump_s = clock_s();
	lien_graph_dump(graph, nothing, &told);
	dump_s = clock_s() - dump_s;
	printf("{\"mappings\": %llu, \"allocations\": %llu, \"processes\": %llu, \"odd\": %llu, "
	       "\"unmatched\": %llu, \"resident_mib\": %.1f, \"bytes_per_mapping\": %.0f, "
	       "\"events_per_second\": %.0f, \"events_per_second_when_full\": %.0f, "
	       "\"mem_ms\": %.1f, \"plan_ms\": [%.1f, %.1f], \"dump_s\": %.2f, \"dump_events\": "
	       "%llu, ",
		(unsigned long long)lien_graph_stats(graph)->mappings,
		(unsigned long long)lien_graph_stats(graph)->allocations,
		(unsigned long long)lien_graph_stats(graph)->processes,
		(unsigned long long)lien_graph_stats(graph)->odd,
		(unsigned long long)lien_graph_stats(graph)->unmatched_imports, full - empty,
		(full - empty) * MIB / lien_graph_stats(graph)->mappings, filling, churning, view,
		plan_one, plan_all, dump_s, (unsigned long long)told);
	free_s = clock_s();
	lien_graph_free(graph);
	printf("\"free_s\": %.2f}\n", clock_s() - free_s);
	return 0;
}
